"""The entry point: closed and broken streams, what the system refuses, names that a terminal would obey."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fork_server import Run
from tiny_models import protein_model, residues, saved

from seqmlm import cli

NASTY = "\x1b]0;x\x07\x1b[2J\r\x9b\u200f\u202e\u2066\u2028"
"""What sets a terminal's title, clears it, goes back to the line's beginning, and turns text round."""
ACTS = {*NASTY} - {*"]0;x[2J"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(protein_model(), tmp_path_factory.mktemp("model"))


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "p.fasta"
    path.write_text("".join(f">p{n}\n{residues(9 + n % 7)}\n" for n in range(600)))
    return path


def shell(line: str, *arguments: object) -> tuple[list[int], str, str]:
    """Exit codes of a line of shell in which `run` is the program, its stdout and stderr."""
    program = f'run() {{ {sys.executable} -m seqmlm "$@"; }}; {line}; echo ${{PIPESTATUS[@]}} >&9'
    read, write = os.pipe()
    done = subprocess.run(
        ["bash", "-c", program.replace(">&9", f">&{write}"), "bash", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        pass_fds=[write],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    os.close(write)
    with os.fdopen(read) as codes:
        return [int(code) for code in codes.read().split()], done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "codes", "said"),
    [
        ("run db current >&-", [4], "error: standard output is closed"),
        ("run db current >/dev/full", [4], "error: the disk is full"),
        ("run db current | true", [0, 0], ""),
        ("run --version | true", [0, 0], ""),
    ],
)
def test_streams_that_are_closed_full_or_not_read(workspace: Path, line: str, codes: list[int], said: str):
    found, _, err = shell(line)
    assert found == codes, err
    assert err.startswith(said)
    assert len(err.splitlines()) == bool(said), "one sentence, and no words of the interpreter's"


def test_whoever_stops_reading_rows_has_what_was_wanted(workspace: Path, model: Path, fasta: Path) -> None:
    codes, out, err = shell('run score "$@" | head -n 1', model, fasta)
    assert codes == [0, 0], err
    assert json.loads(out)["id"] == "p0"
    assert "Traceback" not in err + out
    assert "Exception ignored" not in err


def test_rows_need_an_open_output(workspace: Path, model: Path, fasta: Path) -> None:
    codes, _, err = shell('run score "$@" >&-', model, fasta)
    assert codes == [4], err
    assert "error: cannot write to standard output" in err
    out = workspace / "x.jsonl"
    codes, _, _ = shell('run score "$@" <&- >&- 2>&-', model, fasta, "--out", out)
    assert (codes, len(out.read_text().splitlines())) == ([0], 600)


def test_a_closed_standard_input_is_an_empty_one(seqmlm: Run, model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", None)
    done = seqmlm("score", model, "-").refused(3)
    assert done.err.splitlines()[-1].startswith("error: -: standard input is empty")
    sys.stdin.close()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "p.fasta"), 3, "p.fasta: No such file"),
        (OSError(30, "Read-only file system", "/mnt/x"), 4, "/mnt/x: Read-only file system"),
        (OSError(28, "No space left on device"), 4, "the disk is full"),
        (BrokenPipeError(32, "Broken pipe"), 4, "Broken pipe"),
        (ConnectionResetError(104, "Connection reset by peer"), 4, "Connection reset by peer"),
        (MemoryError(), 1, "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), 1, "nested too deeply"),
    ],
)
def test_what_nobody_expected_is_one_sentence_and_debug_shows_it(
    seqmlm: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("seqmlm.tasks.run.run", fail)
    done = seqmlm("score", "m", "p.fasta").refused(code)
    assert done.err.startswith("error: ")
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    monkeypatch.setenv("SEQMLM_DEBUG", "1")
    with pytest.raises((type(error), cli._BrokenPipe)):
        seqmlm("score", "m", "p.fasta")


def test_a_place_that_is_read_only_is_said(
    seqmlm: Run, model: Path, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def read_only(path: Any, flags: int, *further: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path / "mount")):
            raise OSError(30, "Read-only file system", str(path))
        return opened(path, flags, *further, **named)

    (tmp_path / "mount").mkdir()
    monkeypatch.setattr(os, "open", read_only)
    for option, name in (("--out", "x.jsonl"), ("--report", "x.html")):
        done = seqmlm("score", model, fasta, option, tmp_path / "mount" / name)
        done.refused(4, "Read-only file system")
        assert list((tmp_path / "mount").iterdir()) == []


def test_terminals_and_pages_do_not_obey_what_data_say(
    seqmlm: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = NASTY.replace("\r", "") + ".fasta"
    Path(name).write_text(f">{NASTY}\n{residues(30)}\n>bad\nM1\n")
    outs = []
    raised = seqmlm("score", model, name).refused(3, r"\x1b]0;x\x07")
    skipped = seqmlm("score", model, name, "--on-error", "skip", "--report", "r.html").ok()
    assert json.loads(skipped.out)["source"] == name
    missing = seqmlm("score", f"none{NASTY}", name)
    assert missing.code != 0
    outs += [raised, skipped, missing]
    for arguments in (
        ("-d", "protein", name),
        ("-d", "text", name, "--format", "plain"),
        ("-d", "logs", name),
    ):
        outs.append(seqmlm("data", "inspect", *arguments))
        outs.append(seqmlm("data", "inspect", *arguments, "--json"))
    for done in outs:
        assert not ACTS & {*done.out, *done.err}, ascii(done)
    page = Path("r.html").read_text()
    assert not ACTS & {*page}
    assert r"\x1b[2J" in page
    assert page.count("<script") == 1


def test_no_module_of_the_command_line_prints_but_one() -> None:
    for path in Path(cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert path.name == "output.py" or called not in (
                    "print",
                    "typer.echo",
                    "sys.stdout.write",
                ), f"{path}:{node.lineno}: use say or tell of seqmlm.cli.output"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("scor", "; did you mean 'score'?"),
        ("inspect", "; did you mean 'seqmlm data inspect'?"),
        ("show", "; did you mean 'seqmlm runs show' or 'seqmlm models show' or 'seqmlm incidents show'?"),
        ("xyz", "; known: assays, "),
    ],
)
def test_an_unknown_command_is_told_what_was_meant(given, meant, seqmlm) -> None:
    done = seqmlm(given)
    assert done.code == 2
    assert done.err.startswith(f"error: no command {given!r}{meant}")
