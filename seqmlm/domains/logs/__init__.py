"""The logs domain: files of machines' messages in, windows or sessions out, a log line as unit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seqmlm.anomaly.levels import Level
from seqmlm.data.files import stem_suffix
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain, DomainDefaults, Format, dataset_format
from seqmlm.domains.holes import Hole, Prompt, escaped, frame
from seqmlm.domains.logs.readers import READERS
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.readers.rotations import rotation_of, service_of
from seqmlm.domains.samples import whole
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.engine.types import Encoding, Ids
from seqmlm.engine.units import ONE_PASS, Mode

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture
    from seqmlm.tokenizers.base import Tokenizer


_ROTATED = tuple(f".{number}" for number in range(100))
_SUFFIXES = (".log", ".txt", ".out", ".err", ".jsonl", ".ndjson", ".csv", ".tsv", *_ROTATED)


class LogsDomain(Domain):
    """Logs of any kind; what a file is, is told by its first lines, because names say little.

    A record is a session where lines name one, else a window; the latest tenth in time is held out, because
    that is what a detector will meet, and what its thresholds are calibrated on.
    """

    name: ClassVar[str] = "logs"
    planted_in: ClassVar[str] = "session"
    title: ClassVar[str] = "Logs: sessions and windows of machines' messages"
    unit: ClassVar[str] = "line"
    structure: ClassVar[str] = "EventsDecoder"
    cuts: ClassVar[tuple[str, ...]] = (
        *("session", "window", "session_gap", "max_session", "multiline"),
        *("fields", "message_field"),  # and what of each line is read
    )
    followed: ClassVar[bool] = True
    empty: ClassVar[LogLines] = LogLines(lines=())
    formats: ClassVar[Mapping[str, Format]] = {
        name: Format(read=read, suffixes=_SUFFIXES if name == "auto" else ())
        for name, read in READERS.items()
    }
    dataset: ClassVar[Format] = dataset_format(READERS["jsonl"])
    columns: ClassVar[Mapping[str, str]] = {"lines": "list<string>", "timestamp": "list<double>"}
    mode: ClassVar[Mode] = ONE_PASS
    defaults: ClassVar[DomainDefaults] = DomainDefaults(
        tokenizer="templates.v1",
        tokenizer_options={"values": 64, "fields": "auto"},
        masking=MaskingConfig(masker="whole_unit.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        split="chronological",
        validation=0.05,
        calibration=0.1,
    )

    @property
    def levels(self) -> tuple[Level, ...]:
        """The session or window whole, and the line."""
        from seqmlm.domains.logs.levels import LineLevel, SessionLevel

        return SessionLevel("session"), LineLevel("line")

    def level(self, name: str | None) -> Level:
        """As `Domain.level`; a window is judged as a session is, and goes by that name too."""
        return super().level("session" if name == "window" else name)

    def pictures(self, level: Level) -> Sequence[Picture]:
        """Numbered lines on colours, and the scores of sessions or lines over time."""
        from seqmlm.domains.logs.picture import LogRecord
        from seqmlm.reports.pictures import Timeline

        return LogRecord(), Timeline()

    def format_of(self, path: Path | str) -> Format | None:
        """As `Domain.format_of`; a file that was rotated is of the format of the one it was."""
        found = super().format_of(path)
        rotated = found is None and stem_suffix(path) not in (".bz2", ".xz") and not Path(path).is_dir()
        return super().format_of(service_of(str(path))) if rotated else found

    def rotation(self, file: str) -> tuple[Any, ...]:
        """By service, and those that one service wrote in turn from the oldest to the newest."""
        return rotation_of(file)

    def shows(self, row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
        """A line of the file is one of the fault's."""
        return whole(row.get("line")) in anomaly["lines"]

    def tokenizer_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What `fields`, `keep`, `mask` and `patterns` say of templates."""
        from seqmlm.domains.logs.readers import patterns_of

        found: dict[str, Any] = {}
        if options.get("fields") is not None:
            found["fields"] = str(options["fields"])
        for name in ("keep", "mask"):
            if options.get(name) is not None:
                found[name] = [one.strip() for one in str(options[name]).split(",") if one.strip()]
        if options.get("patterns") is not None:
            found["patterns"] = patterns_of(str(options["patterns"]))
        return found

    def identity(self, record: Record) -> str:
        """The lines with their times; sessions of event ids, many of which are equal, also by id."""
        if isinstance(record.raw, LogLines) and record.raw.keys:
            return f"{record.id}\0{record.raw}"
        return str(record.raw)

    def split_key(self, record: Record) -> str:
        """The session, or the stretch of windows that share lines."""
        return record.document or record.id

    def order_key(self, record: Record) -> Any:
        """Time of the first line; where times are unknown, the place among the records that are read."""
        raw = record.raw
        known = isinstance(raw, LogLines) and raw.times
        return raw.times[0] if known else 0.0

    def row(self, record: Record) -> dict[str, Any]:
        """The lines of the session or window, and the time of each where times are known."""
        return {"lines": list(record.raw.lines), "timestamp": list(record.raw.times or ())}

    def spelled(self, raw: Any) -> str:
        """The messages alone."""
        return raw.text if isinstance(raw, LogLines) else str(raw)

    def blank(self, units: int) -> LogLines:
        """Lines that are gaps."""
        return LogLines(lines=(self.gaps[0],) * units)

    def written(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """JSON lines, a session each: their lines stay together."""
        for name, raw in sequences:
            yield json.dumps({"session": name, "lines": self.spelled(raw).split("\n")}) + "\n"

    def framed(self, raw: Any, template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> Any:
        """Lines before and behind the log's own, which stand where the template has the line `{text}`."""
        if not isinstance(raw, LogLines):
            return super().framed(raw, template, fields, forms)
        lines, own = list[str](), [escaped(line, forms) if line in forms else line for line in raw.lines]
        before, after = 0, 0
        for line in template.splitlines():
            if line.strip() == "{text}":
                lines += own
                before, after = len(lines) - len(own), 0
            else:
                lines.append(frame(line, fields, forms))
                after += 1
        times = raw.times and (*[raw.times[0]] * before, *raw.times, *[raw.times[-1]] * after)
        return replace(raw, lines=tuple(lines), times=times if times and len(times) == len(lines) else None)

    def prompt(self, raw: Any, forms: Sequence[str]) -> Prompt:
        """A line that is nothing but a gap is a line that is missing."""
        if not isinstance(raw, LogLines):
            return super().prompt(raw, forms)
        stripped = [line.strip() for line in raw.lines]
        gaps = [place for place, line in enumerate(stripped) if line in forms]
        escaped = {f"\\{form}" for form in forms}
        lines = [line[1:] if line in escaped else own for line, own in zip(stripped, raw.lines, strict=True)]
        return _with_gaps(raw, lines, gaps)

    def filled(self, prompt: Prompt, texts: Sequence[str]) -> Prompt:
        """A message in place of each missing line."""
        if not isinstance(prompt.raw, LogLines):
            return super().filled(prompt, texts)
        lines, starts = list(prompt.raw.lines), _starts(prompt.raw.lines)
        places = [starts.index(hole.start) for hole in prompt.holes]
        for place, text in zip(places, texts, strict=True):
            lines[place] = text
        return _with_gaps(prompt.raw, lines, places)

    def show(self, tokenizer: Tokenizer, raw: Any, encoding: Encoding, asked: Ids, predicted: Ids) -> str:
        """As `Domain.show`, with a mark where a line ends."""
        text = self.spelled(raw)
        return super().show(tokenizer, text.replace("\n", "⏎"), encoding, asked, predicted)


def _starts(lines: Sequence[str]) -> list[int]:
    """Where each line begins in the text of all."""
    return [0, *accumulate(len(line) + 1 for line in lines)][:-1]


def _with_gaps(raw: LogLines, lines: Sequence[str], gaps: Sequence[int]) -> Prompt:
    """Lines of which some are gaps."""
    starts = _starts(lines)
    holes = tuple(Hole(starts[place], starts[place] + len(lines[place])) for place in gaps)
    return Prompt(raw=replace(raw, lines=tuple(lines)), holes=holes)


LOGS = LogsDomain()
