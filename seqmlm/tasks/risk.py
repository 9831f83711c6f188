"""The risk that a code comes next: a history cut at a time, a later visit with a gap, and what fits into it.

The prompt of Med-BERT and its kin: what was known at the time, an interval, a visit, [MASK]. The risk is the
probability that the gap holds one of some codes, for an interval or the mean over several. The same prompt
without the history says what anybody of that background has (contextual calibration); the log-ratio to that
is what the history adds. Labels and predictions have the columns of MEDS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from seqmlm.data.privacy import SMALLEST, redacted_count
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows, required
from seqmlm.data.timestamps import Clock, duration
from seqmlm.domains.holes import Prompt
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.evaluation.detection import Detection
from seqmlm.inference.batches import Batch, Encoded
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.runner import Counts, Progress
from seqmlm.inference.session import Session
from seqmlm.reports.page import Cell, Page
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import Fields, Schema
from seqmlm.tasks.gaps import GapConfig, Written, keep_report, one_by_one, write_rows

COLUMNS = Schema(
    columns={
        "subject_id": "text",
        "prediction_time": "text",
        "boolean_value": "flag",
        "predicted_boolean_value": "flag",
        "predicted_boolean_probability": "number",
        "log_ratio": "number",
    }
)

SEEN = "who had one of the codes before, left out"

BINS = 10
"""Of the calibration curve, with equally many predictions each."""


@dataclass(frozen=True, kw_only=True)
class RiskConfig(GapConfig):
    """What `seqmlm risk` can be told.

    Args:
        codes: what counts, as the vocabulary spells it; `*` stands for anything.
        labels: a table with `subject_id`, `prediction_time` and, to evaluate by, `boolean_value`; None asks
            once for each subject, at its last event.
        gaps: durations to the visit that is asked about; risks are averaged over them.
        prevalent: ask about those who had one of the codes before, too.
        seed: of the bootstrap.
        report: an HTML file that shows the results.
    """

    codes: tuple[str, ...] = ()
    labels: Path | None = None
    gaps: tuple[str, ...] = ("30d",)
    prevalent: bool = False
    seed: int = 0
    report: Path | None = None

    def check(self) -> None:
        super().check()
        if not self.codes:
            raise UsageError("name the codes that count, such as --code 'CONDITION//44054006'")
        self.seconds()
        labels = [] if self.labels is None else [str(self.labels)]
        outputs = {"--out": self.out, "--report": self.report}
        check_outputs(outputs, inputs=[*self.paths, *labels], streams=True)

    def seconds(self) -> list[float]:
        """The gaps in seconds.

        Raises:
            UsageError: one is no duration above 0.
        """
        found = [duration(text) for text in self.gaps]
        if not found or not all(found):
            raise UsageError(f"--gap is a duration such as 30d; got {', '.join(self.gaps)}")
        return [one for one in found if one]


class Asked(NamedTuple):
    """One question about a subject.

    time: of the prediction. label: True, False, or None where it is not known.
    prompts: one for each gap, then the same without the history.
    had: what was known until then; before: how often one of the codes was among it.
    groups: of the subject, for the evaluation.
    """

    time: float
    label: bool | None
    prompts: tuple[Prompt, ...]
    had: int
    before: int
    groups: Mapping[str, str]


class Told(NamedTuple):
    """A prediction whose label is known: subject, label, risk, log-ratio, `had` and `before`, groups."""

    subject: str
    label: bool
    risk: float
    ratio: float
    had: int
    before: int
    groups: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How good predictions are; of fewer than 11 of a class nothing is said.

    Args:
        n, positives: predictions, and those that came true.
        auroc, auroc_low, auroc_high, auprc: of the risk, with bootstrap bounds over subjects.
        ratio_auroc: of the log-ratio.
        floors: AUROC of what needs no model: how much is known of the subject (`events`), and how often one
            of the codes was there before (`before`).
        brier, brier_constant: of the risk, and of always predicting the prevalence.
    """

    n: int
    positives: int
    auroc: float
    auroc_low: float
    auroc_high: float
    auprc: float
    ratio_auroc: float
    floors: Mapping[str, float]
    brier: float
    brier_constant: float


@dataclass(frozen=True, kw_only=True)
class RiskResult:
    """What was found.

    Args:
        predictions: rows written.
        seen: left out, because one of the codes was there before.
        codes: that count, of the model's vocabulary.
        overall: None without labels, or with fewer than 11 of a class.
        groups: "sex=F" -> its quality.
        curve: mean risk and share that came true, of equally large parts from the lowest risk up.
        written: how the run ended.
    """

    predictions: int
    seen: int
    codes: int
    overall: Quality | None
    groups: Mapping[str, Quality]
    curve: Sequence[tuple[float, float]]
    written: Written

    def to_dict(self) -> dict[str, Any]:
        """What machines read."""
        told = {key: value for key, value in asdict(self).items() if key != "written"}
        return {**told, "seen": redacted_count(self.seen)}

    def sentence(self) -> str:
        """What a person is told."""
        told = f"{number_of(self.predictions, 'prediction')} for {number_of(self.codes, 'code')}"
        told += f" ({redacted_count(self.seen)} left out who had one before)" if self.seen else ""
        own = self.overall
        if own is None:
            return f"{told}; how good they are is not known (11 of each class with a label are needed)"
        return (
            f"{told}: AUROC {own.auroc:.3f} ({own.auroc_low:.3f} to {own.auroc_high:.3f}), of the log-ratio "
            f"{own.ratio_auroc:.3f}, of what needs no model {max(own.floors.values()):.3f}; AUPRC "
            f"{own.auprc:.3f} (prevalence {own.positives / own.n:.3f}), Brier {own.brier:.4f} (always the "
            f"prevalence {own.brier_constant:.4f})"
        )


class RiskCounts(Counts):
    """What is known of the predictions so far, a list for each column."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def restore(self, counts: Mapping[str, Any]) -> None:
        super().restore(counts)
        self.told = [Told(*one) for one in counts.get("told", ())]

    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "told": self.told}


def predict_risk(config: RiskConfig, stdout: TextIO, progress: Progress | None = None) -> RiskResult:
    """Predict for each subject and time of the labels, a row each.

    Raises:
        UsageError: a request that makes no sense, codes that the model does not have, a field without times.
        DataError: labels that cannot be read.
        StateError: no such model, or rows that cannot be written.
    """
    config.check()
    session = config.open()
    cloze = Cloze(session)
    codes = known_codes(config.codes, session)
    questions = None if config.labels is None else read_labels(config.labels)
    domain, counts = session.domain, RiskCounts()

    def through(records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        for record in records:
            for time, label in _times(record, questions, session):
                had, groups = domain.at(record.raw, time)
                before = sum(code in codes for code in had)
                if before and not config.prevalent:
                    problems.note(SEEN)
                    continue
                prompts = [
                    domain.later(record.raw, time, gap, known=known)
                    for known in (True, False)
                    for gap in config.seconds()
                ]
                asked = Asked(time, label, tuple(prompts), len(had), before, groups)
                yield replace(record, raw=asked)

    def answers(batch: Batch[Encoded], problems: Problems) -> list[tuple[Record, list[float]]]:
        return one_by_one(
            batch, problems, lambda some: risks(cloze, [one.raw for one in some], sorted(codes))
        )

    def rows(found: list[tuple[Record, list[float]]]) -> list[Fields]:
        return [_row(record, own, counts) for record, own in found]

    written = write_rows(
        config, session, COLUMNS, through, answers, rows, stdout, counts=counts, progress=progress
    )
    result = _result(config, counts, len(codes), written)
    if config.report is not None:
        figures = {"predictions": float(result.predictions)}
        if (own := result.overall) is not None:
            figures |= {"auroc": own.auroc, "auprc": own.auprc, "brier": own.brier}
        meanings = {code: session.tokenizer.meaning(code) for code in sorted(codes)}
        page, told = _page(config, result, meanings), {"codes": len(codes)}
        keep_report(config, session, "risk", page, config.report, figures, told)
    return result


def known_codes(wanted: Sequence[str], session: Session) -> set[str]:
    """The codes of the vocabulary that are meant.

    Raises:
        UsageError: there is none for one of the patterns.
    """
    known = session.domain.candidates(session.tokenizer) or ()
    found: set[str] = set()
    for pattern in wanted:
        own = {code for code in known if fnmatchcase(code, pattern)}
        if not own:
            raise UsageError(f"the model has no code {pattern!r}: it knows those of enough subjects only")
        found |= own
    return found


def read_labels(path: Path) -> dict[str, list[tuple[float, bool | None]]]:
    """Subject to times and labels.

    Raises:
        DataError: a column that is missing, a time or a label that cannot be read.
    """
    clock, found = Clock(), dict[str, list[tuple[float, bool | None]]]()
    for line, row in read_rows(str(path)):
        subject = str(required(row, "subject_id", str(path), line))
        given = required(row, "prediction_time", str(path), line)
        dated = isinstance(given, datetime)
        time = given.replace(tzinfo=given.tzinfo or UTC).timestamp() if dated else clock[str(given)]
        if time != time:
            raise DataError(
                "no time", source=str(path), line=line, field="prediction_time", remedy="ISO 8601"
            )
        found.setdefault(subject, []).append((time, _label(row.get("boolean_value"), path, line)))
    if not found:
        raise DataError("no labels", source=str(path), remedy="give subject_id and prediction_time")
    return found


def _label(value: Any, path: Path, line: int) -> bool | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "0": False, "false": False}.get(str(value).lower())
    if known is None:
        remedy = "write true or false"
        raise DataError("no truth value", source=str(path), line=line, field="boolean_value", remedy=remedy)
    return known


def _times(
    record: Record, questions: Mapping[str, Sequence[tuple[float, bool | None]]] | None, session: Session
) -> Sequence[tuple[float, bool | None]]:
    """When a subject is asked about."""
    if questions is not None:
        return questions.get(record.id, ())
    last = session.domain.ends(record.raw)
    return () if last is None else [(last, None)]


def risks(cloze: Cloze, asked: Sequence[Asked], codes: Sequence[str]) -> list[list[float]]:
    """For each question, the risk with the history and without, each the mean over its gaps."""
    prompts = [prompt for one in asked for prompt in one.prompts]
    each = [(prompt, [code]) for prompt in prompts for code in codes]
    gapped = cloze.put([prompt for prompt, _ in each], [texts for _, texts in each])
    fits = np.array([fit.log_prob for fit in cloze.fits(gapped)])
    shares = np.exp(fits).reshape(len(prompts), len(codes)).sum(axis=1)
    found, at = [], 0
    for one in asked:
        own = shares[at : at + len(one.prompts)].reshape(2, -1).mean(axis=1)
        found.append([float(own[0]), float(own[1])])
        at += len(one.prompts)
    return found


def _row(record: Record, own: Sequence[float], counts: RiskCounts) -> Fields:
    asked: Asked = record.raw
    risk, prior = own
    ratio = float(np.log(max(risk, 1e-300) / max(prior, 1e-300)))
    counts.rows += 1
    if asked.label is not None:
        own_facts = asked.had, asked.before, asked.groups
        counts.told.append(Told(record.id, asked.label, risk, ratio, *own_facts))
    return {
        "subject_id": record.id,
        "prediction_time": datetime.fromtimestamp(asked.time, UTC).isoformat(),
        "boolean_value": asked.label,
        "predicted_boolean_value": risk >= 0.5,
        "predicted_boolean_probability": risk,
        "log_ratio": ratio,
    }


def quality(told: Sequence[Told], seed: int) -> Quality | None:
    """How good some predictions are; None where there are fewer than 11 of a class."""
    labels = np.array([one.label for one in told], dtype=np.bool_)
    if min(labels.sum(), (~labels).sum()) < SMALLEST:
        return None
    risk = np.array([one.risk for one in told])
    measures = {"auroc": lambda curve: curve.auroc, "auprc": lambda curve: curve.average_precision}
    of_risk = Detection(labels, risk)
    found = of_risk.bootstrap(measures, [one.subject for one in told], seed=seed)
    others: dict[str, Sequence[float]] = {
        "ratio": [one.ratio for one in told],
        "events": [one.had for one in told],
        "before": [one.before for one in told],
    }
    aurocs = {name: Detection(labels, values).curve().auroc for name, values in others.items()}
    return Quality(
        n=len(labels),
        positives=int(labels.sum()),
        auroc=found["auroc"].value,
        auroc_low=found["auroc"].low,
        auroc_high=found["auroc"].high,
        auprc=found["auprc"].value,
        ratio_auroc=aurocs.pop("ratio"),
        floors=aurocs,
        brier=float(np.mean((risk - labels) ** 2)),
        brier_constant=float(labels.mean() * (1 - labels.mean())),
    )


def _result(config: RiskConfig, counts: RiskCounts, codes: int, written: Written) -> RiskResult:
    names = sorted({(key, value) for one in counts.told for key, value in one.groups.items()})
    groups = {
        f"{key}={value}": quality([one for one in counts.told if one.groups.get(key) == value], config.seed)
        for key, value in names
    }
    overall = quality(counts.told, config.seed)
    curve: list[tuple[float, float]] = []
    if overall is not None:
        order = sorted(counts.told, key=lambda one: one.risk)
        parts = [part for part in np.array_split(np.arange(len(order)), BINS) if len(part) >= SMALLEST]
        for part in parts:
            own = [order[place] for place in part]
            curve.append(
                (float(np.mean([one.risk for one in own])), float(np.mean([one.label for one in own])))
            )
    return RiskResult(
        predictions=counts.rows,
        seen=int(written.notes.get(SEEN, 0)),
        codes=codes,
        overall=overall,
        groups={name: own for name, own in groups.items() if own is not None},
        curve=curve,
        written=written,
    )


def _page(config: RiskConfig, result: RiskResult, meanings: Mapping[str, str | None]) -> Page:
    page = Page(f"Risk: {config.model}", ", ".join(config.codes[:5]))
    if any(meanings.values()):
        page.table("What counts", ["code", "description"], meanings.items())
    if result.overall is None:
        page.warnings(
            ["How good the predictions are is not known: 11 of each class with a label are needed."]
        )
        return page
    own = result.overall
    page.cards(
        {
            "AUROC": f"{own.auroc:.3f} ({own.auroc_low:.3f} to {own.auroc_high:.3f})",
            "AUROC of the log-ratio": own.ratio_auroc,
            "AUROC of the number of events": own.floors["events"],
            "AUROC of having had one before": own.floors["before"],
            "AUPRC": own.auprc,
            "prevalence": own.positives / own.n,
            "Brier": own.brier,
            "Brier of the prevalence": own.brier_constant,
        }
    )
    page.table("Calibration", ["mean risk", "share that came true"], result.curve)
    rows: list[tuple[Cell, ...]] = [
        (name, one.n, one.auroc, one.auroc_low, one.auroc_high, one.auprc, one.brier)
        for name, one in result.groups.items()
    ]
    if rows:
        page.table("Groups", ["group", "predictions", "AUROC", "low", "high", "AUPRC", "Brier"], rows)
    return page
