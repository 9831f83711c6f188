"""Where rows go, and how far they have come: a sink, its cursor, and the quarantine beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from seqmlm.anomaly.levels import Level
from seqmlm.data.problems import Problems
from seqmlm.errors import StateError
from seqmlm.streams.cursor import Cursor, Position
from seqmlm.streams.sinks import Kind, Row, Schema, Sink, is_stream, open_sink, unwritable
from seqmlm.tasks.score_config import ScoreConfig

_COLUMNS: dict[str, Kind] = {
    "id": "text",
    "source": "text",
    "line": "integer",
    "start": "integer",
    "end": "integer",
    "units": "integer",
    "pll": "number",
    "bits_per_unit": "number",
    "sum": "number",
    "max": "number",
    "top_mean": "number",
    "perplexity": "number",
    "score": "number",
}


def schema(
    level: Level, *, calibrated: bool, alarms: bool, per_unit: bool, sensitive: bool = False
) -> Schema:
    """The columns of a level's rows, the same for every row; fields of `Row.extra` are not among them."""
    columns = dict(_COLUMNS)
    if sensitive:
        columns["sensitive"] = "flag"
    if calibrated:
        columns["p_value"] = "number"
        columns["extrapolated"] = "flag"
        if alarms:
            columns["alarm"] = "flag"
        columns["channels"] = "channels"
    columns["top"] = "units"
    if per_unit:
        columns["per_unit"] = "units"
    return Schema(columns=columns, channels=level.channels if calibrated else ())


class Output:
    """The rows of one scoring on their way to a file or stream.

    A regular file has a cursor beside it from the beginning to the end of the scoring, so that one that was
    killed can go on. `begin` comes first.

    Args:
        config: names the file.
        columns: of the rows.
        request: what decides the rows, for the cursor.
        private: only the owner may read what is written.
        stdout: where rows go without a file.
    """

    def __init__(
        self,
        config: ScoreConfig,
        columns: Schema,
        request: Mapping[str, Any],
        *,
        private: bool,
        stdout: TextIO,
    ) -> None:
        self._config, self._columns, self._private, self._stdout = config, columns, private, stdout
        out = config.out
        kept = out is not None and not is_stream(out)
        self._cursor = Cursor(out, request, private=private) if out is not None and kept else None
        self._sink: Sink | None = None
        self._rows = 0
        self._quarantined = 0  # bytes of the quarantine file that are of earlier scorings
        self.notes: list[str] = []

    def begin(self, problems: Problems) -> Position:
        """Open the output, where it was left or anew; says where to go on.

        Raises:
            StateError: it cannot go on: the request, an input or the output is not what it was; or the folder
                of the output is a file.
        """
        for above in self._config.out.parents if self._config.out is not None else ():
            if above.exists() and not above.is_dir():
                raise StateError(f"cannot write {self._config.out}: {above} is a file; name another --out")
        position = self._left(problems)
        self._rows = position.rows
        self._sink = open_sink(
            self._config.out,
            self._columns,
            format=self._config.output_format,
            private=self._private,
            mark=position.output or None,
            stdout=self._stdout,
        )
        return position

    def _left(self, problems: Problems) -> Position:
        if self._cursor is None:
            return Position()
        if self._config.resume:
            found = self._cursor.load()
            if found is None:
                self.notes.append(f"no unfinished scoring of {self._config.out}: beginning")
            else:
                self._quarantined = int(found.counts["quarantined_before"])
                problems.cut_quarantine(int(found.problems["quarantined"]))
                self.notes.append(f"going on with {self._config.out} after {found.records:,} records")
                return found
        elif (unfinished := self._cursor.unfinished()) is not None:
            if unfinished.records:  # else nothing of it is lost
                out = self._config.out
                self.notes.append(
                    f"an unfinished scoring of {out} is started over (--resume would go on with it)"
                )
            problems.cut_quarantine(int(unfinished.counts.get("quarantined_before", 0)))
        self._cursor.remove()
        self._quarantined = problems.quarantined
        # From here on there is something to go on with; the output itself is not touched yet.
        self._save(Position(), problems)
        return Position()

    def write(self, rows: Sequence[Row]) -> None:
        """Take rows.

        Raises:
            StateError: they cannot be written.
        """
        assert self._sink is not None
        self._sink.write(rows)
        self._rows += len(rows)

    def commit(self, records: int, counts: Mapping[str, Any], problems: Problems) -> None:
        """Make what was written survive, and note that the first `records` records are done.

        Raises:
            StateError: the disk refuses it; the last commit stays.
        """
        assert self._sink is not None
        mark = self._sink.commit()
        self._save(Position(records=records, rows=self._rows, output=mark, counts=counts), problems)

    def _save(self, position: Position, problems: Problems) -> None:
        if self._cursor is None:
            return
        try:
            met = problems.snapshot()
        except OSError as error:
            raise unwritable(problems.quarantine or Path("the quarantine"), error) from None
        counts = {**position.counts, "quarantined_before": self._quarantined}
        self._cursor.save(replace(position, counts=counts, problems=met))

    def finish(self) -> None:
        """Everything is written: bring the file into its final form, and forget how far it had come.

        Raises:
            StateError: it cannot be written.
        """
        assert self._sink is not None
        self._sink.finish()
        if self._cursor is not None:
            self._cursor.remove()

    def close(self) -> None:
        """Let go of the output; rows since the last commit are in the file where the disk took them."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def keep(self) -> None:
        """Before giving up on an error of the input: let the rows before it be seen.

        Raises:
            StateError: they cannot be written.
        """
        if self._sink is not None:
            self._sink.commit()
