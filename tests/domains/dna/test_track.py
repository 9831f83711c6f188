"""Tracks are valid for browsers: sorted, each base once, right across blocks and overlapping windows."""

from __future__ import annotations

import random
import stat
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from written import written

from seqmlm.domains.dna.track import GenomeTrack, merge_overlaps
from seqmlm.errors import StateError, UsageError
from seqmlm.privacy import handling_sensitive_data


def row(contig: str | None, start: int, end: int, score: float | None, line: int = 1) -> dict[str, Any]:
    place = {} if contig is None else {"contig": contig, "contig_start": start, "contig_end": end}
    return {"id": "r", "source": "g.fa", "line": line, "score": score, **place}


def segments(path: Path) -> list[tuple[str, int, int, float]]:
    header, *lines = path.read_text().splitlines()
    assert header.startswith("track type=bedGraph ")
    fields = [line.split("\t") for line in lines]
    return [(contig, int(start), int(end), float(value)) for contig, start, end, value in fields]


def test_a_track_in_the_making_has_no_file_that_a_kill_could_leave(tmp_path: Path) -> None:
    with GenomeTrack(tmp_path / "t.bedgraph") as track:
        track.add(row("chr1", 0, 5, 1.0, 1))
        track.add(row("chr1", 5, 9, 2.0, 2))
        assert list(tmp_path.iterdir()) == []
    assert segments(tmp_path / "t.bedgraph") == [("chr1", 0, 5, 1.0), ("chr1", 5, 9, 2.0)]
    assert len(list(tmp_path.iterdir())) == 1


def test_names_of_contigs_and_tracks_stay_in_their_fields(tmp_path: Path) -> None:
    with GenomeTrack(tmp_path / "t.bedgraph", name='a"\nb') as track:
        track.add(row("chr\t1\x1b[2J", 0, 5, 1.0))
    header, *lines = (tmp_path / "t.bedgraph").read_text().splitlines()
    assert 'name="a\'\\nb"' in header
    assert lines == ["chr\\t1\\x1b[2J\t0\t5\t1"]


def test_a_base_has_the_mean_of_the_windows_over_it() -> None:
    source = random.Random(0)
    for _ in range(50):
        rows = [(s := source.randrange(60), s + source.randint(1, 30), source.random()) for _ in range(12)]
        values = {
            base: segment.value
            for segment in merge_overlaps(rows)
            for base in range(segment.start, segment.end)
        }
        for base in range(100):
            over = [value for start, end, value in rows if start <= base < end]
            assert (base in values) == bool(over)
            if over:
                assert values[base] == pytest.approx(np.mean(over))


def test_a_track_is_sorted_and_has_each_base_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.bedgraph"
    with GenomeTrack(path) as track:
        records = [
            ("chr2", [(0, 100), (50, 150), (70, 170)]),
            ("chr10", [(16384, 16484), (16434, 16534)]),  # a second block before the first
            ("chr10", [(16284, 16384), (16234, 16334)]),  # a reverse strand: from its end
            ("chr2", [(160, 200)]),  # twice in the data
        ]
        for number, (contig, places) in enumerate(records):
            for place in places:
                track.add(row(contig, *place, float(number), number))
        track.add(row("chr2", 500, 600, None))
    found = segments(path)
    assert found == sorted(found)
    assert [one[0] for one in found] == sorted(one[0] for one in found)
    for before, after in pairwise(found):
        assert before[0] != after[0] or before[2] <= after[1]
    assert {contig: sum(e - s for c, s, e, _ in found if c == contig) for contig in ("chr2", "chr10")} == {
        "chr2": 200,
        "chr10": 300,
    }
    assert track.repeated == 10
    assert next(v for c, s, e, v in found if c == "chr2" and s <= 165 < e) == 0.0
    assert [file.name for file in path.parent.iterdir()] == ["out.bedgraph"]


def test_rows_without_a_place_are_refused_and_the_old_track_stays(tmp_path: Path) -> None:
    path = written(tmp_path / "t.bg", "old")
    with pytest.raises(UsageError, match="no position"), GenomeTrack(path) as track:
        track.add(row(None, 0, 5, 1.0))
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_private_track_is_its_owners_alone(tmp_path: Path) -> None:
    with handling_sensitive_data(), GenomeTrack(tmp_path / "t.bg") as track:
        track.add(row("c", 0, 10, 1.0))
    assert stat.S_IMODE((tmp_path / "t.bg").stat().st_mode) == 0o600


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot write the track"):
        GenomeTrack(tmp_path / "file" / "t.bg").__enter__()
    with pytest.raises(UsageError, match=r"\.bed, \.bw, \.bigwig, .*\.bed\.bgz; got 't\.wig'"):
        GenomeTrack(tmp_path / "t.wig")


def test_without_the_library_a_bigwig_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyBigWig", None)
    with pytest.raises(UsageError, match=r"pip install 'seqmlm\[bigwig\]'"):
        GenomeTrack(tmp_path / "t.bw")


class Recorder:
    """What is asked of pyBigWig, which allows entries in the order of its header alone."""

    def __init__(self) -> None:
        self.header: list[tuple[str, int]] = []
        self.entries: list[tuple[str, int, int, float]] = []

    def addHeader(self, header: list[tuple[str, int]]) -> None:
        self.header = header

    def addEntries(
        self, contigs: list[str], starts: list[int], *, ends: list[int], values: list[float]
    ) -> None:
        self.entries += zip(contigs, starts, ends, values, strict=True)

    def close(self) -> None:
        assert [name for name, _ in self.header] == list(dict.fromkeys(one[0] for one in self.entries))


def test_a_bigwig_holds_what_the_bedgraph_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "pyBigWig", SimpleNamespace(open=lambda path, mode: recorder))
    for name in ("t.bw", "t.bg"):
        with GenomeTrack(tmp_path / name) as track:
            for number, contig in enumerate(("b", "a")):
                track.add(row(contig, 5, 105, 1.5 + number))
                track.add(row(contig, 55, 155, 2.5))
    assert recorder.entries == segments(tmp_path / "t.bg")
    assert recorder.header == [("a", 155), ("b", 155)]
