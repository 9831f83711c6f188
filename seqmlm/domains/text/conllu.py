"""CoNLL-U: sentences with their syntax, which goes into `meta`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, source_of
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.text import runs
from seqmlm.data.record import Record
from seqmlm.errors import DataError

_DIGITS = 20
_WIDEST = 1000  # words of one contraction
_COLUMNS = 10  # ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC


def read_conllu(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read CoNLL-U (also .gz, .zst, "-"; https://universaldependencies.org/format.html).

    `raw` is `# text`, or the words joined as SpaceAfter says; `id` is `# sent_id`; `document` is the last
    `# newdoc id`. `meta` has lists with an entry per word: `words`, `upos`, `xpos`, `deprel`, `heads` (0 is
    the root) and `spans` ((start, end) in `raw`, shared by the words of a contraction; None if not found).

    Args:
        path: the file.
        problems: receives sentences with a line that is no CoNLL-U; one of which a line was refused goes
            with it.
        max_bytes: longest line.
    """
    source, name = source_of(path), Path(path).name
    document: str | None = None
    for start, block in runs(lines(source, problems, max_bytes=max_bytes)):
        comments = dict(_comment(text) for _, text in block if text.startswith("#"))
        if "newdoc" in comments or "newdoc id" in comments:
            document = comments.get("newdoc id") or f"{name}:{start}"
        try:
            words = [_word(text, source, number) for number, text in block if not text.startswith("#")]
        except DataError as error:
            problems.bad(error, "\n".join(text for _, text in block))
            continue
        if not words:
            problems.note("comments without a sentence")
            continue
        raw = comments.get("text") or _joined(words)
        yield Record(
            id=comments.get("sent_id") or f"{name}:{start}",
            raw=raw,
            source=source,
            line=start,
            document=document,
            meta=_syntax(words, raw),
        )


def _comment(text: str) -> tuple[str, str]:
    key, _, value = text[1:].partition("=")
    return key.strip(), value.strip()


def _word(text: str, source: str, line: int) -> list[str]:
    fields = text.split("\t")
    place = fields[0]
    if len(fields) != _COLUMNS:
        reason = f"{len(fields)} columns where CoNLL-U has {_COLUMNS}"
    elif len(place) > _DIGITS or len(fields[6]) > _DIGITS or (_is_range(place) and _width(place) > _WIDEST):
        reason = "a word number that is too large"
    elif not (place.isdecimal() or _is_range(place) or _is_empty_node(place)):
        reason = "the first column is not a word number"
    elif place.isdecimal() and not (fields[6].isdecimal() or fields[6] == "_"):
        reason = "HEAD is not a word number"
    else:
        return fields
    raise DataError(reason, source=source, line=line, remedy="separate ten columns by tabs, or leave it out")


def _is_range(place: str) -> bool:
    first, dash, last = place.partition("-")
    return bool(dash) and first.isdecimal() and last.isdecimal()


def _width(place: str) -> int:
    first, _, last = place.partition("-")
    return int(last) - int(first)


def _is_empty_node(place: str) -> bool:
    first, dot, last = place.partition(".")
    return bool(dot) and first.isdecimal() and last.isdecimal()


def _surface(words: list[list[str]]) -> Iterator[tuple[str, int, int, bool]]:
    """Yield (form, first word, last word, space after) of what is really written, contractions whole."""
    covered = 0
    for fields in words:
        spaced = "SpaceAfter=No" not in fields[9].split("|")
        if _is_range(fields[0]):
            first, _, last = fields[0].partition("-")
            covered = int(last)
            yield fields[1], int(first), covered, spaced
        elif fields[0].isdecimal() and int(fields[0]) > covered:
            yield fields[1], int(fields[0]), int(fields[0]), spaced


def _joined(words: list[list[str]]) -> str:
    return "".join(form + (" " if spaced else "") for form, _, _, spaced in _surface(words)).rstrip(" ")


def _syntax(words: list[list[str]], raw: str) -> dict[str, Any]:
    real = [fields for fields in words if fields[0].isdecimal()]
    spans: dict[int, tuple[int, int]] = {}
    done = 0
    for form, first, last, _ in _surface(words):
        at = raw.find(form, done)
        if at < 0:
            continue
        done = at + len(form)
        spans.update(dict.fromkeys(range(first, last + 1), (at, done)))
    return {
        "words": [fields[1] for fields in real],
        "upos": [fields[3] for fields in real],
        "xpos": [fields[4] for fields in real],
        "deprel": [fields[7] for fields in real],
        "heads": [int(fields[6]) if fields[6].isdecimal() else None for fields in real],
        "spans": [spans.get(int(fields[0])) for fields in real],
    }
