"""A judged row as a JSON line."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from seqmlm.anomaly.levels import Level
from seqmlm.anomaly.values import Doubles, Scored
from seqmlm.data.privacy import redacted_count
from seqmlm.data.problems import Problems
from seqmlm.engine.reductions import Entropy, Rank, TopIds, TopLogProbs, top
from seqmlm.errors import StateError
from seqmlm.evaluation.incidents import Alarm, Incidents
from seqmlm.inference.detector import JudgedRow
from seqmlm.streams.cursor import Cursor, Position
from seqmlm.streams.sinks import Kind, Row, Schema, Sink, is_stream, open_sink, unwritable
from seqmlm.tasks.score_config import ScoreConfig
from seqmlm.tokenizers.base import Tokenizer

TOP_UNITS = 5
"""Units that `top` names, and those whose mean is `top_mean`."""

EXPECTED = top(3)
"""What a row says of each unit that it names."""

PER_UNIT = (Entropy(), Rank())
"""What a row says of each unit, where it names all."""


def line(
    judged: JudgedRow,
    tokenizer: Tokenizer,
    *,
    per_unit: bool = False,
    top: bool = True,
    sensitive: bool = False,
) -> dict[str, Any]:
    """The fields of a row; those that do not apply are left out, those without a value are None.

    Args:
        judged: the row.
        tokenizer: names the expected alternatives.
        per_unit: every unit with its surprisal, entropy and rank.
        top: the most surprising units, with what was expected instead.
        sensitive: the row says that it is of sensitive data, for whoever reads it.
    """
    row, scored = judged.row, judged.scored
    bits = scored.surprisal[row.units]
    whole = row.start == 0 and len(row.units) == len(scored)
    fields: dict[str, Any] = {"id": row.id, "source": row.source, "line": row.line}
    if not whole:
        fields |= {"start": row.start, "end": row.end}
    fields |= {"units": len(bits), **summary(bits), "score": _finite(row.score), **row.extra}
    if sensitive:
        fields["sensitive"] = True
    if judged.p_value is not None:
        fields["p_value"] = judged.p_value
        fields["extrapolated"] = judged.extrapolated
        if judged.alarm is not None:
            fields["alarm"] = judged.alarm
        fields["channels"] = dict(judged.channels)
    if top:
        worst = row.units[np.argsort(-bits, kind="stable")[:TOP_UNITS]]
        fields["top"] = [unit_fields(scored, unit, tokenizer) for unit in worst.tolist()]
    if per_unit:
        fields["per_unit"] = [unit_fields(scored, unit, tokenizer) for unit in row.units.tolist()]
    return fields


def summary(bits: Doubles) -> dict[str, float | None]:
    """Reductions of surprisals in bits; `pll` is in nats. None where there is no unit."""
    if not len(bits):
        names = ("bits_per_unit", "perplexity", "max", "top_mean")
        return {"pll": 0.0, "sum": 0.0, **dict.fromkeys(names)}
    total = float(bits.sum())
    mean = total / len(bits)
    return {
        "pll": -total * math.log(2),
        "bits_per_unit": mean,
        "sum": total,
        "max": float(bits.max()),
        "top_mean": float(np.sort(bits)[-TOP_UNITS:].mean()),
        "perplexity": 2.0**mean if mean < 1000 else None,
    }


def unit_fields(scored: Scored, unit: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """One unit: its text and place, its surprisal, and what was expected instead where that is known."""
    start, end = scored.spans[unit].tolist()
    fields: dict[str, Any] = {
        "unit": scored.text(unit),
        "start": start,
        "end": end,
        "surprisal": float(scored.surprisal[unit]),
    }
    values = {name: own[unit] for name, own in scored.values.items()}
    if Entropy.name in values:
        fields["entropy"] = float(values[Entropy.name])
    if Rank.name in values:
        fields["rank"] = int(values[Rank.name])
    if TopIds.name in values:
        names = scored.rule.names
        symbols, log_probs = values[TopIds.name].tolist(), values[TopLogProbs.name].tolist()
        fields["expected"] = [
            {"unit": tokenizer.surface(symbol) if names is None else names[symbol], "p": math.exp(log_prob)}
            for symbol, log_prob in zip(symbols, log_probs, strict=True)
            if symbol >= 0
        ]
    return fields


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# Where rows go, and how far they have come: a sink, its cursor, and the quarantine beside it.

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
    return Schema(columns=columns, channels=tuple(level.statistics) if calibrated else ())


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


# What a scoring did: counts, alarms, incidents; told to people in lines and to machines as an object.


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What a scoring did.

    Args:
        records, rows, units: scored, those before a `--resume` included.
        bad: records left out.
        problems: bad records and oddities, by reason.
        seconds: of this process.
        rate: records a second of this process.
        unit: what the model's domain counts.
        level, mode, precision: of the rows.
        alarms, incidents: rows that alarmed, and groups of those that overlap; None where no rate was asked.
        stopped: the signal that ended it early, or None.
        quarantine: where bad records went, or None.
        notes: what happened on the way that a person should know.
    """

    records: int
    rows: int
    units: int
    bad: int
    problems: Mapping[str, Any]
    seconds: float
    rate: float
    unit: str
    level: str
    mode: str
    precision: str
    alarms: int | str | None = None
    incidents: int | str | None = None
    stopped: int | None = None
    quarantine: str | None = None
    run: str | None = None

    def sentence(self) -> str:
        """For stderr: a line for each reason, and one for the whole."""
        reasons = "".join(f"{count} x {reason}\n" for reason, count in self.problems.items())
        bad = f", {self.bad} bad records left out" if self.bad else ""
        if self.bad and self.quarantine is not None:
            bad += f" ({self.quarantine})"
        alarms = ""
        if self.alarms is not None:
            alarms = f", {self.alarms} alarms in {self.incidents} incidents"
        stopped = ", stopped early" if self.stopped is not None else ""
        return (
            f"{reasons}scored {self.records:,} records, {self.units:,} {self.unit}s in {self.seconds:.1f} s"
            f" ({_rate(self.rate)} records/s){alarms}{bad}{stopped}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


class Tally:
    """Counts rows as they are judged; goes on from what a cursor remembers.

    Args:
        counts: what `snapshot` gave when the last commit was made; empty at the beginning.
    """

    def __init__(self, counts: Mapping[str, Any]) -> None:
        self.rows = int(counts.get("rows", 0))
        self.units = int(counts.get("units", 0))
        self.alarms = int(counts.get("alarms", 0))
        self._over = int(counts.get("incidents_over", 0))
        self._incidents = Incidents()
        for one in counts.get("incidents_open", ()):
            self._incidents.add(Alarm(**one))
        self._began = time.monotonic()

    def add(self, judged: JudgedRow, *, first: bool) -> None:
        """Count a row; `first` where it is the first of its record, whose units are counted then."""
        self.rows += 1
        self.units += len(judged.scored) if first else 0
        if judged.alarm:
            self.alarms += 1
            self._over += len(self._incidents.add(_alarm(judged)))

    @property
    def seconds(self) -> float:
        """Since this process began to score."""
        return time.monotonic() - self._began

    def snapshot(self) -> dict[str, Any]:
        """What a cursor remembers; JSON can hold it."""
        open_ones = [
            Alarm(id=one.worst, place=one.place, start=one.start, end=one.end, p_value=one.p_value)
            for one in self._incidents.close()
        ]
        for one in open_ones:
            self._incidents.add(one)
        return {
            "rows": self.rows,
            "units": self.units,
            "alarms": self.alarms,
            "incidents_over": self._over,
            "incidents_open": [asdict(one) for one in open_ones],
        }

    def incidents(self) -> int:
        """Groups of alarms that overlap or touch, those still open included."""
        return self._over + len(self.snapshot()["incidents_open"])


def tellable_count(count: int, *, sensitive: bool) -> int | str:
    """A number of alarms as it may be shown: of sensitive data not from 1 to 10."""
    return redacted_count(count) if sensitive else count


def _alarm(judged: JudgedRow) -> Alarm:
    """Where an alarm lies: by lines where the record is made of lines, else by characters."""
    row, record = judged.row, judged.scored.record
    place = f"{record.source}\0{record.document or record.id}"
    lines = record.meta.get("lines")
    start, end = (lines[0], lines[-1]) if lines and row.id == record.id else (row.start, row.end)
    p_value = 1.0 if judged.p_value is None else judged.p_value
    return Alarm(id=row.id, place=place, start=float(start), end=float(end), p_value=p_value)


def _rate(rate: float) -> str:
    """Records a second; of slow ones, as with long records, more than "0"."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
