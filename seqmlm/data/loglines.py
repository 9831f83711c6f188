"""What one record of a log is: the messages of a window or session, with their times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """The lines of one window of a log, or of one session.

    Args:
        lines: the message of each line, without the header (time, level, host, process) that the format
            knows; a message of several physical lines keeps its line ends. Of a session file, the event ids
            as text ("5", "22").
        times: seconds since 1970-01-01 UTC of each line, or None where they are unknown.
        keys: the lines are event ids of a session file, not messages.

    >>> raw = LogLines(lines=("started", "ready"), times=(0.0, 1.5))
    >>> raw.text
    'started\\nready'
    """

    lines: tuple[str, ...]
    times: tuple[float, ...] | None = None
    keys: bool = False

    @property
    def text(self) -> str:
        """The messages joined by line ends: what `Encoding.spans` point into; `str` begins with it."""
        return "\n".join(self.lines)

    def __str__(self) -> str:
        """`text`, a NUL, and what the text does not say; equal strings are equal records.

        After the NUL come "k" for `keys`, "l" with the lengths of the messages where one holds a line end
        (else the text says where each ends), and "t" with the times to the last bit.
        """
        text = self.text
        rest = ["k"] if self.keys else []
        if text.count("\n") + 1 != len(self.lines):
            rest.append("l" + ",".join(str(len(line)) for line in self.lines))
        if self.times is not None:
            rest.append("t" + ",".join(map(repr, self.times)))
        return f"{text}\0{' '.join(rest)}"
