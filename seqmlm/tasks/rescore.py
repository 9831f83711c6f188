"""Rescoring: the pseudo-log-likelihood joins a first pass's scores, and the best hypothesis may change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seqmlm.data.nbest import NBest, read_nbest
from seqmlm.data.problems import Problems
from seqmlm.engine.device import Precision
from seqmlm.engine.units import Mode
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.intervals import Difference
from seqmlm.evaluation.rescoring import (
    Norm,
    edit_distance,
    error_rate,
    error_rate_difference,
    totals,
)
from seqmlm.inference.batches import encoded_texts, unknown_tokens
from seqmlm.inference.expert import Use
from seqmlm.inference.runner import Output, Runner
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import Fields, Schema

Part = Sequence["Rescored"]


@dataclass(frozen=True, kw_only=True)
class RescoreConfig:
    """What `seqmlm rescore` can be told."""

    model: str
    path: str
    references: str | None = None
    weights: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
    norm: Norm = "none"
    temperature: float = 1.0
    dev: float | None = None
    unit: Literal["word", "character"] = "word"
    mode: str = "exact"
    out: Path | None = None
    domain: str | None = None
    tokens_per_batch: int | None = None
    precision: Precision = "fp32"
    expert: Use = "auto"

    def __post_init__(self) -> None:
        if not self.weights or any(not 0 <= weight < float("inf") for weight in self.weights):
            raise UsageError(
                "--weights must be numbers of at least 0, separated by commas, such as 0,0.1,0.3"
            )
        if not self.temperature > 0:
            raise UsageError(f"--temperature must be above 0, not {self.temperature}")
        if self.dev is not None and not 0 < self.dev < 1:
            raise UsageError(f"--dev is the share of the lists that choose the weight, not {self.dev}")


@dataclass(frozen=True, eq=False)
class Rescored:
    """A list with its pseudo-log-likelihoods.

    Args:
        nbest: the list.
        pll: (H,) nats.
        words: (H,) of each hypothesis.
        totals: weight -> (H,) interpolated scores.
        characters: whether errors count characters instead of words.
    """

    nbest: NBest
    pll: tuple[float, ...]
    words: tuple[int, ...]
    totals: Mapping[float, tuple[float, ...]]
    characters: bool = False

    def best(self, weight: float | None) -> int:
        """The hypothesis that comes first, the earlier one at a tie; None: of the first pass."""
        scores = [one.score for one in self.nbest.hypotheses] if weight is None else self.totals[weight]
        return int(np.argmax(scores))

    @cached_property
    def edits(self) -> tuple[int, ...]:
        """(H,) edits that each hypothesis is away from the reference."""
        return tuple(
            edit_distance(self._cut(one.text), self._cut(self.nbest.reference or ""))
            for one in self.nbest.hypotheses
        )

    @property
    def length(self) -> int:
        """Words (or characters) of the reference."""
        return len(self._cut(self.nbest.reference or ""))

    def _cut(self, text: str) -> list[str]:
        return list(" ".join(text.split())) if self.characters else text.split()

    def to_dict(self, chosen: float | None) -> dict[str, Any]:
        """The line of `--out`: best first by the chosen weight, else in the file's order."""
        order = list(range(len(self.pll)))
        if chosen is not None:
            order.sort(key=lambda place: -self.totals[chosen][place])
        hypotheses = self.nbest.hypotheses
        return {
            "id": self.nbest.id,
            "ref": self.nbest.reference,
            "weight": chosen,
            "best": {f"{weight:g}": hypotheses[self.best(weight)].text for weight in self.totals},
            "hyps": [
                {
                    "text": hypotheses[place].text,
                    "score": hypotheses[place].score,
                    "pll": self.pll[place],
                    "total": {
                        f"{weight:g}": own[place] if np.isfinite(own[place]) else None
                        for weight, own in self.totals.items()
                    },
                }
                for place in order
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How some choices compare with the references.

    Args:
        name: "first pass", a weight, or "oracle".
        error_rate: edits over words (or characters) of the references.
        exact: share of lists whose choice is the reference, word for word.
        changed: lists whose choice is not the first pass's.
    """

    name: str
    error_rate: float
    exact: float
    changed: int


@dataclass(frozen=True, kw_only=True)
class RescoreResult:
    """What a rescoring found.

    Args:
        lists, hypotheses: read.
        weight: the one that lists are ranked by; None where several were asked for and none was chosen.
        dev, test: errors of every choice on the part that chose the weight and on the other; `test` is
            everything where nothing was chosen; both empty without references.
        gain: how much lower the error rate of the chosen weight is than the first pass's, on `test`.
        unknown: tokens that the vocabulary does not have, which no score counts.
        precision: "fp32" or "bf16".
        counts: whether they are mixed into the scores.
    """

    lists: int
    hypotheses: int
    weight: float | None
    dev: tuple[Errors, ...]
    test: tuple[Errors, ...]
    gain: Difference | None
    unknown: int
    precision: str
    counts: bool


def rescore_file(config: RescoreConfig) -> tuple[RescoreResult, Iterator[dict[str, Any]]]:
    """Rescore the lists of a file.

    Args:
        config: which lists, and how.

    Returns:
        What was found, and a line for each list; the lines are written to `config.out` too, if that is named.

    Raises:
        UsageError: a model that takes no text, `dev` without references, an output that is the input.
        DataError: lists that cannot be read or spelled; a part without lists.
        StateError: no such model, or lines that cannot be written.
    """
    mode = Mode.parse(config.mode)
    inputs = [config.path, *(() if config.references is None else (config.references,))]
    check_outputs({"--out": config.out}, inputs=inputs, streams=True)
    lists = read_nbest(config.path, config.references)
    if config.dev is not None and any(one.reference is None for one in lists):
        raise UsageError("--dev chooses a weight by its errors, which needs references: name them with --ref")
    session = Session.open(
        config.model,
        domain=config.domain,
        tokens_per_batch=config.tokens_per_batch,
        precision=config.precision,
        expert=config.expert,
        shown=True,
    )
    session.check_text()
    check_outputs({"--out": config.out}, folder=session.model.path)
    scorer, found, unknown = RecordScorer(session), list[Rescored](), 0

    def answers(batch: Sequence[NBest]) -> list[Rescored]:
        nonlocal unknown
        places = [(own.id, number, one.text) for own in batch for number, one in enumerate(own.hypotheses, 1)]
        encodings = encoded_texts(session.tokenizer, [text for _, _, text in places])
        unknown += unknown_tokens(session.tokenizer, encodings)

        def named(number: int) -> str:
            return f"{config.path}: hypothesis {places[number][1]} of the list {places[number][0]!r}"

        scores = iter(scorer.sequences(encodings, mode, named=named))
        return [rescored(own, [next(scores).pll for _ in own.hypotheses], config) for own in batch]

    def rows(scored: list[Rescored]) -> list[Fields]:
        found.extend(scored)
        return []  # the weight that lists are ranked by is known when all are scored

    with closing(Output(config.out, Schema(columns={}))) as output:
        output.claim()
        Runner(session, answers, rows, Output(None, Schema(columns={})), Problems()).run_items(lists)
        result = _result(found, config, unknown, session)
        output.begin(Problems())
        output.write([one.to_dict(result.weight) for one in found])
        output.finish()
    return result, (one.to_dict(result.weight) for one in found)


def rescored(nbest: NBest, pll: Sequence[float], config: RescoreConfig) -> Rescored:
    """Interpolate the scores of a list.

    Args:
        nbest: the list.
        pll: (H,) pseudo-log-likelihoods, nats.
        config: weights and norm.
    """
    first = [one.score for one in nbest.hypotheses]
    words = [len(one.text.split()) for one in nbest.hypotheses]
    made = {
        weight: totals(first, pll, words, weight=weight, norm=config.norm, temperature=config.temperature)
        for weight in config.weights
    }
    return Rescored(
        nbest,
        tuple(pll),
        tuple(words),
        {weight: tuple(values.tolist()) for weight, values in made.items()},
        config.unit == "character",
    )


def chooses(name: str, share: float) -> bool:
    """Whether the list of this name helps to choose the weight: by hash, so the same in every run."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) < share * 2**64


def _result(found: Part, config: RescoreConfig, unknown: int, session: Session) -> RescoreResult:
    referred = all(one.nbest.reference is not None for one in found)
    weight = config.weights[0] if len(config.weights) == 1 else None
    dev: Part = []
    test: Part = found
    if config.dev is not None:
        dev = [one for one in found if chooses(one.nbest.id, config.dev)]
        test = [one for one in found if not chooses(one.nbest.id, config.dev)]
        if not dev or not test:
            raise DataError(
                f"--dev {config.dev:g} of {len(found)} lists leaves {len(dev)} to choose by and {len(test)} "
                "to report on",
                remedy="take another share, or more lists",
            )
        weight = min(config.weights, key=lambda own: _errors(dev, "", own).error_rate)
    gain = None
    if referred and weight is not None:
        first = [one.edits[one.best(None)] for one in test]
        second = [one.edits[one.best(weight)] for one in test]
        gain = error_rate_difference(first, second, [one.length for one in test])
    return RescoreResult(
        lists=len(found),
        hypotheses=sum(len(one.pll) for one in found),
        weight=weight,
        dev=tuple(_table(dev, config.weights)) if dev else (),
        test=tuple(_table(test, config.weights)) if referred else (),
        gain=gain,
        unknown=unknown,
        precision=session.precision,
        counts=session.expert is not None,
    )


def _table(part: Part, weights: Sequence[float]) -> Iterator[Errors]:
    yield _errors(part, "first pass", None)
    for weight in weights:
        yield _errors(part, f"weight {weight:g}", weight)
    least = [int(np.argmin(one.edits)) for one in part]
    yield _of_choices(part, "oracle", least)


def _errors(part: Part, name: str, weight: float | None) -> Errors:
    return _of_choices(part, name, [one.best(weight) for one in part])


def _of_choices(part: Part, name: str, choices: Sequence[int]) -> Errors:
    edits = [one.edits[choice] for one, choice in zip(part, choices, strict=True)]
    return Errors(
        name=name,
        error_rate=error_rate(edits, [one.length for one in part]),
        exact=float(np.mean([count == 0 for count in edits])),
        changed=sum(one.best(None) != choice for one, choice in zip(part, choices, strict=True)),
    )
