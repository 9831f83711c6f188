"""Gaps made of a user's own data: how often does the model know what stands there, beside counts of the data?

A field says which gaps can be made, and what could stand in each (`Domain.questions`). Candidates are ranked
by their log-probability a token; a property of a unit, such as the severity of a line, by that of all units
times how often others of the kind have it in these data. The rival needs no model: of what stands between the
same neighbours elsewhere in the data it takes the most frequent, else behind the same one, else anywhere.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.holes import Question
from seqmlm.errors import DataError, UsageError, nearest, number_of
from seqmlm.evaluation.intervals import bootstrap_weights, exact_rate, summarized
from seqmlm.inference.batches import Batch, Encoded
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.runner import Counts, Progress
from seqmlm.reports.page import Page
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import Fields, Schema
from seqmlm.tasks.gaps import GapConfig, Written, keep_report, one_by_one, write_rows

Scores = Mapping[str, float]
Properties = Mapping[str, Mapping[str, Counter[str]]]
COLUMNS = Schema(
    columns={
        "id": "text",
        "source": "text",
        "line": "integer",
        "kind": "text",
        "answer": "text",
        "prediction": "text",
        "rank": "integer",
        "candidates": "integer",
        "log_prob": "number",
    }
)
DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class ClozesConfig(GapConfig):
    """What `seqmlm zeroshot --cloze` can be told.

    Args:
        kinds: of gaps, or "all".
        limit: questions, drawn evenly from all; None for all.
        seed: of the draw, and of the bootstrap.
        report: an HTML file that shows the results.
    """

    kinds: tuple[str, ...] = ("all",)
    limit: int | None = None
    seed: int = 0
    report: Path | None = None

    def check(self) -> None:
        super().check()
        check_outputs({"--out": self.out, "--report": self.report}, inputs=self.paths, streams=True)
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit is at least 1; got {self.limit}")


class Told(NamedTuple):
    """An answered question: its group (the record), kind, answer, prediction, rank, number of candidates, and
    what stands beside it."""

    group: str
    kind: str
    answer: str
    prediction: str
    rank: int
    candidates: int
    before: str
    behind: str


class ClozeCounts(Counts):
    """What was answered so far."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def restore(self, counts: Mapping[str, Any]) -> None:
        super().restore(counts)
        self.told = [Told(*one) for one in counts.get("told", ())]

    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "told": self.told}


@dataclass(frozen=True, kw_only=True)
class KindResult:
    """How well one kind of gap was answered.

    Args:
        n: questions.
        accuracy, low, high: share of right ones, with exact bounds.
        reciprocal_rank: mean over questions.
        pairwise: how often the answer is above another candidate.
        majority: share of the most frequent answer. counts: share of right ones by counts of neighbours.
        gain, gain_low, gain_high: accuracy minus the better of these, bootstrap over records.
    """

    n: int
    accuracy: float
    low: float
    high: float
    reciprocal_rank: float
    pairwise: float
    majority: float
    counts: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True, kw_only=True)
class ClozesResult:
    """How all questions came out, by kind."""

    kinds: Mapping[str, KindResult]
    written: Written

    def to_dict(self) -> dict[str, Any]:
        """What machines read."""
        return {kind: asdict(one) for kind, one in self.kinds.items()}

    def sentence(self) -> str:
        """What a person is told."""
        told = [
            f"{kind} {one.accuracy:.3f} of {one.n:,} (most frequent {one.majority:.3f}, counts "
            f"{one.counts:.3f})"
            for kind, one in self.kinds.items()
        ]
        return f"{number_of(sum(one.n for one in self.kinds.values()), 'gap')}: {'; '.join(told)}"


def ask_clozes(config: ClozesConfig, stdout: TextIO, progress: Progress | None = None) -> ClozesResult:
    """Make gaps of files and ask what stands there, a row for each.

    Raises:
        UsageError: a request that makes no sense, or a field that makes no such gaps.
        DataError: files that cannot be read, or of which none has such a gap.
        StateError: no such model, or rows that cannot be written.
    """
    config.check()
    session = config.open()
    cloze, counts, neighbours = Cloze(session), ClozeCounts(), defaultdict[str, _Neighbours](_Neighbours)
    kinds = _kinds(config.kinds, session.domain.question_kinds, session.domain.name)

    properties = {
        kind: defaultdict[str, Counter[str]](Counter)
        for kind in kinds
        if kind in session.domain.property_kinds
    }

    def through(records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        def made() -> Iterator[Record]:
            for record in records:
                for one in _named(cloze, record, session.domain.questions(record, kinds)):
                    neighbours[one.kind].add(one)
                    if one.kind in properties:
                        properties[one.kind][one.unit][one.answer] += 1
                    yield replace(record, raw=one, line=one.line)

        source, found = "", False
        asked: Iterable[Record] = made()
        if config.limit is not None:
            asked = _drawn(asked, config.limit, config.seed)
        elif properties:
            asked = list(asked)  # what has which property is counted before the first is asked about
        for record in asked:
            found, source = True, record.source
            yield record
        if not found:
            raise DataError(
                "no gap can be made of these data", source=source, remedy="give other files or kinds"
            )

    def answers(batch: Batch[Encoded], problems: Problems) -> list[tuple[Record, Scores]]:
        return one_by_one(
            batch, problems, lambda some: _asked(cloze, [record.raw for record in some], properties)
        )

    def rows(found: list[tuple[Record, Scores]]) -> list[Fields]:
        return [_row(record, own, counts) for record, own in found]

    written = write_rows(
        config, session, COLUMNS, through, answers, rows, stdout, counts=counts, progress=progress
    )
    each = {
        kind: _result([one for one in counts.told if one.kind == kind], neighbours[kind], config.seed)
        for kind in kinds
    }
    found = {kind: own for kind, own in each.items() if own is not None}
    result = ClozesResult(kinds=found, written=written)
    if config.report is not None:
        figures = {
            f"{kind}_{name}": float(v) for kind, own in result.to_dict().items() for name, v in own.items()
        }
        keep_report(
            config, session, "clozes", _page(config, result), config.report, figures, {"kinds": kinds}
        )
    return result


def _kinds(wanted: Sequence[str], known: Sequence[str], domain: str) -> tuple[str, ...]:
    if not known:
        raise UsageError(f"domain {domain} makes no gaps of its data: write them, and ask with seqmlm fill")
    if "all" in wanted:
        return tuple(known)
    for one in wanted:
        if one not in known:
            raise UsageError(f"no gaps of kind {one!r}{nearest(one, known)}; known: {', '.join(known)}, all")
    return tuple(one for one in known if one in wanted)


def _drawn(records: Iterable[Record], limit: int, seed: int) -> list[Record]:
    """So many of the records, each as likely, the same for the same data; in their order."""

    def number(item: tuple[int, Record]) -> str:
        place, record = item
        return sha256(json.dumps([seed, place, record.source, record.line]).encode()).hexdigest()

    return [
        record for _, record in sorted(nsmallest(limit, enumerate(records), key=number), key=lambda o: o[0])
    ]


def _named(cloze: Cloze, record: Record, questions: Iterable[Question]) -> Iterator[Question]:
    """Questions about units of a record, with what the model calls these and the units beside them."""
    names: list[str] | None = None
    for one in questions:
        if one.stands is None:
            yield one
            continue
        if names is None:
            [encoding] = cloze.tokenizer.encode_batch([record.raw])
            names = ["", *map(cloze.spelled, encoding.ids[cloze.rule.places(encoding)].tolist()), ""]
        before, unit, behind = names[one.stands : one.stands + 3]
        beside = before, behind if len(one.prompt.holes) == 1 else ""
        yield replace(one, unit=unit, answer=one.answer or unit, beside=beside)


def _asked(cloze: Cloze, questions: Sequence[Question], properties: Properties) -> list[Scores]:
    """The log-probability (a token) of each candidate of each question."""
    opened = [number for number, one in enumerate(questions) if one.stands is not None]
    prompts = [questions[number].prompt for number in opened]
    guesses = cloze.guesses(cloze.opened(prompts), cloze.symbols, gap=0) if prompts else []
    units = {
        number: {guess.text: guess.log_prob for guess in own}
        for number, [own] in zip(opened, guesses, strict=True)
    }
    found = list[Scores]()
    for number, one in enumerate(questions):
        if number not in units:
            fits = cloze.fits(cloze.put([one.prompt] * len(one.candidates), [[o] for o in one.candidates]))
            found.append(
                {text: fit.log_prob / fit.units for text, fit in zip(one.candidates, fits, strict=True)}
            )
        elif one.kind in properties:
            found.append(_of_property(one, units[number], properties[one.kind]))
        else:
            found.append(units[number])
    return found


def _of_property(question: Question, units: Scores, known: Mapping[str, Counter[str]]) -> Scores:
    """Log-probabilities of a property: those of all units, each with how often its others have it."""
    totals = dict.fromkeys(sorted({name for own in known.values() for name in own}), 0.0)
    for unit, log_prob in units.items():
        if unit in known:
            own = known[unit] - Counter({question.answer: int(unit == question.unit)})
            for name, count in own.items():
                totals[name] += math.exp(log_prob) * count / own.total()
    return {name: math.log(total) if total else -math.inf for name, total in totals.items()}


def _row(record: Record, scores: Scores, counts: ClozeCounts) -> Fields:
    question: Question = record.raw
    # What the model cannot say, such as a severity that no other line of a known kind has, comes last.
    scores = {question.answer: -math.inf, **scores}
    own = scores[question.answer]
    rank = 1 + sum(one > own for one in scores.values())
    prediction = max(scores, key=scores.__getitem__)
    shown = question.kind, question.answer, prediction, rank, len(scores)
    counts.told.append(Told(record.source + record.id, *shown, *question.beside))
    return {
        "id": record.id,
        "source": record.source,
        "line": record.line,
        "kind": question.kind,
        "answer": question.answer,
        "prediction": prediction,
        "rank": rank,
        "candidates": len(scores),
        "log_prob": own,
    }


def _result(told: Sequence[Told], neighbours: _Neighbours, seed: int) -> KindResult | None:
    if not told:
        return None
    right = np.array([one.answer == one.prediction for one in told])
    rivals = {"majority": _frequent(told), "counts": neighbours.right(told)}
    best = max(rivals.values(), key=lambda one: float(one.mean()))
    rate = exact_rate(int(right.sum()), len(right))
    groups = {group: number for number, group in enumerate(dict.fromkeys(one.group for one in told))}
    weights = bootstrap_weights(np.array([groups[one.group] for one in told]), DRAWS, seed)
    apart = right.astype(float) - best
    gain = summarized(
        float(apart.mean()), np.array([np.average(apart, weights=weights(n)) for n in range(DRAWS)])
    )
    others = [(one.candidates - one.rank) / (one.candidates - 1) for one in told if one.candidates > 1]
    return KindResult(
        n=len(told),
        accuracy=rate.value,
        low=rate.low,
        high=rate.high,
        reciprocal_rank=float(np.mean([1 / one.rank for one in told])),
        pairwise=float(np.mean(others)) if others else float("nan"),
        majority=float(rivals["majority"].mean()),
        counts=float(rivals["counts"].mean()),
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
    )


def _frequent(told: Sequence[Told]) -> np.ndarray[Any, Any]:
    [(most, _)] = Counter(one.answer for one in told).most_common(1)
    return np.array([one.answer == most for one in told])


class _Neighbours:
    """Counts of what stands between which neighbours in all gaps of one kind."""

    def __init__(self) -> None:
        self.around = Counter[tuple[str, str, str]]()
        self.beside = Counter[tuple[str, str]]()
        self.alone = Counter[str]()

    def add(self, one: Question) -> None:
        before, behind = one.beside
        self.around[before, one.answer, behind] += 1
        self.beside[before, one.answer] += 1
        self.alone[one.answer] += 1

    def right(self, told: Sequence[Told]) -> np.ndarray[Any, Any]:
        """(N,) whether counts of all other gaps are right."""
        usual = [answer for answer, _ in self.alone.most_common(2)]
        between: dict[tuple[str, str], list[str]] = {}
        behind: dict[str, list[str]] = {}
        for before, answer, after in self.around:
            between.setdefault((before, after), []).append(answer)
        for before, answer in self.beside:
            behind.setdefault(before, []).append(answer)

        def guess(one: Told) -> str:
            def known(answer: str) -> tuple[int, int, int]:
                own = int(answer == one.answer)  # this gap itself
                around = self.around[one.before, answer, one.behind]
                return around - own, self.beside[one.before, answer] - own, self.alone[answer] - own

            return max(sorted({*between[one.before, one.behind], *behind[one.before], *usual}), key=known)

        return np.array([guess(one) == one.answer for one in told])


def _page(config: ClozesConfig, result: ClozesResult) -> Page:
    page = Page(f"Gaps: {config.model}", ", ".join(config.paths[:3]))
    columns = [
        "kind",
        "gaps",
        "accuracy",
        "low",
        "high",
        "mean 1 / rank",
        "pairwise",
        "most frequent",
        "counts",
    ]
    page.table(
        "Accuracy",
        [*columns, "gain", "low", "high"],
        [
            (
                kind,
                o.n,
                o.accuracy,
                o.low,
                o.high,
                o.reciprocal_rank,
                o.pairwise,
                o.majority,
                o.counts,
                o.gain,
                o.gain_low,
                o.gain_high,
            )
            for kind, o in result.kinds.items()
        ],
    )
    return page
