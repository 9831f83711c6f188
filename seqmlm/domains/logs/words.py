"""Tokenize logs without templates (`log_words.v1`): WordPiece on lines with marks for their values.

The method comes from LAnoBERT (Lee et al. 2023). The units are words and punctuation marks; a mark such as
`<NUM>` is one token. Nothing is parsed. A line unlike any training line is therefore still tokenized and
scored word by word, but sequences are longer than with templates. The vocabulary is learned from the log
itself. In LAnoBERT's tables, this made most of the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, models, pre_tokenizers

from seqmlm.domains.logs.drain import Tallies
from seqmlm.domains.logs.values import (
    LogValues,
    NormalisedText,
    are_lines,
    fresh_lines,
    lines_of,
    mark,
    original_spans,
    subject_of,
    too_few,
)
from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Ids
from seqmlm.errors import UsageError, nearest
from seqmlm.tokenizers.base import Traits, Unknown, split_encodings
from seqmlm.tokenizers.subword import LONGEST_WORD, SPECIAL, WordPieceTokenizer, fitted_size

_LETTERS = tuple(map(chr, range(33, 127)))
_DISTINCT_WORDS = 1_000_000
_REMEMBERED = 1 << 14
_CLS, _SEP = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")


class _LineTokens(NamedTuple):
    """The tokens of a normalised line, including its `[SEP]`.

    Attributes:
        ids: (K,) token ids.
        words: (K,) numbers of words within the line, -1 for the special token.
        spans: (K, 2) offsets in the line.
        size: number of words in the line.
    """

    ids: Ids
    words: Ids
    spans: Ids
    size: int


_START = _LineTokens(
    np.array([_CLS], np.int32), np.array([SPECIAL_GROUP], np.int32), np.zeros((1, 2), np.int32), 0
)


class LogWordTokenizer(WordPieceTokenizer):
    """Words of normalised log lines, with `[CLS]` at the start and `[SEP]` after every line.

    A raw sequence is any object with `lines` (a window or session of a log), or a text of lines. Spans are
    offsets in `"\\n".join(lines)`. Every printable ASCII letter is in the vocabulary, so a new word of such
    letters is spelled and never becomes `[UNK]`. Case is kept.

    Args:
        backend: a trained tokenizer, from `train` or `load`.
        patterns: more kinds of values, name (capital letters) to regular expression.
        min_sessions, mask_secrets: the values that `train` received.
    """

    name: ClassVar[str] = "log_words.v1"
    traits: ClassVar[Traits] = replace(
        WordPieceTokenizer.traits,
        reads=are_lines,
        sensitive_options={"min_sessions": 10, "mask_secrets": True},
    )

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        patterns: Mapping[str, str] | None = None,
        min_sessions: int = 1,
        mask_secrets: bool = False,
    ) -> None:
        super().__init__(backend)
        self._values = LogValues(patterns, secrets=mask_secrets)
        self.spelling.conceal = self._values.conceal
        named = {"patterns": self._values.patterns, "min_sessions": min_sessions}
        self.options = {**named, "mask_secrets": mask_secrets}
        self._part_cache: dict[str, _LineTokens] = {}

    def encode_batch(self, raws: Sequence[Any]) -> list[Encoding]:
        """Encode windows or sessions. Groups number the words, and spans are characters of the raw lines.

        The span of a mark is the value that it replaces. The pieces of a word with part of a value have their
        own spans.
        """
        if not len(raws):
            return []
        records = [list(lines_of(raw)) or [""] for raw in raws]
        marked = list(map(self._values.normalise, chain.from_iterable(records)))
        parts = self._parts([marked_line.text for marked_line in marked])
        lines, all_parts = iter(parts), []
        for record in records:
            all_parts += [_START, *(next(lines) for _ in record)]
        sizes = np.fromiter((len(part.ids) for part in all_parts), np.int64, len(all_parts))
        words = np.concatenate([part.words for part in all_parts])
        first_part = np.cumsum([0, *(len(record) + 1 for record in records)])
        edges = np.concatenate([[0], np.cumsum(sizes)])[first_part]
        words_before = np.concatenate([[0], np.cumsum([part.size for part in all_parts])])
        bases = words_before[:-1] - np.repeat(words_before[first_part[:-1]], np.diff(first_part))
        groups = words + np.repeat(bases, sizes).astype(np.int32)
        ids = np.concatenate([part.ids for part in all_parts])
        groups[self.space.is_special[ids]] = SPECIAL_GROUP
        spans = self._raw_spans(records, marked, all_parts, sizes)
        spans[words < 0] = 0
        return split_encodings(pairwise(edges.tolist()), ids, groups, spans)

    def _parts(self, lines: Sequence[str]) -> list[_LineTokens]:
        """The tokens of normalised lines; equal lines are encoded once."""
        fresh = [line for line in dict.fromkeys(lines) if line not in self._part_cache]
        if len(self._part_cache) + len(fresh) > _REMEMBERED:
            self._part_cache, fresh = {}, list(dict.fromkeys(lines))
        for line, encoded in zip(
            fresh, self._backend.encode_batch(fresh, add_special_tokens=False), strict=True
        ):
            words = np.array([*encoded.word_ids, SPECIAL_GROUP], dtype=np.int32)
            self._part_cache[line] = _LineTokens(
                np.array([*encoded.ids, _SEP], dtype=np.int32),
                words,
                np.array([*encoded.offsets, (0, 0)], dtype=np.int32),
                int(words.max()) + 1,
            )
        return [self._part_cache[line] for line in lines]

    def _raw_spans(
        self,
        records: Sequence[Sequence[str]],
        marked: Sequence[NormalisedText],
        parts: Sequence[_LineTokens],
        sizes: NDArray[np.int64],
    ) -> Ids:
        """(T, 2) spans in each record's raw lines, converted for all lines of the batch at once."""
        is_line = np.array([part is not _START for part in parts])
        raw_lines = chain.from_iterable(records)
        lengths = np.array(
            [
                (len(marked_line.text) + 1, len(line) + 1)
                for marked_line, line in zip(marked, raw_lines, strict=True)
            ]
        )
        # Both texts begin with a line end, so that the line end before each line is a mark with its offset.
        bases = np.concatenate([[[1, 1]], 1 + np.cumsum(lengths, axis=0)])[:-1]
        table = []
        for marked_line, (offset, raw_offset) in zip(marked, bases.tolist(), strict=True):
            table.append(np.array([[offset - 1, offset, raw_offset - 1, raw_offset]]))
            if len(marked_line.marks):
                table.append(marked_line.marks + np.array([offset, offset, raw_offset, raw_offset]))
        joined = NormalisedText("", np.concatenate(table))
        of_part = np.zeros(len(parts), dtype=np.int64)
        of_part[is_line] = bases[:, 0]
        spans = np.concatenate([part.spans for part in parts]) + np.repeat(of_part, sizes)[:, None]
        first_line = np.cumsum([0, *map(len, records)])[:-1]
        starts = np.repeat(bases[first_line, 1], [len(record) + 1 for record in records])
        raw_spans = original_spans(joined, spans.astype(np.int32))
        raw_spans -= np.repeat(starts, sizes)[:, None].astype(np.int32)
        return raw_spans

    def unknown(self, raw: Any) -> list[Unknown]:
        """The words that become the unknown token."""
        text, encoding = "\n".join(lines_of(raw)), self.encode(raw)
        assert encoding.spans is not None
        places = encoding.spans[encoding.ids == self.space.unk].tolist()
        return [Unknown(start, text[start:end]) for start, end in places]

    def spell(self, raw: Any) -> str:
        """The normalised lines in the form that `hf` reads, with `[SEP]` between them."""
        return " [SEP] ".join(map(self._values.line, lines_of(raw)))

    @classmethod
    def train(
        cls,
        texts: Iterable[Any],
        *,
        vocabulary_size: int | None = None,
        patterns: Mapping[str, str] | None = None,
        min_sessions: int = 1,
        mask_secrets: bool = False,
        **options: Any,
    ) -> Self:
        """Learn a vocabulary from windows and sessions.

        Args:
            texts: read once. Memory grows only with the number of distinct words, up to a million.
            vocabulary_size: the most ids, including specials, marks and letters; None fits it to the text.
            patterns: more kinds of values.
            min_sessions: words in fewer sessions are ignored. If lines belong to no session, the windows of a
                file and its rotations count as one session.
            mask_secrets: whether text that looks like a secret is also replaced (`SECRET`).

        Raises:
            UsageError: an unknown option, or a vocabulary size that is too small.
            DataError: there are no words.
        """
        if options:
            option_names = ("mask_secrets", "min_sessions", "patterns")
            raise UsageError(
                f"{cls.name} has no option {min(options)!r}{nearest(min(options), option_names)}"
            )
        values = LogValues(patterns, secrets=mask_secrets)
        marks = [mark(kind) for kind in values.kinds]
        splitter = _splitter(marks)
        counts, anything = _word_counts(texts, values, splitter, min_sessions)
        if not counts:
            raise too_few("words", min_sessions, anything)
        backend = cls._assembled(_vocabulary(cls, counts, marks, vocabulary_size), splitter)
        return cls(backend, patterns=patterns, min_sessions=min_sessions, mask_secrets=mask_secrets)


def _splitter(marks: Iterable[str]) -> Any:
    """A pre-tokenizer that splits a normalised line into marks, words and single punctuation marks."""
    words = rf"{'|'.join(map(re.escape, marks))}|\w{{1,{LONGEST_WORD}}}|[^\w\s]"
    return pre_tokenizers.Split(Regex(words), behavior="removed", invert=True)


def _word_counts(
    texts: Iterable[Any], values: LogValues, splitter: Any, min_sessions: int
) -> tuple[dict[str, int], bool]:
    """Words of the normalised lines with their counts, sorted by spelling; and whether there is any word."""
    tallies = Tallies(min_sessions, _DISTINCT_WORDS)
    line_words: dict[str, list[str]] = {}
    for number, (raw, lines) in enumerate(fresh_lines(texts)):
        subject = subject_of(raw, number)
        for line in map(values.line, lines):
            if line not in line_words:
                if len(line_words) >= _REMEMBERED:
                    line_words.clear()
                line_words[line] = [word for word, _ in splitter.pre_tokenize_str(line)]
            for word in line_words[line]:
                tallies[word].add(subject)
    enough = (word for word in sorted(tallies) if tallies[word].sources >= min_sessions)
    return {word: tallies[word].lines for word in enough}, bool(tallies)


def _vocabulary(
    kind: type[WordPieceTokenizer], counts: Mapping[str, int], marks: Sequence[str], size: int | None
) -> Any:
    """A WordPiece model: specials, marks, all printable ASCII letters, and pieces learned from the words."""
    fixed = [*SPECIAL, *marks, *_LETTERS, *("##" + letter for letter in _LETTERS)]
    words = {word: n for word, n in counts.items() if word not in marks}
    size = fitted_size(words) if size is None else size
    if size < len(fixed):
        raise UsageError(f"log_words.v1 needs a vocabulary_size of at least {len(fixed)}; got {size}")
    learnt = tokenizers.Tokenizer(kind._learn(words, size)).get_vocab() if words else {}
    pieces = list(dict.fromkeys([*fixed, *sorted(learnt, key=learnt.__getitem__)]))[:size]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return models.WordPiece(vocab=vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
