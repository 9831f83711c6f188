"""An option means the same in every command that takes it, and its help text is a sentence."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args, get_origin, get_type_hints

import pytest
from commands import COMMANDS as LEAVES
from fork_server import Run

from seqmlm.cli import tasks
from seqmlm.cli.command import setting
from seqmlm.cli.options import merged

COMMANDS = {" ".join(words): command for words, command in LEAVES.items()}

# Option -> commands in which it takes other values (fewer policies, a format to show).
OWN = {
    "--format": {"data formats", "models export"},
    "--on-error": {"calibrate", "data export"},
    "--option": set(),
    "--seed": set(),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_text_is_a_sentence(name: str) -> None:
    for parameter in COMMANDS[name].params:
        text = getattr(parameter, "help", None)
        if parameter.name == "help":
            continue
        assert text, f"{name}: {parameter.name} has no help text"
        assert text[0].isupper(), text
        assert text.endswith("."), text


@pytest.mark.parametrize(
    "name", ["train", "score", "review", "calibrate", "evaluate", "structure", "variants"]
)
def test_what_few_need_is_a_setting(name: str) -> None:
    options = [one for one in COMMANDS[name].params if one.param_type_name == "option" and one.name != "help"]
    assert len(options) <= 14


@pytest.mark.parametrize("option", OWN)
def test_a_shared_option_has_one_help_text(option: str) -> None:
    texts = {
        parameter.help
        for name, command in COMMANDS.items()
        if name not in OWN[option]
        for parameter in command.params
        if option in parameter.opts
    }
    assert len(texts) == 1, texts


def test_help_has_panels_and_flags_without_a_type(seqmlm: Run) -> None:
    told = seqmlm("score", "--help").ok().out
    assert [told.index(f" {name} ─") for name in ("Options", "Input", "Output", "More options")] == sorted(
        told.index(f" {name} ─") for name in ("Options", "Input", "Output", "More options")
    )
    for command in ((), ("score",), ("train",), ("runs", "list")):
        assert not {"bool", "<str>"} & {*seqmlm(*command, "--help").ok().out.split()}


def test_positional_paths_come_before_those_of_data() -> None:
    assert merged(None, None) == []
    assert merged(["a"], ["b", "c"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("command", "option", "setting"),
    [
        ("train", "--masker", "masking.masker"),
        ("train", "--tokenizer", "tokenizer.name"),
        ("train", "--on-error", "data.on_error"),
        ("score", "--format", "format"),
    ],
)
def test_an_option_that_is_a_setting_is_refused_by_its_name(
    seqmlm: Run, command: str, option: str, setting: str
) -> None:
    seqmlm(command, "x", option, "y").refused(2, f"no option {option}, but a setting: --set {setting}=VALUE")
    unknown = seqmlm(command, "x", f"{option}s", "y")
    assert (unknown.code, "No such option" in unknown.err, "--set" in unknown.err) == (2, True, False)


def test_a_watching_has_no_policy_for_bad_records(seqmlm: Run) -> None:
    """Nothing in a file ends a watching, so no option and no setting says whether it may."""
    tried = seqmlm("watch", "x", "y.log", "--on-error", "raise")
    assert (tried.code, "No such option" in tried.err, "--set" in tried.err) == (2, True, False)
    seqmlm("watch", "x", "y.log", "--set", "on_error=raise").refused(2, "--set on_error: no such setting")
    assert "on_error" not in seqmlm("watch", "x", "y.log", "--print-config").ok().out


@pytest.mark.parametrize("name", tasks())
def test_every_setting_has_a_choice(name: str) -> None:
    """A setting with one value is none, and what all objects of a class share is none either."""
    config = tasks()[name].load().Config
    for field, hint in get_type_hints(config).items():
        if get_origin(hint) is ClassVar:
            assert setting(config, field) is None, field
        else:
            assert get_origin(hint) is not Literal or len(get_args(hint)) > 1, field
