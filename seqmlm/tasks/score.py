"""Scoring, end to end: files or a live input in, rows with alarms out; resumable after a crash."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar, TextIO

from seqmlm.data.problems import Problems
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import UsageError
from seqmlm.inference.runner import NoProgress, Output, Progress, Runner
from seqmlm.inference.session import Session
from seqmlm.streams.outputs import check_outputs
from seqmlm.tasks.score_config import ScoreConfig, ScoringRequest
from seqmlm.tasks.score_output import ScoreCounts, ScoreSummary, lines, schema, summarized
from seqmlm.tasks.score_plan import ScoringPlan, check_rate, choose
from seqmlm.tasks.score_show import ScoreReporter
from seqmlm.tasks.task import RESUME
from seqmlm.workspace import Workspace


class ScoringCommand:
    """A command that scores: what the command line shows of its summary.

    Attributes:
        Config: class of its config.
    """

    Config: ClassVar[type[ScoringRequest]]
    trains: ClassVar[bool] = False

    @classmethod
    def launch(
        cls, name: str, config: Any, *, stdout: TextIO, progress: Progress, as_json: bool
    ) -> ScoreSummary:
        """Score; with `as_json` the summary is data, and its sentence is told beside."""
        if as_json and config.out is None:
            raise UsageError(
                "--json prints the summary on standard output: name a file for the rows with --out"
            )
        summary = cls.run(config, stdout, progress)
        if as_json:
            progress.message(summary.sentence())
        return replace(summary, streamed=config.out is None)

    @classmethod
    def run(cls, config: Any, stdout: TextIO, progress: Progress) -> ScoreSummary:
        """Score what the config names."""
        raise NotImplementedError


class Score(ScoringCommand):
    """Score sequences with a model: one JSON line each; a higher score is more unusual.

    `pll` is the pseudo-log-likelihood in nats; `bits_per_unit`, `score` and `surprisal` are in bits.
    If the model is calibrated, `p_value` is the share of normal rows that are at least as unusual.
    Exact scoring takes one forward pass per unit; its time grows with the square of a record's length, of a
    model whose layers look nearby (`model.layers=nearby`) with the length.

    Example: seqmlm score enzymes new.fasta --fpr 0.01 --report new.html --out scores.jsonl

    Example: seqmlm score genome new.fa --out new.bedgraph

    Example: tail -F app.log | seqmlm score app - --max-latency 1s --fpr 0.001 --set alarms_only=true
    """

    Config = ScoreConfig

    @classmethod
    def run(cls, config: ScoreConfig, stdout: TextIO, progress: Progress) -> ScoreSummary:
        """Score files, or standard input as it comes."""
        return score_files(config, stdout, progress)


def score_files(config: ScoreConfig, stdout: TextIO, progress: Progress | None = None) -> ScoreSummary:
    """Score what `config` names and write a row for each thing judged.

    Args:
        config: what to score, and how.
        stdout: where rows go when `config.out` is None.
        progress: told what happens on the way.

    Returns:
        The summary; `stopped` is the signal that ended it early, after what had been read was dealt with.

    Raises:
        UsageError: a request that makes no sense, a model of another domain, or no `out` for sensitive data.
        DataError: a bad record, under `on_error` "raise"; rows before it are written.
        StateError: no such model, no calibration where one is needed, rows that cannot be written, or an
            unfinished scoring that was of something else.
    """
    progress = progress or NoProgress()
    config.check()
    plan = choose(config, opened(config))
    for note in (*plan.notes, *([NOT_DURABLE] if config.latency is not None else [])):
        progress.message(note)
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        request = None if config.out is None or config.track is not None else plan.request(config)
        output = output_of(config, plan, stdout, request)
        stack.callback(output.close)
        output.claim()
        problems = stack.enter_context(problems_of(config, plan))
        reporter = stack.enter_context(ScoreReporter(config, plan, Workspace.locate(), progress.message))
        counts, detector = ScoreCounts(plan.characters), plan.detector()
        runner = Runner(
            plan.session,
            detector.encoded,
            lines(config, plan, counts, reporter.add),
            output,
            problems,
            counts=counts,
            budget=plan.budget,
            progress=progress,
            signals=signals,
        )
        runner.run(config.sources, format=config.format, options=config.options, latency=config.latency)
        summary = summarized(runner, counts, plan, level=plan.level.name, run=reporter.run_name)
        summary = replace(summary, go_on="" if request is None or config.latency is not None else RESUME)
        reporter.finish(summary)
    return summary


NOT_DURABLE = (
    "a pipe has no durability: what was read of it and not scored is gone when this process dies; files are "
    "watched by 'seqmlm watch'"
)
"""What is said once where standard input is read live."""


def opened(config: ScoringRequest) -> Session:
    """The model of a scoring.

    Raises:
        UsageError: as `Session.open` and `check_rate`; or an output in the model's folder.
        StateError: as `Session.open` and `check_rate`.
    """
    check_rate(config)
    session = Session.open(
        config.model,
        domain=config.domain,
        tokens_per_batch=config.tokens_per_batch,
        precision=config.precision,
        expert=config.expert,
        shown=config.out is None,
        remedy="name a file with --out, which only you can read",
    )
    check_outputs(config.outputs, folder=session.model.path)
    return session


def problems_of(config: ScoringRequest, plan: ScoringPlan) -> Problems:
    """What receives bad records: a file beside the output, under `on_error` "quarantine"."""
    return Problems(config.on_error, quarantine=config.quarantine, sensitive=plan.sensitive)


def output_of(
    config: ScoreConfig, plan: ScoringPlan, stdout: TextIO, request: Mapping[str, Any] | None
) -> Output:
    """Where the rows go, nowhere beside a track; without a request such an output cannot be continued."""
    track = config.track is not None
    return Output(
        None if track else config.out,
        schema(plan),
        format=config.output_format,
        request=request,
        resume=config.resume,
        private=plan.sensitive,
        stdout=None if track else stdout,
    )
