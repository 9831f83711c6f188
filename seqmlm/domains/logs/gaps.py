"""Convert logs to text, and read and fill gaps, which are whole lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from seqmlm.data.record import Record
from seqmlm.domains.field import Gaps, Text
from seqmlm.domains.holes import Hole, Prompt, escape_holes, frame
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.engine.types import Encoding, Ids

if TYPE_CHECKING:
    from seqmlm.tokenizers.base import Tokenizer


class Lines(Text):
    """Lines of a session or window."""

    empty = LogLines(lines=())
    endings = (".log",)
    columns: ClassVar[Mapping[str, str]] = {"lines": "list<string>", "timestamp": "list<double>"}

    def text_of(self, raw: Any) -> str:
        """The messages only."""
        return raw.text if isinstance(raw, LogLines) else str(raw)

    def row(self, record: Record) -> dict[str, Any]:
        """The lines of the session or window, and the time of each line if times are known."""
        return {"lines": list(record.raw.lines), "timestamp": list(record.raw.times or ())}

    def file_text(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """JSON lines with one session each, so that the lines of a session stay together."""
        for name, raw in sequences:
            yield json.dumps({"session": name, "lines": self.text_of(raw).split("\n")}) + "\n"

    def show(self, tokenizer: Tokenizer, raw: Any, encoding: Encoding, asked: Ids, predicted: Ids) -> str:
        """The text of `Text.show`, with a mark at the end of each line."""
        text = self.text_of(raw)
        return super().show(tokenizer, text.replace("\n", "⏎"), encoding, asked, predicted)


class LineGaps(Gaps):
    """Gaps for missing lines. Text that is not a log has the gaps of ordinary text."""

    def blank(self, units: int) -> LogLines:
        """Lines that are gaps."""
        return LogLines(lines=(self.forms[0],) * units)

    def framed(self, raw: Any, template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> Any:
        """Insert the log's lines into a template, in place of its line `{text}`."""
        if not isinstance(raw, LogLines):
            return super().framed(raw, template, fields, forms)
        raw_lines = [escape_holes(line, forms) if line in forms else line for line in raw.lines]
        lines, lines_before, lines_after = list[str](), 0, 0
        for line in template.splitlines():
            if line.strip() == "{text}":
                lines += raw_lines
                lines_before, lines_after = len(lines) - len(raw_lines), 0
            else:
                lines.append(frame(line, fields, forms))
                lines_after += 1
        times = raw.times and (*[raw.times[0]] * lines_before, *raw.times, *[raw.times[-1]] * lines_after)
        return replace(raw, lines=tuple(lines), times=times if times and len(times) == len(lines) else None)

    def prompt(self, raw: Any, forms: Sequence[str]) -> Prompt:
        """Find the missing lines: each line that is only a gap."""
        if not isinstance(raw, LogLines):
            return super().prompt(raw, forms)
        stripped = [line.strip() for line in raw.lines]
        gaps = [place for place, line in enumerate(stripped) if line in forms]
        escaped = {f"\\{form}" for form in forms}
        lines = [
            line[1:] if line in escaped else raw_line
            for line, raw_line in zip(stripped, raw.lines, strict=True)
        ]
        return _with_gaps(raw, lines, gaps)

    def filled(self, prompt: Prompt, texts: Sequence[str]) -> Prompt:
        """Replace each missing line by a message."""
        if not isinstance(prompt.raw, LogLines):
            return super().filled(prompt, texts)
        lines, starts = list(prompt.raw.lines), _line_starts(prompt.raw.lines)
        places = [starts.index(hole.start) for hole in prompt.holes]
        for place, text in zip(places, texts, strict=True):
            lines[place] = text
        return _with_gaps(prompt.raw, lines, places)


def _line_starts(lines: Sequence[str]) -> list[int]:
    """The offset of each line in the joined text."""
    return [0, *accumulate(len(line) + 1 for line in lines)][:-1]


def _with_gaps(raw: LogLines, lines: Sequence[str], gaps: Sequence[int]) -> Prompt:
    """A prompt of lines, some of which are gaps."""
    starts = _line_starts(lines)
    holes = tuple(Hole(starts[place], starts[place] + len(lines[place])) for place in gaps)
    return Prompt(raw=replace(raw, lines=tuple(lines)), holes=holes)
