"""Read CoNLL files: sentences with syntax (CoNLL-U) or with a tag for each word, both stored in `meta`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

from seqmlm.data.files import MAX_BYTES, source_of, too_long
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.text import runs
from seqmlm.data.record import Record
from seqmlm.errors import DataError, UsageError

_DIGITS = 20
_WIDEST = 1000  # words of one contraction
_SEVERAL = re.compile(r"(\d+)([-.])(\d+)")  # the number of a contraction (1-2) or of an empty node (1.1)
_META_COLUMNS = {"words": 1, "upos": 3, "xpos": 4, "deprel": 7}
_COLUMNS = 10  # ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC


def read_conllu(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read CoNLL-U (also .gz, .zst, "-"; https://universaldependencies.org/format.html).

    `raw` is `# text`, or the words joined according to SpaceAfter. `id` is `# sent_id`, and `document` is the
    last `# newdoc id`. `meta` has lists with an entry per word: `words`, `upos`, `xpos`, `deprel`, `heads`
    and `spans`. The head 0 is the root. Spans are (start, end) in `raw`, or None if the word is not found
    there. The words of a contraction share one span.

    Args:
        path: the file.
        problems: receives sentences with a line that is not CoNLL-U. If a line cannot be read, its whole
            sentence is left out.
        max_bytes: longest line.
    """
    yield from _conllu(lines(source_of(path), problems, max_bytes=max_bytes), path, problems)


def _conllu(numbered: Iterator[tuple[int, str]], path: str | Path, problems: Problems) -> Iterator[Record]:
    """The sentences in numbered lines of CoNLL-U."""
    source, name = source_of(path), Path(path).name
    document: str | None = None
    for start, block in runs(numbered):
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
        forms = (form + (" " if spaced else "") for form, _, spaced in _surface(words))
        raw = comments.get("text") or "".join(forms).rstrip(" ")
        yield Record(
            id=comments.get("sent_id") or f"{name}:{start}",
            raw=raw,
            source=source,
            line=start,
            document=document,
            meta=_syntax(words, raw),
        )


def _comment(text: str) -> tuple[str, str]:
    """Key and value of a comment line."""
    key, _, value = text[1:].partition("=")
    return key.strip(), value.strip()


def _word(text: str, source: str, line: int) -> list[str]:
    """The ten columns of a word line.

    Raises:
        DataError: the line is not CoNLL-U.
    """
    fields = text.split("\t")
    is_plain = fields[0].isdecimal()
    place = None if is_plain else _SEVERAL.fullmatch(fields[0])
    if len(fields) != _COLUMNS:
        reason = f"{len(fields)} columns, but CoNLL-U has {_COLUMNS}"
    elif max(len(fields[0]), len(fields[6])) > _DIGITS or (
        place and place[2] == "-" and int(place[3]) - int(place[1]) > _WIDEST
    ):
        reason = "a word number that is too large"
    elif not (is_plain or place):
        reason = "the first column is not a word number"
    elif is_plain and not (fields[6].isdecimal() or fields[6] == "_"):
        reason = "HEAD is not a word number"
    else:
        return fields
    remedy = "separate ten columns by tabs; for lines with a word and its tag, use the format conll"
    raise DataError(reason, source=source, line=line, remedy=remedy)


def _surface(words: list[list[str]]) -> Iterator[tuple[str, range, bool]]:
    """(form, numbers of its words, whether a space follows) for each written word.

    A contraction is one written word.
    """
    covered = 0
    for fields in words:
        first, dash, last = fields[0].partition("-")
        if dash or (first.isdecimal() and int(first) > covered):
            covered = int(last) if dash else covered
            yield (
                fields[1],
                range(int(first), int(last or first) + 1),
                "SpaceAfter=No" not in fields[9].split("|"),
            )


def _syntax(words: list[list[str]], raw: str) -> dict[str, Any]:
    """The lists in the `meta` of a sentence: columns, heads and spans of its words."""
    plain_words = [fields for fields in words if fields[0].isdecimal()]
    spans: dict[int, tuple[int, int]] = {}
    end = 0
    for form, numbers, _ in _surface(words):
        start = raw.find(form, end)
        if start >= 0:
            end = start + len(form)
            spans.update(dict.fromkeys(numbers, (start, end)))
    columns = {name: [fields[start] for fields in plain_words] for name, start in _META_COLUMNS.items()}
    heads = [int(fields[6]) if fields[6].isdecimal() else None for fields in plain_words]
    return columns | {"heads": heads, "spans": [spans.get(int(fields[0])) for fields in plain_words]}


# Columns: one word and its tag per line

_DOCUMENT = "-DOCSTART-"
_LOOKED_AT = 200  # first lines, whose majority determines the columns


def read_conll(
    path: str | Path,
    problems: Problems,
    *,
    word: int | None = None,
    tag: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read columns of words and their tags (also .gz, .zst, "-"): CoNLL-2003, WNUT, BIO, IOB2.

    Tabs or spaces separate columns, and a blank line separates sentences. `raw` is the words joined by
    spaces. `id` is `# sent_id`, if there is one, and `document` is the last `-DOCSTART-` or `# newdoc id`.
    `meta` has lists with an entry per word: `words`, `tags` and `spans` ((start, end) in `raw`). Files with
    ten columns are read as CoNLL-U.

    Args:
        path: the file.
        problems: receives sentences with a line that has no tag, or more columns than most of the first
            lines. If a line cannot be read, its whole sentence is left out.
        word: number of the column with the words. None means 1, or 2 if the first column numbers the words.
        tag: number of the column with the tags. None means the last, or 3 if the first column numbers the
            words.
        max_bytes: longest line or sentence.

    Raises:
        UsageError: a column has the number 0.
    """
    if 0 in (word, tag):
        raise UsageError("the options word and tag take the number of a column, counted from 1")
    numbered = lines(source_of(path), problems, max_bytes=max_bytes)
    first_lines = list(islice(numbered, _LOOKED_AT))
    shape = _Shape.of_lines([text for _, text in first_lines])
    if word is None and tag is None and shape.tabs and shape.width == _COLUMNS:
        yield from _conllu(chain(first_lines, numbered), path, problems)
        return
    columns = word or (2 if shape.numbered else 1), tag or (3 if shape.numbered else shape.width)
    source, name = source_of(path), Path(path).name
    document: str | None = None
    for start, block in runs(chain(first_lines, numbered), max_bytes):
        if any(text.startswith(_DOCUMENT) for _, text in block):
            document = f"{name}:{start}"
        comments = dict(_comment(text) for _, text in block if shape.is_comment(text))
        document = comments.get("newdoc id", document)
        try:
            words = [
                _word_and_tag(text, columns, shape.width, source, n)
                for n, text in block
                if shape.has_word(text)
            ]
            if not block:
                raise too_long(source, start, max_bytes, "sentence")
        except DataError as error:
            problems.bad(error, "\n".join(text for _, text in block))
            continue
        if words:
            yield Record(
                id=comments.get("sent_id") or f"{name}:{start}",
                raw=" ".join(form for form, _ in words),
                source=source,
                line=start,
                document=document,
                meta=_tags(words),
            )


@dataclass(frozen=True)
class _Shape:
    """The columns that most lines have.

    Attributes:
        tabs: whether tabs separate them.
        width: their number.
        numbered: whether the first column has word numbers.
    """

    tabs: bool
    width: int
    numbered: bool

    @classmethod
    def of_lines(cls, texts: list[str]) -> _Shape:
        word_lines = [text for text in texts if text.strip() and not text.startswith(_DOCUMENT)]
        no_comments = [text for text in word_lines if not text.startswith("#") or "\t" in text]
        shapes = Counter(("\t" in text, len(_fields(text))) for text in no_comments or word_lines)
        (tabs, width), _ = max(
            shapes.items(), key=lambda shape_count: shape_count[1], default=((False, 2), 0)
        )
        rows = [fields for fields in map(_fields, no_comments) if len(fields) == width]
        counted = tabs and width > 2 and all(fields[0].isdecimal() for fields in rows)
        return cls(tabs, max(width, 2), counted)

    def is_comment(self, text: str) -> bool:
        """Whether a line is a comment: it begins with "#" and does not have the columns of a word."""
        return text.startswith("#") and (len(_fields(text)) != self.width or self.tabs != ("\t" in text))

    def has_word(self, text: str) -> bool:
        return not text.startswith(_DOCUMENT) and not self.is_comment(text)


def _fields(text: str) -> list[str]:
    """The columns of a line, separated by tabs if it has any, otherwise by spaces."""
    return text.split("\t") if "\t" in text else [part for part in text.split(" ") if part]


def _word_and_tag(text: str, columns: tuple[int, int], width: int, source: str, line: int) -> tuple[str, str]:
    """The word and the tag of a line.

    Raises:
        DataError: the word or the tag is missing, or the line has more columns than the first lines.
    """
    fields = _fields(text)
    word, tag = (fields[n - 1].strip() if n <= len(fields) else "" for n in columns)
    if len(fields) > width:
        reason = f"{len(fields)} columns, but the first lines have {width}"
    elif not word or not tag:
        reason = f"a line without a {'tag' if word else 'word'}"
    else:
        return word, tag
    remedy = "write a word and its tag, or name their columns with --option word=N and tag=N"
    raise DataError(reason, source=source, line=line, remedy=remedy)


def _tags(words: list[tuple[str, str]]) -> dict[str, Any]:
    """The lists in the `meta` of a sentence: words, tags and spans."""
    starts = accumulate((len(form) + 1 for form, _ in words), initial=0)
    return {
        "words": [form for form, _ in words],
        "tags": [tag for _, tag in words],
        "spans": [(start, start + len(form)) for start, (form, _) in zip(starts, words, strict=False)],
    }
