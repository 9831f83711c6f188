"""Foreign inserts of the DNA sample stand out against what is planted, and GC alone does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seqmlm.anomaly.values import Doubles, ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.levels import Composition, WindowLevel, base_codes
from seqmlm.domains.dna.sample import BACKGROUND, FOREIGN, Planted, draw

TOKENIZER = BaseTokenizer()
KNOWN = Composition.from_codes(base_codes(one.sequence) for one in draw(400, 1))
CONTIGS = draw(600, 2)


def scored(contig: Planted, bits: Doubles) -> ScoredRecord:
    return ScoredRecord(
        record=Record(id=contig.id, raw=contig.sequence, source="s", line=1),
        encoding=TOKENIZER.encode(contig.sequence),
        rule=TOKENIZER.units,
        number=np.arange(len(contig.sequence)),
        surprisal=bits,
    )


def auroc(price: Callable[[Planted], Doubles], channel: str) -> float:
    """Of windows with at least 40 bases of an insert against those without any."""
    values: tuple[list[float], list[float]] = ([], [])
    for contig in CONTIGS:
        for row in WindowLevel().rows(scored(contig, price(contig)), KNOWN):
            foreign = sum(max(0, min(row.end, e) - max(row.start, s)) for s, e in contig.inserts)
            if foreign == 0 or foreign >= 40:
                values[foreign > 0].append(row.statistics[channel])
    normal, planted = np.sort(values[0]), np.array(values[1])
    below, upto = np.searchsorted(normal, planted), np.searchsorted(normal, planted, side="right")
    return float((below + upto).mean() / 2 / len(normal))


def as_planted(contig: Planted) -> Doubles:
    """A model that has learnt the background and nothing else."""
    return -np.log2(np.array(BACKGROUND))[base_codes(contig.sequence)]


def adapted(contig: Planted) -> Doubles:
    """A model that expects the composition of the place, foreign or not."""
    shares = np.tile(BACKGROUND, (len(contig.sequence), 1))
    for start, end in contig.inserts:
        shares[start:end] = FOREIGN
    return -np.log2(shares[np.arange(len(shares)), base_codes(contig.sequence)])


def test_inserts_stand_out_in_both_channels() -> None:
    assert auroc(as_planted, "excess") > 0.85
    assert auroc(as_planted, "composition") > 0.7


def test_what_the_model_expects_is_no_anomaly_however_rich_in_gc() -> None:
    assert auroc(adapted, "excess") < 0.6
