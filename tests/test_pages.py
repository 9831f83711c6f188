"""Pages that are made of the program: one for each command, with its settings; README and what it shows.

python tests/test_pages.py --update    rewrite docs/reference/commands
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from commands import COMMANDS, CONFIGURED
from fork_server import Run
from tiny_models import TINY

from seqmlm import plugins
from seqmlm.cli.command import descriptions
from seqmlm.training.config import PretrainConfig

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference" / "commands"
MADE = "Made by `python tests/test_pages.py --update`."
RECIPE = re.compile(r"^\$ (seqmlm .*)$", re.MULTILINE)


def settings(kind: type[Any], prefix: str = "") -> list[tuple[str, Any, str]]:
    """Name, default and meaning of every setting, those of sections by dotted names."""
    hints, helps, found = get_type_hints(kind), descriptions(kind), []
    for one in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[one.name]):
            found += settings(hints[one.name], f"{prefix}{one.name}.")  # type: ignore[arg-type]
            continue
        default = one.default if one.default is not dataclasses.MISSING else ""
        found.append((f"{prefix}{one.name}", default, helps.get(one.name, "")))
    return found


def table(kind: type[Any], shown: dict[str, str]) -> list[str]:
    """The settings as a table, first those that the command line shows, by name as it shows them."""
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, default, meaning in sorted(settings(kind), key=lambda one: bool(shown) and one[0] not in shown):
        option = f"`{shown.get(name, name)}`"
        value = "" if default in (None, "", ()) else f"`{default}`"
        rows.append(f"| {option} | {value} | {meaning} |".replace("  ", " "))
    return rows


def page(name: str) -> str:
    """The page of a command."""
    lines = [f"# seqmlm {name}", "", MADE, ""]
    if name == "train":
        lines += [
            "Each is `--set NAME=VALUE`, or a line of `--config FILE.yaml`. A share may be written `5%`.",
            "",
            *table(PretrainConfig, {}),
        ]
        return "\n".join(lines) + "\n"
    kind = CONFIGURED[name]
    text = (inspect.getdoc(kind) or "").partition("\nRaises:")[0].strip()
    examples = r"^Example: (.*(?:\n.+)*)$"
    text = re.sub(examples, lambda found: f"```\n{' '.join(found[1].split())}\n```", text, flags=re.MULTILINE)
    shown = {one.name: one.opts[0] for one in COMMANDS[name,].params}
    shown |= {one: one.upper() for one in ("model", "paths") if one in shown}
    lines += [
        text,
        "",
        "Settings without their own flag are passed with `--set NAME=VALUE` (in Python: `NAME=VALUE`).",
    ]
    fields = {one.name for one in dataclasses.fields(kind.Config)}
    plural = [
        f"`{flag}` is `{one}`"
        for one, flag in shown.items()
        if one in fields and one != flag[2:].replace("-", "_") and flag.startswith("--")
    ]
    lines += [f"In Python, a repeatable flag is a plural setting: {', '.join(plural)}."] if plural else []
    lines += [""]
    return "\n".join([*lines, *table(kind.Config, shown)]) + "\n"


def pages() -> dict[str, str]:
    """Every page by its name."""
    names = sorted({"train", *CONFIGURED})
    first = "# Commands that have settings\n\n" + MADE + "\n\n"
    listed = "".join(f"* [seqmlm {name}]({name}.md)\n" for name in names)
    return {"README.md": first + listed, **{f"{name}.md": page(name) for name in names}}


def test_every_command_has_a_current_page() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in PAGES.iterdir()}
    assert found == pages(), "python tests/test_pages.py --update"


def test_readme_is_read_in_two_minutes_and_shows_what_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()) <= 720  # without commands and outputs
    linked = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert "docs/picture.svg" in linked
    assert not [name for name in linked if not (ROOT / name).exists()]


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    pages = [path.relative_to(docs) for path in docs.glob("*/*.md")]
    assert not [path for path in pages if f"({path.as_posix()})" not in index]


FILES = {
    "my_proteins.fasta": ("protein", "protein.fasta", 0),
    "new.fasta": ("protein", "protein.fasta", 1),
    "genome.fa": ("dna", "dna.fasta", 0),
    "new.fa": ("dna", "dna.fasta", 1),
    "app.log": ("logs", "service.log", 0),
    "today.log": ("logs", "service.log", 1),
    "books.txt": ("text", "text.txt", 0),
    "new.txt": ("text", "text.txt", 1),
    "mycode": ("code", "code", 0),
    "patients": ("ehr", "meds", 0),
    "new.py": ("code", "code", 1),
    "new_patients": ("ehr", "meds", 1),
}
"""What README's recipes read: of which field's sample, which file of it, and its seed."""
KNOWN, NEW = {"ehr": 300, "dna": None}, {"ehr": 60, "dna": 4, "logs": 150}
"""Records of the samples that train, and of those that are scored, where it is not the usual number."""


def test_readmes_recipes_run(seqmlm: Run, tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tracked_workspace)
    lines = [line for line in RECIPE.findall(text) if not line.startswith("seqmlm demo")]
    fields = {words[words.index("--domain") + 1] for line in lines if "--domain" in (words := line.split())}
    assert fields == {"code", "dna", "ehr", "logs", "protein", "text"}
    for name, (field, file, seed) in FILES.items():
        if any(name in line.split() for line in lines):
            number = KNOWN.get(field, 150) if seed == 0 else NEW.get(field, 20)
            plugins.domain(field).sample.draw(Path("samples", name), n=number, seed=seed)
            shutil.move(Path("samples", name, file), name)
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "train":
            words += ["--max-steps", "2", *TINY, "--set", "train.evaluation_records=8"]
            words[words.index("--max-time") + 1] = "20s"
        elif "--fpr" in words:
            words[words.index("--fpr") + 1] = "0.2"  # of few records
        seqmlm(*words).ok()


if __name__ == "__main__" and "--update" in sys.argv:
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir()
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")
