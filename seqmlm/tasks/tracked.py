"""The run of MLflow that a task's report is kept in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from seqmlm.data.privacy import redact_small_counts
from seqmlm.data.sources import UNNAMED, combined, file_fingerprint, shown_name, split_source
from seqmlm.errors import DataError
from seqmlm.inference.session import Session
from seqmlm.tracking import TrackedRun, Tracker
from seqmlm.workspace import Workspace

KEPT_BYTES = 64 << 20  # larger files are not copied into a run


def keep_run(
    session: Session,
    task: str,
    config: Any,
    figures: Mapping[str, Any],
    params: Mapping[str, object],
    files: Sequence[Path] = (),
) -> None:
    """Log figures and files of a task in a run of MLflow; of sensitive data no files.

    Args:
        config: has the `model` as it was named, and the `paths`.
        figures: without small counts of sensitive data; their numbers are logged, each under its path.
    """
    private, entry = session.card.sensitive, session.entry
    name = session.card.run_name or Path(session.model.path).name
    moment = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    told = {
        "domain": session.card.domain,
        "model": config.model,
        **({} if entry is None else {"model_name": entry.name, "model_version": entry.version}),
        "data": UNNAMED if private else shown_name(config.paths),
        "precision": session.precision,
        **params,
    }
    tags = {"domain": session.card.domain, "task": task}
    tracker, experiment = Tracker(Workspace.locate()), f"seqmlm-{session.card.domain}"
    with tracker.start(f"{task}-{name}-{moment}"[:100], experiment=experiment, params=told, tags=tags) as run:
        if entry is not None:
            run.uses(entry.name, entry.version)
        _name_data(session, config, run)
        run.log_metrics(0, dict(_numbers(figures)))
        for file in () if private else files:
            if file.stat().st_size <= KEPT_BYTES:
                run.artifact(file)


def _numbers(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of figures, by path, in letters and a length that MLflow takes."""
    for key, value in figures.items():
        path = prefix + (re.sub(r"[^\w :-]", "_", key) or "_")
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield path[:250], float(value)


def _name_data(session: Session, config: Any, run: TrackedRun) -> None:
    """Tell a run what was read, by its content, unless that can be read but once."""
    paths = [split_source(path)[1] for path in config.paths]
    if not paths or "-" in paths:
        return
    with suppress(DataError):  # the task itself says what cannot be read, or leaves it out
        named = session.domain.files(paths, format=config.format, options=config.options)
        private = session.card.sensitive
        digest = combined(files=file_fingerprint(named))
        facts = redact_small_counts({"files": len(named)}, private)
        shown, source = (UNNAMED, "withheld") if private else (shown_name(paths), paths[0])
        run.dataset(shown, source, digest, facts, context="scoring")
