"""Counts that are stored in the folder of a model and mixed into its probabilities.

counts.safetensors    counts of the training split and the weights of the mixture (`seqmlm.engine.expert`)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.values import ALONE, COUNTED, SEEN, Doubles, ScoredRecord
from seqmlm.engine.expert import COUNTS_ALONE as COUNTS_ALONE
from seqmlm.engine.expert import CountExpert, CountProbs
from seqmlm.engine.scoring import SequenceScore
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import EXACT
from seqmlm.errors import StateError
from seqmlm.inference.arrays import HEADER, read_arrays
from seqmlm.inference.model_folder import COUNTS, LoadedModel
from seqmlm.parsing import parse_json

if TYPE_CHECKING:
    from seqmlm.inference.session import ExpertUse, Session

_AGAIN = "copy the model again from an intact copy, or score without counts (expert=none)"


def stored_expert(model: LoadedModel, use: ExpertUse = "auto") -> CountExpert | None:
    """The counts that the scores of a model mix in. None for no counts.

    Raises:
        StateError: the file cannot be read, or `use` is "counts" and the model has no counts.
    """
    file = Path(model.path) / COUNTS
    if use == "none" or not file.is_file():
        if use == "counts":
            why = "because its data were too few: train it again with more, or leave out expert"
            raise StateError(f"{model.path} has no counts ({COUNTS}), {why}")
        return None
    arrays, header = read_arrays(file, _AGAIN)
    try:
        described = parse_json(header.get(HEADER, "{}"), finite=True)
        expert = CountExpert.from_arrays(arrays, described, model.tokenizer.units)
        if missing := {str(EXACT), COUNTS_ALONE} - set(expert.weights):
            raise ValueError(f"no weights for {', '.join(sorted(missing))}")
        for name in ("mixture", "model", "counts"):
            float(expert.facts[f"{name}_bits"])  # a scoring shows them
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StateError(f"{file} cannot be read ({error}); {_AGAIN}") from None
    return expert if use == "counts" or expert.facts.get("better") else None


_EXPERTS: WeakKeyDictionary[Session, CountExpert | None] = WeakKeyDictionary()


def session_expert(session: Session) -> CountExpert | None:
    """The counts that the scores of a session mix in, read once per session. None for no counts.

    Raises:
        StateError: as in `stored_expert`.
    """
    if session not in _EXPERTS:
        _EXPERTS[session] = stored_expert(session.model, session.expert_use)
    return _EXPERTS[session]


def counts_identity(session: Session) -> str:
    """A hash of the counts that the scores of a session mix in, to identify them. "none" for no counts."""
    if session_expert(session) is None:
        return "none"
    return hashlib.sha256((Path(session.model.path) / COUNTS).read_bytes()).hexdigest()[:16]


# Scores


def mixed(expert: CountExpert, scores: Sequence[ScoredRecord], *, visible: bool) -> list[ScoredRecord]:
    """Mix counts into scores of whole records.

    The new scores have the surprisals of the mixture. The values that the expert needed are replaced with
    `ALONE`, `COUNTED` and `SEEN`.

    Args:
        expert: the counts.
        scores: scores with the values in `CountExpert.needs`.
        visible: whether the model saw the units that it predicted.
    """
    priced = _prices(expert, [score.encoding for score in scores])
    mixtures, needed = [], {wish.name for wish in expert.needs}
    for score, prices in zip(scores, priced, strict=True):
        unit_prices = prices.take(score.places)
        log2, share = _mixture(expert, -score.surprisal, score.values, unit_prices, visible)
        reductions = {name: values for name, values in score.values.items() if name not in needed}
        values = {**reductions, ALONE: score.surprisal, COUNTED: share, SEEN: unit_prices.longest}
        mixtures.append(replace(score, surprisal=-log2, values=values))
    return mixtures


def mixed_sequences(
    expert: CountExpert, encodings: Sequence[Encoding], scores: Sequence[SequenceScore], *, visible: bool
) -> list[SequenceScore]:
    """Mix counts into scores of sequences. The score of each unit is at the first of its positions."""
    mixtures = []
    for encoding, score, prices in zip(encodings, scores, _prices(expert, encodings), strict=True):
        groups, nats = score.units
        places = np.searchsorted(expert.rule.numbers(encoding), groups)
        log2, _ = _mixture(expert, nats / np.log(2), score.values, prices.take(places), visible)
        first = np.unique(score.groups, return_index=True)[1]
        mixture = (log2 * np.log(2)).astype(np.float32)
        mixtures.append(SequenceScore(score.positions[first], mixture, groups))
    return mixtures


def _mixture(
    expert: CountExpert, log2: Doubles, values: Mapping[str, NDArray[Any]], prices: CountProbs, visible: bool
) -> tuple[Doubles, Doubles]:
    """The mixture of each unit as log2 p, in an array (U,), and the share of p that comes from counts (U,).

    If the model saw the units, the lower of the two probabilities is used.
    """
    if visible:
        return expert.lower_of_both(log2, prices)
    return expert.mixture(expert.model_log_probs(log2, values), prices, str(EXACT))


def _prices(expert: CountExpert, encodings: Sequence[Encoding]) -> list[CountProbs]:
    """Probabilities of the units of each sequence from the counts. Each sequence is a record."""
    units = expert.hash_units(encodings)
    prices = expert.count_log_probs(units)
    bounds = np.searchsorted(units.sequence, np.arange(len(encodings) + 1)).tolist()
    return [prices.take(slice(a, b)) for a, b in pairwise(bounds)]
