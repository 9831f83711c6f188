"""The risk that a code comes next: a history cut at a time, a later visit with a gap, and what fits into it.

The prompt of Med-BERT and its kin: what was known at the time, an interval, a visit, [MASK]. The risk is the
probability that the gap holds one of some codes, for an interval or the mean over several. The same prompt
without the history says what anybody of that background has (contextual calibration); the log-ratio to that
is what the history adds. Labels and predictions have the columns of MEDS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seqmlm.data.counts import People, Things
from seqmlm.data.labels import read_labels
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.field import missing_capability
from seqmlm.domains.holes import Prompt
from seqmlm.engine.units import Doubles
from seqmlm.errors import UsageError, number_of
from seqmlm.evaluation.outcomes import Outcome, calibration_curve, group_qualities, risk_quality
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session
from seqmlm.parsing import duration
from seqmlm.reports.summary import Figures, Table
from seqmlm.rows.file import Row
from seqmlm.streams.sinks import Kind
from seqmlm.tasks.task import Conclusion, Output, ReadRows, Requirements, Task, TaskConfig

if TYPE_CHECKING:
    from seqmlm.reports.page import Page

AT_ONCE = 1024  # histories encoded together, each with a code in its gap: some megabytes
HIGHEST = 50  # predictions that a report lists


@dataclass(frozen=True, kw_only=True)
class RiskConfig(TaskConfig):
    """What `seqmlm risk` can be told.

    Args:
        codes: CODE: a code that counts, as the vocabulary spells it; * stands for anything; repeatable.
        labels: TABLE: a table with subject_id, prediction_time and perhaps boolean_value (MEDS). Default:
            each subject at the last event.
        gaps: DURATION: time from the prediction to what is asked about; several are averaged.
        prevalent: ask about those who had one of the codes before, too.
        seed: of the bootstrap.
    """

    shown = ("codes", "labels", "gaps", *TaskConfig.shown)
    inputs = ("labels",)

    codes: tuple[str, ...] = ()
    labels: Path | None = None
    gaps: tuple[str, ...] = ("30d",)
    prevalent: bool = False
    seed: int = 0

    def check(self) -> None:
        super().check()
        if not self.codes:
            raise UsageError("name the codes that count, such as --code 'CONDITION//44054006'")
        if not self.gaps or not all(map(duration, self.gaps)):
            raise UsageError(f"--gap is a duration such as 30d; got {', '.join(self.gaps)}")


class Asked(NamedTuple):
    """A question about a subject: prompts for each gap, then without the history; facts for the figures."""

    time: float
    label: bool | None
    prompts: tuple[Prompt, ...]
    facts: Mapping[str, Any]


class Risk(Task[RiskConfig, Record]):
    """Predict how probable it is that a code is in a later visit, from what was known at a time.

    A history is cut at the time, and a visit with one unknown event is put behind it. `log_ratio` is what the
    history adds to what anybody of that sex and age has. Rows have the columns of meds-evaluation. A
    probability is that of one event of the visit: rank by it, and calibrate it before you believe its size.

    Example: seqmlm risk hospital meds/ --code 'ICD10CM//E11*' --labels labels.parquet --gap 180d
    --out predictions.parquet --report risk.html
    """

    Config = RiskConfig
    requires = Requirements(capabilities=("times",))

    def __init__(self, config: RiskConfig, session: Session) -> None:
        super().__init__(config, session)
        columns: dict[str, Kind] = {"boolean_value": "flag"}
        self.output = Output(unit="prediction", columns=columns)
        if session.domain.times is None:
            raise missing_capability(session.domain, "times")
        self.cloze, self.codes, self.seen = Cloze(session), known_codes(config.codes, session), 0
        self.times = session.domain.times
        self.questions = None if config.labels is None else read_labels(config.labels)

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """A question for each subject and time, but for those who had one of the codes before."""
        times, codes = self.times, set(self.codes)
        gaps = [one for text in self.config.gaps if (one := duration(text))]
        for record in records:
            for time, label in self._times(record):
                had, groups = times.state_at(record.raw, time)
                before = sum(code in codes for code in had)
                if before and not self.config.prevalent:
                    self.seen += 1
                    problems.note("who had one of the codes before, left out")
                    continue
                asked = [(known, gap) for known in (True, False) for gap in gaps]
                prompts = [times.prompt_after(record.raw, time, gap, past=known) for known, gap in asked]
                facts = {"events": len(had), "before": before, "groups": groups}
                yield replace(record, raw=Asked(time, label, tuple(prompts), facts))

    def _times(self, record: Record) -> Sequence[tuple[float, bool | None]]:
        """When a subject is asked about: as the labels say, or else at its last event."""
        if self.questions is not None:
            return self.questions.get(record.id, ())
        last = self.times.last_time(record.raw)
        return () if last is None else [(last, None)]

    def cost(self, item: Record) -> float:
        """A copy of each prompt: all codes of one token are read in it."""
        return float(sum(map(self.cloze.tokens, item.raw.prompts)))

    def rows(self, items: Sequence[Record]) -> Iterator[list[Row]]:
        """A prediction for each question; where its label is known, with what the figures need."""
        step = max(1, AT_ONCE // (2 * len(self.config.gaps) * len(self.codes)))
        for first in range(0, len(items), step):
            some = items[first : first + step]
            for record, (risk, prior) in zip(some, self._risks(some).tolist(), strict=True):
                row = {
                    "subject_id": record.id,
                    "prediction_time": datetime.fromtimestamp(record.raw.time, UTC).isoformat(),
                    "boolean_value": record.raw.label,
                    "predicted_boolean_value": risk >= 0.5,
                    "predicted_boolean_probability": risk,
                    "log_ratio": float(np.log(max(risk, 1e-300) / max(prior, 1e-300))),
                }
                yield [row if record.raw.label is None else row | record.raw.facts]

    def _risks(self, items: Sequence[Record]) -> Doubles:
        """(N, 2) probability of the codes with the history and without, each the mean over the gaps."""
        each = [(prompt, [code]) for one in items for prompt in one.raw.prompts for code in self.codes]
        gapped = self.cloze.encode_filled([prompt for prompt, _ in each], [texts for _, texts in each])
        fits = np.exp([fit.log_prob for fit in self.cloze.fits(gapped)])
        found: Doubles = fits.reshape(len(items), 2, -1, len(self.codes)).sum(axis=-1).mean(axis=-1)
        return found

    def figures(self, rows: Iterable[Row]) -> Figures:
        """How many predictions there are, and how good those with a label are."""
        n, told = 0, list[Outcome]()
        for row in rows:
            n += 1
            if (label := row["boolean_value"]) is not None:
                floors = {name: row[name] for name in ("events", "before")}
                ranked = row["predicted_boolean_probability"], row["log_ratio"]
                told.append(Outcome(row["subject_id"], label, *ranked, floors, row["groups"]))
        overall, groups = risk_quality(told, self.config.seed), group_qualities(told, self.config.seed)
        curve = [] if overall is None else calibration_curve(told)
        facts = {"predictions": n, "seen": self.seen, "codes": Things(len(self.codes))}
        return {**facts, "overall": overall, "groups": groups, "curve": curve}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        told = f"{number_of(figures['predictions'], 'prediction')} for {number_of(figures['codes'], 'code')}"
        told += f" ({figures['seen']} left out who had one before)" if figures["seen"] else ""
        if (own := figures["overall"]) is None:
            return Conclusion(
                f"{told}; how good they are is not known (11 of each class with a label are needed)"
            )
        return Conclusion(
            f"{told}: AUROC {own['auroc']:.3f} ({own['auroc_low']:.3f} to {own['auroc_high']:.3f}), of what "
            f"needs no model {max(own['floors'].values()):.3f}; AUPRC {own['auprc']:.3f} (prevalence "
            f"{own['positives'] / own['n']:.3f})"
        )

    def tables(self, figures: Figures) -> Iterator[Table]:
        if (own := figures["overall"]) is None:
            return
        kinds = [name for name in own if name != "floors"]
        every = {"all": own, **figures["groups"]}.items()
        cells = [(name, *(one[kind] for kind in kinds), *one["floors"].values()) for name, one in every]
        floors = [f"AUROC of {name}" for name in own["floors"]]
        yield Table("How good they are", ["group", *(one.replace("_", " ") for one in kinds), *floors], cells)
        yield Table("Calibration", ["mean risk", "share that came true"], figures["curve"])

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        super().page(page, rows, figures)
        shown = ("subject_id", "prediction_time", "predicted_boolean_probability", "log_ratio")
        most = nlargest(HIGHEST, rows(), key=lambda row: row["predicted_boolean_probability"])
        columns = ("subject", "time", "risk", "what the history adds, nats")
        page.table("Highest risks", columns, [[row[name] for name in shown] for row in most])
        meanings = [(code, self.session.tokenizer.spelling.meaning(code)) for code in self.codes]
        if any(meaning for _, meaning in meanings):
            page.table("What counts", ["code", "description"], meanings)


def known_codes(wanted: Sequence[str], session: Session) -> list[str]:
    """The codes of the vocabulary that are meant.

    Raises:
        UsageError: there is none for one of the patterns.
    """
    known, found = session.domain.gaps.candidates(session.tokenizer) or (), set[str]()
    for pattern in wanted:
        own = {code for code in known if fnmatchcase(code, pattern)}
        if not own:
            alike = sorted(code for code in known if fnmatchcase(code, f"*//{pattern}"))
            alike = alike or get_close_matches(pattern, known, n=1)
            few = "it knows those of enough subjects only"
            meant = f"did you mean {' or '.join(alike)}?" if alike else few
            raise UsageError(f"the model has no code {pattern!r}: {meant}")
        found |= own
    return sorted(found)
