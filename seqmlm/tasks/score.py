"""Scoring, end to end: files or a live input in, judged rows out, to be gone on with after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol, TextIO

from seqmlm.data.files import Source
from seqmlm.data.privacy import redact_small_counts
from seqmlm.data.problems import Problems
from seqmlm.engine.signals import Stopped, StopSignals
from seqmlm.errors import UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.batches import Batch, Read, can_read_ahead, from_files, from_live, live_input
from seqmlm.inference.detector import JudgedRow
from seqmlm.registry import Registry, resolve
from seqmlm.streams.cursor import file_facts
from seqmlm.tasks.score_config import ScoreConfig, input_bytes
from seqmlm.tasks.score_output import Output, ScoreSummary, Tally, line, schema, tellable_count
from seqmlm.tasks.score_plan import ScoringPlan, Work, batch_size, choose
from seqmlm.tasks.score_show import ScoreReporter
from seqmlm.workspace import Workspace

LEG_RECORDS = 1 << 16
"""A leg ends when so many records were scored, or `Work.leg` tokens went through the model. Answers are
remembered within a leg and not beyond, so that a leg gives the same numbers whether what came before it was
scored by the same process or not; only at its end is the work committed."""

READ_AHEAD_BYTES = 4 << 20
"""Input from which a second process reads; starting one takes longer than reading less."""


class Console(Protocol):
    """Where a person is told what happens."""

    def message(self, text: str) -> None:
        """Say one thing."""

    def progress(self, records: int, rows: int, alarms: int) -> None:
        """So much is done."""


class Silent:
    """A console that says nothing."""

    def message(self, text: str) -> None: ...

    def progress(self, records: int, rows: int, alarms: int) -> None: ...


def score_files(config: ScoreConfig, stdout: TextIO, console: Console | None = None) -> ScoreSummary:
    """Score what `config` names and write a row for each thing judged.

    Args:
        config: what to score, and how.
        stdout: where rows go when `config.out` is None.
        console: told what happens on the way.

    Returns:
        The summary; `stopped` is the signal that ended it early, after what had been read was dealt with.

    Raises:
        UsageError: a request that makes no sense, a model of another domain, or no `out` for sensitive data.
        DataError: a bad record, under `on_error` "raise"; rows before it are written.
        StateError: no such model, no calibration where one is needed, rows that cannot be written, or an
            unfinished scoring that was of something else.
    """
    console = console or Silent()
    config.check()
    workspace = Workspace.locate()
    where = resolve(config.model, lambda: Registry(workspace)).location
    model = model_folder.load(where, domain=config.domain)
    sensitive = model.card.sensitive
    if sensitive and config.out is None:
        raise UsageError(
            "scores of sensitive data are not shown on the console: name a file with --out, which only you "
            "can read"
        )
    chosen = choose(config, model)
    for note in chosen.notes:
        console.message(note)
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        problems = stack.enter_context(_problems(config, sensitive))
        shown = stack.enter_context(ScoreReporter(config, chosen, workspace, console.message))
        scoring = _Scoring(config, chosen, problems, shown, stdout, console, signals)
        stack.enter_context(closing(scoring))
        scoring.run()
        summary = scoring.summary()
        shown.finish(summary)
    return summary


def _problems(config: ScoreConfig, sensitive: bool) -> Problems:
    aside = Path(f"{config.out or 'score'}.quarantine.jsonl")
    return Problems(config.on_error, quarantine=aside, sensitive=sensitive)


class _Scoring:
    """One scoring under way."""

    def __init__(
        self,
        config: ScoreConfig,
        chosen: ScoringPlan,
        problems: Problems,
        shown: ScoreReporter,
        stdout: TextIO,
        console: Console,
        signals: StopSignals,
    ) -> None:
        self._config, self._chosen, self._problems = config, chosen, problems
        self._shown, self._console, self._signals = shown, console, signals
        columns = schema(
            chosen.level,
            calibrated=chosen.calibrated,
            alarms=chosen.alpha is not None,
            per_unit=config.per_unit,
            sensitive=chosen.model.card.sensitive,
        )
        self._output = Output(
            config, columns, self._request(), private=chosen.model.card.sensitive, stdout=stdout
        )
        self._records = self._before = 0  # done, and before this process
        self._judge = chosen.judge()
        self._leg_began = 0
        self._work = Work.of(chosen.model)
        self._size = batch_size(chosen.model, chosen.mode, self._work, cascade=chosen.judge_cascades)
        self._tally = Tally({})

    def _request(self) -> dict[str, object]:
        """What decides the rows."""
        config, chosen = self._config, self._chosen
        files: dict[str, list[int]] = {}
        if config.latency is None and "-" not in config.sources:
            read = chosen.model.domain.files(config.sources, format=config.format, options=config.options)
            files = file_facts(read)
        choice = {"mode": chosen.mode_name, "level": chosen.level.name, "precision": chosen.precision}
        return {**config.decisive(), **choice, "input": files, "model file": file_facts(chosen.files)}

    def run(self) -> None:
        """Score to the end of the input, or until a signal comes."""
        position = self._output.begin(self._problems)
        for note in self._output.notes:
            self._console.message(note)
        self._records = self._before = position.records
        self._tally = Tally(position.counts)
        self._leg_began = position.records
        latency = self._config.latency
        model, problems = self._chosen.model, self._problems
        with live_input(latency) as live:
            if live is None:
                whole = input_bytes(self._config.sources)
                ahead = whole is not None and whole >= READ_AHEAD_BYTES and can_read_ahead()
                given = (self._read(self._config.sources), model.domain, model.tokenizer, problems, position)
                with closing(from_files(*given, size=self._size, ahead=ahead)) as batches:
                    self._files(batches)
            else:
                stopping = lambda: self._signals.received is not None  # noqa: E731
                told = (model.domain, model.tokenizer, problems)
                read = self._read([Source("-", live)])
                with from_live(read, *told, live, stopping, size=self._size) as batches:
                    self._live(batches)
        if self._signals.received is None or latency is not None:
            self._output.finish()

    def _read(self, sources: Sequence[str]) -> Read:
        config, domain = self._config, self._chosen.model.domain
        return lambda told: domain.read(sources, told, format=config.format, **config.options)

    def _files(self, batches: Iterator[Batch]) -> None:
        try:
            for batch in batches:
                with self._signals.breaking():  # a resumed scoring begins its leg anew: nothing is lost
                    rows = self._judged(batch)
                self._done(batch, rows)
                if not batch.whole:
                    self._output.keep()  # what is done stays to be seen, but the last leg is not whole
                elif self._leg_over():
                    self._output.commit(self._records, self._tally.snapshot(), self._problems)
                    self._judge, self._leg_began = self._chosen.judge(), self._records
                if self._signals.received is not None:
                    break
        except Stopped:
            pass
        if self._signals.received is not None:
            self._output.keep()

    def _live(self, batches: Iterator[Batch]) -> None:
        for batch in batches:
            self._done(batch, self._judged(batch))
            self._output.commit(self._records, self._tally.snapshot(), self._problems)

    def _leg_over(self) -> bool:
        tokens = self._judge.scorer.conditionals.statistics.tokens
        return tokens >= self._work.leg or self._records - self._leg_began >= LEG_RECORDS

    def _judged(self, batch: Batch) -> list[JudgedRow]:
        return self._judge.encoded(batch) if batch else []

    def _done(self, batch: Batch, rows: Sequence[JudgedRow]) -> None:
        """Write a batch's rows."""
        self._write(rows)
        self._records += batch.read
        self._console.progress(self._records, self._tally.rows, self._tally.alarms)

    def _write(self, rows: Sequence[JudgedRow]) -> None:
        before = None
        kept = []
        for row in rows:
            self._tally.add(row, first=row.scored is not before)
            if self._shown.add(row) and (row.alarm or not self._config.alarms_only):
                kept.append(row)
            before = row.scored
        tokenizer, per_unit = self._chosen.model.tokenizer, self._config.per_unit
        sensitive = self._chosen.model.card.sensitive
        self._output.write([line(row, tokenizer, per_unit=per_unit, sensitive=sensitive) for row in kept])

    def summary(self) -> ScoreSummary:
        """What was done."""
        chosen, tally, problems = self._chosen, self._tally, self._problems
        sensitive = chosen.model.card.sensitive
        asked = chosen.alpha is not None
        here = self._records - self._before
        return ScoreSummary(
            records=self._records,
            rows=tally.rows,
            units=tally.units,
            bad=problems.bad_count,
            problems=redact_small_counts(problems.counts, sensitive),
            seconds=tally.seconds,
            rate=here / tally.seconds if tally.seconds else 0.0,
            unit=chosen.model.tokenizer.unit,
            level=chosen.level.name,
            mode=chosen.mode_name,
            precision=chosen.precision,
            alarms=tellable_count(tally.alarms, sensitive=sensitive) if asked else None,
            incidents=tellable_count(tally.incidents(), sensitive=sensitive) if asked else None,
            stopped=self._signals.received,
            quarantine=str(problems.quarantine) if problems.quarantined and problems.bad_count else None,
            run=self._shown.run_name,
        )

    def close(self) -> None:
        """Let go of the output."""
        self._output.close()
