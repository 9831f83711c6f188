"""Wrong settings of every command are refused before torch, transformers or mlflow is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import settings_without_torch
from commands import COMMANDS, CONFIGURED
from tiny_models import protein_model, saved

from seqmlm.training.config import PretrainConfig

ARGUMENTS = {
    "bias": ("--template", "{group} {attribute}", "--group", "a,b", "--attribute", "c"),
    "risk": ("--code", "x"),
    "zeroshot": ("--template", "{text} [MASK]", "--label", "a=b", "--label", "c=d"),
    "finetune": ("--train", "lines.jsonl", "--label", "x"),
}
"""What a command needs beside a model and a file to have no fault but that of the case."""

ANYTHING = {"variants.first", "variants.cutoff"}
"""Numbers that may be negative: they are counted or measured as a file has them."""

UNUSED = {"train.precision", "train.betas", "data.on_error"}

Case = tuple[str, list[str]]
"""The setting that is wrong, and the command line."""


def _kinds(hint: Any) -> tuple[Any, ...]:
    found = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return tuple(one for one in found if one is not type(None))


def _wrong(name: str, hint: Any) -> Iterator[str]:
    """Values of another kind, choices that are none, numbers out of any range."""
    for kind in _kinds(hint):
        if get_origin(kind) is Literal:
            yield "unheard-of"
        elif kind in (int, float):
            yield from ("several", *([] if name in ANYTHING else ["-7"]))
        elif kind is bool and str not in _kinds(hint):  # a text may be anything
            yield "perhaps"


def _of_tasks(model: Path) -> Iterator[Case]:
    """Every setting of every command that is read from a config."""
    for command, one in CONFIGURED.items():
        hints, words = get_type_hints(one.Config), [command]
        words += [str(model)] if "model" in hints else []
        words += ["lines.jsonl"] if one.Config.metavar else []
        words += ARGUMENTS.get(command, ())
        yield "--unheard-of", [*words, "--unheard-of", "1"]
        yield "unheard_of", [*words, "--set", "unheard_of=1"]
        named = {"mode", "method", "format", "level", "layers", "format_out", "domain", "tune", "max_time"}
        for field in fields(one.Config):
            values = [*_wrong(f"{command}.{field.name}", hints[field.name])]
            values += ["unheard-of"] if field.name in named and not values else []
            yield from ((field.name, [*words, "--set", f"{field.name}={value}"]) for value in values)


def _of_training() -> Iterator[Case]:
    """Every setting of a training."""
    words, hints = ["train", "--domain", "text", "lines.jsonl"], get_type_hints(PretrainConfig)
    yield "--unheard-of", [*words, "--unheard-of", "1"]
    for section in ("data", "train", "model", "tokenizer", "masking"):
        yield f"{section}.unheard_of", [*words, "--set", f"{section}.unheard_of=1"]
        inner = get_type_hints(hints[section])
        for field in fields(hints[section]):
            name = f"{section}.{field.name}"
            for value in _wrong(name, inner[field.name]):
                yield field.name, [*words, "--set", f"{name}={value}"]
    for option in ("--max-time", "--size"):
        yield option.removeprefix("--"), [*words, option, "unheard-of"]
    for name in ("tokenizer.name", "masking.masker", "model.layers", "data.format", "train.max_time"):
        yield name, [*words, "--set", f"{name}=unheard-of"]


def _outcomes(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    script = str(Path(settings_without_torch.__file__))
    given = json.dumps([words for _, words in cases])
    done = subprocess.run([sys.executable, script], input=given, capture_output=True, text=True, cwd=folder)
    assert not done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lines.jsonl").write_text('{"text": "a", "score": 1.0}\n')
    saved(protein_model(), tmp_path / "model")
    return tmp_path


def test_a_wrong_setting_is_refused_without_torch(folder: Path) -> None:
    others = [(words[-1], [*words, "--unheard-of", "1"]) for words in COMMANDS if words[0] not in CONFIGURED]
    cases = [*_of_tasks(folder / "model"), *_of_training(), *others]
    assert len(cases) > 300
    found = zip(cases, _outcomes(cases, folder), strict=True)
    assert not [(words[0], words[-1], one["code"]) for (_, words), one in found if one["code"] != 2]


def test_what_is_right_is_not_refused(folder: Path) -> None:
    """Else the other test would say nothing: without a fault each command comes to load torch or a model."""
    cases = [("", words[:-2]) for name, words in _of_tasks(folder / "nowhere") if name == "unheard_of"]
    for (_, words), one in zip(cases, _outcomes(cases, folder), strict=True):
        if "model" in get_type_hints(CONFIGURED[words[0]].Config):
            assert one["code"] == 4 or "imported" in str(one["code"]), (words, one)
