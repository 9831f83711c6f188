"""Counts of the training data, fitted when a model is trained and kept with it (`seqmlm.inference.expert`).

The weights are learnt on half of some validation records, and all is measured on the other half, which fitted
nothing. Scores mix the counts in where the mixture has the lower mean there than the model alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.values import Doubles
from seqmlm.data.splits import evenly, nested
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.expert import COUNTS_ALONE as COUNTS_ALONE
from seqmlm.engine.expert import TUNED, CountExpert, fit_weights, multiplies_experts
from seqmlm.engine.randomness import EVALUATION, rng
from seqmlm.engine.reductions import Reduction, Rows
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.types import Bools, Longs, Windows
from seqmlm.engine.units import EXACT, Units, unit_numbers
from seqmlm.evaluation.intervals import bootstrap_weights, percentile_interval
from seqmlm.inference.arrays import HEADER, encode_arrays
from seqmlm.inference.batches import forward_tokens
from seqmlm.inference.model_folder import COUNTS, LoadedModel, data_rules, put_file
from seqmlm.tasks.deadline import TimeAfterTraining

SUBJECTS = 10
"""Records that whatever is counted of sensitive data must occur in."""

_FEWEST, _MOST = 2_000_000, 4_000_000  # tokens counted
# Validation windows that smoothing and weights are learnt on, in all and of one record.
_WINDOWS, _OF_RECORD = 1_500, 16
# Units asked exactly; the forward tokens they may take at least, and as a share of those trained on.
_ASKED, _FLOOR, _SHARE = 4_000, 300_000, 0.02
_LEAST_UNITS, _RECORDS = 50, 10
# Under a time limit: shares of what is left for units that are asked, and for counts; tokens whose counts say
# how long all take; portions of the units that are asked.
_ASKED_SHARE, _COUNTED_SHARE, _PROBED, _PORTIONS = 0.2, 0.2, 40_000, 16
# Units asked of a window; units that smoothing is learnt on for each one that is asked, and at least.
_UNITS_OF_WINDOW, _TUNED_OF_UNIT, _LEAST_TUNED = 4, 2.5, 1_500


def fit_expert(
    model: LoadedModel,
    train: Windows,
    validation: Windows,
    *,
    unigram: Doubles,
    tokens: int,
    seed: int,
    notify: Callable[[str], None],
    after: TimeAfterTraining,
) -> CountExpert | None:
    """Count a training split, learn the mixture on validation records, and keep both with the model.

    Args:
        model: just trained, in the folder that is being written.
        train, validation: the two splits.
        unigram: (K,) of the training split, see `Units.frequencies`.
        tokens: trained on; about as many are counted, both strands of DNA together, but at least 2 million,
            for counts learn from all that is there in seconds, and at most 4: half a minute, a gigabyte.
        seed: of the choice of units.
        notify: told what could not be done.
        after: the time that is left; it may suffice for less to count, and for fewer units.

    Returns:
        The expert; None where the held-out data are too few to learn a mixture.
    """
    rule = model.tokenizer.units
    want = (Rows(),) if multiplies_experts(rule, unigram) else ()
    learner = _Learner(model, validation, _asked_tokens(tokens, after), seed, want, after)
    if min(learner.learns.sum(), (~learner.learns).sum()) < _LEAST_UNITS:
        notify("no counts beside the model: too few validation units to learn a mixture from")
        return None
    counter = _Counter(train, rule, unigram, SUBJECTS if model.card.sensitive else 1)
    expert = learner.learnt(counter.expert(counter.sequences(tokens, after)))
    header = {HEADER: json.dumps(expert.description())}
    with data_rules(model.card):  # the folder has no card yet, which `put_file` would ask
        put_file(Path(model.path) / COUNTS, encode_arrays(expert.arrays(), header))
    return expert


def _asked_tokens(tokens: int, after: TimeAfterTraining) -> int:
    """Forward tokens for units that are asked, of a training on so many tokens."""
    usual = max(_FLOOR, int(_SHARE * tokens))
    budget = after.budget("units beside counts", _ASKED_SHARE)
    return usual if budget is None else min(usual, budget)


class _Counter:
    """Counts a training split, or sequences of it that are spread evenly.

    Args:
        least: records that whatever is kept must occur in.
    """

    def __init__(self, train: Windows, rule: Units, unigram: Doubles, least: int) -> None:
        self._train, self._rule, self._unigram, self._least = train, rule, unigram, least
        self._mean = float(np.mean(train.lengths)) if len(train) else 1.0

    def expert(self, number: int) -> CountExpert:
        """Counts of so many sequences."""
        chosen = evenly(len(self._train), number)
        return CountExpert.fit(
            (self._train[index] for index in chosen),
            self._rule,
            self._unigram,
            records=self._train.records(chosen).tolist() if self._least > 1 else None,
            min_records=self._least,
        )

    def sequences(self, tokens: int, after: TimeAfterTraining) -> int:
        """Sequences to count after a training on so many tokens: fewer where the time would not suffice."""
        readings = 1 if self._rule.facts.strands is None else 2
        wanted = int(min(max(tokens, _FEWEST), _MOST) / self._mean / readings) + 1
        wanted = min(wanted, max(1, len(self._train)))
        return after.affordable(
            "the counts",
            self.expert,
            count=wanted,
            probe=int(_PROBED / self._mean) + 1,
            share=_COUNTED_SHARE,
        )


class _Learner:
    """Some units of validation records, as the model prices them, divided in halves by record.

    Attributes:
        learns: (N,) True for units that weights are learnt on, False for those they are reported on.
    """

    def __init__(
        self,
        model: LoadedModel,
        validation: Windows,
        budget: int,
        seed: int,
        want: tuple[Reduction, ...],
        after: TimeAfterTraining,
    ) -> None:
        self._rule = model.tokenizer.units
        indices, self._records = _whole_records(validation)
        self._encodings = [validation[index] for index in indices]
        cost = forward_tokens(model)
        each = np.mean([cost(len(one)) / max(1, len(one)) for one in self._encodings] or [1.0])
        units = min(_ASKED, max(int(budget / max(1.0, float(each))), 3 * _LEAST_UNITS))
        self._tuned = TUNED
        if after.cuts is not None:  # smoothing is learnt on as much as the time lets units be asked of
            self._tuned = int(np.clip(_TUNED_OF_UNIT * units, _LEAST_TUNED, TUNED))
            self._take(max(2 * _RECORDS, units // _UNITS_OF_WINDOW))
        asked = self._asked(units, seed)
        bits = self._scored(Scorer(Conditionals(model.rows), self._rule, want=want), asked, after)
        self._encodings, self._records = self._encodings[: len(bits)], self._records[: len(bits)]
        places, found, owner = [], [], []
        values: dict[str, list[NDArray[Any]]] = {one.name: [] for one in want}
        for number, (encoding, score) in enumerate(zip(self._encodings, bits, strict=True)):
            groups, nats = score.units
            places.append(np.searchsorted(self._rule.numbers(encoding), groups))
            found.append(nats / np.log(2))
            owner.append(np.full(len(groups), number))
            for name, some in values.items():
                some += [score.values[name]] if len(groups) else []
        self._window, self._unit = np.concatenate(owner), np.concatenate(places)
        self._model = np.concatenate(found)
        self._values = {name: np.concatenate(some) for name, some in values.items() if some}
        record = self._records[self._window]
        # Of a few long records windows must do, though neighbours are alike.
        several = len(np.unique(record)) >= _RECORDS
        self._group = np.unique(record if several else self._window, return_inverse=True)[1]
        self.learns = self._group % 2 == 0

    def _take(self, windows: int) -> None:
        """Keep the first windows: at least so many, of whole records."""
        ends = np.flatnonzero(np.diff(self._records, append=-1)) + 1
        stop = int(ends[min(int(np.searchsorted(ends, windows)), len(ends) - 1)]) if len(ends) else 0
        self._encodings, self._records = self._encodings[:stop], self._records[:stop]

    def _scored(
        self, scorer: Scorer, asked: Sequence[Bools], after: TimeAfterTraining
    ) -> list[SequenceScore]:
        """Scores of the asked units of the first windows: of whole records, until the time is over."""
        ends = np.flatnonzero(np.diff(self._records, append=-1)) + 1
        done = np.cumsum([np.count_nonzero(owned) for owned in asked])
        portions = np.linspace(0, done[-1] if len(done) else 0, _PORTIONS + 1)[1:]
        # The first end of a record at which so many tokens are asked.
        stops = np.unique(ends[np.minimum(np.searchsorted(done[ends - 1], portions), len(ends) - 1)])
        phase = after.phase("counts", _ASKED_SHARE)
        scores: list[SequenceScore] = []
        for stop in stops.tolist():
            some = range(len(scores), stop)
            scores += scorer.windows((self._encodings[number], asked[number]) for number in some)
            phase.min_units += int(done[stop - 1] < 3 * _LEAST_UNITS)
            if phase.ends_after(stop / len(asked)):
                break
        phase.settle("the units that weigh the counts")
        return scores

    def _asked(self, units: int, seed: int) -> list[Bools]:
        """(L,) for each window, True at the tokens of the units that are asked."""
        each = np.diff(np.linspace(0, units, len(self._encodings) + 1).astype(np.int64))
        found = []
        for number, (encoding, count) in enumerate(zip(self._encodings, each.tolist(), strict=True)):
            numbers = unit_numbers(encoding)
            known = np.unique(numbers[numbers >= 0])
            drawn = rng(seed, 0, number, EVALUATION).permutation(known)[:count]
            found.append(np.isin(numbers, drawn))
        return found

    def learnt(self, expert: CountExpert) -> CountExpert:
        """The expert with smoothing and weights, and what they are worth."""
        half = np.unique(self._window[self.learns])
        units = expert.hash_units(self._encodings, self._records.tolist())
        learnt = expert.hash_units([self._encodings[i] for i in half], self._records[half].tolist())
        expert = expert.with_best_smoothing(learnt, self._tuned)
        priced = expert.count_log_probs(units)
        first = np.searchsorted(units.sequence, np.arange(len(self._encodings)))
        at = first[self._window] + self._unit
        mine, rest = priced.take(at[self.learns]), priced.take(at[~self.learns])
        told = expert.model_log_probs(self._model, self._values)
        with_model = fit_weights(told[self.learns], mine)
        expert = replace(expert, weights={str(EXACT): with_model, COUNTS_ALONE: fit_weights(None, mine)})
        bits = {
            "model": -self._model[~self.learns],
            "counts": -expert.count_mixture(rest),
            "mixture": -expert.mixture(told[~self.learns], rest, str(EXACT))[0],
            "frequencies": -units.log2_unigram[at[~self.learns]],
        }
        return replace(expert, facts=self._facts(bits))

    def _facts(self, bits: Mapping[str, Doubles]) -> dict[str, Any]:
        """Means by name, and by how much each is better than those after it in `_RANKS`.

        Intervals are over records (or windows); of fewer than `_LEAST_GROUPS` there are none. `better` says
        whether scores mix the counts in.
        """
        group = self._group[~self.learns]
        weights = bootstrap_weights(group, _DRAWS, 0)
        drawn = np.array([weights(draw) for draw in range(_DRAWS)])
        sizes = drawn.sum(axis=1)

        def gain(first: str, second: str) -> dict[str, float]:
            saved = bits[second] - bits[first]
            value = float(saved.mean())
            bounded = len(np.unique(group)) >= _LEAST_GROUPS
            return percentile_interval(value, drawn @ saved / sizes).bounds() if bounded else {"value": value}

        gains: dict[str, dict[str, dict[str, float]]] = {}
        for first, second in combinations(_RANKS, 2):
            gains.setdefault(first, {})[second] = gain(first, second)
        means = {f"{name}_bits": float(values.mean()) for name, values in bits.items()}
        better = gains["mixture"]["model"]["value"] > 0
        return {
            **means,
            "gains": gains,
            "units": len(group),
            "groups": len(np.unique(group)),
            "better": better,
        }


_LEAST_GROUPS = 5  # a bootstrap of fewer gives an interval that is far too narrow, of one none at all
_RANKS = ("mixture", "counts", "model", "frequencies")
_DRAWS = 500


def _whole_records(validation: Windows) -> tuple[list[int], Longs]:
    """Some validation windows, and their records: evenly spread ones, of at most so many windows each.

    Every beginning of them is spread evenly.
    """
    owners = validation.records(range(len(validation)))
    distinct, first, counts = np.unique(owners, return_index=True, return_counts=True)
    indices: list[int] = []
    taken = np.minimum(counts, _OF_RECORD)
    share = min(1.0, _WINDOWS / max(1, int(taken.sum())))
    some = evenly(len(distinct), max(1, int(share * len(distinct))))
    for number in (some[place] for place in nested(len(some))):
        start = int(first[number])
        windows = range(start, start + int(taken[number]))
        indices += [index for index in windows if owners[index] == distinct[number]]
    return indices, owners[indices]
