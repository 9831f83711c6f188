"""Rows to splits, once all are on disk: which rows train, how long they are, which tokens they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seqmlm.data.identity import write_trained_on
from seqmlm.data.splits import CALIBRATION, PARTS, TRAIN, Parts, Split
from seqmlm.data.store import LENGTHS, MARKS, OWNERS, SEQUENCES
from seqmlm.engine.types import TokenSpace

TOKEN_COUNTS = "token_counts.npy"
CALIBRATES = "calibration_records.npy"

_CHUNK = 1 << 20  # rows handled at a time
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def divide(folder: Path, split: Split, space: TokenSpace, max_length: int) -> dict[str, Any]:
    """Write the rows and lengths of all parts, the token counts of the training one, and what it was made of.

    The numbers of the records that calibrate are kept, so that these can be read again.

    Args:
        folder: holds what the writers of `seqmlm.data.store` left; their plain files are removed.
        split: decides by the records' marks.
        space: of the tokenizer.
        max_length: no window is longer.

    Returns:
        Statistics: unknown_tokens, length_quantiles, and for each part records, windows, tokens.
    """
    owners, lengths = _plain(folder / OWNERS, np.int64), _plain(folder / LENGTHS, np.int32)
    parts = split.parts(_plain(folder / MARKS, np.int64).reshape(-1, 2))
    statistics: dict[str, Any] = {}
    for part, called in enumerate(PARTS):
        records = int(np.count_nonzero(parts == part))
        written = _write_part(folder, called, owners, lengths, parts == part)
        statistics[called] = {"records": records, **written}
    np.save(folder / CALIBRATES, np.flatnonzero(parts == CALIBRATION))
    write_trained_on(folder, parts == TRAIN)
    by_length = np.zeros(max_length + 1, dtype=np.int64)
    for start in range(0, len(lengths), _CHUNK):
        by_length += np.bincount(lengths[start : start + _CHUNK], minlength=len(by_length))
    counts, statistics["unknown_tokens"] = _count_tokens(folder, owners, lengths, parts, space)
    statistics["length_quantiles"] = _quantiles(by_length)
    np.save(folder / TOKEN_COUNTS, counts)
    for name in (MARKS, OWNERS, LENGTHS):
        (folder / name).unlink()
    return statistics


def _write_part(
    folder: Path, part: str, owners: NDArray[np.int64], lengths: NDArray[np.int32], chosen: NDArray[np.bool_]
) -> dict[str, int]:
    """Write the rows whose records are `chosen` and their lengths, a stretch of rows at a time."""
    stretches = [slice(start, start + _CHUNK) for start in range(0, len(owners), _CHUNK)]
    total = sum(int(np.count_nonzero(chosen[owners[stretch]])) for stretch in stretches)
    tokens = 0
    with (folder / f"{part}.npy").open("wb") as rows_out, (folder / f"{part}_lengths.npy").open("wb") as out:
        _header(rows_out, "<i8", total)
        _header(out, "<i4", total)
        for stretch in stretches:
            rows = np.flatnonzero(chosen[owners[stretch]])
            here = lengths[stretch][rows]
            rows_out.write((rows + stretch.start).astype("<i8").tobytes())
            out.write(here.astype("<i4").tobytes())
            tokens += int(here.sum(dtype=np.int64))
    return {"windows": total, "tokens": tokens}


def _header(out: Any, kind: str, size: int) -> None:
    np.lib.format.write_array_header_1_0(out, {"descr": kind, "fortran_order": False, "shape": (size,)})


def _count_tokens(
    folder: Path,
    owners: NDArray[np.int64],
    lengths: NDArray[np.int32],
    parts: Parts,
    space: TokenSpace,
) -> tuple[NDArray[np.int64], int]:
    """(V,) token counts of the train split; unknown tokens of all parts."""
    counts = np.zeros((2, space.size), dtype=np.int64)
    start = 0
    # Read, not mapped: mapped pages would count as memory of the process until somebody needs them.
    with pa.OSFile(str(folder / SEQUENCES)) as source, pa.ipc.open_stream(source) as batches:
        for batch in batches:
            rows = slice(start, start + len(batch))
            start += len(batch)
            ids = batch.column("ids").values.to_numpy()
            held_out = np.repeat(parts[owners[rows]] != TRAIN, lengths[rows])
            # Ordinary tokens that belong to no unit are never asked: a unigram with them would look worse.
            counted = (batch.column("groups").values.to_numpy() >= 0) | space.is_special[ids]
            ids, held_out = ids[counted], held_out[counted]
            for part in (0, 1):
                counts[part] += np.bincount(ids[held_out == part], minlength=space.size)
    return counts[0], 0 if space.unk is None else int(counts[:, space.unk].sum())


def _quantiles(by_length: NDArray[np.int64]) -> dict[str, int]:
    """Quantiles of window lengths, from how many windows have each length."""
    ends = np.cumsum(by_length)
    at = [int(np.searchsorted(ends, max(1, round(q * int(ends[-1]))))) for q in _QUANTILES]
    return dict(zip(map(str, _QUANTILES), at, strict=True))


def _plain(path: Path, kind: type[np.generic]) -> NDArray[Any]:
    """A file of plain numbers as an array in a memory map."""
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)
