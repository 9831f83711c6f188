"""Divide one request among several processes: each processes its share of the parts.

Shares are consecutive, so `seqmlm.management.merge` only concatenates files. The cost: every process reads
the whole input once to count, and reads it again up to its share. Remembered scores are cleared after every
part. Otherwise the last bits would depend on where a share begins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.engine.durable import entry_of, replace_file
from seqmlm.errors import UsageError
from seqmlm.tasks import reading

SHARE_SUFFIX = ".shard.json"
"""Suffix of the file with the facts about a finished share, which is next to its rows."""


def parse(text: str) -> tuple[int, int]:
    """The number of a share (from 0) and the number of shares.

    >>> parse("0/3")
    (0, 3)

    Raises:
        UsageError: the text is not I/N with I < N.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if number >= count:
        raise UsageError(f"--shard must be I/N and counts from 0, such as 0/3, 1/3 and 2/3; got {text!r}")
    return number, count


def share_of(task: Any, shard: str) -> tuple[int, int]:
    """The items of a share, as a half-open range. A share has about an Nth of the parts.

    Args:
        task: the `seqmlm.tasks.task.Task` that gives the items. They are read once to count them.
        shard: I/N.

    Raises:
        DataError: the input cannot be read to its end.
    """
    number, count = parse(shard)
    sizes = list[int]()
    for part in reading.parts(task, Problems("skip")):
        if part.failure is not None:
            raise part.failure
        sizes.append(len(part.items))
    first, last = (len(sizes) * end // count for end in (number, number + 1))
    return sum(sizes[:first]), sum(sizes[:last])


@dataclass(frozen=True, kw_only=True)
class Share:
    """The facts about a finished share, which identify the rows in its file.

    Args:
        shard: I/N.
        request: digest of everything that determines the rows of all shares.
        items: number of processed items.
        sha256: SHA-256 of the file.
    """

    shard: str
    request: str
    items: int
    sha256: str

    @classmethod
    def finish(cls, out: Path, shard: str, request: Mapping[str, Any], items: int) -> None:
        """Write the facts about a finished file to a file next to it."""
        request_json = json.dumps(request, sort_keys=True, default=str).encode()
        share = cls(
            shard=shard,
            request=hashlib.sha256(request_json).hexdigest(),
            items=items,
            sha256=str(entry_of(out)["sha256"]),
        )
        text = (json.dumps(asdict(share)) + "\n").encode()
        replace_file(out.with_name(out.name + SHARE_SUFFIX), text)
