"""Write the report of a task, and log it in an MLflow run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from seqmlm import __version__
from seqmlm.data.fingerprints import combined, file_fingerprint
from seqmlm.data.sources import shown_name, split_source
from seqmlm.errors import DataError
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures, Summary
from seqmlm.rows.file import Rows
from seqmlm.tasks.task import Conclusion, Task
from seqmlm.tracking import DESCRIPTION, MAX_PARAMS, TrackedRun, Tracker, decimal
from seqmlm.workspace import Workspace

ALL_ROWS, ROWS_THAT_ALARM = "all rows", "rows that alarm"
_PERSONAL = ("data", "command", ALL_ROWS, ROWS_THAT_ALARM)
"""Facts in a report that contain file names, which can contain names of people."""


def origin(session: Session, task: str, config: Any) -> dict[str, Any]:
    """The origin of the rows in a report: data, model, date, command and file."""
    entry, out = session.entry, config.out
    model = str(config.model) if entry is None else f"{entry.name}, version {entry.version}"
    facts: dict[str, Any] = {
        "data": shown_name(config.paths) if config.paths else None,
        "model": model,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, seqmlm {__version__}",
        "command": command(task, config),
    }
    if out is not None:
        place = quote(os.path.relpath(out, Path(config.report).parent))
        rows_label = ROWS_THAT_ALARM if getattr(config, "alarms_only", False) else ALL_ROWS
        facts[rows_label] = Markup('<a href="{}">{}</a>').format(place, out.name)
    return facts


def command(task: str, config: Any) -> str:
    """The equivalent command line, quoted for a shell."""
    words = ["seqmlm", task, str(config.model), *map(str, config.paths)]
    for option in fields(config):
        value = getattr(config, option.name)
        default = option.default if option.default_factory is MISSING else option.default_factory()
        if option.name in ("model", "paths") or value == default:
            continue
        words_of = [f"{k}={v}" for k, v in value.items()] if isinstance(value, Mapping) else value
        flag = f"--{option.name.replace('_', '-')}"
        if option.name not in config.option_fields:
            words += ["--set", f"{option.name}={value}"]
        elif value is True:
            words.append(flag)
        elif isinstance(words_of, (list, tuple)):
            words += [word for item in words_of for word in (flag.removesuffix("s"), str(item))]
        else:
            words += [flag, str(value)]
    return shlex.join(words)


KEPT_BYTES = 64 << 20  # larger files are not copied to a run


def keep_run(
    session: Session,
    task: str,
    config: Any,
    figures: Mapping[str, Any],
    params: Mapping[str, object],
    files: Sequence[Path] = (),
    description: str = "",
    *,
    spent: float = 0.0,
) -> None:
    """Log the figures and files of a task in an MLflow run.

    A metric is a chart in MLflow, here with a single point. Therefore only figures for comparing runs are
    metrics. Other numbers are params, up to the limit of MLflow.

    Args:
        spent: seconds that the task took.
    """
    entry = session.entry
    name = session.card.run_name or Path(session.model.path).name
    moment = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    logged = {
        "domain": session.card.domain,
        "model": config.model,
        **({} if entry is None else {"model_name": entry.name, "model_version": entry.version}),
        "data": shown_name(config.paths),
        "precision": session.precision,
        **params,
    }
    numbers = dict(_numbers(figures))
    metrics = {path: value for path, value in numbers.items() if is_compared(path, value)}
    extra = {path: decimal(value) for path, value in numbers.items() if path not in {*metrics, *logged}}
    logged |= dict(islice(extra.items(), MAX_PARAMS - len(logged)))
    tags = {"domain": session.card.domain, "task": task, "kind": "use", DESCRIPTION: description}
    tracker, run_name = Tracker(Workspace.locate()), f"{task}-{name}-{moment}"[:100]
    of: dict[str, Any] = {"experiment": f"seqmlm-{session.card.domain}", "params": logged, "tags": tags}
    with tracker.start(run_name, **of, spent=spent) as run:
        if entry is not None:
            run.uses(entry.name, entry.version)
        _name_data(session, config, run)
        run.log_metrics(0, metrics)
        for file in files:
            if file.stat().st_size <= KEPT_BYTES:
                run.artifact(file, of_records=True)


def is_compared(path: str, value: float) -> bool:
    """Whether a figure is for comparing runs: alarms, or a top-level measure that is not an interval bound.

    >>> [is_compared(*one) for one in (("auroc", 0.9), ("auroc_low", 0.8), ("alarms", 3), ("rows", 40))]
    [True, False, True, False]
    >>> [is_compared(f"agreement/{one}/spearman/value", 0.4) for one in ("model", "BLOSUM62")]
    [True, False]
    """
    deep, _, name = path.removesuffix("/value").rpartition("/")
    return path == "alarms" or (
        isinstance(value, float)
        and "/" not in deep.removesuffix("/model")
        and name.rpartition("_")[2] not in ("low", "high", "p")
    )


def _numbers(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in figures by path, with characters and a length that MLflow accepts."""
    for key, value in figures.items():
        path = prefix + (re.sub(r"[^\w :-]", "_", key) or "_")
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield path[:250], value


def _name_data(session: Session, config: Any, run: TrackedRun) -> None:
    """Log the input data with a digest of their content, unless they can be read only once."""
    paths = [split_source(path)[1] for path in config.paths]
    if not paths or "-" in paths:
        return
    with suppress(DataError):  # the task itself reports unreadable files or leaves them out
        files = session.domain.files.inputs(paths, format=config.format, options=config.options)
        digest = combined(files=file_fingerprint(files))
        facts = {"files": len(files)}
        run.dataset(shown_name(paths), paths[0], digest, facts, context="scoring")


def write_report(
    task: Task[Any, Any],
    summary: Summary,
    rows: Rows,
    files: Sequence[Path],
    conclusion: Conclusion,
    figures: Figures,
) -> None:
    """Write the report, and log it with the figures in an MLflow run."""
    from seqmlm.reports.page import Page

    config, session = task.config, task.session
    assert config.report is not None
    answer, *warnings = summary.answer.split("\n")
    lead = conclusion.lead or answer
    page = Page(f"{summary.task.capitalize()}: {config.model}", lead)
    page.warnings(
        [*warnings, *(f"{note}: {n}" for note, n in summary.notes.items() if note in task.output.caution)]
    )
    page.head(origin(session, summary.task, config), personal=_PERSONAL)
    page.head({"note": "; ".join(task.output.notes)})
    task.page(page, rows.read, figures)
    for table in summary.tables:
        page.table(*table)
    if summary.notes:
        page.table("Warnings", ["warning", "count"], list(summary.notes.items()))
    page.write(config.report)
    tracked = {"items": summary.items, "bad": summary.bad, **summary.figures}
    text = summary.description(lead, command(summary.task, config))
    copies = [config.report, *files]
    keep_run(session, summary.task, config, tracked, task.output.settled, copies, text, spent=summary.seconds)
