"""Rows of a followed stream to a calibration: what is usual for a model where it judges.

The statistics that the database keeps of a stream's newest rows become a new calibration of the model's
folder: with those of false alarms, and without those of incidents that a person acknowledged as faults, as in
a rolling calibration (`watch.rolling`, which says why alarms may not all be left out). Nothing is scored
again, and no line is read: so the rows must have been judged by the model as it is now.

The trade-off: nobody has labelled these rows. A fault among them that nobody noticed is normal afterwards,
and hides later ones that are like it, or less unusual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.errors import StateError, UsageError, number_of
from seqmlm.inference.calibrations import Stored, store, stored_calibration
from seqmlm.inference.session import Session
from seqmlm.scoring.calibrate import CalibrateConfig, CalibrateResult
from seqmlm.tasks.register import register_calibrations
from seqmlm.watch.incidents import since_of, stream_of
from seqmlm.watch.rolling import FEWEST, judged_by, refitted
from seqmlm.watch.store import Figures, Streams
from seqmlm.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class CalibrateStreamResult(CalibrateResult):
    """What was calibrated from a stream; how many records its rows are of is not known."""

    output: str  # the file that the scoring writes
    rows: int  # that were used
    faults: int  # rows left out, of incidents that were acknowledged as faults
    false_alarms: int  # incidents with rows among those used that people took for false alarms
    unjudged: int  # such incidents of which nobody has said anything


def calibrate_stream(
    config: CalibrateConfig, stream: Path, since: str | None = None
) -> CalibrateStreamResult:
    """Replace a model's calibration of a stream's level and mode by one of the rows that the stream, which
    writes this file, judged, perhaps `since` so long ("7d") alone; of the `config` model, counts (`expert`),
    `seed`, and `fpr`, a rate of which it is said what it rests on.

    Raises:
        UsageError: a rate or duration that is none, or a sensitive model.
        StateError: no such model or stream; too few rows are kept, or they were judged by another model; the
            folder cannot be written. Then the model has the calibrations it had.
    """
    begin = None if since is None else datetime.now(UTC) - since_of(since)
    with Streams(Workspace.locate()) as registry:
        of = stream_of(registry, stream)
        entry, owners = registry.rolling(of.id, begin), registry.owners(of.id)
        if entry is None or not entry.state.get("judged_by"):
            raise StateError(
                f"no statistics are kept of the rows of {of.output}: the model that judged them is not "
                "calibrated for them, or is of sensitive data; calibrate with files"
            )
        known = entry.state["judged_by"]
        session = Session.open(config.model, precision=known["precision"], expert=config.expert, folder=True)
        if session.card.sensitive:
            raise UsageError(
                "a model of sensitive data is not calibrated from a stream: of whom its rows are is not "
                "kept; calibrate with files"
            )
        level, stored = _own(session, known, config.model, stream)
        used = [one for one in entry.rows if owners.get(one.number, (0, ""))[1] != "fault"]
        if len(used) < FEWEST:
            within = "" if since is None else f" since {since} ago"
            raise StateError(
                f"{of.output}: statistics of {number_of(len(used), 'row')} that count as normal are kept"
                f"{within}, and a calibration needs {FEWEST}: wait until more are judged, or calibrate with "
                "files"
            )
        made = _made(stored, used, config.seed)
        store(Path(session.model.path), {(level, known["mode"]): made})
        if session.entry is not None:
            register_calibrations(registry, session.entry)
    verdicts = list(dict(owners[one.number] for one in used if one.number in owners).values())
    return CalibrateStreamResult(
        model=config.model,
        level=level,
        records=None,
        left_out=None,
        modes={known["mode"]: made.facts(session.model, config.fpr)},
        problems={},
        output=of.output,
        rows=len(used),
        faults=len(entry.rows) - len(used),
        false_alarms=verdicts.count("normal"),
        unjudged=verdicts.count(None),
    )


def _own(session: Session, known: Mapping[str, Any], model: str, stream: Path) -> tuple[str, Stored]:
    """The level of the rows and the calibration that is to be replaced; StateError: the rows are of another
    model or of other statistics, or there is no such calibration."""
    level = session.model.domain.level(known["level"])
    stored = stored_calibration(session.model, level, known["mode"])
    if stored is None:
        raise StateError(
            f"{model} has no calibration of level {level.name} in mode {known['mode']}, which says "
            "what statistics judge: make one with files first"
        )
    now = judged_by(session, stored.fitted, level.name, known["mode"])
    if {**now, "judge": None} != {**known, "judge": None}:
        files = known["files"].keys() | now["files"].keys()
        parts = [name for name in sorted(files) if known["files"].get(name) != now["files"].get(name)]
        parts += [name for name in now if name not in ("files", "judge") and now[name] != known.get(name)]
        raise StateError(
            f"the rows of {stream} were not judged by {model} as it is now (different: "
            f"{', '.join(parts)}), and scores of two models are not mixed: name the model that judged them, "
            "or follow with this one to another --out and calibrate from that"
        )
    return level.name, stored


def _made(stored: Stored, kept: Sequence[Figures], seed: int) -> Stored:
    if any(len(one.figures) != 8 * (1 + len(stored.fitted.statistics)) for one in kept):
        raise StateError("the statistics in the database are not whole; calibrate with files")
    rows = np.stack([np.frombuffer(one.figures, dtype="<f8") for one in kept])
    source = f"stream:{sha256(rows.tobytes()).hexdigest()}"
    return replace(
        stored, fitted=refitted(stored.fitted, rows, seed=seed), records=0, source=source, created=""
    )
