"""Outputs: nothing but regular files, each once, none that is read; folders that are whole or not there."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from log_models import write_log_model

from seqmlm.cli import tasks
from seqmlm.errors import StateError, UsageError
from seqmlm.management.merge import merge
from seqmlm.scoring.config import ScoreConfig
from seqmlm.streams.outputs import check_outputs, new_folder
from seqmlm.watch.config import WatchConfig

ROW = '{"id": "a", "source": "f", "line": 1}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text(ROW)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked folder").symlink_to("folder")
    (tmp_path / "folder" / "inner").touch()
    os.link(tmp_path / "file", tmp_path / "hard link")
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket")
    listening.close()
    return tmp_path


IRREGULAR = {
    "link": "a symbolic link",
    "dangling": "a symbolic link",
    "folder": "a folder",
    "linked folder": "a symbolic link",
    "pipe": "a pipe",
    "socket": "a socket",
    "/dev/null": "a device",
    "/dev/stdout": "a symbolic link",
    "/proc/self/fd/1": "a symbolic link",
}


@pytest.mark.parametrize("name", IRREGULAR)
@pytest.mark.parametrize("option", ["--out", "--report"])
def test_only_regular_files_are_written(folder: Path, name: str, option: str) -> None:
    before = {path: os.lstat(path).st_ino for path in folder.rglob("*")}
    with pytest.raises(UsageError, match=f"{option} {name} is {IRREGULAR[name]}") as caught:
        check_outputs({option: Path(name)}, streams=True)
    assert ("standard output" in str(caught.value)) == (option == "--out")
    assert {path: os.lstat(path).st_ino for path in folder.rglob("*")} == before


@pytest.mark.parametrize("name", ["file", "new", "folder/new", "linked folder/new", "none/new", "file/new"])
def test_what_is_absent_or_a_file_is_taken(folder: Path, name: str) -> None:
    check_outputs({"--out": Path(name), "--report": Path("another"), "--track": None}, inputs=["-", "hf:x"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("new", "new"),
        ("new", "./new"),
        ("new", "folder/../new"),
        ("folder/new", "linked folder/new"),
        ("file", "hard link"),
        ("file", "folder/../file"),
    ],
)
def test_two_outputs_are_two_files(folder: Path, first: str, second: str) -> None:
    with pytest.raises(UsageError, match=r"--out and --report are the same file, .*; name two"):
        check_outputs({"--out": Path(first), "--report": Path(second)})


@pytest.mark.parametrize(
    ("out", "read"), [("file", "file"), ("file", "link"), ("hard link", "file"), ("nowhere", "dangling")]
)
def test_no_output_is_an_input(folder: Path, out: str, read: str) -> None:
    with pytest.raises(UsageError, match=f"--out .*{out} is one of the inputs"):
        check_outputs({"--out": folder / out}, inputs=[read])


def test_nothing_is_written_into_the_folder_of_the_model(folder: Path) -> None:
    for name in ("folder/x", "linked folder/x", "folder/deep/x"):
        with pytest.raises(UsageError, match="in the folder of the model"):
            check_outputs({"--out": Path(name)}, folder="folder")
        check_outputs({"--out": Path(name)}, folder="bert-base")
    check_outputs({"--out": Path("folder2")}, folder="folder")
    os.link("folder/inner", "linked file")
    with pytest.raises(UsageError, match="in the folder of the model"):
        check_outputs({"--report": Path("linked file")}, folder="folder")


@pytest.mark.parametrize("suffix", [".partial.jsonl", ".resume.json"])
def test_what_is_kept_beside_the_output_is_neither_read_nor_another_output(folder: Path, suffix: str) -> None:
    Path(f"new.csv{suffix}").touch()
    with pytest.raises(UsageError, match=f"--out new.csv needs new.csv{suffix}, which is one of the inputs"):
        check_outputs({"--out": Path("new.csv")}, inputs=[f"new.csv{suffix}"])
    with pytest.raises(UsageError, match="--out and the table are the same file"):
        check_outputs({"--out": Path("new.csv"), "the table": Path(f"new.csv{suffix}")})
    check_outputs({"--report": Path("new.html")}, inputs=[f"new.html{suffix}"])


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"

    def fail() -> None:
        with new_folder(out) as building:
            (building / "a").touch()
            raise OSError(5, "Input/output error")

    with pytest.raises(StateError, match=r"cannot write .*out: Input/output error"):
        fail()
    assert list(out.parent.iterdir()) == []
    with new_folder(out) as building:
        (building / "a").touch()
        assert not out.exists()
        with pytest.raises(StateError, match="in use by another process"), new_folder(out):
            pass
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["a"]
    with pytest.raises(StateError, match="already exists"), new_folder(out):
        pass


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "pipe"])
def test_a_folder_takes_no_others_place(folder: Path, kind: str) -> None:
    before = os.lstat(kind).st_ino
    with pytest.raises(StateError, match="already exists"), new_folder(Path(kind)):
        pass
    assert os.lstat(kind).st_ino == before


def test_what_a_killed_process_left_of_a_folder_goes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = os.fork()
    if child == 0:
        with new_folder(out) as building:
            (building / "half").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert not out.exists()
    assert [path.name for path in tmp_path.glob(".out.*.building/*")] == ["half"]
    mine = tmp_path / ".out.building"
    mine.mkdir()  # no name that is given here
    with new_folder(out) as building:
        (building / "whole").touch()
    mine.rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["whole"]


@pytest.mark.parametrize(
    ("command", "domain", "written", "others"),
    [
        ("score", "logs", (".parquet",), (".bed", ".npy", ".vcf")),
        ("score", "protein", (".csv",), (".bed", ".npy")),
        ("score", "dna", (".bed", ".bedgraph.gz"), (".npy", ".vcf")),
        ("variants", "protein", (".csv",), (".vcf", ".npy")),
        ("variants", "dna", (".vcf", ".vcf.gz"), (".npy",)),
        ("generate", "text", (".txt",), (".fasta", ".npy")),
        ("generate", "protein", (".fasta",), (".npy",)),
        ("embed", "logs", (".npy",), (".bed", ".vcf")),
        ("zeroshot", "text", (".tsv.gz",), (".npy", ".bed")),
    ],
)
def test_an_unknown_ending_is_answered_with_those_that_are_written(
    command: str, domain: str, written: tuple[str, ...], others: tuple[str, ...], tmp_path: Path
) -> None:
    config = tasks()[command].load().Config(model=str(tmp_path), domain=domain, out=Path("x.foo"))
    with pytest.raises(UsageError, match=r"the ending \.foo is unknown") as error:
        config.check_ending()
    listed = {word.strip(",;") for word in str(error.value).split()}
    assert {*written} <= listed
    assert not {*others} & listed


def test_the_field_of_a_model_says_which_endings_are_written(tmp_path: Path) -> None:
    write_log_model(tmp_path / "model")
    with pytest.raises(UsageError, match=r"the ending \.foo is unknown") as error:
        ScoreConfig(model=str(tmp_path / "model"), paths=("a.log",), out=Path("x.foo")).check_ending()
    assert ".bed" not in str(error.value)


def test_a_watching_and_joined_shares_write_json_lines_alone() -> None:
    for name in ("x.foo", "x.csv", "x.npy", "x.jsonl.gz", "x.xlsx"):
        with pytest.raises(UsageError, match="writes JSON lines") as error:
            WatchConfig(model="m", paths=("a.log",), out=Path(name)).check()
        assert ".npy" not in str(error.value).replace(name, "")
        with pytest.raises(UsageError, match=r"ends in \.jsonl"):
            merge([Path("a.jsonl")], Path(name))
