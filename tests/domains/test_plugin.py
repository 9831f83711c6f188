"""Fields from outside the package: a distribution with two of them is installed; commands take them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fork_server import ForkServer
from tiny_models import TINY
from written import rows

PLUGIN = Path(__file__).parent.parent / "plugin"
Run = Callable[..., list[str]]

# Runs command lines one after the other in one process, and prints what each has printed as a JSON list.
COMMANDS = """
import contextlib, io, json, sys
from seqmlm.cli import main
printed = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main(command)
        except SystemExit as stop:
            if stop.code:
                raise
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, built and installed into a folder of its own; nothing is downloaded."""
    work = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PLUGIN, work / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--no-compile", "--target", work / "site"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return work / "site"


@pytest.fixture
def seqmlm(site: Path, tracked_workspace: Path, forks: ForkServer) -> Callable[..., list[str]]:
    """Runs command lines where the distribution is installed, and returns what each prints."""
    script = site / "commands.py"  # whose folder Python looks into first
    script.write_text(COMMANDS)

    def seqmlm(*commands: Sequence[object]) -> list[str]:
        told = json.dumps([[str(word) for word in command] for command in commands])
        done = forks.run(told, script=script).ok()
        return list(done.json)

    return seqmlm


@pytest.mark.slow
def test_a_field_with_a_level_and_a_picture_of_its_own(seqmlm: Run, tmp_path: Path) -> None:
    tunes, out, report = tmp_path / "tunes.tune", tmp_path / "rows.jsonl", tmp_path / "report.html"
    classes = ["--label", "home=C4", "--label", "away=F4,B4"]
    _, inspected, _, _, evaluated, filled, classified = seqmlm(
        ["sample", "--domain", "music", "--out", tmp_path, "--n", 25],
        ["data", "inspect", "--domain", "music", tmp_path, "--json"],
        ["train", "--domain", "music", tunes, "--name", "m", *TINY, "--max-steps", 3],
        ["score", "m", tunes, "--set", "per_unit=true", "--out", out, "--report", report],
        ["evaluate", out, "--labels", tmp_path / "truth.json", "--json"],
        ["fill", "m", "C4 _ E4 _", "--json", "--top", 2],
        ["zeroshot", "m", tunes, "--template", "{text} _", *classes],
    )
    assert json.loads(inspected)["records"] == 25
    assert json.loads(filled)["filled"].startswith("C4 ")
    assert [len(mask["candidates"]) for mask in json.loads(filled)["masks"]] == [2, 2]
    assert [json.loads(line)["id"] for line in classified.splitlines()] == [f"tune-{n}" for n in range(25)]
    found = rows(out)
    assert [row["id"] for row in found[:9]] == [f"tune-0#{bar}" for bar in range(1, 9)] + ["tune-1#1"]
    assert len(found) == 25 * 8
    notes = tunes.read_text().splitlines()[1].split()
    assert [unit["unit"] for row in found[:8] for unit in row["per_unit"]] == notes
    assert all(row["score"] == pytest.approx(row["bits_per_unit"]) for row in found)
    page = report.read_text()
    assert "Melody of tune-" in page
    assert "semitone" in page
    told = json.loads(evaluated)
    assert told["rows"] == 25 * 8
    assert told["positives"] == 5  # a bar of every fifth tune


@pytest.mark.slow
def test_a_field_whose_format_is_a_folder(seqmlm: Run, tmp_path: Path) -> None:
    folder, out, report = tmp_path / "stations", tmp_path / "rows.jsonl", tmp_path / "report.html"
    _, inspected, *_ = seqmlm(
        ["sample", "--domain", "weather", "--out", tmp_path, "--n", 8],
        ["data", "inspect", "--domain", "weather", folder, "--json"],
        ["train", "--domain", "weather", folder, "--name", "w", *TINY, "--max-steps", 3],
        ["score", "w", folder, "--set", "per_unit=true", "--out", out, "--report", report],
    )
    assert json.loads(inspected)["records"] == 8 * 36
    found = rows(out)
    assert len(found) == 8 * 36
    days = (folder / "s0.txt").read_text().splitlines()[0].split()
    assert (found[0]["id"], [unit["unit"] for unit in found[0]["per_unit"]]) == (f"s0/{days[0]}", days[1:])
    assert "Over time" in report.read_text()


@pytest.mark.parametrize("field", ["music", "weather"])
def test_its_folder_holds_all_of_it_and_says_so(site: Path, field: str) -> None:
    readme = (site / field / "README.md").read_text()
    files = sorted(file.name for file in (site / field).glob("*.py"))
    assert "__init__.py" in files
    assert [name for name in files if f"`{name}`" not in readme] == []
