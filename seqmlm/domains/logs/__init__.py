"""The logs domain: files of messages from machines, read as windows or sessions, with a log line as unit.

The first lines of a file determine its format, because names say little. A record is a session if lines name
one, and otherwise a window. The latest tenth in time is held out. A detector will see such lines, and its
thresholds are calibrated on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqmlm.anomaly.levels import Level
from seqmlm.data.files import stem_suffix
from seqmlm.data.record import Record
from seqmlm.domains.content import LOG
from seqmlm.domains.field import BuiltInSample, Defaults, Field, Keys, chapter
from seqmlm.domains.files import Format, Reading, dataset_format
from seqmlm.domains.logs.gaps import LineGaps, Lines
from seqmlm.domains.logs.levels import LineLevel, SessionLevel
from seqmlm.domains.logs.readers import READERS, patterns_of
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.readers.rotations import rotation_of, service_of
from seqmlm.domains.samples import cell_number
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.units import ONE_PASS

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture

_ROTATED = tuple(f".{number}" for number in range(100))
_SUFFIXES = (".log", ".txt", ".out", ".err", ".jsonl", ".ndjson", ".csv", ".tsv", *_ROTATED)


def _original_name(path: Path | str) -> str | None:
    """The name of a file before its rotation, whose present ending belongs to no format."""
    return None if stem_suffix(path) in (".bz2", ".xz") else service_of(str(path))


def _tokenizer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `templates.v1` that `fields`, `keep`, `mask` and `patterns` set."""
    chosen: dict[str, Any] = {}
    if options.get("fields") is not None:
        chosen["fields"] = str(options["fields"])
    for name in ("keep", "mask"):
        if options.get(name) is not None:
            chosen[name] = [
                field_name.strip() for field_name in str(options[name]).split(",") if field_name.strip()
            ]
    if options.get("patterns") is not None:
        chosen["patterns"] = patterns_of(str(options["patterns"]))
    return chosen


def _identity(record: Record) -> str:
    """The identity of a record: its lines with their times.

    Many sessions of event ids are equal. Their identity therefore also has the id of the session.
    """
    if isinstance(record.raw, LogLines) and record.raw.keys:
        return f"{record.id}\0{record.raw}"
    return str(record.raw)


def _first_time(record: Record) -> float:
    """Time of the first line in seconds.

    It is 0 for all records without times, so that they keep their order.
    """
    times = record.raw.times if isinstance(record.raw, LogLines) else None
    return times[0] if times else 0.0


def _pictures(level: Level) -> Sequence[Picture]:
    """Numbered and coloured lines, and the scores of sessions or lines over time."""
    from seqmlm.domains.logs.picture import LogRecord
    from seqmlm.reports.pictures import Timeline

    return LogRecord(), Timeline()


def _shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a row shows an anomaly: its line is one of the fault's lines."""
    return cell_number(row.get("line")) in anomaly["lines"]


LOGS = Field(
    name="logs",
    title="Logs: sessions and windows of machines' messages",
    unit="line",
    formats={
        name: Format(read=reader, suffixes=_SUFFIXES if name == "auto" else ())
        for name, reader in READERS.items()
    },
    reading=Reading(
        dataset=dataset_format(READERS["jsonl"]),
        original=_original_name,
        rotation=rotation_of,
        followed=True,
        cuts=(
            *("session", "window", "session_gap", "max_session", "multiline"),
            *("fields", "message_field", "keep_header"),  # these select the parts of each line
        ),
        tokenizer=_tokenizer_options,
        content=(LOG,),
    ),
    defaults=Defaults(
        tokenizer="templates.v1",
        tokenizer_options={"values": 64, "fields": "auto"},
        masking=MaskingConfig(masker="whole_unit.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        split="chronological",
        validation=0.05,
        calibration=0.1,
        mode=ONE_PASS,
    ),
    text=Lines(),
    # A session stays together, and so does a stretch of windows that share lines.
    keys=Keys(identity=_identity, split=lambda record: record.document or record.id, order=_first_time),
    levels=(SessionLevel("session"), LineLevel("line")),
    pictures=_pictures,
    gaps=LineGaps(text=Lines()),
    structure=chapter(__name__, "structure.EventsDecoder"),
    sample=BuiltInSample(write=chapter(__name__, "sample.write"), planted_in="session", shows=_shows),
)
