"""Documents name only what exists: files, dotted names, commands, options and settings."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import COMMANDS, CONFIGURED

from seqmlm import plugins
from seqmlm.config import parse_assignments
from seqmlm.training.config import resolve_config

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path
    for part in (
        "*.md",
        "docs/*.md",
        "docs/benchmarks/*.md",
        "docs/samples/*.md",
        "seqmlm/**/*.md",
        "examples/**/*.md",
        "benchmarks/**/*.md",
    )
    for path in ROOT.glob(part)
)

_FILE = re.compile(r"\b(?:seqmlm|tests|benchmarks|docs|examples)/[\w./-]*\.(?:py|md|sh|toml)\b")
_DOTTED = re.compile(r"\bseqmlm(?:\.\w+)+\b(?!\()")
_SPAN = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|(?<=[|&$\s]))seqmlm +((?:[^|&#\n]|(?<=\w)\|(?=\w))+)")
_ENTRY = re.compile(r'^(\w+) = "[\w.]+:\w+"$', re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_SETTING = re.compile(r"--set +([\w.]+=[^\s`]+)")


WORDS = 2000
"""A document that is longer is two, or says things twice."""


def _command_lines(text: str) -> Iterator[str]:
    """What follows `seqmlm` in code, one command line each; `a|b` in a command word means either."""
    text = text.replace("\\|", "|").replace("\\\n", " ")
    pieces = [block.group(1) for block in _FENCE.finditer(text)]
    pieces += _SPAN.findall(_FENCE.sub("", text))
    for piece in pieces:
        for found in _COMMAND.finditer(piece):
            words = found.group(1).split()
            choice = next(
                (index for index, word in enumerate(words[:2]) if re.fullmatch(r"\w+(\|\w+)+", word)), None
            )
            for word in words[choice].split("|") if choice is not None else [""]:
                yield " ".join([*words[:choice], word, *words[choice + 1 :]] if choice is not None else words)


def _wrong(line: str) -> str | None:
    """What a command line has that the command does not know."""
    words = shlex.split(line.replace("...", ""))
    if "--" in words:  # behind it stands another command
        inner = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
        if wrong := _wrong(shlex.join(inner)):
            return wrong
    if not words or not words[0][:1].islower():
        return None  # a placeholder such as COMMAND
    path = next((key for key in ((words[0],), tuple(words[:2])) if key in COMMANDS), None)
    if path is None:
        known = {key[0] for key in COMMANDS}
        return None if len(words) == 1 and words[0] in known else f"no command {' '.join(words[:2])}"
    known = {name for parameter in COMMANDS[path].params for name in parameter.opts} | {"--help"}
    given = {re.split("=", word)[0].strip("[]") for word in words if re.match(r"\[?--?[a-z]", word)}
    unknown = given - known
    return f"{' '.join(path)} has no {', '.join(sorted(unknown))}" if unknown else None


def _resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    places = ROOT, path.parent  # a name is of the repository, a link of the document's folder
    assert not [name for name in _FILE.findall(text) if not any((place / name).exists() for place in places)]
    groups = {"seqmlm.domains", "seqmlm.tokenizers", "seqmlm.maskers", "seqmlm.tasks"}
    files = (".db", ".json")
    names = {name for name in _DOTTED.findall(text) if not name.endswith(files) and name not in groups}
    # A schema ("seqmlm.sample.text.v1") is no module either.
    assert not [name for name in names if not name.startswith("seqmlm.sample") and not _resolves(name)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_and_settings_are_known(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    added = _ENTRY.findall(text)  # what the document itself shows how to add
    lines = [line for line in _command_lines(text) if line.split(" ")[0] not in added]
    assert not [wrong for line in lines if (wrong := _wrong(line))]
    of_tasks = {field.name for task in CONFIGURED.values() for field in fields(task.Config)}
    for setting in _SETTING.findall(text):
        if setting.partition("=")[0] in of_tasks:
            continue
        resolve_config(plugins.domain("text"), parse_assignments([setting]))


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_every_help_text_has_an_example_that_its_command_understands(words: tuple[str, ...]) -> None:
    help_text = " ".join(str(COMMANDS[words].help).split())
    examples = help_text.split("Example: ")[1:]
    assert examples, "no example"
    for example in examples:
        found = _COMMAND.search(example)
        assert found, example
        assert tuple(found.group(1).split()[: len(words)]) == words
        assert _wrong(found.group(1)) is None


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("train --domain text --no-such-option 3", "train has no --no-such-option"),
        ("data look", "no command data look"),
        ("train --domain text x.txt", None),
        ("runs show enzymes", None),
    ],
)
def test_what_is_wrong_with_a_command_line_is_found(line: str, wrong: str | None) -> None:
    assert _wrong(line) == wrong


def _anchors(text: str) -> set[str]:
    """The names that GitHub gives to the headings of a document."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    lost = []
    for name, anchor in _LINK.findall(text):
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in _anchors(target.read_text(encoding="utf-8"))):
            lost.append(f"{name}#{anchor}")
    assert not lost


def test_no_document_is_longer_than_a_person_reads() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").split())
        for path in DOCUMENTS
        if path.name != "API.md"  # made of the docstrings, as `docs/commands` is of the settings
    }
    assert len(lengths) > 40
    assert not {name: words for name, words in lengths.items() if words > WORDS}


def test_every_benchmark_is_in_the_results() -> None:
    index = ROOT / "docs" / "BENCHMARKS.md"
    pages = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))
    text = index.read_text(encoding="utf-8")
    assert not [path.name for path in pages if f"(benchmarks/{path.name})" not in text]
    text += "".join(path.read_text(encoding="utf-8") for path in pages)
    scripts = [
        path
        for path in (ROOT / "benchmarks").glob("*.py")
        if "argparse.ArgumentParser(" in path.read_text(encoding="utf-8")
    ]
    assert len(scripts) > 20
    assert not [path.name for path in scripts if f"`benchmarks/{path.name}" not in text]


def test_command_lines_are_found_in_documents() -> None:
    found = list(_command_lines((ROOT / "docs" / "COMMANDS.md").read_text(encoding="utf-8")))
    assert {"runs list", "runs compare"} <= set(found)
    assert any(line.startswith("score app - --max-latency 1s") for line in found)
