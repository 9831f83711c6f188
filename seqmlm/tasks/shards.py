"""One request in several processes: each asks about its share of the parts; the rows are then put together.

Shares are consecutive, so that merging is putting files behind each other. The price is that every process
reads the whole input once to count, and once up to its share. Scores that were remembered are forgotten after
every part: else the last bits would depend on where a share begins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any

from seqmlm.config import from_dict
from seqmlm.data.compressed import PACKED, ending
from seqmlm.data.problems import Problems
from seqmlm.engine.durable import entry_of, replace_file
from seqmlm.errors import StateError, UsageError
from seqmlm.parsing import read_json
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.ownership import remember
from seqmlm.streams.sinks import FORMATS
from seqmlm.tasks import reading

BESIDE = ".shard.json"
"""What is added to the name of a finished share, for the file that says what it is of."""


def parse(text: str) -> tuple[int, int]:
    """Number of a share, from 0 on, and how many there are.

    >>> parse("0/3")
    (0, 3)

    Raises:
        UsageError: no I/N with I < N.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if number >= count:
        raise UsageError(f"--shard is I/N, from 0/N on, such as 0/3, 1/3 and 2/3; got {text!r}")
    return number, count


def share_of(task: Any, shard: str, *, sensitive: bool) -> tuple[int, int]:
    """The items of a share, first and one behind the last: as near an Nth of the parts as whole parts are.

    Args:
        task: gives the items (`seqmlm.tasks.task.Task`); they are read once for this.
        shard: I/N.

    Raises:
        DataError: the input cannot be read to its end.
    """
    number, count = parse(shard)
    sizes = list[int]()
    for part in reading.parts(task, Problems("skip", sensitive=sensitive)):
        if part.failure is not None:
            raise part.failure
        sizes.append(len(part.items))
    first, last = (len(sizes) * one // count for one in (number, number + 1))
    return sum(sizes[:first]), sum(sizes[:last])


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a finished file of rows is of.

    Args:
        shard: I/N.
        request: digest of all that decides the rows of every share.
        items: that were asked about.
        sha256: of the file.
    """

    shard: str
    request: str
    items: int
    sha256: str

    @classmethod
    def finish(cls, out: Path, shard: str, request: Mapping[str, Any], items: int, *, private: bool) -> None:
        """Say what a finished file is of, in one beside it."""
        told = json.dumps(request, sort_keys=True, default=str).encode()
        own = cls(
            shard=shard,
            request=hashlib.sha256(told).hexdigest(),
            items=items,
            sha256=str(entry_of(out)["sha256"]),
        )
        text = (json.dumps(asdict(own)) + "\n").encode()
        replace_file(out.with_name(out.name + BESIDE), text, mode=0o600 if private else 0o666)

    @classmethod
    def of(cls, out: Path) -> Share:
        """What a file is of.

        Raises:
            StateError: it is no finished share, or has changed since.
        """
        try:
            own = from_dict(cls, read_json(out.with_name(out.name + BESIDE)))
            found = str(entry_of(out)["sha256"])
        except (OSError, ValueError, UsageError):
            raise StateError(
                f"{out} is no finished share: run its command (--shard I/N) to the end"
            ) from None
        if found != own.sha256:
            raise StateError(f"{out} has changed since it was finished: run its command again")
        return own


def merge(paths: Sequence[Path], out: Path) -> int:
    """Put the rows of all shares of one request into one file, in the order of the input.

    Args:
        paths: of the shares, in any order.
        out: the file; readable by the owner alone where a share is.

    Returns:
        How many items the rows are of.

    Raises:
        UsageError: no shares, or the output is one of them.
        StateError: a share is missing, unfinished, changed, there twice, or of another request.
    """
    if not paths:
        raise UsageError("name the files that --shard wrote")
    if ending(out) not in ("", *(one for one in FORMATS["jsonl"] if not one.endswith(PACKED))):
        raise UsageError(
            f"--out {out}: parts are JSON lines, and so is what they are put into: name a .jsonl"
        )
    check_outputs({"--out": out}, inputs=paths)
    found = {path: Share.of(path) for path in paths}
    first = found[paths[0]]
    other = next((path for path, one in found.items() if one.request != first.request), None)
    if other is not None:
        raise StateError(f"{other} is of another request than {paths[0]}: of another input, model or setting")
    count = parse(first.shard)[1]
    by_number = {parse(one.shard)[0]: path for path, one in found.items()}
    missing = [f"{number}/{count}" for number in range(count) if number not in by_number]
    if missing or len(by_number) != len(found):
        what = f"missing: {', '.join(missing)}" if missing else "one is there twice"
        raise StateError(f"the shares are not complete ({what})")
    ordered = [by_number[number] for number in range(count)]
    private = any(path.stat().st_mode & 0o077 == 0 for path in ordered)
    replace_file(out, lambda file: _put(ordered, file), mode=0o600 if private else 0o666)
    remember(out)
    return sum(one.items for one in found.values())


def _put(paths: Iterable[Path], file: IO[bytes]) -> None:
    for path in paths:
        with path.open("rb") as own:
            copyfileobj(own, file)
