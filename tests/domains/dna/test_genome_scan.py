"""A genome from file to track: right across blocks, overlapping windows and runs of N, genes named."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scored_records import detector
from tiny_models import random_model

from seqmlm.data.problems import Problems
from seqmlm.domains.dna import DNA
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.levels import WindowLevel
from seqmlm.domains.dna.track import GenomeTrack
from seqmlm.reports.page import Page
from seqmlm.reports.report import ScoreReport
from seqmlm.scoring.output import line

BLOCK = 260


def test_a_genome_from_file_to_track_and_report(tmp_path: Path) -> None:
    source = random.Random(5)
    contigs = {
        "chrB": "".join(source.choices("ACGTacgt", k=700)),
        "chrA": "N" * 40 + "".join(source.choices("ACGT", k=300)) + "N" * 30 + "ACCA" * 20,
    }
    genome = tmp_path / "g.fa"
    genome.write_text("".join(f">{name} some words\n{bases}\n" for name, bases in contigs.items()))
    table, genes = tmp_path / "g.gff", {"one": (120, 180), "two+x": (130, 300)}
    row = "chrB\tx\tgene\t{}\t{}\t.\t+\t.\tName={}\n"
    table.write_text("##gff-version 3\n" + row.format(121, 180, "one") + row.format(131, 300, "two%2Bx") * 2)
    model = random_model("dna", BaseTokenizer(), max_length=32)
    records = model.domain.read([genome], Problems(), block=BLOCK, max_n=10, genes=str(table))
    report = ScoreReport(pictures=DNA.pictures(WindowLevel()), unit="base")
    over: dict[tuple[str, int], list[float]] = defaultdict(list)
    told: list[dict[str, Any]] = []
    with GenomeTrack(tmp_path / "t.bedgraph") as track, GenomeTrack(tmp_path / "t.bed", name="m") as named:
        for one in detector(model, WindowLevel()).judged_rows(records, Problems()):
            extra, score = one.row.extra, one.row.score
            assert score is not None
            stretch = contigs[extra["contig"]][extra["contig_start"] : extra["contig_end"]]
            assert stretch == one.scored_record.record.raw[one.row.start : one.row.end]
            for base in range(extra["contig_start"], extra["contig_end"]):
                over[extra["contig"], base].append(score)
            fields = line(one, model.tokenizer, per_unit=True)
            track.add(fields)
            named.add(fields)
            told.append(fields)
            assert (fields["start"], fields["end"]) == (extra["contig_start"], extra["contig_end"])
            assert fields["id"].endswith(f"#{fields['start']}-{fields['end']}")
            for unit in (*fields["top"], *fields["per_unit"]):
                assert fields["start"] <= unit["start"] < unit["end"] <= fields["end"]
                assert unit["unit"] == contigs[extra["contig"]][unit["start"] : unit["end"]]
    lines = (tmp_path / "t.bedgraph").read_text().splitlines()[1:]
    found: dict[tuple[str, int], float] = {}
    for contig, start, end, value in (text.split("\t") for text in lines):
        for base in range(int(start), int(end)):
            assert (contig, base) not in found
            found[contig, base] = float(value)
    assert {name for name, _ in found} == set(contigs)
    assert list(dict.fromkeys(text.split("\t")[0] for text in lines)) == ["chrA", "chrB"]
    assert found.keys() == over.keys()
    for place, scores in over.items():
        assert found[place] == pytest.approx(np.mean(scores), rel=1e-3, abs=1e-4)
    known = {(name, i) for name, bases in contigs.items() for i, base in enumerate(bases) if base != "N"}
    assert known == set(found)
    report.draw(page := Page("g"), told)
    html = page.html()
    assert "<h2>Along chrA</h2>" in html
    assert "<h2>Along chrB</h2>" in html
    over = lambda row: [name for name, (s, e) in genes.items() if s < row["end"] and e > row["start"]]  # noqa: E731
    assert all(row.get("genes", []) == (over(row) if row["contig"] == "chrB" else []) for row in told)
    assert {len(row.get("genes", ())) for row in told} == {0, 1, 2}
    head, *texts = (tmp_path / "t.bed").read_text().splitlines()
    assert head.startswith("track ")
    beds = [text.split("\t") for text in texts]
    assert [(c, int(s), int(e), name) for c, s, e, name, _ in beds] == sorted(
        (row["contig"], row["start"], row["end"], ",".join(row.get("genes", ())) or ".") for row in told
    )
    top, best = max(told, key=lambda row: row["score"]), max(beds, key=lambda text: int(text[4]))
    assert (int(best[1]), best[4]) == (top["start"], "1000")
    assert all(0 <= int(text[4]) <= 1000 for text in beds)
    assert ">genes</button>" in html
    assert "one, two+x" in html
