"""gzip and Zstandard: everything before a fault, in memory that no file can make large."""

from __future__ import annotations

import gzip
import io
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.data.compressed import decompress
from seqmlm.data.files import blocks
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError

_WORDS = random.Random(0)
TEXT = b"".join(b"%d %d\n" % (i, _WORDS.getrandbits(64)) for i in range(40_000))


def in_members(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[i : i + 65280]) for i in range(0, len(data), 65280))


def streamed(data: bytes) -> bytes:
    """A frame without its size, with a checksum, of raw, repeated and compressed blocks."""
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    parts = [packer.compress(data), packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), packer.compress(b"")]
    return b"".join([*parts, packer.flush()])


def skippable(data: bytes) -> bytes:
    aside = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"aside"
    return aside + zstandard.compress(data[:1000]) + aside + zstandard.compress(data[1000:])


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "members": in_members,
    "frame": zstandard.compress,
    "streamed": streamed,
    "skippable": skippable,
}


def unpacked(packed: bytes, step: int = 1 << 16) -> tuple[bytes, DataError | None]:
    """What can be had of the data, and the fault."""
    handle, found = io.BytesIO(packed), bytearray()
    head = handle.read(step)
    kind = "gzip" if packed[:2] == b"\x1f\x8b" else "Zstandard"
    try:
        for block in decompress(lambda size: handle.read(min(size, step)), head, "x", kind):
            found += block
    except DataError as error:
        return bytes(found), error
    return bytes(found), None


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("data", [b"", b"a", TEXT, bytes(1_000_000)], ids=["none", "one", "text", "zeros"])
@pytest.mark.parametrize("step", [7, 1 << 16])
def test_data_come_back(packer: str, data: bytes, step: int) -> None:
    assert unpacked(PACKERS[packer](data) + bytes(600), step) == (data, None)


@pytest.mark.parametrize("packer", PACKERS)
def test_of_data_cut_off_all_that_can_be_unpacked_is_kept(packer: str) -> None:
    packed = PACKERS[packer](TEXT)
    found, fault = unpacked(packed[: len(packed) // 2])
    assert fault is not None
    assert "damaged or truncated" in fault.reason
    assert TEXT.startswith(found)
    assert len(found) > len(TEXT) // 2 - 300_000


@pytest.mark.parametrize(("packed", "at"), [(gzip.compress(TEXT), -6), (streamed(TEXT), -1)])
def test_a_wrong_checksum_and_rubbish_behind_the_data_are_faults_and_cost_nothing(
    packed: bytes, at: int
) -> None:
    damaged = bytearray(packed)
    damaged[at] ^= 1
    for faulty in (bytes(damaged), packed + b"rubbish"):
        found, fault = unpacked(faulty)
        assert found == TEXT
        assert fault is not None


def test_damage_keeps_what_the_call_that_met_it_had_unpacked() -> None:
    packed = gzip.compress(TEXT)
    for at in range(1000, len(packed), 20_001):
        found, fault = unpacked(packed[:at] + bytes(3) + b"\xff" * 40 + packed[at + 43 :])
        assert fault is not None
        size = min(len(found), len(TEXT))
        differ = np.flatnonzero(np.frombuffer(found[:size], np.uint8) != np.frombuffer(TEXT[:size], np.uint8))
        same = differ[0] if len(differ) else size
        # Of the bytes before the damage nothing is missing but what is told by those after it.
        assert same >= len(unpacked(packed[: at - 1])[0]) - 1000


@given(st.integers(0, 255), st.integers(0, 10_000), st.sampled_from(sorted(PACKERS)))
def test_no_damage_makes_another_error(byte: int, place: int, packer: str) -> None:
    packed = bytearray(PACKERS[packer](TEXT[:5000]))
    packed[place % (len(packed) - 4) + 4] = byte
    found, fault = unpacked(bytes(packed))
    if packer in ("gzip", "members", "streamed"):  # which have checksums
        assert fault is not None or found == TEXT[:5000]


def rle(blocks: int) -> bytes:
    """A frame of so many blocks of 128 KiB, four bytes each."""
    block = struct.pack("<I", 131072 << 3 | 2)[:3] + b"x"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * blocks + struct.pack("<I", 1 << 3 | 1)[:3] + b"\n"


def test_a_bomb_is_unpacked_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zst"
    path.write_bytes(rle(4000))  # 500 MiB in 16 KB: one read of it holds them all
    assert len(path.read_bytes()) < 17_000
    tracemalloc.start()
    try:
        assert max(map(len, blocks(path))) < 2 << 20
        problems = Problems("skip")
        assert list(lines(path, problems, max_bytes=1 << 20)) == []
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
    assert problems.counts == {"a line longer than the limit of 1,048,576 bytes": 1}


def test_many_tiny_members_take_no_more_than_their_number() -> None:
    member = gzip.compress(b"a")
    steps = 0

    def read(size: int) -> bytes:
        nonlocal steps
        steps += 1
        return member * 4000 if steps < 10 else b""

    assert sum(map(len, decompress(read, b"", "x", "gzip"))) == 36_000


def test_a_frame_that_asks_for_much_memory_is_refused() -> None:
    found, fault = unpacked(b"\x28\xb5\x2f\xfd\x00" + bytes([20 << 3]) + b"\x01\0\0")
    assert found == b""
    assert "ask for 1,024 MiB of memory" in fault.reason
