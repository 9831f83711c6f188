"""Settings that are a share of 1 are written as numbers or as percentages, on every surface."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from commands import COMMANDS, CONFIGURED
from fork_server import Run

from seqmlm import plugins
from seqmlm.cli.command import descriptions
from seqmlm.config import arguments_of, from_dict
from seqmlm.domains.code.worktree import read_worktree
from seqmlm.domains.files import Format
from seqmlm.engine.linear import Penalty
from seqmlm.engine.masking.base import options_of
from seqmlm.errors import UsageError
from seqmlm.estimators import Detector
from seqmlm.parsing import Share
from seqmlm.training.config import PretrainConfig

SHARE = re.compile(r"\b(shares? of|shares that|probability|probabilities|the share)\b")
CONFIGS = [*sorted({one.Config for one in CONFIGURED.values()}, key=repr), PretrainConfig]


def sections(kind: type[Any]) -> Iterator[type[Any]]:
    """A config and the configs within it."""
    yield kind
    for hint in get_type_hints(kind).values():
        if dataclasses.is_dataclass(hint):
            yield from sections(hint)  # type: ignore[arg-type]


def number_fields(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Name and type of each field that holds a number, without None."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        kinds = [one for one in get_args(hint) or (hint,) if one is not type(None)]
        if hint == Share or kinds[:1] == [Share]:
            yield name, Share
        elif kinds == [float]:
            yield name, float


SECTIONS = sorted({section for config in CONFIGS for section in sections(config)}, key=repr)


def test_each_number_whose_meaning_is_a_share_may_be_a_percentage() -> None:
    numbers = [
        (kind.__name__, name, hint, descriptions(kind).get(name, ""))
        for kind in SECTIONS
        for name, hint in number_fields(kind)
    ]
    refused = {
        f"{kind}.{name}" for kind, name, hint, meaning in numbers if hint is float and SHARE.search(meaning)
    }
    assert refused == {"DataConfig.mixture_alpha"}, "give it the type seqmlm.parsing.Share"
    assert {"fpr", "prevalence", "validation", "rate"} <= {one[1] for one in numbers if one[2] == Share}


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)
def test_percentages_are_read_in_every_config(kind: type[Any]) -> None:
    for name in (name for name, hint in number_fields(kind) if hint == Share):
        with pytest.raises(UsageError, match=r"must be a share such as 0\.05 or 5%; got 'a fifth'"):
            from_dict(kind, {name: "a fifth"})


def test_percentages_are_read_by_commands_python_and_readers(seqmlm: Run) -> None:
    printed = seqmlm("score", "model", "file", "--fpr", "0.1%", "--print-config").ok()
    assert "\nfpr: 0.001\n" in printed.out
    seqmlm("score", "model", "file", "--fpr", "few").refused(2, "is not a share such as 0.05 or 5%")
    assert Format(read=read_worktree).select_options({"near_duplicates": "80%"}) == {"near_duplicates": 0.8}
    assert Penalty.from_settings({"identity": "62%"}).identity == 0.62
    for rate in ("500%", 0, "none"):
        with pytest.raises(UsageError, match="fpr is a share between 0 and 1"):
            Detector(object(), fpr=rate).fit(["a"])  # type: ignore[arg-type]


def test_percentages_are_read_by_every_masker() -> None:
    shares = {"p", "together", "in_class", "visits", "families"}
    seen = set()
    for masker in (plugins.load("maskers", name) for name in plugins.names("maskers")):
        for name, parameter in options_of(masker).items():
            if name in shares:
                assert "Share" in parameter.annotation, masker
                assert arguments_of(masker.__init__, {name: "20%"}, "masking.options") == {name: 0.2}
                seen.add(name)
    assert seen == shares


def test_help_names_shares() -> None:
    kinds = {one.opts[0]: one.metavar for command in COMMANDS.values() for one in command.params}
    assert kinds["--fpr"] == kinds["--prevalence"] == "SHARE"
