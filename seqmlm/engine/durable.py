"""Writing that survives a kill or a power cut, in one place, so that a test can stop at each operation."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

# The names safetensors gives to element types (https://github.com/huggingface/safetensors, "Format").
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Disk:
    """The operations a checkpoint is made of. Tests replace it by one that fails, or kills, at the n-th."""

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        """Write all of `data` to an unbuffered file; the system takes at most 2 GiB at a time."""
        rest = memoryview(data)
        while rest:
            rest = rest[handle.write(rest) :]

    def sync(self, path: Path) -> None:
        """Force a closed file, or the entries of a folder, onto the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder)


def is_full(error: OSError) -> bool:
    """Whether an operation failed because no more can be stored: full disk, quota or file size limit."""
    return error.errno in _FULL


class _Hashed:
    """A file being written, with the size and SHA-256 of what has gone into it."""

    def __init__(self, disk: Disk, handle: IO[bytes]) -> None:
        self._disk, self._handle = disk, handle
        self.size, self._hash = 0, hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        self._disk.write(self._handle, data)
        self._hash.update(data)
        self.size += len(data)

    def entry(self) -> dict[str, int | str]:
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def write_bytes(path: Path, data: bytes, disk: Disk) -> dict[str, int | str]:
    """Write and sync a small file; returns its manifest entry {size, sha256}."""
    with open(path, "wb", buffering=0) as handle:
        file = _Hashed(disk, handle)
        file.write(data)
    disk.sync(path)
    return file.entry()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], disk: Disk) -> dict[str, int | str]:
    """Write and sync a safetensors file tensor by tensor; returns its manifest entry {size, sha256}.

    safetensors' own `save_file` reads the result once more to be hashed and reports a full disk as an error
    of its own without the errno; the format is an 8-byte length, a JSON header and the raw bytes.

    Args:
        tensors: dense tensors on the CPU; tensors that share memory are written twice.
    """
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as handle:
        file = _Hashed(disk, handle)
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            if tensor.numel():
                file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    disk.sync(path)
    return file.entry()


def matches(path: Path, entry: Mapping[str, int | str]) -> bool:
    """Whether a file has the size and SHA-256 of its manifest entry."""
    if not path.is_file() or path.stat().st_size != entry["size"]:
        return False
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest() == entry["sha256"]
