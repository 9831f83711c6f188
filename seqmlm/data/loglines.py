"""What a record of the logs domain holds: the lines of one window or session, with their times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """Some log lines in order.

    Args:
        lines: the message of each line, or the event ids of a session file as text.
        times: seconds since the epoch (UTC) of each line, or None where the file has no times.
        keys: the lines are event ids of a session file, not messages.
    """

    lines: tuple[str, ...]
    times: tuple[float, ...] | None
    keys: bool = False

    def __str__(self) -> str:
        """The lines, then the times: equal texts are equal records."""
        text = "\n".join(self.lines)
        return text if self.times is None else f"{text}\n{' '.join(map(repr, self.times))}"
