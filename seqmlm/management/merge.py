"""Merge the rows of all shares of a request (`--shard`) into one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import copyfileobj
from typing import IO

from seqmlm.config import from_dict
from seqmlm.data.compressed import PACKED, ending
from seqmlm.engine.durable import entry_of, replace_file
from seqmlm.errors import StateError, UsageError
from seqmlm.parsing import read_json
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.ownership import remember
from seqmlm.streams.sinks import FORMATS
from seqmlm.tasks.shards import SHARE_SUFFIX, Share, parse


def merge(paths: Sequence[Path], out: Path) -> int:
    """Merge the rows of all shares of one request, in the order of the input.

    Args:
        paths: files of the shares, in any order.
        out: the merged file. If only the owner can read a share, only the owner can read this file.

    Returns:
        The number of items of all shares.

    Raises:
        UsageError: no shares are named, or the output is one of them.
        StateError: a share is missing, unfinished, changed or duplicated, or belongs to another request.
    """
    if not paths:
        raise UsageError("name the files written with --shard")
    if ending(out) not in ("", *(share for share in FORMATS["jsonl"] if not share.endswith(PACKED))):
        raise UsageError(f"--out {out}: merged rows are JSON lines; use a name that ends in .jsonl")
    check_outputs({"--out": out}, inputs=paths)
    shares = {path: share_of_file(path) for path in paths}
    first = shares[paths[0]]
    foreign_path = next((path for path, share in shares.items() if share.request != first.request), None)
    if foreign_path is not None:
        raise StateError(
            f"{foreign_path} does not belong to the same request as {paths[0]}: its input, model or settings "
            "differ; merge only shares of one command"
        )
    count = parse(first.shard)[1]
    by_number = {parse(share.shard)[0]: path for path, share in shares.items()}
    missing = [f"{number}/{count}" for number in range(count) if number not in by_number]
    if missing or len(by_number) != len(shares):
        reason = f"missing: {', '.join(missing)}" if missing else "a share is named twice"
        remedy = "run the missing shares first" if missing else "name each share once"
        raise StateError(f"the shares cannot be merged ({reason}); {remedy}")
    ordered = [by_number[number] for number in range(count)]
    owner_only = any(path.stat().st_mode & 0o077 == 0 for path in ordered)
    replace_file(out, lambda file: _append_files(ordered, file), mode=0o600 if owner_only else 0o666)
    remember(out)
    return sum(share.items for share in shares.values())


def share_of_file(out: Path) -> Share:
    """The facts about the share (I of N) in a file.

    Raises:
        StateError: the file is not a finished share, or has changed since it was finished.
    """
    try:
        share = from_dict(Share, read_json(out.with_name(out.name + SHARE_SUFFIX)))
        digest = str(entry_of(out)["sha256"])
    except (OSError, ValueError, UsageError):
        raise StateError(f"{out} is not a finished share: run its command (--shard I/N) to the end") from None
    if digest != share.sha256:
        raise StateError(f"{out} has changed since it was finished: run its command again")
    return share


def _append_files(paths: Iterable[Path], file: IO[bytes]) -> None:
    for path in paths:
        with path.open("rb") as share_file:
            copyfileobj(share_file, file)
