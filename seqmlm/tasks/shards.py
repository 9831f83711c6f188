"""One request in several processes: each asks about its share of the parts.

Shares are consecutive: `seqmlm.management.merge` puts files behind each other. The price is that every
process reads the whole input once to count, and once up to its share. Scores that were remembered are
forgotten after every part: else the last bits would depend on where a share begins.
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
"""Suffix of the file beside a finished share with the facts of it."""


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


def share_of(task: Any, shard: str) -> tuple[int, int]:
    """The items of a share, first and one behind the last: as near an Nth of the parts as whole parts are.

    Args:
        task: gives the items (`seqmlm.tasks.task.Task`); they are read once for this.
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
    """The facts of a finished share: which rows its file has.

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
    def finish(cls, out: Path, shard: str, request: Mapping[str, Any], items: int) -> None:
        """Write the facts of a finished file into a file beside it."""
        request_json = json.dumps(request, sort_keys=True, default=str).encode()
        share = cls(
            shard=shard,
            request=hashlib.sha256(request_json).hexdigest(),
            items=items,
            sha256=str(entry_of(out)["sha256"]),
        )
        text = (json.dumps(asdict(share)) + "\n").encode()
        replace_file(out.with_name(out.name + SHARE_SUFFIX), text)
