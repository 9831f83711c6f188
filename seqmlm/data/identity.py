"""Identify the training records of a model with keyed hashes, which cannot be turned back into records."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IDENTITIES = "identities.bin"  # plain numbers of all records, until the records are divided
TRAINED_ON, SALT = "trained_on.npy", "trained_on_salt.npy"

MOST = 4_000_000
"""Largest number of stored hashes. With more records, those with the smallest hashes are kept."""

Hashes = NDArray[np.uint64]


def new_salt() -> NDArray[np.uint8]:
    """(16,) random bytes as the key of the hashes, so that a precomputed table of records is useless."""
    return np.frombuffer(os.urandom(16), dtype=np.uint8)


def identity_hash(identity: str, salt: bytes) -> int:
    """A keyed, unsigned 64-bit hash of a record's identity."""
    data = identity.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=salt).digest(), "little")


def write_trained_on(folder: Path, trains: NDArray[np.bool_]) -> None:
    """Write the sorted hashes of the training records (at most `MOST`), and delete the hashes of all records.

    Args:
        folder: the folder of `seqmlm.data.store.RecordWriter`.
        trains: (N,) True for training records.
    """
    hashes = np.fromfile(folder / IDENTITIES, dtype="<u8").astype(np.uint64)
    np.save(folder / TRAINED_ON, np.unique(hashes[trains])[:MOST])
    (folder / IDENTITIES).unlink()


class TrainedOn:
    """Tells whether a model was trained on a record.

    Args:
        corpora: for each corpus, the sorted hashes (K,) and the 16 bytes of their key.
    """

    def __init__(self, corpora: Iterable[tuple[Hashes, bytes]]) -> None:
        self.corpora = [(np.asarray(hashes, dtype=np.uint64), bytes(salt)) for hashes, salt in corpora]

    @classmethod
    def of_prepared(cls, folders: Iterable[Path]) -> TrainedOn:
        """Read the hashes from cache entries of `seqmlm.data.prepare.prepare`."""
        return cls((np.load(folder / TRAINED_ON), np.load(folder / SALT).tobytes()) for folder in folders)

    @classmethod
    def of(cls, identities: Iterable[str]) -> TrainedOn:
        """Compute the hashes from the identities of at most `MOST` records."""
        salt = new_salt().tobytes()
        hashes = {identity_hash(identity, salt) for identity in identities}
        return cls([(np.array(sorted(hashes), dtype=np.uint64), salt)])

    def __contains__(self, identity: object) -> bool:
        """Whether a record with this identity is a training record.

        Beyond `MOST` records, only some are known.
        """
        for hashes, salt in self.corpora:
            identity_code = np.uint64(identity_hash(str(identity), salt))
            at = int(np.searchsorted(hashes, identity_code))
            if at < len(hashes) and hashes[at] == identity_code:
                return True
        return False

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Hashes and keys by name."""
        arrays: dict[str, NDArray[Any]] = {}
        for number, (hashes, salt) in enumerate(self.corpora):
            arrays[f"{number}/hashes"] = hashes
            arrays[f"{number}/salt"] = np.frombuffer(salt, dtype=np.uint8)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> TrainedOn:
        """Restore the result of `to_arrays`."""
        names = sorted({name.split("/")[0] for name in arrays}, key=int)
        return cls((arrays[f"{name}/hashes"], arrays[f"{name}/salt"].tobytes()) for name in names)
