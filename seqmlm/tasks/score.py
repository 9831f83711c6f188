"""Scoring, end to end: files or a live input in, judged rows out, to be gone on with after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol, TextIO

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import DataError, UsageError
from seqmlm.registry import Registry, resolve
from seqmlm.streams.cursor import file_facts
from seqmlm.tasks import bundle
from seqmlm.tasks.judging import JudgedRow
from seqmlm.tasks.privacy import tellable
from seqmlm.tasks.score_config import ScoreConfig
from seqmlm.tasks.score_feed import Faults, from_files, from_live, live_input
from seqmlm.tasks.score_judge import Chosen, choose
from seqmlm.tasks.score_output import Output, schema
from seqmlm.tasks.score_rows import line
from seqmlm.tasks.score_show import Shown
from seqmlm.tasks.score_summary import ScoreSummary, Tally, tellable_count
from seqmlm.workspace import Workspace

LEG_TOKENS = 1 << 22
LEG_RECORDS = 1 << 16
"""A leg ends when so many tokens went through the model or so many records were scored. Answers are
remembered within a leg and not beyond, so that a leg gives the same numbers whether what came before it was
scored by the same process or not; only at its end is the work committed."""


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
    model = bundle.load(where, domain=config.domain)
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
        shown = stack.enter_context(Shown(config, chosen, workspace, console.message))
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
        chosen: Chosen,
        problems: Problems,
        shown: Shown,
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
        )
        self._output = Output(
            config, columns, self._request(), private=chosen.model.card.sensitive, stdout=stdout
        )
        self._records = self._before = 0  # done, and before this process
        self._judge = chosen.judge()
        self._leg_began = 0
        self._tally = Tally({})

    def _request(self) -> dict[str, object]:
        """What decides the rows."""
        config, chosen = self._config, self._chosen
        files: dict[str, list[int]] = {}
        if config.latency is None and "-" not in config.sources:
            read = chosen.model.domain.files(config.sources, format=config.format, options=config.options)
            files = file_facts(read)
        settings = {**config.decisive(), "mode": chosen.mode_name, "level": chosen.level.name}
        return {**settings, "input": files, "model file": file_facts(chosen.files)}

    def run(self) -> None:
        """Score to the end of the input, or until a signal comes."""
        position = self._output.begin(self._problems)
        for note in self._output.notes:
            self._console.message(note)
        self._records = self._before = position.records
        self._tally = Tally(position.counts)
        self._leg_began = position.records
        latency = self._config.latency
        with live_input(latency) as live:
            faults = Faults()
            if live is None:
                self._all(from_files(faults.before(self._read()), self._problems, position), faults)
            else:
                stopping = lambda: self._signals.received is not None  # noqa: E731
                with from_live(lambda: faults.before(self._read()), live, stopping) as batches:
                    self._all(batches, faults)
            faults.raise_first()
        if self._signals.received is None or latency is not None:
            self._output.finish()

    def _read(self) -> Iterator[Record]:
        config = self._config
        domain = self._chosen.model.domain
        return domain.read(config.sources, self._problems, format=config.format, **config.options)

    def _all(self, batches: Iterator[list[Record]], faults: Faults) -> None:
        live = self._config.latency is not None
        for batch in batches:
            self._one(batch)
            self._records += len(batch)
            self._console.progress(self._records, self._tally.rows, self._tally.alarms)
            if live:
                self._output.commit(self._records, self._tally.snapshot(), self._problems)
            elif faults.met:
                self._output.keep()  # what is done stays to be seen, but the last leg is not whole
            elif self._leg_over():
                self._output.commit(self._records, self._tally.snapshot(), self._problems)
                self._judge, self._leg_began = self._chosen.judge(), self._records
            if self._signals.received is not None and not live:
                self._output.keep()
                return

    def _leg_over(self) -> bool:
        tokens = self._judge.scorer.conditionals.statistics.tokens
        return tokens >= LEG_TOKENS or self._records - self._leg_began >= LEG_RECORDS

    def _one(self, batch: Sequence[Record]) -> None:
        """Judge a batch and write its rows; where a record is refused, those of the records before it."""
        try:
            rows = self._judge.batch(batch, self._problems)
        except DataError:
            for record in batch:
                self._write(self._judge.batch([record], self._problems))
                self._output.keep()
            raise
        self._write(rows)

    def _write(self, rows: Sequence[JudgedRow]) -> None:
        before = None
        kept = []
        for row in rows:
            self._tally.add(row, first=row.scored is not before)
            if self._shown.add(row) and (row.alarm or not self._config.alarms_only):
                kept.append(row)
            before = row.scored
        tokenizer, per_unit = self._chosen.model.tokenizer, self._config.per_unit
        self._output.write([line(row, tokenizer, per_unit=per_unit) for row in kept])

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
            problems=tellable(problems.counts, sensitive),
            seconds=tally.seconds,
            rate=here / tally.seconds if tally.seconds else 0.0,
            unit=chosen.model.tokenizer.unit,
            level=chosen.level.name,
            mode=chosen.mode_name,
            alarms=tellable_count(tally.alarms, sensitive=sensitive) if asked else None,
            incidents=tellable_count(tally.incidents(), sensitive=sensitive) if asked else None,
            stopped=self._signals.received,
            quarantine=str(problems.quarantine) if problems.quarantined and problems.bad_count else None,
            run=self._shown.run_name,
        )

    def close(self) -> None:
        """Let go of the output."""
        self._output.close()
