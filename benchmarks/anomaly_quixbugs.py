"""Rows of `alarms.py` for QuixBugs: 40 programs with a bug in one line each, and their repairs.

Which line has the bug? Lines are ranked by the mean of their three largest values, as in the level `line`.
For the model (also mixed), the values are z-scores of surprisals within each class of token. For the
baselines, they are bits. Is the repaired program more probable than the program with the bug? The model is
that of the arm `code`. These programs are not in its training data.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_data import FIELDS
from anomaly_fields import ARMS, Baselines, spelled
from anomaly_models import trained
from ngram_cache import cached_bits
from numpy.typing import NDArray

from seqmlm.anomaly.values import ALONE, ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.code.levels import CLASSES, SUBWORDS, TOP_TOKENS, ClassNorms, SourceUnits
from seqmlm.engine.units import unit_symbols
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session

Doubles = NDArray[np.float64]
PROGRAMS = 40
TURNS = 5
NORMAL = 100  # functions that say how surprising tokens of a class are


def quixbugs_rows(
    data: Path, out: Path, seed: int, minutes: float, records: int | None = None
) -> list[dict[str, Any]]:
    """Every detector by line and by pair."""
    rows = []
    for name, (ranks, won) in quixbugs(data, out, seed, minutes).items():
        row: dict[str, Any] = {"set": "quixbugs: the buggy line", "detector": name, "pairs": PROGRAMS}
        row |= {f"top{most}": float((ranks <= most).mean()) for most in (1, 3, 5)}
        if won is not None:
            row["pairs_won"] = float(won.mean())
        rows.append(row)
    return rows


def quixbugs(
    data: Path, out: Path, seed: int, minutes: float
) -> dict[str, tuple[Doubles, NDArray[np.bool_] | None]]:
    """By detector: the rank of each buggy line (from 1), and whether each repair is more probable."""
    field = FIELDS["code"](data, out)
    model = trained(out, "code", field.domain, field.files, field.flags, seed, minutes)
    with gzip.open(data / "code" / "quixbugs" / "quixbugs_python.jsonl.gz", "rt") as stream:
        programs = [json.loads(line) for line in stream]
    places = [buggy_line(program) for program in programs]
    texts = [program["buggy_norm"] for program in programs] + [p["correct_norm"] for p in programs]
    asked = _scored(model, texts)
    lines = [SourceUnits(one).lines for one in asked]
    bits = _bits(Baselines(model, spelled(model, field)), asked)
    normal = _scored(model, field.texts[:: -(-len(field.texts) // NORMAL)])
    z = _z(normal, asked)
    found = {}
    for name, values in {**bits, **z}.items():
        ranks = [
            _rank(one, line, place)
            for one, line, place in zip(values, lines, places, strict=False)
            if place is not None
        ]
        sums = np.array([one.sum() for one in values])
        won = sums[: len(programs)] > sums[len(programs) :] if name in bits else None
        found[name] = np.array(ranks), won
    return found


def _scored(model: LoadedModel, texts: Sequence[str]) -> list[ScoredRecord]:
    scorer = RecordScorer(Session(model, tokens_per_batch=8192))
    records = [Record(id=str(i), raw=text, source="quixbugs", line=1) for i, text in enumerate(texts)]
    return scorer.unit_scores(scorer.encoded(records, Problems()))


def _of(arm: str, found: Sequence[ScoredRecord]) -> list[ScoredRecord]:
    """The scored texts with the surprisals of one of `ARMS`."""
    return [
        replace(one, surprisal=one.values.get(ALONE, one.surprisal)) if arm == "model" else one
        for one in found
    ]


def _z(normal: Sequence[ScoredRecord], asked: Sequence[ScoredRecord]) -> dict[str, list[Doubles]]:
    """The z-score of the surprisal of each unit within its class, by arm: (U,) for each program."""
    norms = ClassNorms(np.zeros((len(CLASSES) + 1, SUBWORDS, 3))).learn(normal)
    mixed, alone = zip(*(norms.z(one) for one in asked), strict=True)
    return {f"z of {arm}": list(alone if arm == "model" else mixed) for arm in ARMS}


def _bits(baselines: Baselines, asked: Sequence[ScoredRecord]) -> dict[str, list[Doubles]]:
    """The bits of each unit by the model, the mixture and the baselines: (U,) for each program."""
    units = baselines.units
    found = {arm: [one.surprisal for one in _of(arm, asked)] for arm in ARMS}
    found |= baselines.bits([one.encoding for one in asked])
    words = [[unit for unit in unit_symbols(units, one.encoding) if unit] for one in asked]
    base = baselines.ngram.bits(words)
    owner = np.repeat(np.arange(len(words)), [len(one) for one in words])
    place = np.concatenate([np.arange(len(one)) for one in words])
    cached = np.empty_like(base)
    for turn in range(TURNS):  # the others of a program are its cache
        own = place % TURNS == turn
        wanted = [place[own & (owner == number)].tolist() for number in range(len(words))]
        cached[own] = cached_bits(base[own], words, wanted, range(len(words)))
    found["5-gram, cache"] = np.split(cached, np.flatnonzero(np.diff(owner)) + 1)
    found["length"] = [
        np.bincount(lines)[lines].astype(float) for lines in (SourceUnits(one).lines for one in asked)
    ]
    return found


def buggy_line(program: Mapping[str, Any]) -> int | None:
    """The 1-based line of the bug; None if a line is missing."""
    taken = [line[1:].strip() for line in program["diff"] if line.startswith("-")]
    numbers = [i for i, line in enumerate(program["buggy_norm"].split("\n"), 1) if line.strip() in taken[:1]]
    return numbers[0] if numbers else None


def _rank(values: Doubles, lines: NDArray[np.int64], place: int) -> float:
    """The mean rank of a line among those with equal scores, from 1 on."""
    scores = {
        line: float(np.sort(values[lines == line])[-TOP_TOKENS:].mean()) for line in np.unique(lines).tolist()
    }
    own = scores[place]
    others = [score for line, score in scores.items() if line != place]
    return 1 + sum(score > own for score in others) + sum(score == own for score in others) / 2
