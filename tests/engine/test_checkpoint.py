"""Checkpoints: what is read is what was written, torn ones are passed over, a full disk loses nothing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import IO

import pytest
import torch
from disks import Recording
from safetensors.torch import load_file

from seqmlm.engine import checkpoint, durable
from seqmlm.engine.durable import Disk
from seqmlm.errors import StateError

TENSORS = {
    "model": {
        "matrix": torch.arange(12.0).reshape(3, 4).T,
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(3.25, dtype=torch.float64),
        "empty": torch.zeros(0, 5),
        "flags": torch.tensor([True, False, True]),
        "counts": torch.tensor([-1, 1 << 40]),
    },
    "random": {"cpu.0": torch.arange(7, dtype=torch.uint8)},
}


def save(root: Path, step: int, keep_last: int = 10, keep_every: int | None = None) -> Path:
    return checkpoint.save(root, step, TENSORS, {"step": step}, keep_last=keep_last, keep_every=keep_every)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


class Full(Disk):
    """No space is left from the n-th write on, after a part of the data has gone through."""

    def __init__(self, allowed: int, number: int = errno.ENOSPC) -> None:
        self.allowed, self.number = allowed, number

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        if self.allowed == 0:
            handle.write(memoryview(data)[: len(data) // 2])
            raise OSError(self.number, os.strerror(self.number))
        self.allowed -= 1
        super().write(handle, data)


def test_reads_back_what_was_saved(tmp_path: Path) -> None:
    path = save(tmp_path, 50)
    assert path == tmp_path / "step-00000050"
    found = checkpoint.open_checkpoint(path)
    assert (found.step, found.state) == (50, {"step": 50})
    for group, tensors in TENSORS.items():
        for read in (found.tensors(group), load_file(path / f"{group}.safetensors")):
            assert read.keys() == tensors.keys()
            for name, tensor in tensors.items():
                assert read[name].dtype == tensor.dtype
                assert torch.equal(read[name], tensor)


def test_every_file_is_synced_before_the_rename_and_pruning_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    disk = Recording()
    monkeypatch.setattr(durable, "DISK", disk)
    save(tmp_path, 2, keep_last=1)
    order = [entry for entry in disk.log if not entry.startswith("write")]
    assert order == [
        "sync model.safetensors",
        "sync random.safetensors",
        "sync state.json",
        "sync manifest.json",
        "sync step-00000002.tmp",
        "rename step-00000002.tmp step-00000002",
        f"sync {tmp_path.name}",
        "rename step-00000001 step-00000001.tmp",
        "remove step-00000001.tmp",
    ]
    writes = [entry for entry in disk.log if entry.startswith("write")]
    assert writes[-1] == "write manifest.json"
    assert disk.log.index("write manifest.json") > disk.log.index("sync state.json")


def test_keeps_the_newest_and_every_nth(tmp_path: Path) -> None:
    for step in range(1, 8):
        save(tmp_path, step, keep_last=2, keep_every=3)
    assert names(tmp_path) == [f"step-{step:08d}" for step in (3, 6, 7)]


TORN = {
    "truncated tensors": (lambda p: os.truncate(p / "model.safetensors", 40), "model.safetensors"),
    "missing tensors": (lambda p: (p / "random.safetensors").unlink(), "random.safetensors"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "not written to the end"),
    "half a manifest": (lambda p: os.truncate(p / "manifest.json", 30), "cannot be read"),
    "manifest of nothing": (lambda p: (p / "manifest.json").write_text("[]"), "cannot be read"),
    "newer format": (
        lambda p: (p / "manifest.json").write_text(
            json.dumps({**json.loads((p / "manifest.json").read_text()), "format": 99})
        ),
        "format is 99",
    ),
}


@pytest.mark.parametrize("kind", TORN)
def test_a_torn_checkpoint_is_passed_over_with_its_reason(tmp_path: Path, kind: str) -> None:
    save(tmp_path, 1)
    torn = save(tmp_path, 2)
    assert checkpoint.newest_valid(tmp_path) == torn
    tear, reason = TORN[kind]
    tear(torn)
    skipped: list[checkpoint.SkippedCheckpoint] = []
    assert checkpoint.newest_valid(tmp_path, skipped) == tmp_path / "step-00000001"
    assert [each.path for each in skipped] == [torn]
    assert reason in skipped[0].reason
    with pytest.raises(StateError, match="unusable checkpoint"):
        checkpoint.open_checkpoint(torn)
    # Saved again, it is whole again, and nothing is left over.
    assert save(tmp_path, 2) == torn
    assert checkpoint.newest_valid(tmp_path) == torn
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_flipped_byte_in_any_file_is_found(tmp_path: Path) -> None:
    damaged = save(tmp_path, 1)
    names = sorted(path.name for path in damaged.iterdir())
    assert {"manifest.json", "model.safetensors", "state.json"} <= set(names)
    for name in names:
        whole = (damaged / name).read_bytes()
        # A manifest says more than is read of it: what is flipped there is a hash.
        place = whole.index(b'"sha256": "') + 12 if name == "manifest.json" else len(whole) // 2
        (damaged / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        skipped: list[checkpoint.SkippedCheckpoint] = []
        assert checkpoint.newest_valid(tmp_path, skipped) is None
        assert "manifest.json" in skipped[0].reason
        (damaged / name).write_bytes(whole)
    for garbage in (b"[" * 100_000, b"[]", b'{"files": 5, "format": 1}', b"\xff\xfe"):
        whole = (damaged / "manifest.json").read_bytes()
        (damaged / "manifest.json").write_bytes(garbage)
        with pytest.raises(StateError, match="unusable checkpoint"):
            checkpoint.open_checkpoint(damaged)
        (damaged / "manifest.json").write_bytes(whole)
    assert checkpoint.newest_valid(tmp_path) == damaged


def test_nothing_there(tmp_path: Path) -> None:
    assert checkpoint.newest_valid(tmp_path / "missing") is None
    (tmp_path / "step-00000003.tmp").mkdir()
    (tmp_path / "notes").mkdir()
    assert checkpoint.newest_valid(tmp_path) is None
    with pytest.raises(StateError, match="unusable checkpoint"):
        checkpoint.open_checkpoint(tmp_path / "step-00000003")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("allowed", range(11))
def test_a_full_disk_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int, number: int
) -> None:
    before = save(tmp_path, 1)
    monkeypatch.setattr(durable, "DISK", Full(allowed, number))
    if allowed == 10:  # more than the writes of one checkpoint: the test above covers all of them
        save(tmp_path, 2)
        return
    with pytest.raises(StateError, match="no space left to save step-00000002") as raised:
        save(tmp_path, 2)
    assert str(tmp_path) in str(raised.value)
    assert "resume" in str(raised.value)
    assert names(tmp_path) == [before.name]
    assert checkpoint.newest_valid(tmp_path) == before


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot save step-00000001"):
        save(tmp_path / "file", 1)


def test_debris_of_a_killed_save_is_swept_away(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000002.tmp").mkdir()
    (tmp_path / "step-00000002.tmp" / "model.safetensors").write_bytes(b"half")
    save(tmp_path, 3)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]
