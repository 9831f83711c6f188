"""Predict the risk of a code in a later visit: cut the history at a time, and fill a gap in a visit after it.

The prompt is the same as for Med-BERT and similar models: the known history, an interval, a visit, [MASK].
The risk is the probability that the gap is one of the given codes, for one interval or averaged over several.

The same prompt without the history gives the risk of anybody with the same background (contextual
calibration). The log-ratio of the two is the effect of the history. Labels and predictions have the columns
of MEDS.
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
from seqmlm.domains.holes import Prompt
from seqmlm.domains.refusals import missing_capability
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
HIGHEST = 50  # number of predictions in a report


@dataclass(frozen=True, kw_only=True)
class RiskConfig(TaskConfig):
    """Settings of `seqmlm risk`.

    Args:
        codes: CODE: code to predict, as spelled in the vocabulary; * matches anything; repeatable.
        labels: TABLE: table with subject_id, prediction_time and optionally boolean_value (MEDS). Default:
            one prediction for each subject, at its last event.
        gaps: DURATION: time from the prediction to the predicted visit; several durations are averaged.
        prevalent: include subjects who already had one of the codes.
        seed: seed of the bootstrap.
    """

    option_fields = ("codes", "labels", "gaps", *TaskConfig.option_fields)
    inputs = ("labels",)

    codes: tuple[str, ...] = ()
    labels: Path | None = None
    gaps: tuple[str, ...] = ("30d",)
    prevalent: bool = False
    seed: int = 0

    def check(self) -> None:
        super().check()
        if not self.codes:
            raise UsageError("no codes to predict: give some, such as --code 'CONDITION//44054006'")
        if not self.gaps or not all(map(duration, self.gaps)):
            raise UsageError(f"--gap must be a duration such as 30d; got {', '.join(self.gaps)}")


class RiskPrompt(NamedTuple):
    """One prediction to make: prompts for each interval, first with and then without the history.

    facts: values for the figures.
    """

    time: float
    label: bool | None
    prompts: tuple[Prompt, ...]
    facts: Mapping[str, Any]


class Risk(Task[RiskConfig, Record]):
    """Predict the probability of a code in a later visit, from the history up to a given time.

    The history is cut at that time, and a visit with one unknown event is added. `log_ratio` compares the
    prediction with the prediction for a person of the same sex and age whose history is unknown. Rows have
    the columns of meds-evaluation. Each probability is for a single event of the visit, not for the whole
    visit. Use it for ranking, and calibrate it before you use it as a probability.

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
        self.cloze, self.codes = Cloze(session), matching_codes(config.codes, session)
        self.prevalent_count = 0
        self.times = session.domain.times
        self.questions = None if config.labels is None else read_labels(config.labels)

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """A prediction to make for each subject and time, except for subjects who already had a code."""
        times, codes = self.times, set(self.codes)
        gaps = [length for text in self.config.gaps if (length := duration(text))]
        for record in records:
            for time, label in self._times(record):
                past_events, groups = times.state_at(record.raw, time)
                past_codes = sum(code in codes for code in past_events)
                if past_codes and not self.config.prevalent:
                    self.prevalent_count += 1
                    problems.note("a subject who already had one of the codes, left out")
                    continue
                contexts = [(has_past, gap) for has_past in (True, False) for gap in gaps]
                prompts = [
                    times.prompt_after(record.raw, time, gap, past=has_past) for has_past, gap in contexts
                ]
                facts = {"events": len(past_events), "before": past_codes, "groups": groups}
                yield replace(record, raw=RiskPrompt(time, label, tuple(prompts), facts))

    def _times(self, record: Record) -> Sequence[tuple[float, bool | None]]:
        """The prediction times of a subject with their labels: from the table, or else its last event."""
        if self.questions is not None:
            return self.questions.get(record.id, ())
        last = self.times.last_time(record.raw)
        return () if last is None else [(last, None)]

    def cost(self, item: Record) -> float:
        """Forward tokens: one copy of each prompt, which gives all codes of one token."""
        return float(sum(map(self.cloze.tokens, item.raw.prompts)))

    def rows(self, items: Sequence[Record]) -> Iterator[list[Row]]:
        """A prediction for each item, with the facts for the figures if its label is known."""
        step = max(1, AT_ONCE // (2 * len(self.config.gaps) * len(self.codes)))
        for first in range(0, len(items), step):
            batch = items[first : first + step]
            for record, (risk, prior) in zip(batch, self._risks(batch).tolist(), strict=True):
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
        """(N, 2) probability of the codes with and without the history, averaged over the intervals."""
        pairs = [(prompt, [code]) for record in items for prompt in record.raw.prompts for code in self.codes]
        gapped = self.cloze.encode_filled([prompt for prompt, _ in pairs], [texts for _, texts in pairs])
        fits = np.exp([fit.log_prob for fit in self.cloze.fits(gapped)])
        risks: Doubles = fits.reshape(len(items), 2, -1, len(self.codes)).sum(axis=-1).mean(axis=-1)
        return risks

    def figures(self, rows: Iterable[Row]) -> Figures:
        """The number of predictions, and the quality of the predictions with a label."""
        predictions, outcomes = 0, list[Outcome]()
        for row in rows:
            predictions += 1
            if (label := row["boolean_value"]) is not None:
                floors = {name: row[name] for name in ("events", "before")}
                scores = row["predicted_boolean_probability"], row["log_ratio"]
                outcomes.append(Outcome(row["subject_id"], label, *scores, floors, row["groups"]))
        overall, groups = (
            risk_quality(outcomes, self.config.seed),
            group_qualities(outcomes, self.config.seed),
        )
        curve = [] if overall is None else calibration_curve(outcomes)
        facts = {"predictions": predictions, "seen": self.prevalent_count, "codes": Things(len(self.codes))}
        return {**facts, "overall": overall, "groups": groups, "curve": curve}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        text = f"{number_of(figures['predictions'], 'prediction')} for {number_of(figures['codes'], 'code')}"
        text += f" ({figures['seen']} left out, with one of the codes before)" if figures["seen"] else ""
        if (total := figures["overall"]) is None:
            return Conclusion(f"{text}; not evaluated (this needs 11 labelled predictions of each class)")
        return Conclusion(
            f"{text}: AUROC {total['auroc']:.3f} ({total['auroc_low']:.3f} to {total['auroc_high']:.3f}), "
            f"best baseline without a model {max(total['floors'].values()):.3f}; AUPRC {total['auprc']:.3f} "
            f"(prevalence {total['positives'] / total['n']:.3f})"
        )

    def tables(self, figures: Figures) -> Iterator[Table]:
        if (total := figures["overall"]) is None:
            return
        kinds = [name for name in total if name != "floors"]
        groups = {"all": total, **figures["groups"]}.items()
        cells = [
            (name, *(group[kind] for kind in kinds), *group["floors"].values()) for name, group in groups
        ]
        floors = [f"AUROC of {name}" for name in total["floors"]]
        yield Table("Evaluation", ["group", *(kind.replace("_", " ") for kind in kinds), *floors], cells)
        yield Table("Calibration", ["mean predicted risk", "observed share"], figures["curve"])

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        super().page(page, rows, figures)
        keys = ("subject_id", "prediction_time", "predicted_boolean_probability", "log_ratio")
        highest = nlargest(HIGHEST, rows(), key=lambda row: row["predicted_boolean_probability"])
        columns = ("subject", "time", "risk", "added by the history, nats")
        page.table("Highest risks", columns, [[row[name] for name in keys] for row in highest])
        meanings = [(code, self.session.tokenizer.spelling.meaning(code)) for code in self.codes]
        if any(meaning for _, meaning in meanings):
            page.table("Predicted codes", ["code", "description"], meanings)


def matching_codes(patterns: Sequence[str], session: Session) -> list[str]:
    """The codes of the vocabulary that match one of the patterns, sorted.

    Raises:
        UsageError: a pattern matches no code.
    """
    vocabulary, matches = session.domain.gaps.candidates(session.tokenizer) or (), set[str]()
    for pattern in patterns:
        pattern_codes = {code for code in vocabulary if fnmatchcase(code, pattern)}
        if not pattern_codes:
            alike = sorted(code for code in vocabulary if fnmatchcase(code, f"*//{pattern}"))
            alike = alike or get_close_matches(pattern, vocabulary, n=1)
            explanation = "its vocabulary has only codes of enough subjects"
            meant = f"did you mean {' or '.join(alike)}?" if alike else explanation
            raise UsageError(f"the model has no code {pattern!r}: {meant}")
        matches |= pattern_codes
    return sorted(matches)
