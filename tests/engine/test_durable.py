"""A file that is replaced is the old one or the new one, and nobody else may read it before or after."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from disks import Recording

from seqmlm.engine import durable
from seqmlm.errors import StateError


@pytest.mark.parametrize("data", [b"new", lambda file: file.write(b"new")])
def test_a_file_is_replaced_from_bytes_or_by_a_function(data: object, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old and longer")
    durable.replace_file(path, data)  # type: ignore[arg-type]
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_contents_are_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = Recording()
    monkeypatch.setattr(durable, "DISK", disk)
    durable.replace_file(tmp_path / "a", b"x")
    assert [one.split()[0] for one in disk.log] == ["write", "sync", "rename", "sync"]
    assert (disk.log[2].split()[2], disk.log[3]) == ("a", f"sync {tmp_path.name}")


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_failure_leaves_the_old_file_and_no_other(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(durable, "DISK", Recording(operation))
    with pytest.raises(OSError) as caught:
        durable.replace_file(path, b"new")
    assert durable.is_full(caught.value)
    monkeypatch.setattr(durable, "DISK", durable.Disk())
    with pytest.raises(ZeroDivisionError):  # of the function that writes
        durable.replace_file(path, lambda file: file.write(bytes(1 // 0)))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_on_the_disk_with_its_files_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    building = tmp_path / "building"
    (building / "inner").mkdir(parents=True)
    (building / "inner" / "a").write_bytes(b"x")
    disk = Recording()
    monkeypatch.setattr(durable, "DISK", disk)
    durable.move_into_place(building, tmp_path / "done")
    assert disk.log == [
        *("sync inner", "sync a", "sync building"),
        *("rename building done", f"sync {tmp_path.name}"),
    ]
    assert (tmp_path / "done" / "inner" / "a").read_bytes() == b"x"


def test_a_file_that_is_moved_into_place_replaces_the_old_one_only_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    monkeypatch.setattr(durable, "DISK", Recording("sync"))
    with pytest.raises(OSError):
        durable.move_into_place(new, old)
    assert (old.read_bytes(), new.read_bytes()) == (b"old", b"new")
    monkeypatch.setattr(durable, "DISK", durable.Disk())
    durable.move_into_place(new, old)
    assert (old.read_bytes(), new.exists()) == (b"new", False)


def test_a_private_file_is_private_from_its_first_byte_on(tmp_path: Path) -> None:
    path, seen = tmp_path / "a", []
    path.touch(mode=0o644)
    durable.replace_file(path, lambda file: seen.append(os.fstat(file.fileno()).st_mode & 0o777), mode=0o600)
    assert (seen, path.stat().st_mode & 0o777) == ([0o600], 0o600)


IRREGULAR = {
    "link": lambda path: path.symlink_to(path.with_name("elsewhere")),
    "symbolic link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "folder": Path.mkdir,
}


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("kind", IRREGULAR)
def test_nothing_but_a_regular_file_is_replaced(kind: str, tmp_path: Path) -> None:
    path, finished = tmp_path / "a", tmp_path / "finished"
    (tmp_path / "elsewhere").write_bytes(b"precious")
    finished.write_bytes(b"new")
    IRREGULAR[kind](path)
    before = path.lstat()
    for write in (lambda: durable.replace_file(path, b"x"), lambda: durable.move_into_place(finished, path)):
        with pytest.raises(FileExistsError, match=f"{kind}.* of this name, not a regular file"):
            write()
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"
    assert finished.read_bytes() == b"new"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "elsewhere", "finished"]


@pytest.mark.parametrize("taken", ["a link", "a file", "a full folder"])
def test_a_folder_takes_the_place_of_nothing_but_an_empty_one(taken: str, tmp_path: Path) -> None:
    finished, target, other = tmp_path / "finished", tmp_path / "target", tmp_path / "other"
    finished.mkdir()
    other.mkdir()
    if taken == "a link":
        target.symlink_to(other)
    elif taken == "a file":
        target.write_bytes(b"x")
    else:
        target.mkdir()
        (target / "x").touch()
    with pytest.raises(OSError):
        durable.move_into_place(finished, target)
    assert finished.is_dir()
    assert other.is_dir()
    assert target.is_symlink() == (taken == "a link")


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_the_file(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        durable.replace_file(tmp_path / "a", lambda file: os.kill(os.getpid(), signal.SIGKILL))
    os.waitpid(child, 0)
    [left] = tmp_path.iterdir()
    assert re.fullmatch(r"a\.[0-9a-f]{8}\.tmp", left.name)
    others = ["a.12345678.tmpx", "ab.12345678.tmp", "a.1234567g.tmp"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "a.00000000.tmp").symlink_to(tmp_path / others[0])
    durable.replace_file(tmp_path / "a", b"x")
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(["a", "a.00000000.tmp", *others])


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    path, reader_writer = tmp_path / "a", (os.pipe(), os.pipe())
    (come, coming), (go, going) = reader_writer
    child = os.fork()
    if child == 0:

        def slowly(file: object) -> None:
            os.write(coming, b".")
            os.read(go, 1)
            file.write(b"slow")  # type: ignore[attr-defined]

        durable.replace_file(path, slowly)
        os._exit(0)
    os.read(come, 1)
    durable.replace_file(path, b"fast")
    assert path.read_bytes() == b"fast"
    assert len(list(tmp_path.iterdir())) == 2
    os.write(going, b".")
    assert os.waitpid(child, 0)[1] == 0
    assert path.read_bytes() == b"slow"
    assert list(tmp_path.iterdir()) == [path]
    for one in (come, coming, go, going):
        os.close(one)


# Locks


def test_a_passing_lock_takes_no_file_of_the_users_away(tmp_path: Path) -> None:
    path = tmp_path / "poetry.lock"
    path.write_text("versions")
    with durable.FileLock(path, wait=0, passing=True):
        pass
    assert path.read_text() == "versions"


def test_a_passing_lock_leaves_no_file_and_is_not_taken_twice(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with durable.FileLock(path, wait=0, passing=True):
        assert path.exists()
        assert _acquire_elsewhere(path) == "refused"
        with pytest.raises(durable.InUseError, match="in use"):
            durable.FileLock(tmp_path / "." / "lock", wait=0, passing=True).acquire()
    assert not path.exists()


def test_a_lock_on_a_file_that_its_holder_has_removed_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / "lock", durable._try_lock
    again = durable.FileLock(path, wait=0, passing=True)
    taken: list[int] = []

    def removed_once(handle: int) -> bool:
        if not taken:
            path.unlink()  # the holder lets go between our opening and our locking
        taken.append(handle)
        return lock(handle)

    monkeypatch.setattr(durable, "_try_lock", removed_once)
    with again:
        assert len(taken) == 2
        assert path.exists()
        assert _acquire_elsewhere(path) == "refused"


def test_a_lock_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match=r"cannot write .*lock: .*; say so"):
        durable.FileLock(tmp_path / "lock", wait=0, remedy="say so").acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_lock_excludes_a_second_holder_in_the_same_process(tmp_path: Path) -> None:
    with durable.FileLock(tmp_path / "lock"), pytest.raises(StateError, match="the run is in use"):
        durable.FileLock(tmp_path / "lock", wait=0, holder="the run").acquire()
    with durable.FileLock(tmp_path / "lock", wait=0):
        pass


def test_a_refused_lock_does_not_free_the_held_one(tmp_path: Path) -> None:
    with durable.FileLock(tmp_path / "lock"):
        refused = durable.FileLock(tmp_path / "lock", wait=0)
        with pytest.raises(StateError):
            refused.acquire()
        refused.release()
        assert _acquire_elsewhere(tmp_path / "lock") == "refused"


def test_lock_excludes_another_process_and_dies_with_its_holder(tmp_path: Path) -> None:
    lock = durable.FileLock(tmp_path / "lock", wait=0)
    with lock:
        assert _acquire_elsewhere(tmp_path / "lock") == "refused"
    # The other process ends without releasing; its lock goes with it.
    assert _acquire_elsewhere(tmp_path / "lock") == "taken"
    with lock:
        pass


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_workers_do_not_keep_the_lock(tmp_path: Path) -> None:
    """A loader worker outliving its killed parent must not block the resume."""
    lock = durable.FileLock(tmp_path / "lock", wait=0)
    lock.acquire()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    lock.release()
    assert _acquire_elsewhere(tmp_path / "lock") == "taken"
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


def test_lock_in_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="SEQMLM_HOME"):
        durable.FileLock(tmp_path / "file" / "lock").acquire()


def _acquire_elsewhere(path: Path) -> str:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_acquire, path).result()


def _acquire(path: Path) -> str:
    try:
        durable.FileLock(path, wait=0).acquire()
    except StateError:
        return "refused"
    return "taken"
