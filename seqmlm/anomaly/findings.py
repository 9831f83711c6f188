"""Findings: alarmed rows as tools of code review take them, with a place, a sentence and fingerprints.

Fingerprints are equal for the same finding after lines above it came or went. There are two of each, as
SARIF's partial fingerprints: one of the place (file, function, the line's words), which is looked for
first, and one of the content alone, which finds it again in a file that was renamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath
from typing import Any, Literal

from seqmlm.anomaly.values import Row, ScoredRecord
from seqmlm.errors import number_of

PLACE, CONTENT = "seqmlmPlace/v1", "seqmlmContent/v1"

_EXPECTED = 1.0  # bits: what was more likely than all else is not called unexpected

State = Literal["new", "unchanged", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An alarmed row for tools of code review.

    Args:
        rule: the level it was found at ("line").
        message: a sentence for a person.
        uri: the file, relative where the user named it so, with "/".
        first_line, last_line: 1-based.
        columns: 1-based first and behind the last, in characters; None for whole lines.
        scope: full name of the function it is in, or None.
        fingerprints: name to value; equal ones are the same finding.
        p_value: share of normal rows that are at least as unusual, or None.
        score: of the level.
        state: against a baseline; None without one.
    """

    rule: str
    message: str
    uri: str
    first_line: int
    last_line: int
    columns: tuple[int, int] | None
    scope: str | None
    fingerprints: Mapping[str, str]
    p_value: float | None
    score: float | None
    state: State | None = None


def finding(rule: str, row: Row, scored: ScoredRecord, p_value: float | None, message: str) -> Finding:
    """The finding of an alarmed row; without `fingerprints` in its `extra` every run finds it anew."""
    extra: Mapping[str, Any] = row.extra
    last = int(extra.get("last_line", row.line))
    columns = None
    if "class" in extra and "column" in extra:
        columns = (int(extra["column"]), int(extra["column"]) + row.end - row.start)
    return Finding(
        rule=rule,
        message=message,
        uri=record_uri(scored),
        first_line=row.line,
        last_line=max(last, row.line),
        columns=columns,
        scope=extra.get("function"),
        fingerprints=dict(extra.get("fingerprints", {})),
        p_value=p_value,
        score=row.score,
    )


def finding_message(
    rule: str,
    row: Row,
    scored: ScoredRecord,
    p_value: float | None,
    why: str = "",
    *,
    beyond: int | None = None,
    unit: bool = True,
    meaning: Callable[[str], str | None] = lambda text: None,
) -> str:
    """The message of a finding: how unusual a row is, by which statistic, and its least expected unit.

    Args:
        rule: name of the level.
        p_value: share of normal rows that are at least as unusual; None where that is not known.
        why: a sentence on the statistic that decides, or "".
        beyond: number of normal rows, if all are less unusual and the p-value is extrapolated; else None.
        unit: name the least expected unit, too: not where the statistic is not of surprisals.
        meaning: of a unit with this spelling, or None.
    """
    begin = f"An unusual {rule}"
    if p_value is not None:
        begin += f": about 1 in {1 / p_value:,.0f} normal ones is as unusual"
    if beyond is not None:
        begin = f"More unusual than all {number_of(beyond, rule)} that it is compared with"
    begin = " ".join(filter(None, (f"{begin}.", why)))
    if row.score is None:
        return f"An unfamiliar {rule}: the model knows nothing of what it holds."
    bits = scored.surprisal[row.units]
    if not unit or not len(bits):
        return begin
    peak = int(row.units[bits.argmax()]) if row.peak is None else row.peak
    if (surprisal := scored.surprisal[peak]) < _EXPECTED:
        return begin
    text = scored.text(peak)
    notes = [description] if (description := meaning(text)) else []
    text = repr(text.strip()) if text.strip() else "white space"
    return f"{begin} Least expected: {text} ({'; '.join([*notes, f'{surprisal:.1f} bits'])})."


def record_uri(scored: ScoredRecord) -> str:
    """The file of a record: as the user named it, or the record's id where that is no relative path."""
    source = PurePath(scored.record.source)
    return scored.record.id if source.is_absolute() or str(source) == "-" else source.as_posix()


class Fingerprints:
    """The fingerprints of the findings of one file (its path, as they name it), to be asked for in order."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: Counter[tuple[str, str, str]] = Counter()

    def hashes(self, rule: str, scope: str, text: str) -> dict[str, str]:
        """The fingerprints of a finding by name, in hex.

        Args:
            rule: of the finding.
            scope: full name of the function or class it is in.
            text: of the finding, without white space. Equal texts in one scope have different fingerprints.
        """
        key = (rule, scope, "".join(text.split()))
        number = str(self._seen[key])
        self._seen[key] += 1
        return {PLACE: _hex(self._path, *key, number), CONTENT: _hex(*key, number)}


def _hex(*parts: str) -> str:
    """A hash of some texts, in hex."""
    # The length in front of each part: no two lists of parts look alike.
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:32]
