"""Which files an output may take the place of; what is packed can be indexed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from Bio import bgzf

from seqmlm.domains.dna.track import GenomeTrack
from seqmlm.errors import StateError, UsageError
from seqmlm.reports.findings import write_sarif
from seqmlm.reports.page import Page
from seqmlm.streams.cursor import Cursor, Position
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.ownership import is_output, refuse_foreign, remember
from seqmlm.streams.sinks import index_command

FOREIGN = {
    "seqmlm.db": b"SQLite format 3\0",
    "data.jsonl": b'{"text": "a sentence", "id": "a"}\n',
    "labels.csv": b"id,label\na,1\n",
    "page.html": b"<!doctype html><title>mine</title>",
    "a.sarif": b'{"$schema": "sarif-2.1.0", "runs": [{"tool": {"driver": {"name": "other"}}}]}',
    "a.bedgraph": b'track type=bedGraph name="conservation"\nchr1\t0\t1\t2\n',
    "labels of patients.csv": b"subject_id,prediction_time,boolean_value\n1,2020-01-01,true\n",
    "data.jsonl.gz": gzip.compress(b'{"text": "a"}\n'),
    "a.parquet": b"PAR1 damaged",
    "a.npy": b"\x93NUMPY\x01\0",
    "cut.gz": gzip.compress(b"thesis" * 100)[:20],
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_somebody_else_is_no_output(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FOREIGN[name])
    for beside in ("", ".partial.jsonl", ".resume.json", ".quarantine.jsonl"):
        refuse_foreign(tmp_path / "absent")
        other = tmp_path / f"out.csv{beside}"
        other.write_bytes(FOREIGN[name])
        option = "--on-error quarantine" if "quarantine" in beside else "--out"
        with pytest.raises(StateError, match="move it away"):
            check_outputs({option: other if "quarantine" in beside else tmp_path / "out.csv"})
        other.unlink()


@pytest.mark.usefixtures("workspace")
def test_pages_findings_and_tracks_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    page, sarif, track = (tmp_path / name for name in ("a.html", "a.sarif", "a.bed.gz"))
    for _ in range(2):
        check_outputs({"--report": page, "--sarif": sarif, "--out": track})
        Page("Scores").write(page)
        write_sarif(sarif, [], version="1")
        with GenomeTrack(track):
            pass
        assert all(map(is_output, (page, sarif, track)))


@pytest.mark.usefixtures("workspace")
def test_partial_rows_of_a_killed_run_are_ours_before_its_first_commit(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    partial = tmp_path / "out.csv.partial.jsonl"
    partial.write_text('{"score": 1')
    with pytest.raises(StateError, match="move it away"):
        refuse_foreign(partial)
    Cursor(path, {"input": "x"}).save(Position())
    refuse_foreign(partial)
    path.write_text("mine")
    with pytest.raises(StateError, match="move it away"):
        refuse_foreign(path)


@pytest.mark.usefixtures("workspace")
def test_a_format_without_a_sign_is_recognised_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("good\nbad\n")
    assert not is_output(path)
    remember(path)
    remember(path)
    refuse_foreign(path)
    path.write_text("good\nbed\n")  # somebody has changed it: it is theirs now
    with pytest.raises(StateError, match=r"--out .*words.txt exists"):
        refuse_foreign(path)


@pytest.mark.parametrize(
    ("option", "name", "known"),
    [("--report", "x.pdf", ".html"), ("--sarif", "x.txt", ".sarif"), ("publish", "x.csv", ".tsv")],
)
def test_a_file_of_one_format_has_its_ending(option: str, name: str, known: str) -> None:
    with pytest.raises(UsageError, match=rf"{option} {name}: .* in .*\{known}"):
        check_outputs({option: Path(name)})
    check_outputs({option: Path("without an ending")})


@pytest.mark.parametrize("ending", [".bed.gz", ".bedgraph.gz", ".bg.bgz"])
def test_a_packed_track_is_sorted_blocks_with_a_comment_first(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    assert index_command(path) == f"tabix -p bed {path}"
    place = {"source": "g.fa", "line": 1, "contig": "chr1"}
    with GenomeTrack(path) as track:
        for number, (start, end) in enumerate([(50, 90), (0, 100), (60, 70), (200, 300)]):
            for half in ((start, (start + end) // 2), ((start + end) // 2, end)):
                row = {
                    "id": f"r{number}#{half}",
                    "contig_start": half[0],
                    "contig_end": half[1],
                    "score": 1.5,
                }
                track.add({**place, **row})
    data = path.read_bytes()
    assert data[:4] == b"\x1f\x8b\x08\x04"
    assert data.endswith(bgzf._bgzf_eof)
    first, *lines = gzip.decompress(data).decode().splitlines()
    assert first.startswith("#track ")
    starts = [int(line.split("\t")[1]) for line in lines]
    assert starts == sorted(starts)
    assert len(lines) == 8 or "bed." not in ending


def test_other_files_have_no_index(tmp_path: Path) -> None:
    assert index_command(Path("a.csv.gz")) is index_command(Path("a.bed")) is None
    assert index_command(Path("my calls.vcf.gz")) == "tabix -p vcf 'my calls.vcf.gz'"
