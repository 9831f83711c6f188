"""Whatever comes as input: no traceback, no hang, nothing lost without a word, and clean records unharmed.

Every format meets all its kinds of bad records in one file, and one in `SHARE` of the kinds of damage to
whole files; SEQMLM_HOSTILE=all tries every kind on every format, each alone, and the large ones (an hour:
with `-o faulthandler_timeout=0`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fork_server import ForkServer
from hostile_formats import KEYS, hostile_formats
from hostile_kinds import together
from hostile_tables import every_kind, shared_out

SHARE = 40
SEED = 193414  # each kind is tried on a format to which it applies; else the first test asks for another seed
ALL = os.environ.get("SEQMLM_HOSTILE") == "all"
PARTS = 3


def told(forks: ForkServer, folder: Path, *words: object) -> list[dict[str, Any]]:
    """What the warm parent says of formats."""
    done = forks.run(folder / "work", *words, script=Path(__file__).with_name("warm.py"), seconds=None).ok()
    return [json.loads(line) for line in done.out.splitlines()]


def test_every_format_has_forty_kinds_and_every_kind_is_tried(tmp_path: Path) -> None:
    formats, chosen, tried = hostile_formats(), shared_out(SHARE, SEED), dict[str, bool]()
    assert tuple(formats) == KEYS
    for key, one in formats.items():
        applicable = 0
        for refused in (False, True):
            if (pack := together(one, refused=refused)) is not None:
                tried |= dict.fromkeys(pack[1], True)
        for n, (name, kind) in enumerate(every_kind(one).items()):
            applies = kind(one, tmp_path / f"{key}-{n}", Random(0)) is not None
            applicable += applies
            tried[name] = tried.get(name, False) or (applies and name in chosen[key])
        assert applicable >= 40, key
    assert [name for name, so in tried.items() if not so] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_kind_of_input_does_harm(tmp_path: Path, forks: ForkServer, part: int) -> None:
    formats = KEYS[part::PARTS]
    found = told(forks, tmp_path, *formats, "--share", 1 if ALL else SHARE, "--seed", SEED)
    assert [one["format"] for one in found] == list(formats)
    assert [complaint for one in found for complaint in one["complaints"]] == []


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path, forks: ForkServer) -> None:
    """A gigabyte of one record, packed into a few megabytes."""
    formats, kinds = ((), "large:") if ALL else (("text-jsonl", "protein-fasta"), "large:gzip_bomb")
    found = told(forks, tmp_path, *formats, "--kinds", kinds, "--seconds", 300)
    assert [complaint for one in found for complaint in one["complaints"]] == []
    assert sum(one["cases"] for one in found) >= 2
