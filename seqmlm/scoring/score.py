"""Score records: the task that gives rows with pseudo-log-likelihoods, p-values and alarms."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from seqmlm.anomaly.levels import Track
from seqmlm.data.counts import People, released_count
from seqmlm.data.files import Source
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import number_of, p_value_text, span_text
from seqmlm.inference.detector import JudgedRow
from seqmlm.inference.expert import counts_identity
from seqmlm.inference.record_batches import Encoded, batches, characters, tokenized
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures
from seqmlm.rows.file import Row
from seqmlm.scoring.config import ScoreConfig
from seqmlm.scoring.output import (
    TRAINED_ON,
    Familiar,
    Tally,
    extent,
    judged_rows,
    most_unusual,
    planned_line,
    schema,
    sentence,
    unusual_first,
)
from seqmlm.scoring.plan import check_rate, choose
from seqmlm.streams.ownership import remember
from seqmlm.tasks.settings import check_field
from seqmlm.tasks.task import Conclusion, Output, ReadRows, Requirements, Task, read_records, row_location

if TYPE_CHECKING:
    from seqmlm.reports.page import Page
    from seqmlm.reports.report import ScoreReport

EXAMPLES = 3
"""Number of rows to show if no row raises an alarm."""

DESCRIBED = 50
"""Maximum letters of a record's description in a line for the terminal."""

COMMIT_RECORDS = 1 << 16
"""Maximum number of records between commits, if the budget of forward tokens is not used up earlier."""

NOT_DURABLE = (
    "if this process dies, input that was read from the pipe but not scored is lost; for files, use 'seqmlm "
    "watch' instead"
)
"""Warning for live standard input."""


def _check_request(config: ScoreConfig) -> None:
    check_rate(config)
    check_field(config, config.level)


class Score(Task[ScoreConfig, Encoded]):
    """Score sequences with a model: one JSON line each; a higher score is more unusual.

    `pll` is the pseudo-log-likelihood in nats; `bits_per_unit`, `score` and `surprisal` are in bits. If the
    model is calibrated, `p_value` is the share of normal rows that are at least as unusual. Exact scoring
    takes one forward pass per unit. Its time grows with the square of a record's length. For models trained
    with `model.layers=nearby` it grows with the length.

    Example: seqmlm score enzymes new.fasta --fpr 0.01 --report new.html --out scores.jsonl

    Example: tail -F app.log | seqmlm score app - --max-latency 1s --fpr 0.001 --set alarms_only=true
    """

    Config = ScoreConfig
    done: float | None
    requires = Requirements(check=_check_request)

    def __init__(self, config: ScoreConfig, session: Session) -> None:
        super().__init__(config, session)
        self.plan = choose(config, session)
        self.detector, self.familiar = self.plan.detector(), Familiar(self.plan)
        self._budget, self._uncommitted, self._characters = self.plan.budget, 0, 0
        self._began, self._asked = time.monotonic(), 0
        # Rows of live input are counted at once, because they are not kept. Other rows are read at the end.
        self._passed = Tally() if config.latency is not None else None
        self.alarms, self.done = 0, None
        self._report = None if config.report is None else self._new_report()
        self._noun = self.plan.level.name
        self._track: Track | None = None
        if config.track is not None:
            self._track = self.plan.level.track(config.track, name=config.model)
        live, mode, level = config.latency is not None, str(self.plan.mode), self.plan.level.name
        self.output = Output(
            columns=schema(self.plan),
            stdout="rows" if config.track is None else "figures",
            line=self.line,
            order=None if live else unusual_first,
            row_filter=_has_alarm if config.alarms_only and not live else None,
            keeps_rows=not live or config.report is not None,
            page_shows_rows=True,
            caution=frozenset({TRAINED_ON}),
            notes=(*self.plan.notes, *([NOT_DURABLE] if live else [])),
            hint=self._hint(),
            settled={"mode": mode, "level": level, "counts": counts_identity(session)},
            reads_ahead=True,
            costs=self._costs,
        )

    def live_records(self, source: Source, problems: Problems) -> Iterator[Record]:
        return read_records(self.session, self.config, problems, {}, [source])

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Encoded]:
        """The records, tokenized."""
        for record_batch in batches(records):
            encoded_batch = []
            for encoded in tokenized(self.session.domain, self.session.tokenizer, record_batch, problems):
                encoded_batch.append(encoded)
                yield encoded
            self.familiar.note(encoded_batch, problems)

    def cost(self, item: Encoded) -> float:
        return self._budget.cost(len(item.encoding))

    def _costs(self, problems: Problems) -> Iterable[float]:
        """The cost of each record in forward tokens. Problems of the readers go only to `problems`."""
        domain, tokenizer = self.session.domain, self.session.tokenizer
        parts = batches(self.records(problems))
        return (self.cost(x) for part in parts for x in tokenized(domain, tokenizer, part, problems))

    def batch_share(self, item: Encoded) -> float:
        return self._budget.share(item)

    def commit_due(self) -> bool:
        """Whether enough work is done. A commit costs two syncs of the disk and clears remembered scores."""
        due = self.session.forward_tokens >= self._budget.commit_interval
        due = due or self._uncommitted >= COMMIT_RECORDS
        if due:
            self._uncommitted = 0
        return due

    def rows(self, items: Sequence[Encoded]) -> list[list[Row]]:
        judged = self.judge_items(items)
        written = [[self.row(judged_row) for judged_row in item_rows] for item_rows in judged]
        for item_rows, rows in zip(judged, written, strict=True):
            self._note_rows(item_rows, rows)
        self._uncommitted += len(items)
        self._asked += len(items)
        if self.plan.characters is not None:
            self._characters += sum(characters(encoded.record) for encoded in items)
            self.done = min(1.0, self._characters / max(self.plan.characters, 1.0))
        if self.config.alarms_only and self._passed is not None:
            return [[*filter(_has_alarm, rows)] for rows in written]
        return written

    def judge_items(self, items: Sequence[Encoded]) -> list[list[JudgedRow]]:
        """The scored rows of each item."""
        return self.detector.each(items)

    def row(self, judged: JudgedRow) -> Row:
        """The fields of a row to write."""
        fields = planned_line(judged, self.plan)
        if judged.alarm:
            fields["place"] = extent(judged)
        return fields

    def line(self, row: Row) -> str:
        """A row for the terminal: its place and how unusual it is.

        A second line has the reason of an alarm.
        """
        place, *id = row_location(row)
        p_value, bits = row.get("p_value"), row["bits_per_unit"]
        parts = [place, *([] if p_value is None else [f"p {p_value_text(p_value)}"])]
        parts += ["ALARM"] if row.get("alarm") else []
        parts += ["unfamiliar"] if row.get("unfamiliar") else []
        parts += id
        parts += [shorten(row["description"], DESCRIBED, placeholder=" ...")] if "description" in row else []
        parts += [span_text(row["start"], row["end"])] if "start" in row else []
        parts += [] if bits is None else [f"{bits:.2f} bits per {self.session.tokenizer.traits.unit}"]
        head = "  ".join(parts)
        return f"{head}\n    {row['reason']}" if row.get("reason") else head

    def _hint(self) -> str:
        stored = self.plan.stored
        if self.config.rate_option is not None or stored is None or stored.coarse:
            return ""
        return "next: add --fpr 0.05 to mark rows that are more unusual than 95 % of normal rows"

    def _note_rows(self, judged: Sequence[JudgedRow], rows: Sequence[Row]) -> None:
        """Add rows to the report, and to the counts of live input, whose rows are not kept."""
        for judged_row, row in zip(judged, rows, strict=True):
            self._noun = self.plan.level.reasons.noun(judged_row.scored_record.record)
            self.alarms += bool(judged_row.alarm)
            if self._report is not None:
                self._report.see(judged_row)
            if self._passed is not None:
                self._passed.add(row)

    def figures(self, rows: Iterable[Row]) -> Figures:
        tally = self._passed or Tally()
        if self._passed is None:
            for row in rows:
                tally.add(row)
        settings = {"mode": str(self.plan.mode), "precision": self.session.precision}
        return {**tally.figures(self.plan), "level": self.plan.level.name, **settings}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        seconds = time.monotonic() - self._began
        records = released_count(items)
        return Conclusion(
            sentence(self.plan, figures, records, seconds, self._asked / seconds),
            lead=self._lead(figures),
            failure=self._failure(figures),
            examples=self._examples(rows, figures),
        )

    def _failure(self, figures: Figures) -> str:
        """The message that all rows are unfamiliar, or "" if not all are."""
        rows, level = figures["rows"], self.plan.level
        if not rows or level.unknown_is_evidence or figures.get("unfamiliar") != rows:
            return ""
        domain, model = self.session.domain.name, self.config.model
        return (
            f"all rows are unfamiliar to {model}: score data like its training data, or train a model on "
            f"these data ('seqmlm train PATH --domain {domain}')"
        )

    def _examples(self, rows: ReadRows, figures: Figures) -> Sequence[str]:
        """The most unusual rows, if none raises an alarm. Empty for live input, whose rows are not kept."""
        if figures.get("alarms") != 0 or self._passed is not None:
            return ()
        judged = (row for row in rows() if row.get("p_value") is not None)
        first = heapq.nsmallest(EXAMPLES, judged, key=unusual_first)
        if not first:
            return ()
        begin = f"no row raises an alarm. The most unusual {'row is' if len(first) == 1 else 'rows are'}:"
        return [begin, *(f"{self.line(row)}\n    {most_unusual(self.plan.level, row)}" for row in first)]

    def _lead(self, figures: Figures) -> str:
        rows, alpha = figures["rows"], self.plan.alpha
        if alpha is None or "alarms" not in figures:
            judged = "with p-values" if self.plan.calibrated else "without p-values (no calibration)"
            return f"{number_of(rows, self._noun)} scored, {judged}. Higher scores are more unusual."
        rows = judged_rows(figures)
        verb = "raises" if figures["alarms"] == 1 else "raise"
        raised = (
            f"{figures['alarms']} of {number_of(rows, self._noun)} {verb} an alarm at {100 * alpha:.3g} %"
        )
        usual = (
            f"; about {alpha * rows:,.{int(alpha * rows < 3)}f} would be expected in normal data."
            if isinstance(rows, int)
            else "."
        )
        return f"{raised}{usual}"

    def page(self, page: Page, rows: ReadRows, figures: Figures) -> None:
        assert self._report is not None
        facts = {name: figures[name] for name in ("incidents", "level", "mode") if name in figures}
        if self.plan.alpha is not None and self.plan.stored is not None:
            facts["calibration rows"] = self.plan.stored.rows
        if self._passed is not None:  # live input may have kept only alarms
            facts |= {name: figures[name] for name in ("rows", "alarms") if name in figures}
        self._report.draw(page, rows(), facts, self.plan.alpha)

    def extra_files(self, rows: ReadRows) -> Sequence[Path]:
        if self._track is None:
            return ()
        assert self.config.track is not None
        with self._track as track:
            for row in rows():
                track.add(row)
        remember(self.config.track)
        return (self.config.track,)

    def _new_report(self) -> ScoreReport:
        from seqmlm.reports.report import ScoreReport

        plan, session = self.plan, self.session
        return ScoreReport(
            pictures=session.domain.pictures(plan.level),
            statistics={name: plan.level.statistics[name] for name in plan.level.statistics.judging},
            unit=session.tokenizer.traits.unit,
            surface=session.tokenizer.spelling.unit_text,
            meaning=session.tokenizer.spelling.meaning,
            ids_from=plan.level.counted_from,
        )


def _has_alarm(row: Row) -> bool:
    return bool(row.get("alarm"))
