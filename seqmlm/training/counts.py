"""Count n-grams in the training data and fit their mixture with the model (`seqmlm.inference.expert`).

The weights of the mixture are fitted on half of some validation records. The mixture is measured on the other
half. Scores use the mixture if its mean there is lower than the model's mean.
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
from seqmlm.inference.model_folder import COUNTS, LoadedModel, data_rules, put_file
from seqmlm.inference.record_batches import forward_tokens
from seqmlm.tasks.deadline import TimeAfterTraining

SUBJECTS = 10
"""For sensitive data, only what occurs in at least this many records is counted."""

_FEWEST, _MOST = 2_000_000, 4_000_000  # tokens that are counted
# Validation windows for fitting smoothing and weights: in all, and per record.
_WINDOWS, _OF_RECORD = 1_500, 16
# Units that the model scores exactly; the smallest number of forward tokens for them, and the number as a
# share of the training tokens.
_ASKED, _FLOOR, _SHARE = 4_000, 300_000, 0.02
_LEAST_UNITS, _RECORDS = 50, 10
# Under a time limit: shares of the remaining time for the scored units and for the counts, tokens that are
# counted to measure the speed, and portions of the scored units.
_ASKED_SHARE, _COUNTED_SHARE, _PROBED, _PORTIONS = 0.2, 0.2, 40_000, 16
# Scored units per window; units for fitting the smoothing per scored unit, and their smallest number.
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
    time_left: TimeAfterTraining,
) -> CountExpert | None:
    """Count the training split, fit the mixture on validation records, and save both with the model.

    Args:
        model: the trained model, in the folder that is being written.
        train, validation: the two splits.
        unigram: (K,) unigram probabilities of the training split, see `Units.frequencies`.
        tokens: number of training tokens. About as many are counted, with both strands of DNA together, but
            at least 2 million and at most 4 million. Counting 2 million takes seconds. Counting 4 million
            takes half a minute and a gigabyte.
        seed: seed for the selection of units.
        notify: receives messages about parts that were not possible.
        time_left: the remaining time. It may limit the counts and the number of units.

    Returns:
        The fitted counts. None if there are too few held-out data to fit a mixture.
    """
    rule = model.tokenizer.units
    reductions = (Rows(),) if multiplies_experts(rule, unigram) else ()
    learner = _Learner(model, validation, _query_tokens(tokens, time_left), seed, reductions, time_left)
    if min(learner.learns.sum(), (~learner.learns).sum()) < _LEAST_UNITS:
        notify("scores use no n-gram counts: there are too few validation units to fit the mixture")
        return None
    counter = _Counter(train, rule, unigram, SUBJECTS if model.card.sensitive else 1)
    expert = learner.weighted_expert(counter.expert(counter.sequences(tokens, time_left)))
    header = {HEADER: json.dumps(expert.description())}
    with data_rules(model.card):  # the folder has no card yet, which `put_file` would read
        put_file(Path(model.path) / COUNTS, encode_arrays(expert.arrays(), header))
    return expert


def _query_tokens(tokens: int, time_left: TimeAfterTraining) -> int:
    """Forward tokens for the scored units, after a training with `tokens` tokens."""
    usual = max(_FLOOR, int(_SHARE * tokens))
    budget = time_left.budget("units beside counts", _ASKED_SHARE)
    return usual if budget is None else min(usual, budget)


class _Counter:
    """Counts a training split, or evenly spread sequences of it.

    Args:
        fewest_records: number of records in which a counted n-gram must occur.
    """

    def __init__(self, train: Windows, rule: Units, unigram: Doubles, fewest_records: int) -> None:
        self._train, self._rule, self._unigram, self._fewest_records = train, rule, unigram, fewest_records
        self._mean = float(np.mean(train.lengths)) if len(train) else 1.0

    def expert(self, number: int) -> CountExpert:
        """Count `number` sequences."""
        chosen = evenly(len(self._train), number)
        return CountExpert.fit(
            (self._train[index] for index in chosen),
            self._rule,
            self._unigram,
            records=self._train.records(chosen).tolist() if self._fewest_records > 1 else None,
            min_records=self._fewest_records,
        )

    def sequences(self, tokens: int, time_left: TimeAfterTraining) -> int:
        """Number of sequences to count after a training with `tokens` tokens. Little time reduces it."""
        readings = 1 if self._rule.facts.strands is None else 2
        count = int(min(max(tokens, _FEWEST), _MOST) / self._mean / readings) + 1
        count = min(count, max(1, len(self._train)))
        return time_left.affordable(
            "the counts",
            self.expert,
            count=count,
            probe=int(_PROBED / self._mean) + 1,
            share=_COUNTED_SHARE,
        )


class _Learner:
    """Some units of validation records with their scores from the model, divided into halves by record.

    Attributes:
        learns: (N,) True for units that fit the weights, False for units that measure the mixture.
    """

    def __init__(
        self,
        model: LoadedModel,
        validation: Windows,
        budget: int,
        seed: int,
        reductions: tuple[Reduction, ...],
        time_left: TimeAfterTraining,
    ) -> None:
        self._rule = model.tokenizer.units
        indices, self._records = _spread_windows(validation)
        self._encodings = [validation[index] for index in indices]
        cost = forward_tokens(model)
        lengths = [len(encoding) for encoding in self._encodings]
        cost_per_token = np.mean([cost(length) / max(1, length) for length in lengths] or [1.0])
        units = min(_ASKED, max(int(budget / max(1.0, float(cost_per_token))), 3 * _LEAST_UNITS))
        self._tuned = TUNED
        if time_left.cuts is not None:  # limit the units for smoothing in proportion to the scored units
            self._tuned = int(np.clip(_TUNED_OF_UNIT * units, _LEAST_TUNED, TUNED))
            self._keep_windows(max(2 * _RECORDS, units // _UNITS_OF_WINDOW))
        query_masks = self._query_masks(units, seed)
        scorer = Scorer(Conditionals(model.rows), self._rule, want=reductions)
        bits = self._window_scores(scorer, query_masks, time_left)
        self._encodings, self._records = self._encodings[: len(bits)], self._records[: len(bits)]
        places, log2_probs, windows = [], [], []
        values: dict[str, list[NDArray[Any]]] = {reduction.name: [] for reduction in reductions}
        for number, (encoding, score) in enumerate(zip(self._encodings, bits, strict=True)):
            groups, nats = score.units
            places.append(np.searchsorted(self._rule.numbers(encoding), groups))
            log2_probs.append(nats / np.log(2))
            windows.append(np.full(len(groups), number))
            for name, arrays in values.items():
                arrays += [score.values[name]] if len(groups) else []
        self._window, self._unit = np.concatenate(windows), np.concatenate(places)
        self._model = np.concatenate(log2_probs)
        self._values = {name: np.concatenate(arrays) for name, arrays in values.items() if arrays}
        record = self._records[self._window]
        # With few long records, windows are the groups, although neighbouring windows are similar.
        several = len(np.unique(record)) >= _RECORDS
        self._group = np.unique(record if several else self._window, return_inverse=True)[1]
        self.learns = self._group % 2 == 0

    def _keep_windows(self, windows: int) -> None:
        """Keep the first windows: at least `windows` windows, and only whole records."""
        ends = np.flatnonzero(np.diff(self._records, append=-1)) + 1
        stop = int(ends[min(int(np.searchsorted(ends, windows)), len(ends) - 1)]) if len(ends) else 0
        self._encodings, self._records = self._encodings[:stop], self._records[:stop]

    def _window_scores(
        self, scorer: Scorer, query_masks: Sequence[Bools], time_left: TimeAfterTraining
    ) -> list[SequenceScore]:
        """Scores of the selected units, window by window.

        Stops after a whole record when the time is over.
        """
        ends = np.flatnonzero(np.diff(self._records, append=-1)) + 1
        done = np.cumsum([np.count_nonzero(owned) for owned in query_masks])
        portions = np.linspace(0, done[-1] if len(done) else 0, _PORTIONS + 1)[1:]
        # The first end of a record at which this many tokens are selected.
        stops = np.unique(ends[np.minimum(np.searchsorted(done[ends - 1], portions), len(ends) - 1)])
        phase = time_left.phase("counts", _ASKED_SHARE)
        scores: list[SequenceScore] = []
        for stop in stops.tolist():
            numbers = range(len(scores), stop)
            scores += scorer.windows((self._encodings[number], query_masks[number]) for number in numbers)
            phase.min_units += int(done[stop - 1] < 3 * _LEAST_UNITS)
            if phase.ends_after(stop / len(query_masks)):
                break
        phase.settle("the units that fit the weights of the counts")
        return scores

    def _query_masks(self, units: int, seed: int) -> list[Bools]:
        """(L,) for each window, True at the tokens of the selected units."""
        counts = np.diff(np.linspace(0, units, len(self._encodings) + 1).astype(np.int64))
        masks = []
        for number, (encoding, count) in enumerate(zip(self._encodings, counts.tolist(), strict=True)):
            numbers = unit_numbers(encoding)
            unit_ids = np.unique(numbers[numbers >= 0])
            chosen = rng(seed, 0, number, EVALUATION).permutation(unit_ids)[:count]
            masks.append(np.isin(numbers, chosen))
        return masks

    def weighted_expert(self, expert: CountExpert) -> CountExpert:
        """The expert with smoothing and weights, and its measured benefit."""
        fit_windows = np.unique(self._window[self.learns])
        units = expert.hash_units(self._encodings, self._records.tolist())
        fit_units = expert.hash_units(
            [self._encodings[i] for i in fit_windows], self._records[fit_windows].tolist()
        )
        expert = expert.with_best_smoothing(fit_units, self._tuned)
        priced = expert.count_log_probs(units)
        first = np.searchsorted(units.sequence, np.arange(len(self._encodings)))
        at = first[self._window] + self._unit
        fit_half, test_half = priced.take(at[self.learns]), priced.take(at[~self.learns])
        model_log2_probs = expert.model_log_probs(self._model, self._values)
        with_model = fit_weights(model_log2_probs[self.learns], fit_half)
        expert = replace(expert, weights={str(EXACT): with_model, COUNTS_ALONE: fit_weights(None, fit_half)})
        bits = {
            "model": -self._model[~self.learns],
            "counts": -expert.count_mixture(test_half),
            "mixture": -expert.mixture(model_log2_probs[~self.learns], test_half, str(EXACT))[0],
            "frequencies": -units.log2_unigram[at[~self.learns]],
        }
        return replace(expert, facts=self._facts(bits))

    def _facts(self, bits: Mapping[str, Doubles]) -> dict[str, Any]:
        """Mean bits by name, and how much better each is than those after it in `_RANKS`.

        Intervals are over records or windows. With fewer than `_LEAST_GROUPS` groups there are no intervals.
        `better` is true if scores use the mixture.
        """
        group = self._group[~self.learns]
        weights = bootstrap_weights(group, _DRAWS, 0)
        resamples = np.array([weights(draw) for draw in range(_DRAWS)])
        sizes = resamples.sum(axis=1)

        def gain(first: str, second: str) -> dict[str, float]:
            saved = bits[second] - bits[first]
            value = float(saved.mean())
            bounded = len(np.unique(group)) >= _LEAST_GROUPS
            return (
                percentile_interval(value, resamples @ saved / sizes).bounds()
                if bounded
                else {"value": value}
            )

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


# a bootstrap of fewer groups gives an interval that is much too narrow, and of one group none
_LEAST_GROUPS = 5
_RANKS = ("mixture", "counts", "model", "frequencies")
_DRAWS = 500


def _spread_windows(validation: Windows) -> tuple[list[int], Longs]:
    """Indices of some evenly spread validation windows, and their records. Each record has a limited number.

    Any first part of the list is evenly spread too.
    """
    owners = validation.records(range(len(validation)))
    distinct, first, counts = np.unique(owners, return_index=True, return_counts=True)
    indices: list[int] = []
    window_counts = np.minimum(counts, _OF_RECORD)
    share = min(1.0, _WINDOWS / max(1, int(window_counts.sum())))
    spread = evenly(len(distinct), max(1, int(share * len(distinct))))
    for number in (spread[place] for place in nested(len(spread))):
        start = int(first[number])
        windows = range(start, start + int(window_counts[number]))
        indices += [index for index in windows if owners[index] == distinct[number]]
    return indices, owners[indices]
