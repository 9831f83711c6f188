"""From a request to a plan: settings over defaults, mistakes, names, sizes, and what a resume keeps."""

from __future__ import annotations

import io
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from written import written

from seqmlm import plugins
from seqmlm.config import parse_assignments, to_dict
from seqmlm.engine.shapes import SIZES
from seqmlm.errors import StateError, UsageError
from seqmlm.tasks.deadline import seconds
from seqmlm.training.config import (
    LEARNING_RATES,
    SECOND_STAGE_LEARNING_RATE,
    TOKENS_PER_BATCH,
    resolve_config,
)
from seqmlm.training.launch import TrainRequest, plan, request_config
from seqmlm.training.resume import FINISHED, REQUESTS
from seqmlm.workspace import Workspace

TEXT = plugins.domain("text")


def _saved_run(root: Path, name: str, **settings: Any) -> Path:
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    config = plan(TrainRequest(domain="protein", flags=settings), Workspace.locate(root)).config
    (folder / REQUESTS["pretrain"]).write_text(yaml.safe_dump(to_dict(config)))
    return folder


def test_domain_defaults_stand_under_file_flags_and_assignments(tmp_path: Path) -> None:
    file = written(tmp_path / "c.yaml", "seed: 3\ntrain: {clip: 2.0, warmup: 5}\n")
    flags = {"train": {"max_steps": 7, "epochs": None}, "masking": {"masker": "span"}}
    settings = ("train.warmup=9", "model.dropout=0.1")
    config = request_config(TrainRequest(domain="protein", config=file, flags=flags, settings=settings))
    train = [config["train"][name] for name in ("clip", "warmup", "max_steps")]
    assert (config["seed"], train) == (3, [2.0, 9, 7])
    assert (config["masking"]["masker"], config["model"]["dropout"]) == ("span.v1", 0.1)
    assert config["tokenizer"]["name"] == plugins.domain("protein").defaults.tokenizer


def test_printed_config_resolves_to_itself() -> None:
    config = resolve_config(TEXT, {})
    assert resolve_config(TEXT, yaml.safe_load(yaml.safe_dump(to_dict(config)))) == config


def test_options_of_the_default_masker_do_not_reach_another() -> None:
    config = resolve_config(TEXT, {"masking": {"masker": "uniform"}, "tokenizer": {"name": "bpe"}})
    assert (config.masking.options, config.tokenizer.options) == ({}, {})


@pytest.mark.parametrize(("train", "steps"), [({}, 1000), ({"epochs": 2}, None)])
def test_something_ends_the_training(train: dict[str, Any], steps: int | None) -> None:
    assert resolve_config(TEXT, {"train": train}).train.max_steps == steps


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (TrainRequest(), "--domain"),
        (TrainRequest(domain="proteine"), "did you mean 'protein'"),
        *(
            (TrainRequest(domain="protein", settings=(setting,)), message)
            for setting, message in (
                ("trian.clip=1", "did you mean 'train'"),
                ("domain=text", "contradicts"),
                ("masking.masker=spam", "did you mean 'span'"),
                ("tokenizer.name=wordpeice", "unknown tokenizer"),
                ("data.validation=1.5", "between 0 and 1"),
            )
        ),
        *(
            (
                TrainRequest(domain="protein", flags={"model": {"init": "m"}}, settings=(setting,)),
                "together with --init",
            )
            for setting in (
                *("model.dropout=0.3", "tokenizer.name=bpe"),
                *("model.size=tiny", "model.overrides={}"),
            )
        ),
    ],
)
def test_mistakes_are_named(request_: TrainRequest, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        request_config(request_)


def test_a_new_run_gets_a_name_and_a_taken_one_is_refused(tmp_path: Path) -> None:
    workspace = Workspace.locate(tmp_path)
    new = plan(TrainRequest(domain="protein"), workspace)
    assert (new.name[:14], new.resume) == ("protein-small-", False)
    _saved_run(tmp_path, "taken")
    with pytest.raises(StateError, match="--resume taken"):
        plan(TrainRequest(domain="protein", name="taken"), workspace)
    _saved_run(tmp_path, "done")
    (workspace.run_dir("done") / FINISHED).write_text("{}")
    with pytest.raises(StateError, match=r"longer: seqmlm train --resume done, with a higher --max-steps"):
        plan(TrainRequest(domain="protein", name="done"), workspace)
    for name in ("taken", "fresh"):
        request = TrainRequest(domain="protein", name=name, resume="auto")
        assert plan(request, workspace).resume == (name == "taken")


@pytest.mark.parametrize(
    ("config", "model", "settings"),
    [
        ("", {"size": "tiny"}, ()),
        ("", {}, ("model.size=tiny",)),
        ("model: {size: tiny}", {}, ()),
        ("", {"init": "{folder}"}, ()),
        ("", {}, ("model.overrides={num_hidden_layers: 2}",)),
        ("train: {max_time: null, max_steps: 3}", {}, ()),
    ],
)
def test_a_size_that_is_named_is_not_measured(
    tmp_path: Path, config: str, model: dict[str, str], settings: tuple[str, ...]
) -> None:
    """By flag, setting or file, by weights or shape; nor is one without a limit of time."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "c.yaml").write_text(config)
    model = {key: value.format(folder=tmp_path) for key, value in model.items()}
    flags = {"model": model, "train": {} if "max_time" in config else {"max_time": "5m"}}
    request = TrainRequest(domain="protein", config=tmp_path / "c.yaml", flags=flags, settings=settings)
    assert plan(request, Workspace.locate(tmp_path)).candidates == ()
    assert "size" in request_config(request)["model"]


@pytest.mark.parametrize("config", ["", "train: {max_time: 90}"])
def test_a_limit_of_time_leaves_the_size_open(tmp_path: Path, config: str) -> None:
    """The candidates are what the same requests with a size named are planned as."""
    file = written(tmp_path / "c.yaml", config)
    flags: dict[str, Any] = {} if config else {"train": {"max_time": "5m", "max_steps": 3}}
    same: dict[str, Any] = {"domain": "protein", "name": "x", "config": file}

    def request(**model: str) -> TrainRequest:
        return TrainRequest(**same, flags={**flags, "model": model}, settings=("model.dropout=0.1",))

    workspace = Workspace.locate(tmp_path)
    named = tuple(plan(request(size=size), workspace) for size in SIZES)
    decided = plan(request(), workspace)
    assert decided.candidates == named
    assert [one.config.train.tokens_per_batch for one in named] == [TOKENS_PER_BATCH[size] for size in SIZES]
    printed = request_config(request())
    assert "size" not in printed["model"]
    file.write_text(yaml.safe_dump(printed))
    assert plan(TrainRequest(**same), workspace).candidates == named, "what is printed means the same"
    unnamed = plan(replace(request(), name=None), workspace).candidates
    assert [one.name.split("-")[1] for one in unnamed] == list(SIZES)
    assert all(one.directory.name == one.name for one in unnamed)


@pytest.mark.parametrize(
    ("processes", "settings", "rows"),
    [
        (1, (), [1, 2, 8]),
        (2, (), [2, 2, 8]),
        (3, (), [3, 3, 8]),
        (2, ("train.tokens_per_row=2048",), [1, 4, 16]),
    ],
)
def test_every_process_has_a_row_of_a_size_to_be_measured(tmp_path, monkeypatch, processes, settings, rows):
    """Tiny has a single row otherwise, and two processes would be refused; a length that is named stays."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    request = TrainRequest(domain="protein", flags={"train": {"max_time": "5m"}}, settings=settings)
    decided = plan(request, Workspace.locate(tmp_path), processes)
    assert [one.config.loop().rows_per_batch for one in decided.candidates] == rows


def test_standard_input_is_read_once_for_all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b">a\nACD\n")))
    flags = {"train": {"max_time": "5m"}, "data": {"paths": ["-"]}}
    decided = plan(TrainRequest(domain="protein", flags=flags), Workspace.locate(tmp_path))
    [kept] = {path for one in (decided, *decided.candidates) for path in one.config.data.paths}
    assert Path(kept).read_bytes() == b">a\nACD\n"


def test_resume_by_name_needs_no_domain_and_keeps_settings(tmp_path: Path) -> None:
    workspace = Workspace.locate(tmp_path)
    _saved_run(tmp_path, "one", train={"max_steps": 5, "clip": 3.0})
    old = plan(TrainRequest(resume="one", flags={"train": {"max_time": "10m"}}), workspace)
    assert old.config.domain == "protein"
    assert old.config.train.clip == 3.0
    assert (old.config.train.max_steps, old.config.train.max_time) == (None, "10m")
    with pytest.raises(StateError, match="did you mean 'one'"):
        plan(TrainRequest(resume="ome"), workspace)
    with pytest.raises(UsageError, match="two different runs"):
        plan(TrainRequest(resume="one", name="two"), workspace)


@pytest.mark.parametrize(
    "setting", ["seed=9", "masking.rate=0.2", "model.size=tiny", "train.tokens_per_batch=99"]
)
def test_resume_refuses_what_would_change_the_numbers(tmp_path: Path, setting: str) -> None:
    _saved_run(tmp_path, "one")
    with pytest.raises(StateError, match=r"--init one"):
        plan(TrainRequest(resume="one", settings=(setting,)), Workspace.locate(tmp_path))


def test_the_same_command_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.fasta").write_text(">a\nACD\n")
    workspace = Workspace.locate(tmp_path)
    flags = {"data": {"paths": ["my.fasta"]}, "train": {"tokens_per_batch": 100}}
    request = TrainRequest(domain="protein", name="x", resume="auto", flags=flags)
    first = plan(request, workspace)
    assert not first.resume
    first.directory.mkdir(parents=True)
    assert not plan(request, workspace).resume  # killed before its settings were written
    (first.directory / REQUESTS["pretrain"]).write_text(yaml.safe_dump(to_dict(first.config)))
    again = plan(request, workspace)
    assert again.resume
    assert again.config == first.config


def test_lengths_of_batch_and_row_fit() -> None:
    for asked, rows in ((6000, 2), (10000, 3), (4096, 1), (100, 1)):
        settings = {"train": {"tokens_per_batch": asked}, "model": {"size": "tiny"}}
        config = resolve_config(plugins.domain("protein"), settings)
        loop = config.loop()
        assert loop.rows_per_batch == rows
        assert 0 <= rows * config.row_tokens - max(asked, config.model.max_length) < rows


def _never(*_: Any) -> Path:
    raise AssertionError("standard input was read")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.lerning_rate=1", "did you mean 'learning_rate'"),
        ("learning_rate=1", "did you mean 'train.learning_rate'"),
        ("trainn.clip=1", "did you mean 'train'"),
        ("model=null", "must contain keys and values"),
        ("train=5", "must contain keys and values"),
        ("train.clip=much", "must be float"),
        ("train.epochs=0", "above 0"),
        ("train.epochs=.inf", "finite"),
        ("train.learning_rate=0", "above 0"),
        ("train.learning_rate=.nan", "finite"),
        ("train.max_time=10 minutes", "not a duration"),
        ("train.betas=[0.9, 1.5]", "between 0 and 1"),
        ("train.tokens_per_row=-5", "at least 1"),
        ("train.evaluation_records=0", "at least 1"),
        ("seed=99999999999999999999", "64 bits"),
        ("data.mixture_alpha=-1", "0 or more"),
        ("data.format=fastaa", "did you mean 'fasta'"),
        ("data.options.colum=a", "did you mean 'column'"),
        ("model.overrides.hiden_size=8", "did you mean 'hidden_size'"),
        ("model.overrides.vocab_size=8", "determined by the tokenizer"),
        ("model.overrides.hidden_size=wide", "hidden_size must be a whole number"),
        ("model.overrides.num_attention_heads=7", "not a multiple"),
        ("masking={masker: span, options: {max_unit: 3}}", "did you mean 'max_units'"),
        ("masking={masker: span, options: {max_units: many}}", "masking.options.max_units.*must be int"),
        ("masking={masker: position, options: {positions: [a]}}", "masking.options.positions.*must be int"),
        ("masking.options.foo=1", "it takes none"),
        ("tokenizer.options.foo=1", "it takes none"),
        ("tokenizer.vocabulary_size=-5", "at least 1"),
        ("tokenizer={name: bpe, options: {lowercased: true}}", "no option 'lowercased'"),
        ("tokenizer={name: bpe, options: {lowercase: 5}}", "tokenizer.options.lowercase.*must be bool"),
        ("tokenizer={name: events, options: {visit: day}}", "did you mean 'visits'"),
        ("tokenizer={name: kmer, options: {kk: 3}}", "did you mean 'k'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, words: str
) -> None:
    """As assignments and in a file, for a new run and for its settings alone."""
    monkeypatch.setattr("seqmlm.training.launch.save_stdin", _never)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(parse_assignments([setting])))
    flags = {"data": {"paths": ["-"]}}
    for given in ({"settings": (setting,)}, {"config": tmp_path / "c.yaml"}):
        request = TrainRequest(domain="protein", flags=flags, **given)
        for ask in (request_config, lambda one: plan(one, Workspace.locate(tmp_path))):
            with pytest.raises(UsageError, match=f"(?s){words}"):
                ask(request)
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_numbers_that_yaml_reads_as_text_are_numbers_also_in_options() -> None:
    asked = {"masking": {"masker": "span", "options": {"p": "3e-1"}}, "data": {"options": {}}}
    assert resolve_config(plugins.domain("protein"), asked).masking.options == {"p": 0.3}


@pytest.mark.parametrize(
    ("flags", "settings", "rate", "batch"),
    [({"model": {"size": size}}, (), LEARNING_RATES[size], TOKENS_PER_BATCH[size]) for size in SIZES]
    + [
        ({"model": {"init": "any"}}, (), SECOND_STAGE_LEARNING_RATE, None),
        ({"model": {"size": "tiny"}}, ("train.learning_rate=0.5", "train.tokens_per_batch=999"), 0.5, 999),
    ],
)
def test_what_is_printed_has_the_values_that_will_be_used(
    tmp_path: Path, flags: dict[str, Any], settings: tuple[str, ...], rate: float, batch: int | None
) -> None:
    """And what is saved with a run has the same ones, so that they last longer than today's defaults."""
    request = TrainRequest(domain="protein", flags=flags, settings=settings)
    printed = request_config(request)["train"]
    assert printed["learning_rate"] == rate
    assert batch is None or printed["tokens_per_batch"] == batch
    if "init" not in flags["model"]:
        saved = plan(request, Workspace.locate(tmp_path)).config
        assert (saved.train.learning_rate, saved.train.tokens_per_batch) == (rate, batch)
        assert saved.loop().learning_rate == rate


def test_a_word_list_is_kept_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("; polar\ngood\nbad\n")
    settings = (f"masking.options={{words_file: {tmp_path / 'words'}}}", "masking.masker=lexicon")
    decided = plan(TrainRequest(domain="text", settings=settings), Workspace.locate(tmp_path))
    assert decided.config.masking.options == {"words": ["good", "bad"]}


def test_auto_takes_the_newest_unfinished_run_of_the_domain(tmp_path: Path) -> None:
    workspace = Workspace.locate(tmp_path)
    done = _saved_run(tmp_path, "done")
    (done / FINISHED).write_text("{}")
    assert not plan(TrainRequest(domain="protein", resume="auto"), workspace).resume
    _saved_run(tmp_path, "open")
    assert plan(TrainRequest(domain="protein", resume="auto"), workspace).name == "open"
    assert not plan(TrainRequest(domain="text", resume="auto"), workspace).resume


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a b"])
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        plan(TrainRequest(domain="protein", name=name), Workspace.locate(tmp_path))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("90", 90), ("90s", 90), ("1.5h", 5400), ("10m", 600)),
        *((text, None) for text in ("", "ten", "-5m", "0", "5 days")),
    ],
)
def test_durations(text: str, value: float | None) -> None:
    with nullcontext() if value else pytest.raises(UsageError, match="10m"):
        assert seconds(text) == value
