"""Minimal pairs: does the model find the better sequence of each pair the more probable one?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seqmlm.anomaly.levels import WHOLE, View
from seqmlm.data.files import expand
from seqmlm.data.pairs import Pair, read_pairs
from seqmlm.data.problems import Problems
from seqmlm.engine.device import Precision
from seqmlm.engine.types import SPECIAL_GROUP, Bools, Encoding
from seqmlm.engine.units import EXACT, Mode, Units
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.pairs import Accuracy, accuracy, by_group, macro, outcomes
from seqmlm.inference.batches import encoded_texts, unknown_tokens
from seqmlm.inference.expert import Use
from seqmlm.inference.runner import Output, Runner
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import Schema
from seqmlm.tokenizers.base import Tokenizer

Metric = Literal["sum", "mean", "shared"]


@dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """What `seqmlm pairs` can be told."""

    model: str
    paths: tuple[str, ...] = ()
    good: str | None = None
    bad: str | None = None
    group: str | None = None
    mode: str = "exact"
    metric: Metric = "sum"
    options: Mapping[str, str] = field(default_factory=dict)
    out: Path | None = None
    domain: str | None = None
    tokens_per_batch: int | None = None
    precision: Precision = "fp32"
    expert: Use = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPair:
    """One pair and its scores.

    Args:
        pair: what was compared.
        good, bad: pseudo-log-likelihoods, nats.
        good_units, bad_units: what they are sums over.
    """

    pair: Pair
    good: float
    bad: float
    good_units: int
    bad_units: int

    def value(self, metric: str) -> tuple[float, float]:
        """What is compared: (good, bad), higher = more probable."""
        if metric == "mean":
            return self.good / max(1, self.good_units), self.bad / max(1, self.bad_units)
        if metric == "length":
            return -float(len(self.pair.good)), -float(len(self.pair.bad))
        return self.good, self.bad

    def to_dict(self, metric: str) -> dict[str, Any]:
        """The line of `--out`."""
        good, bad = self.value(metric)
        return {
            "id": self.pair.id,
            "group": self.pair.group,
            "source": self.pair.source,
            "line": self.pair.line,
            "pll_good": self.good,
            "pll_bad": self.bad,
            "units_good": self.good_units,
            "units_bad": self.bad_units,
            "margin": good - bad,
            "correct": bool(outcomes([good], [bad])[0] > 0),
        }


@dataclass(frozen=True, kw_only=True)
class PairsResult:
    """How all pairs came out.

    Args:
        metric, mode, precision: of the main figures.
        overall: all pairs; macro: mean over groups.
        groups: by name.
        beside: other metrics of the same scores, and the floor: the shorter text, in characters, is better.
        unknown: tokens that the vocabulary does not have, which no score counts.
        counts: whether they are mixed into the scores.
        copies, computed: masked copies asked for, and those that had to be computed.
        seconds: of all of it.
    """

    metric: str
    mode: str
    precision: str
    overall: Accuracy
    macro: float
    groups: Mapping[str, Accuracy]
    beside: Mapping[str, Accuracy]
    unknown: int
    counts: bool
    copies: int
    computed: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """What machines read."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "precision": self.precision,
            **self.overall.to_dict(),
            "macro": self.macro,
            "groups": {name: part.to_dict() for name, part in self.groups.items()},
            "beside": {name: part.to_dict() for name, part in self.beside.items()},
            "unknown_tokens": self.unknown,
            "counts": self.counts,
            "masked_copies": self.copies,
            "computed_copies": self.computed,
            "seconds": self.seconds,
        }


def compare_pairs(config: PairsConfig) -> PairsResult:
    """Score both sequences of every pair and count in how many the good one wins.

    Args:
        config: which pairs, and how.

    Raises:
        UsageError: no pairs named, an unknown mode, or a model that takes no text.
        DataError: a pair that cannot be read or spelled, or none.
        StateError: no such model, or rows that cannot be written.
    """
    mode, began = Mode.parse(config.mode), time.monotonic()
    names = [*config.paths, *(() if config.paths else filter(None, (config.good, config.bad)))]
    check_outputs({"--out": config.out}, inputs=expand(names))
    session = Session.open(
        config.model,
        domain=config.domain,
        tokens_per_batch=config.tokens_per_batch,
        precision=config.precision,
        expert=config.expert,
        shown=True,
    )

    check_outputs({"--out": config.out}, folder=session.model.path)
    scorer = PairScorer(session, mode=mode, metric=config.metric)

    def raw(text: str, fields: Mapping[str, Any]) -> Any:
        """The row's own options count, then the user's."""
        own = {name: value for name, value in fields.items() if value}
        return session.domain.of_text(text, {**config.options, **own})

    read = read_pairs(config.paths, good=config.good, bad=config.bad, group=config.group, raw=raw)
    found: list[ScoredPair] = []

    def rows(scored: list[ScoredPair]) -> list[dict[str, Any]]:
        found.extend(scored)
        return [one.to_dict(config.metric) for one in scored]

    output = Output(config.out, Schema(columns={}), format="jsonl")
    Runner(session, scorer.scored, rows, output, Problems()).run_items(_some(read, names))
    return _summary(found, config, scorer, time.monotonic() - began)


def _some(read: Iterator[Pair], names: Sequence[str]) -> Iterator[Pair]:
    """The pairs.

    Raises:
        DataError: there are none.
    """
    first = next(read, None)
    if first is None:
        raise DataError("no pairs", source=", ".join(names), remedy="give a file that contains pairs")
    yield first
    yield from read


class PairScorer:
    """Scores pairs of strings with one model.

    Args:
        session: the model.
        mode: how units are hidden.
        metric: `shared` scores the tokens that both sequences have, the others all.

    Attributes:
        unknown: tokens met that the vocabulary does not have, which no score can count.

    Raises:
        UsageError: a sequence of the model's domain is no plain text.
    """

    def __init__(self, session: Session, *, mode: Mode = EXACT, metric: Metric = "sum") -> None:
        session.check_text()
        self.session, self.unknown = session, 0
        self._scorer, self._mode, self._metric = RecordScorer(session), mode, metric

    def scored(self, pairs: Sequence[Pair]) -> list[ScoredPair]:
        """Score pairs together; equal masked copies are computed once.

        Raises:
            DataError: a sequence that cannot be spelled.
            NotFiniteError: an answer is not a finite number; it names the pair.
            UsageError: under `shared`, a sequence longer than the model.
        """
        tokenizer = self.session.tokenizer
        encodings = encoded_texts(tokenizer, [text for pair in pairs for text in (pair.good, pair.bad)])
        self.unknown += unknown_tokens(tokenizer, encodings)
        wanted, view = None, WHOLE
        if self._metric == "shared":
            view, couples = TOKENS, zip(encodings[::2], encodings[1::2], strict=True)
            wanted = [kept for couple in couples for kept in common_tokens(*couple)]

        def named(number: int) -> str:
            pair = pairs[number // 2]
            return (
                f"the {'bad' if number % 2 else 'good'} one of the pair {pair.source}:{pair.line} ({pair.id})"
            )

        scores = self._scorer.sequences(encodings, self._mode, wanted=wanted, view=view, named=named)
        return [
            ScoredPair(
                pair=pair,
                good=good.pll,
                bad=bad.pll,
                good_units=len(good.units[0]),
                bad_units=len(bad.units[0]),
            )
            for pair, good, bad in zip(pairs, scores[::2], scores[1::2], strict=True)
        ]


class _TokenView(View):
    """Each token a unit of its own, in sequences no longer than the model."""

    def units(self, tokenizer: Tokenizer) -> Units:
        return Units(tokenizer.space)

    def windows(
        self, encoding: Encoding, tokenizer: Tokenizer, max_length: int, wanted: Bools | None = None
    ) -> list[tuple[Encoding, Bools]]:
        if len(encoding) > max_length:
            raise UsageError(
                f"a text of {len(encoding)} tokens is longer than the model's window of {max_length}: what "
                "it shares cannot be compared in one piece"
            )
        numbers = np.arange(len(encoding), dtype=np.int32)
        groups = np.where(encoding.groups >= 0, numbers, SPECIAL_GROUP).astype(np.int32)
        asked = np.ones(len(encoding), dtype=np.bool_) if wanted is None else wanted
        return [(replace(encoding, groups=groups), asked)]


TOKENS = _TokenView()


def common_tokens(first: Encoding, second: Encoding) -> tuple[Bools, Bools]:
    """(L,) for each of two sequences, True at the tokens that an alignment of their ids has in both.

    The metric of CrowS-Pairs compares these alone (by difflib's alignment, as there), so that the frequency
    of the words that differ does not count.
    """
    kept = np.zeros(len(first), dtype=np.bool_), np.zeros(len(second), dtype=np.bool_)
    matcher = SequenceMatcher(None, first.ids.tolist(), second.ids.tolist(), autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        kept[0][a : a + size] = True
        kept[1][b : b + size] = True
    return kept


def _summary(found: list[ScoredPair], config: PairsConfig, scorer: PairScorer, seconds: float) -> PairsResult:
    def columns(metric: str) -> tuple[list[float], list[float]]:
        values = [one.value(metric) for one in found]
        return [good for good, _ in values], [bad for _, bad in values]

    overall = accuracy(*columns(config.metric))
    groups = by_group(*columns(config.metric), [one.pair.group for one in found])
    asked = scorer.session.conditionals().statistics
    others = ("length",) if config.metric == "shared" else ("sum", "mean", "length")
    return PairsResult(
        metric=config.metric,
        mode=config.mode,
        precision=scorer.session.precision,
        overall=overall,
        macro=macro(groups),
        groups=groups if len(groups) > 1 else {},
        beside={name: accuracy(*columns(name)) for name in others if name != config.metric},
        unknown=scorer.unknown,
        counts=config.metric != "shared" and scorer.session.expert is not None,
        copies=asked.variants,
        computed=asked.unique,
        seconds=seconds,
    )
