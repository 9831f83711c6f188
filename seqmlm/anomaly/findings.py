"""Findings: rows with an alarm, in the form for code review tools, with a place, a message and fingerprints.

The fingerprints of a finding stay the same when lines above it are added or removed. Each finding has two,
which are partial fingerprints of SARIF. The first identifies the place: file, function and the words of the
line. Tools search for it first. The second identifies only the content. With it, tools find the finding in a
file that was renamed.
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

_EXPECTED = 1.0  # bits; a unit below this is more likely than all others together, and is not reported

State = Literal["new", "unchanged", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A row with an alarm, for code review tools.

    Args:
        rule: the name of its level, such as "line".
        message: a sentence for people.
        uri: the file, with "/". It is relative if the user gave a relative path.
        first_line, last_line: line numbers, counted from 1.
        columns: first column and the column after the last, in characters, counted from 1. None for whole
            lines.
        scope: the full name of the function that contains it, or None.
        fingerprints: name -> value. Findings with equal values are the same finding.
        p_value: the fraction of normal rows that are at least as unusual, or None.
        score: the score of the row at its level.
        state: the state compared with a baseline, or None without a baseline.
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
    """The finding of a row with an alarm.

    If `extra` of the row has no `fingerprints`, every run reports a new finding.
    """
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
    """The message of a finding: how unusual the row is, by which statistic, and its least expected unit.

    Args:
        rule: the name of the level.
        p_value: the fraction of normal rows that are at least as unusual, or None if it is unknown.
        why: a sentence about the statistic with the smallest p-value, or "".
        beyond: the number of normal rows, if all are less unusual and the p-value is extrapolated. Otherwise
            None.
        unit: whether to name the least expected unit. False if the statistic is not based on surprisals.
        meaning: returns the description of a unit with a given text, or None.
    """
    begin = f"An unusual {rule}"
    if p_value is not None:
        begin += f": about 1 in {1 / p_value:,.0f} normal ones is as unusual"
    if beyond is not None:
        begin = f"More unusual than all {number_of(beyond, rule)} that it is compared with"
    begin = " ".join(filter(None, (f"{begin}.", why)))
    if row.score is None:
        return f"An unfamiliar {rule}: the model cannot score any of its units."
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
    """The file of a record, as the user named it. If that is not a relative path, the id of the record."""
    source = PurePath(scored.record.source)
    return scored.record.id if source.is_absolute() or str(source) == "-" else source.as_posix()


class Fingerprints:
    """Computes the fingerprints of the findings in one file. Findings must be passed in order.

    Args:
        path: the path of the file, as findings name it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: Counter[tuple[str, str, str]] = Counter()

    def hashes(self, rule: str, scope: str, text: str) -> dict[str, str]:
        """The fingerprints of a finding by name, in hex.

        Args:
            rule: the rule of the finding.
            scope: the full name of the function or class that contains it.
            text: the text of the finding; white space is ignored. Equal texts in one scope get different
                fingerprints.
        """
        key = (rule, scope, "".join(text.split()))
        number = str(self._seen[key])
        self._seen[key] += 1
        return {PLACE: _hex(self._path, *key, number), CONTENT: _hex(*key, number)}


def _hex(*parts: str) -> str:
    """A hash of a list of texts, in hex."""
    # Each part is preceded by its length, so that different lists never give the same text.
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:32]
