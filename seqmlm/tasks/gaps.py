"""What maps and variants share: records become rows of a file, reports are kept.

Reading, bad records, commits, resuming and the formats of rows are those of `seqmlm score`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from seqmlm.data.files import expand
from seqmlm.data.problems import OnError, Problems
from seqmlm.engine.device import Precision
from seqmlm.engine.signals import StopSignals
from seqmlm.errors import UsageError
from seqmlm.inference.batches import Batch, Budget
from seqmlm.inference.runner import Counts, Output, Progress, Runner
from seqmlm.inference.session import Session
from seqmlm.reports.page import Page
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import Fields, Schema, format_of
from seqmlm.tasks.task import PRIVATE, keep_run

Item = TypeVar("Item")
Answers = TypeVar("Answers")


@dataclass(frozen=True, kw_only=True)
class GapConfig:
    """What every command about gaps can be told.

    Args:
        model: a reference.
        paths: files, folders, or "-".
        out: where rows go; None for standard output.
        format_out: "jsonl", "csv" or "parquet"; None: what the name of `out` says.
        resume: continue the unfinished rows of `out`.
        domain, format, options, on_error: as reading data takes them.
        tokens_per_batch: budget of a forward pass; None for what suits the device.
        precision: of the matrix products.
    """

    model: str
    paths: tuple[str, ...] = ()
    out: Path | None = None
    format_out: str | None = None
    resume: bool = False
    domain: str | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    tokens_per_batch: int | None = None
    precision: Precision = "fp32"

    def check(self) -> None:
        """Refuse what makes no sense, before anything is read.

        Raises:
            UsageError: what and why.
        """
        if not self.paths:
            raise UsageError("nothing to read: name files, folders, or - for standard input")
        if self.resume and (self.out is None or "-" in self.paths):
            raise UsageError("--resume continues a file named with --out, from files that can be read again")
        check_outputs({"--out": self.out}, inputs=expand(self.paths), streams=True)

    def open(self) -> Session:
        """The model.

        Raises:
            UsageError, StateError: as `Session.open`; an output in the model's folder.
        """
        session = Session.open(
            self.model,
            domain=self.domain,
            tokens_per_batch=self.tokens_per_batch,
            precision=self.precision,
            expert="none",
            shown=self.out is None,
            remedy=PRIVATE,
        )
        check_outputs({"--out": self.out}, folder=session.model.path)
        return session

    def request(self, session: Session) -> dict[str, Any]:
        """What decides the rows, for the cursor of an output that is resumed."""
        left_out = ("model", "paths", "out", "on_error", "resume", "tokens_per_batch")
        told = {key: value for key, value in asdict(self).items() if key not in left_out}
        return {**told, "model": session.model.path, "sources": list(self.paths)}


@contextmanager
def writing(
    config: GapConfig,
    session: Session,
    columns: Schema,
    answers: Callable[[Batch[Item], Problems], Answers],
    rows: Callable[[Answers], Sequence[Fields]],
    stdout: TextIO | None,
    *,
    out: Path | None,
    counts: Counts | None = None,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> Iterator[Runner[Item, Answers]]:
    """A run whose rows go where the config says, stopped by signals, resumed where that is asked.

    Args:
        out: the file of its rows; None for `stdout`.
        config, session, columns: of the run and its rows.
        answers: asks about a batch; hands what it cannot ask about to the problems.
        rows: of what was answered.
        stdout: where rows go without a file.
        counts: what is remembered for a run that is resumed.
        budget: of a batch and of a commit interval; None for that of exact scores.
    """
    private = session.card.sensitive
    quarantine = Path(f"{config.out or 'rows'}.quarantine.jsonl")
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        output = Output(
            out,
            columns,
            format=format_of(out, config.format_out),
            request=None if out is None else config.request(session),
            resume=config.resume,
            private=private,
            stdout=stdout,
        )
        stack.callback(output.close)
        output.claim()
        problems = stack.enter_context(Problems(config.on_error, quarantine=quarantine, sensitive=private))
        yield Runner(
            session,
            lambda batch: answers(batch, problems),
            rows,
            output,
            problems,
            counts=counts,
            budget=budget,
            progress=progress,
            signals=signals,
        )


def keep_report(
    config: GapConfig,
    session: Session,
    task: str,
    page: Page,
    path: Path,
    metrics: Mapping[str, float],
    params: Mapping[str, object],
    files: Sequence[Path] = (),
) -> None:
    """Write a report, and keep it with its figures in a run of MLflow: of sensitive data no small ones.

    Args:
        files: that are kept beside the report, where data are not sensitive.

    Raises:
        StateError: it cannot be written.
    """
    page.write(path, private=session.card.sensitive)
    keep_run(session, task, config, metrics, params, [path, *files])
