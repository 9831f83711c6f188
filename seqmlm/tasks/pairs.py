"""Minimal pairs: does the model find the better sequence of each pair the more probable one?"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, tee
from pathlib import Path
from typing import Any, Literal

from seqmlm.data.files import expand
from seqmlm.data.pairs import Pair, read_pairs
from seqmlm.engine.device import Precision
from seqmlm.engine.scoring import SequenceScore
from seqmlm.engine.units import Mode
from seqmlm.errors import UsageError
from seqmlm.evaluation.pairs import Accuracy, accuracy, by_group, macro, outcomes
from seqmlm.inference import model_folder
from seqmlm.registry import Registry, resolve
from seqmlm.tasks.texts import TextScorer
from seqmlm.workspace import Workspace

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
        StateError: no such model.
    """
    mode, began = Mode.parse(config.mode), time.monotonic()
    names = [*config.paths, *(() if config.paths else filter(None, (config.good, config.bad)))]
    inputs = {Path(path).resolve() for path in expand(names)}
    if config.out is not None and config.out.resolve() in inputs:
        raise UsageError(f"--out {config.out} is one of the inputs; choose another file")
    workspace = Workspace.locate()
    where = resolve(config.model, lambda: Registry(workspace)).location
    model = model_folder.load(where, domain=config.domain)
    asking: Any = {"tokens_per_batch": config.tokens_per_batch, "precision": config.precision}
    scorer = TextScorer(model, mode=mode, **asking)

    def raw(text: str, fields: Mapping[str, Any]) -> Any:
        """The row's own options count, then the user's."""
        own = {name: value for name, value in fields.items() if value}
        return model.domain.of_text(text, {**config.options, **own})

    read = read_pairs(config.paths, good=config.good, bad=config.bad, group=config.group, raw=raw)
    found = list(score_pairs(scorer, read, config.metric))
    result = _summary(found, config, scorer, time.monotonic() - began)
    if config.out is not None:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        with config.out.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(one.to_dict(config.metric)) + "\n" for one in found)
    return result


def score_pairs(scorer: TextScorer, pairs: Iterator[Pair], metric: Metric) -> Iterator[ScoredPair]:
    """Score pairs lazily, in order; `shared` prices the tokens that both sequences have, the others all."""
    first, again = tee(pairs)
    couples: Iterator[tuple[SequenceScore, ...]]
    if metric == "shared":
        couples = scorer.shared((pair.good, pair.bad) for pair in first)
    else:
        couples = _in_twos(scorer.scores(text for pair in first for text in (pair.good, pair.bad)))
    for pair, (good, bad) in zip(again, couples, strict=True):
        yield ScoredPair(
            pair=pair,
            good=good.pll,
            bad=bad.pll,
            good_units=len(good.units[0]),
            bad_units=len(bad.units[0]),
        )


def _in_twos(scores: Iterator[SequenceScore]) -> Iterator[tuple[SequenceScore, ...]]:
    while couple := tuple(islice(scores, 2)):
        yield couple


def _summary(found: list[ScoredPair], config: PairsConfig, scorer: TextScorer, seconds: float) -> PairsResult:
    def columns(metric: str) -> tuple[list[float], list[float]]:
        values = [one.value(metric) for one in found]
        return [good for good, _ in values], [bad for _, bad in values]

    overall = accuracy(*columns(config.metric))
    groups = by_group(*columns(config.metric), [one.pair.group for one in found])
    others = ("length",) if config.metric == "shared" else ("sum", "mean", "length")
    return PairsResult(
        metric=config.metric,
        mode=config.mode,
        precision=scorer.precision,
        overall=overall,
        macro=macro(groups),
        groups=groups if len(groups) > 1 else {},
        beside={name: accuracy(*columns(name)) for name in others if name != config.metric},
        unknown=scorer.unknown,
        copies=scorer.statistics.variants,
        computed=scorer.statistics.unique,
        seconds=seconds,
    )
