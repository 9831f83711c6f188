"""Tokenize logs with one token per line (`templates.v1`): its template, which is the line without its values.

Templates come from our own Drain, run over the training stream and then frozen. Their ids follow the order of
first appearance, are saved as JSON with the model, and never change afterwards. Lines of a later training
that fit no template get new templates with higher ids (`grown`). These are used only if no earlier template
fits.

A line that fits no template is `<NEW>`. This is an ordinary id, so the line has a probability. It is small,
because in training only lines too rare for a template have this id. Its span is the line's text. Session
files have event ids instead of messages; these are the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.domains.logs.drain import Drain, DrainOptions, Tallies, Templates
from seqmlm.domains.logs.fields import (
    FieldCounts,
    Fields,
    Pairs,
    duration_power,
    fields_of,
    longest_durations,
)
from seqmlm.domains.logs.values import (
    LogValues,
    are_lines,
    fresh_lines,
    lines_of,
    subject_of,
    too_few,
)
from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Ids
from seqmlm.engine.units import UnitFacts, Units
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.parsing import Share, read_json
from seqmlm.tokenizers.base import (
    Growing,
    Traits,
    Unknown,
    kept_options,
    options_of,
    read_card,
    space_of,
    split_encodings,
)
from seqmlm.tokenizers.spelling import Spelling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
NEW = "<NEW>"
Counts = NDArray[np.int64]
FILE = "log_templates.json"
_FORMAT = 3
_KEYS_FOLLOWED = 1 << 20
_TIMES = 1 << 14  # most messages and times that are counted
_MANY = 1000  # least number of lines for a warning about few templates
_PAD, _CLS, _SEP, _MASK, _NEW, _FIRST = range(len(SPECIAL) + 2)


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """Options of `templates.v1`.

    Args:
        patterns: more kinds of values, name (capital letters) to regular expression.
        depth, similarity, max_children: options of Drain (`DrainOptions`).
        max_templates: the most templates kept.
        min_lines: templates with fewer lines are not kept; their lines are `<NEW>`.
        min_sessions: templates in fewer sessions are not kept. If lines belong to no session, the windows of
            a file and its rotations count as one session.
        mask_secrets: whether text that looks like a secret is also replaced (`SECRET`).
        values: most different words at a variable place (a state) for which there is a template for each
            word. New words must also be very rare there in training. A line with another word is then
            `<NEW>`. 0 means a single template.
        fields: "auto" reads requests in access logs, key=value pairs and JSON objects as fields. "none" reads
            them as words, like other lines. See `seqmlm.domains.logs.fields`.
        keep: fields that are in templates although they have many values.
        mask: fields that are never in templates.
    """

    patterns: Mapping[str, str] = field(default_factory=dict)
    depth: int = 4
    similarity: Share = 0.4
    max_children: int = 100
    max_templates: int = 4096
    min_lines: int = 1
    min_sessions: int = 1
    mask_secrets: bool = False
    values: int = 0
    fields: str = ""
    keep: Sequence[str] = ()
    mask: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.fields not in ("", "auto", "none"):
            raise UsageError(f"fields is auto or none, not {self.fields!r}")
        if twice := sorted(set(self.keep) & set(self.mask)):
            raise UsageError(f"{twice[0]!r} is in keep and in mask: name it in only one of them")
        if (self.keep or self.mask) and self.fields != "auto":
            raise UsageError("keep and mask name fields, but fields are not read: set fields=auto")
        if self.values < 0:
            raise UsageError(f"values must be 0 or more, not {self.values}")

    @property
    def drain(self) -> DrainOptions:
        return DrainOptions(depth=self.depth, similarity=self.similarity, max_children=self.max_children)


class TemplateTokenizer(Growing):
    """One token per line, with `[CLS]` at the start and `[SEP]` at the end.

    A raw sequence is any object with `lines`, `times` and `keys` (a window or session of a log), or a text of
    lines. `train` or `load` makes the tokenizer.

    Args:
        templates: words of each template, in id order.
        keys: event ids, in id order.
        options: the options that made them, and that lines are read with.
        fields: templates of lines that are fields, with the ids after the others; None if there are none.
        longest: number of a template to the power of ten of the longest duration in its messages. A line with
            a longer one has no template.
        later: a tokenizer for lines that fit none of these templates, with ids after all of them; None if the
            tokenizer did not grow.
    """

    name: ClassVar[str] = "templates.v1"
    traits: ClassVar[Traits] = Traits(
        unit="line",
        trainable=True,
        reads=are_lines,
        sensitive_options={"min_sessions": 10, "mask_secrets": True},
    )

    def __init__(
        self,
        templates: Templates,
        keys: Sequence[str] = (),
        options: TemplateOptions | None = None,
        fields: Fields | None = None,
        longest: Mapping[int, str] | None = None,
        later: Self | None = None,
    ) -> None:
        self._options = options or TemplateOptions()
        stored = asdict(self._options)
        self.options = {**stored, "keep": list(stored["keep"]), "mask": list(stored["mask"])}
        self._values = LogValues(self._options.patterns, secrets=self._options.mask_secrets)
        self._templates, self._keys = templates, tuple(keys)
        template_texts = (" ".join(templates[number]) for number in range(len(templates)))
        self._fields, self._longest = fields, dict(longest or {})
        field_templates = () if fields is None else fields.templates
        self.tokens = (*SPECIAL, NEW, *template_texts, *self._keys, *field_templates)
        first_key = _FIRST + len(templates)
        self._first_field_id = first_key + len(self._keys)
        self._key_ids = {key: first_key + number for number, key in enumerate(self._keys)}
        self._later, self._shift = later, len(self.tokens) - _FIRST
        if later is not None:
            self.tokens = (*self.tokens, *later.tokens[_FIRST:])
        self.space = space_of(SPECIAL, len(self.tokens))

    @cached_property
    def units(self) -> Units:
        return Units(self.space, UnitFacts(unfamiliar=(_NEW,)))

    @cached_property
    def spelling(self) -> Spelling:
        spelling = Spelling(self.tokens, self._values.conceal)
        spelling.encode_gaps = self._encode_gaps
        return spelling

    def _encode_gaps(self, raws: Sequence[Any]) -> list[Encoding]:
        """Encode lines, some of which are gaps.

        Raises:
            DataError: a gap is only a part of a line.
        """
        lines = (line.strip() for raw in raws for line in lines_of(raw))
        if any(Spelling.stand_in in line != Spelling.stand_in for line in lines):
            raise DataError(
                "a gap within a line, although this model reads a line as one template",
                remedy="replace the whole line by the gap, or train with --set tokenizer.name=log_words.v1",
            )
        return self.encode_batch(raws)

    def encode_batch(self, raws: Sequence[Any]) -> list[Encoding]:
        """Encode windows or sessions. Groups are line numbers, and spans are lines of `"\\n".join(lines)`."""
        lines = [lines_of(raw) for raw in raws]
        counts = np.fromiter(map(len, lines), dtype=np.int64, count=len(lines))
        ids = np.fromiter(chain.from_iterable(map(self._ids, raws, lines)), np.int32, int(counts.sum()))
        return _encodings(ids, lines, counts)

    def _ids(self, raw: Any, lines: Sequence[str]) -> Iterable[int]:
        """The token of each line. Templates of later trainings are used if no earlier one fits."""
        ids = self._own_ids(raw, lines)
        if self._later is None:
            return ids
        all_ids = list(ids)
        unmatched = [at for at, token in enumerate(all_ids) if token == _NEW]
        for at, token in zip(unmatched, self._later._ids(raw, [lines[at] for at in unmatched]), strict=True):
            if token != _NEW:
                all_ids[at] = token + self._shift
        return all_ids

    def _own_ids(self, raw: Any, lines: Sequence[str]) -> Iterator[int]:
        """The token of each line by the templates of the first training."""
        if getattr(raw, "keys", False):
            find = self._key_ids.get
            return (find(line, _NEW) for line in lines)
        if self._fields is not None:
            return map(self._id, lines)
        if self._longest:
            return map(self._number_id, lines)
        words, match, first = self._values.words, self._templates.match, _FIRST
        numbers = (match(words(line)) for line in lines)
        return (first + number if number >= 0 else _NEW for number in numbers)

    def _id(self, line: str) -> int:
        """The id of a line that may be fields."""
        pairs, message = self._fields_and_message(line)
        if pairs is None:
            return self._number_id(line)
        assert self._fields is not None
        head = self._number(message) if message else None
        if head == -1:
            return _NEW
        number = self._fields.find(pairs, "" if head is None else " ".join(self._templates[head]))
        return self._first_field_id + number if number >= 0 else _NEW

    def _fields_and_message(self, line: str) -> tuple[Pairs | None, str]:
        """The fields of a line, None for a line of words, and its message."""
        parts = fields_of(line) if self._fields is not None else None
        return (None, line) if parts is None else (_mask_secrets(parts[0], self._values), parts[1])

    def _number(self, message: str) -> int:
        """The template of a message; -1 for none, or if its duration is too long for the template."""
        number = self._templates.match(self._values.words(message))
        return -1 if number in self._longest and self._longer(number, message) is not None else number

    def _number_id(self, message: str) -> int:
        """The token of a line that is only a message."""
        number = self._number(message)
        return _FIRST + number if number >= 0 else _NEW

    def _longer(self, number: int, message: str) -> str | None:
        """The power of ten of a message's duration, if it exceeds the longest of its template; else None."""
        power = duration_power(message)
        longer = power is not None and float(power) > float(self._longest.get(number, "inf"))
        return power if longer else None

    def _tokenizer_for(self, line: str) -> Self:
        """The tokenizer, this one or a later one, whose templates apply to a line."""
        later = self._later
        if later is None or next(self._own_ids(None, [line])) != _NEW:
            return self
        return self if [*later._ids(None, [line])] == [_NEW] else later._tokenizer_for(line)

    def template(self, line: str) -> str:
        """The template of a line.

        If it has none, the template that it would have: the line without its values.
        """
        if (tokenizer := self._tokenizer_for(line)) is not self:
            return tokenizer.template(line)
        pairs, message = self._fields_and_message(line)
        if pairs is not None and (token := self._id(line)) >= _FIRST:
            return self.tokens[token]
        words = self._values.words(message)
        number = self._templates.match(words) if words else -1
        like = " ".join(words if number < 0 else self._templates[number])
        return like if pairs is None or self._fields is None else self._fields.shape(pairs, like)

    def unseen_values(self, line: str) -> list[str]:
        """The new words and values of a line at places where only known ones are expected: status=502.

        New means that they do not occur in the training data.
        """
        if (tokenizer := self._tokenizer_for(line)) is not self:
            return tokenizer.unseen_values(line)
        pairs, message = self._fields_and_message(line)
        words = self._values.words(message)
        values = list(self._templates.unknown_words(words))
        if pairs is not None and self._fields is not None:
            values = self._fields.unknown_values(pairs)
        longer = self._longer(self._templates.match(words), message) if words else None
        return values if longer is None else [*values, f"duration={longer}s"]

    def known_values(self, line: str) -> list[str]:
        """The known values of a line with a template that `unseen_values` would return if they were new.

        Each is a text with its place. The words of a message are represented by the number of its template.
        """
        if (tokenizer := self._tokenizer_for(line)) is not self:
            return tokenizer.known_values(line)
        pairs, message = self._fields_and_message(line)
        values = list[str]()
        if pairs is not None and self._fields is not None:
            values = [value for value, is_known, _ in self._fields.decisive_values(pairs) if is_known]
        needs_number = message and (self._longest or pairs is not None)
        number = self._templates.match(self._values.words(message)) if needs_number else -1
        if number in self._longest and duration_power(message) == self._longest[number]:
            values.append(f"{number} duration={self._longest[number]}s")
        if number >= 0 and pairs is not None:
            values.append(f"message {number}")
        return values

    def is_recombination(self, line: str, never: frozenset[str] = frozenset()) -> bool:
        """Whether training had all parts of a line of fields, except sizes, but not this combination.

        The parts are the names and values of the fields, the first part of a path, and the message.

        Args:
            never: values, as returned by `known_values`, that count as new.
        """
        if (tokenizer := self._tokenizer_for(line)) is not self:
            return tokenizer.is_recombination(line, never)
        pairs, message = self._fields_and_message(line)
        if pairs is None or self._fields is None:
            return False
        parts = [
            (value, is_known)
            for value, is_known, is_size in self._fields.decisive_values(pairs)
            if not is_size
        ]
        if message:
            number = self._templates.match(self._values.words(message))
            parts.append((f"message {number}", number >= 0))
        named = all(name in self._fields.facts for name, _ in pairs)
        return bool(parts) and named and all(is_known and value not in never for value, is_known in parts)

    @property
    def facts(self) -> Mapping[str, str]:
        """The treatment of each field in the training lines: its name to a few words."""
        field_facts = {} if self._fields is None else self._fields.facts
        return field_facts if self._later is None else {**self._later.facts, **field_facts}

    def advice(self, counts: Sequence[int]) -> str | None:
        """A warning if three templates or fewer cover nearly all of many lines, otherwise None."""
        ranked = sorted(counts[_NEW:], reverse=True)
        lines = sum(ranked)
        few = next((n for n in (1, 2, 3) if sum(ranked[:n]) >= 0.99 * lines), None)
        if few is None or lines < _MANY or self._keys:
            return None
        share = sum(ranked[:few]) / lines
        return (
            f"{few} template{'s cover' if few > 1 else ' covers'} {share:.0%} of {lines:,} "
            "lines, so the model can detect little; name fields with --option keep=NAME,NAME"
        )

    def unknown(self, raw: Any) -> list[Unknown]:
        """The lines that fit no template, with their text."""
        lines = lines_of(raw)
        begins = accumulate((len(line) + 1 for line in lines), initial=0)
        tokens = zip(begins, lines, self._ids(raw, lines), strict=False)
        return [Unknown(begin, line) for begin, line, token in tokens if token == _NEW]

    @classmethod
    def train(cls, texts: Iterable[Any], *, vocabulary_size: int | None = None, **options: Any) -> Self:
        """Learn templates (or event ids) from windows and sessions, in their order.

        If a window overlaps the one before it, their common lines are counted once.

        Args:
            texts: read once; memory is bounded by `max_templates`.
            vocabulary_size: the most ids, specials and `<NEW>` included; None: only `max_templates` limits
                them.
            options: see `TemplateOptions`.

        Raises:
            UsageError: an unknown option, an option out of range, or a vocabulary size that is too small.
            DataError: there are no lines, or none is frequent enough.
        """
        chosen = options_of(TemplateOptions, options, cls.name)
        max_templates = chosen.max_templates
        if vocabulary_size is not None:
            max_templates = min(max_templates, vocabulary_size - _FIRST)
            if max_templates < 1:
                raise UsageError(f"{cls.name} needs a vocabulary_size above {_FIRST}; got {vocabulary_size}")
        return cls._learn(texts, chosen, max_templates)

    def grown(self, texts: Iterable[Any]) -> Self:
        """A copy of this tokenizer with more templates, for lines of `texts` that match no template yet.

        New ids follow the existing ids. Every line that has a template keeps its id, because later templates
        apply only to other lines. The options of the first training remain; `max_templates` counts all
        templates.
        """
        room = self._options.max_templates - (len(self.tokens) - _FIRST)
        if room < 1:
            return self
        try:
            later = self._learn(texts, replace(self._options, keep=(), mask=()), room, earlier=self)
        except DataError:  # no line is new, or none is frequent enough
            return self
        return self._with_later(later)

    def _with_later(self, later: Self) -> Self:
        """This tokenizer with another one, which is used last."""
        last = later if self._later is None else self._later._with_later(later)
        return type(self)(self._templates, self._keys, self._options, self._fields, self._longest, last)

    @classmethod
    def _learn(
        cls, texts: Iterable[Any], chosen: TemplateOptions, max_templates: int, earlier: Self | None = None
    ) -> Self:
        """Learn templates, except for lines that fit a template of the `earlier` tokenizer.

        Raises the same errors as `train`.
        """
        values, min_sessions = LogValues(chosen.patterns, secrets=chosen.mask_secrets), chosen.min_sessions
        drain = Drain(chosen.drain, max_templates, min_sessions, most_values=chosen.values)
        keys = Tallies(min_sessions, max(2 * max_templates, _KEYS_FOLLOWED))
        counts = FieldCounts(min_sessions, chosen.keep, chosen.mask) if chosen.fields == "auto" else None
        times = Tallies(min_sessions, _TIMES)
        for number, (raw, lines) in enumerate(fresh_lines(texts)):
            subject = subject_of(raw, number)
            if earlier is not None:
                ids = earlier._ids(raw, lines)
                lines = [line for line, token in zip(lines, ids, strict=True) if token == _NEW]
            if getattr(raw, "keys", False):
                for key in lines:
                    keys[key].add(subject)
                continue
            for line in lines:
                parts = fields_of(line) if counts is not None else None
                message = line if parts is None else parts[1]
                words = values.words(message)
                form = drain.form(drain.add(words, subject), words) if words else ()
                if chosen.values and (power := duration_power(message)) is not None:
                    times[form, power].add(subject)
                if parts is not None and counts is not None:
                    counts.add(_mask_secrets(parts[0], values), form, subject)
        templates = drain.freeze(min_lines=chosen.min_lines)
        frequent_keys = keys.commonest(max_templates, chosen.min_lines, min_sessions)
        fields = None
        if counts is not None and counts.lines:
            fields = counts.freeze(
                templates, max(max_templates - len(templates), 1), chosen.min_lines, min_sessions
            )
            if absent := [name for name in (*chosen.keep, *chosen.mask) if not counts.knows(name)]:
                raise UsageError(
                    f"no line has the field {absent[0]!r}, which keep or mask names; "
                    f"the fields are {', '.join(list(fields.facts)[:20])}"
                )
        if not len(templates) and not frequent_keys and not (fields and fields.templates):
            raise too_few(
                "templates", min_sessions, bool(len(drain) or len(keys) or (counts and counts.lines))
            )
        return cls(
            templates, frequent_keys, chosen, fields, longest_durations(times, templates, min_sessions)
        )

    def spell(self, raw: Any) -> str:
        """The lines in the form that `hf` reads: "E12" is the twelfth template or event id.

        `<NEW>` stays as it is.
        """
        ids = self.encode(raw).ids[1:-1].tolist()
        return " ".join(_token_names(self.tokens)[token] for token in ids)

    def hf(self) -> PreTrainedTokenizerFast:
        """A tokenizer with the same ids for sequences from `spell`; anything else is `<NEW>`.

        A Hugging Face tokenizer cannot match templates. Names in <> may contain a space.
        """
        from tokenizers import Regex, pre_tokenizers

        from seqmlm.tokenizers.fast import with_bracket_tokens, word_level

        words = Regex(r"<[^<>]*>|[^\s<>]+")
        spelled_tokens = _token_names(self.tokens)
        backend = word_level(spelled_tokens, "<NEW>")
        backend.pre_tokenizer = pre_tokenizers.Split(words, behavior="removed", invert=True)
        return with_bracket_tokens(backend, spelled_tokens)

    def _content(self) -> Any:
        return {
            "templates": [list(self._templates[number]) for number in range(len(self._templates))],
            "keys": list(self._keys),
            "closed": {str(number): list(places) for number, places in self._templates.closed.items()},
            "fields": None if self._fields is None else asdict(self._fields),
            "longest": {str(number): power for number, power in self._longest.items()},
            "later": None if self._later is None else self._later._content(),
        }

    def save(self, directory: Path) -> None:
        super().save(directory)
        content = {"format": _FORMAT, **self._content()}
        (directory / FILE).write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    @classmethod
    def load(cls, directory: Path) -> Self:
        card = read_card(directory, expected=cls.name)
        try:
            content = read_json(directory / FILE)
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}; this version of seqmlm reads {_FORMAT}")
            options = kept_options(TemplateOptions, card, cls.name)
            return cls._of(content, options)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise StateError(f"{directory / FILE} cannot be read: {error}; train it again") from None

    @classmethod
    def _of(cls, content: Mapping[str, Any], options: TemplateOptions) -> Self:
        """Restore the tokenizer that `_content` describes."""
        words = [tuple(words) for words in content["templates"]]
        closed = {int(number): tuple(map(int, at)) for number, at in content["closed"].items()}
        if any(not 0 <= at < len(words[number]) for number, places in closed.items() for at in places):
            raise ValueError("a closed place is in no template")
        templates = Templates(words, options.drain, closed)
        fields, later = content["fields"], content["later"]
        return cls(
            templates,
            content["keys"],
            options,
            None if fields is None else Fields(**fields),
            {int(number): power for number, power in content.get("longest", {}).items()},
            None if later is None else cls._of(later, options),
        )


def _mask_secrets(pairs: Pairs, values: LogValues) -> Pairs:
    """Fields without text that looks like a secret, if secrets are masked."""
    if not values.secrets:
        return pairs
    # The name shows whether a value is a secret: password=...
    return tuple((name, values.line(f"{name}={value}").partition("=")[2]) for name, value in pairs)


def _token_names(tokens: Sequence[str]) -> list[str]:
    """The specials unchanged, and "E1", "E2", ... for templates and event ids."""
    return [*tokens[:_FIRST], *(f"E{number}" for number in range(1, len(tokens) - _FIRST + 1))]


def _encodings(ids: Ids, lines: Sequence[Sequence[str]], counts: Counts) -> list[Encoding]:
    """Encodings of R records as views of common arrays.

    Args:
        ids: (N,) ids of all lines.
        lines: the lines of each record.
        counts: (R,) number of lines in each record.
    """
    record = np.repeat(np.arange(len(counts)), counts)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    # Every record has two special tokens.
    at = np.arange(1, len(ids) + 1) + 2 * record
    edges = firsts + 2 * np.arange(len(firsts))
    size = int(edges[-1])
    all_ids = np.full(size, _SEP, dtype=np.int32)
    groups = np.full(size, SPECIAL_GROUP, dtype=np.int32)
    spans = np.zeros((size, 2), dtype=np.int32)
    all_ids[edges[:-1]], all_ids[at] = _CLS, ids
    groups[at] = np.arange(len(ids)) - firsts[record]
    lengths = np.fromiter(map(len, chain.from_iterable(lines)), dtype=np.int64, count=len(ids))
    ends = np.cumsum(lengths + 1)
    characters_before = np.concatenate([[0], ends])[firsts[:-1]]
    spans[at, 1] = ends - 1 - characters_before[record]
    spans[at, 0] = spans[at, 1] - lengths
    return split_encodings(pairwise(edges.tolist()), all_ids, groups, spans)
