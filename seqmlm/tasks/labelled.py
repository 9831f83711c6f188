"""Labelled records as a fine-tuning sees them: read, divided, spelled in tokens, with what they teach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.examples import Example, Part, Spans, examples, label_source
from seqmlm.data.files import stem_suffix
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows
from seqmlm.data.splits import hash64
from seqmlm.data.tags import scheme_of
from seqmlm.engine.heads import Kind
from seqmlm.engine.types import Encoding, Floats
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.predictions import PRIMARY
from seqmlm.inference.batches import batches, encoded
from seqmlm.inference.labeller import HeadCard, Piece, Pool, paired, pieces, standardized, unit_bounds
from seqmlm.inference.prompts import Prompts
from seqmlm.inference.session import Session

PARTS: tuple[Part, ...] = ("train", "validation", "test")
MOST_CLASSES = 2000
FEW = 40
"""Labelled records from which on a fifth is held out to test, and a tenth of the rest to validate."""
RARE = 0.2
"""Share of training examples below which a class of two is rare."""
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_BESIDE = ("set", "split", "validation")
_NUMBERS = 20  # different numbers from which on they are values, not classes


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """Where labels are, as a person says it; the fields are options of `seqmlm finetune`."""

    labels: tuple[str, ...] = ()
    label_file: str | None = None
    mask: str | None = None
    classes: tuple[str, ...] = ()
    pair: str | None = None
    task: Kind | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Case:
    """An example as the model sees it.

    Args:
        record: without its sequence.
        group: what it is resampled and divided with.
        pieces: its windows.
        targets: (N, K) of its labels (`seqmlm.engine.heads.Labels`); values in units of the card's scale.
        units: what rivals see: the units of the record, or the text of each labelled part.
    """

    record: Record
    group: str
    pieces: list[Piece]
    targets: Floats
    units: list[str]


def read_examples(
    session: Session, asked: Labelling, paths: Sequence[str], problems: Problems, *, numeric: bool = False
) -> Iterator[Example]:
    """The examples of some files.

    Raises:
        UsageError: sources of labels that exclude each other.
        DataError: a file that cannot be read.
    """
    of_class = dict(_class_file(one) for one in asked.classes)
    source = label_source(
        columns=asked.labels,
        numeric=numeric,
        letters=asked.task in ("tags", "entities"),
        labels=asked.label_file,
        mask=asked.mask,
        classes=of_class,
        pair=asked.pair,
        until=session.domain.until,
    )
    files = [*paths, *of_class]
    for path in files:
        options = {**_columns(session, asked, path), **asked.options}
        reader = session.reader([path], format=asked.format, options=options)
        yield from examples(reader(problems), problems, source)


def _class_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise UsageError(f"--class takes NAME=FILE, not {text!r}")
    return path, name


def _columns(session: Session, asked: Labelling, path: str) -> dict[str, Any]:
    """What the reader of a table is told: the columns to keep, and which one holds the sequence."""
    if path == "-" or not Path(path).is_file() or stem_suffix(path) not in _TABLES:
        return {}
    chosen = session.domain.all_formats.get(asked.format or "") or session.domain.format_of(path)
    if chosen is None or "keep" not in chosen.options():
        return {}
    _, first = next(read_rows(path), (0, {}))
    wanted = (*asked.labels, *((asked.pair,) if asked.pair else ()))
    if missing := [one for one in wanted if one not in first]:
        raise DataError(
            f"no column {missing[0]!r}",
            source=path,
            line=1,
            remedy=f"there are: {', '.join(map(str, first))}",
        )
    keep = [*wanted, *(one for one in first if one.lower() in (*_BESIDE, "spans", "tags"))]
    found: dict[str, Any] = {"keep": tuple(dict.fromkeys(keep))}
    for option, usual in (("column", "text"), ("field", "text")):
        left = [
            one for one in first if one not in keep and one.lower() != "id" and isinstance(first[one], str)
        ]
        if option in chosen.options() and usual not in first and "sequence" not in first and len(left) == 1:
            found[option] = left[0]
    return found


def divided(read: Mapping[Part, Sequence[Example]], session: Session, seed: int) -> dict[Part, list[Example]]:
    """Examples by part: as the files or the data say, else whole groups by their hash; none twice.

    Few examples all train, and nothing is held out.
    """
    found: dict[Part, list[Example]] = {part: list(read.get(part, ())) for part in PARTS}
    told, train = Counter(one.part for one in found["train"]), found["train"]
    if told["test"] or told["validation"]:
        found["train"] = [one for one in train if one.part in (None, "train")]
        for part in PARTS[1:]:
            found[part] += [one for one in train if one.part == part]
    shares: dict[Part, float] = {"test": 0.2, "validation": 0.1}
    for part, share in shares.items():
        if not found[part] and len(found["train"]) >= FEW:
            keys = {one: hash64(group_of(session, one), seed) for one in found["train"]}
            order = sorted(dict.fromkeys(keys.values()))
            held = set(order[: max(1, round(share * len(order)))] if len(order) > 1 else ())
            found[part] = [one for one, key in keys.items() if key in held]
            found["train"] = [one for one, key in keys.items() if key not in held]
    return found


def why_untested(parts: Mapping[Part, Sequence[Example]]) -> str:
    """Why `divided` held nothing out to test."""
    return f"fewer than {FEW} examples" if len(parts["train"]) < FEW else "all examples are of one document"


def group_of(session: Session, example: Example) -> str:
    """What must stay together: patient, document, package; else equal sequences."""
    return session.domain.split_key(example.record)


def overlap(parts: Mapping[Part, Sequence[Example]], session: Session) -> int:
    """Test examples whose record, or what must stay with it, is in training, too."""
    domain = session.domain

    def names(one: Example) -> set[tuple[str, str]]:
        second = "" if one.second is None else domain.identity(one.second)
        own = {("record", f"{domain.identity(one.record)}\0{second}")}
        return own if one.second is not None else own | {("group", group_of(session, one))}

    seen = {name for one in parts["train"] for name in names(one)}
    return sum(bool(names(one) & seen) for one in parts["test"])


def card_of(
    every: Sequence[Example],
    train: Sequence[Example],
    asked: Labelling,
    *,
    pool: Pool,
    crf: bool,
    length: int,
) -> HeadCard:
    """What is to be predicted, from labels.

    Args:
        every: all examples of the training files, what is held out of them, too.
        train: what is trained on, by which values are scaled.
        pool, crf, length: see `HeadCard`.

    Raises:
        DataError: labels that nothing can be learnt from.
        UsageError: a task that these labels cannot be of.
    """
    if not train:
        raise DataError("no example to train on", remedy="give records with labels")
    kind, names = _outputs(every, asked)
    center, scale = standardized(_values(train)) if kind == "value" else ((), ())
    if crf and kind != "entities":
        raise UsageError("a CRF joins the tags of entities; other labels do not depend on each other")
    return HeadCard(
        kind=kind,
        label=",".join(asked.labels) or Path(asked.label_file or "label").name,
        names=tuple(names),
        pool=pool,
        crf=crf,
        center=center,
        scale=scale,
        pair=asked.pair,
        length=length,
    )


def _values(found: Sequence[Example]) -> Floats:
    """(N, K) the numbers of examples."""
    values = [one.label for one in found]
    if len({len(one) if isinstance(one, tuple) else 0 for one in values}) > 1:
        raise DataError("different numbers of values", remedy="give every record as many")
    return np.array(values, dtype=np.float32)


def _outputs(every: Sequence[Example], asked: Labelling) -> tuple[Kind, Sequence[str]]:
    """What kind of labels there are, and the names of what is predicted."""
    labels = [one.label for one in every]
    first = labels[0]
    if isinstance(first, Spans):
        given = [name for one in labels if isinstance(one, Spans) for name in one.labels]
        names = sorted(set(given))
        scheme = scheme_of(names)
        sparse = any(map(_alone, every))
        entities = asked.task == "entities" or (asked.task is None and (sparse or scheme in ("bio", "bioes")))
        if entities and scheme is None:  # spans of entities alone: what is between them is outside
            names = ["O", *(f"{at}-{name}" for name in names for at in "BI")]
        if not entities:
            _check_names(names, given)
        return "entities" if entities else "tags", names
    if asked.task in ("tags", "entities"):
        raise UsageError(f"--task {asked.task} needs a label for each unit, and a record has one")
    if isinstance(first, tuple) and first and isinstance(first[0], float):
        one_each = len(asked.labels) == len(first)
        return "value", asked.labels if one_each else [f"value_{n}" for n in range(len(first))]
    if isinstance(first, tuple):
        known = {str(name) for one in labels if isinstance(one, tuple) for name in one}
        return "multilabel", asked.labels if len(asked.labels) > 1 else sorted(known)
    given = [str(one) for one in labels]
    _check_names(sorted(set(given)), given)
    return "class", sorted(set(given))


def _alone(example: Example) -> bool:
    """Whether entities alone are labelled, not what is between them."""
    given = example.record.meta.get("spans")
    return isinstance(given, list) and (not given or isinstance(given[0], Mapping))


def _check_names(names: Sequence[str], labels: Sequence[str]) -> None:
    counts = Counter(labels)
    if len(names) == 1:
        raise DataError(f"one class only: {names[0]!r}", remedy="give examples of another one")
    if len(names) == len(labels) > _NUMBERS:
        raise DataError(
            "as many classes as examples: this column names the records", remedy="name another with --label"
        )
    if len(names) > MOST_CLASSES:
        raise DataError(
            f"{len(names):,} classes, more than {MOST_CLASSES:,}", remedy="is it a number: --task value"
        )
    if rare := [name for name in names if counts[name] == 1]:
        raise DataError(
            f"a class of one example: {rare[0]!r}",
            remedy="give it more, or leave it out: it could not be tested",
        )


def primary(card: HeadCard, parts: Mapping[Part, Sequence[Example]]) -> str:
    """The measure that decides: `PRIMARY`, but AUROC of two classes of which one is rare.

    To say the other one, always, is then nearly always right, and no training would seem to teach anything.
    """
    counts = [Counter(one.label for one in parts[part]) for part in PARTS if parts[part]]
    two = card.kind == "class" and all(len(own) == 2 for own in counts)
    rare = two and min(counts[0].values()) < RARE * counts[0].total()
    return "auroc" if rare else PRIMARY[card.kind]


def is_numeric(train: Sequence[Example]) -> bool:
    """Whether classes are numbers, and so many or so fine that they are meant as values."""
    texts = {one.label for one in train if isinstance(one.label, str)}
    try:
        numbers = {float(one) for one in texts}
    except ValueError:
        return False
    return len(numbers) > _NUMBERS or (len(numbers) > 2 and any(one != int(one) for one in numbers))


def cases(
    session: Session,
    card: HeadCard,
    found: Sequence[Example],
    problems: Problems,
    prompts: Prompts | None = None,
) -> list[Case]:
    """Spell examples in tokens; those that cannot be go to `problems`."""
    made: list[Case] = []
    own = [replace(one.record) for one in found]  # a record may be in several pairs
    example_of = {id(record): one for record, one in zip(own, found, strict=True)}
    for some in batches(own):
        for record, encoding in encoded(session.domain, session.tokenizer, some, problems):
            example = example_of[id(record)]
            try:
                made.append(_case(session, card, example, encoding, problems, prompts))
            except DataError as error:
                problems.bad(
                    DataError(error.reason, source=record.source, line=record.line, remedy=error.remedy),
                    str(record.raw),
                )
    return made


def has_types(session: Session) -> bool:
    """Whether the model has segment ids."""
    return int(getattr(session.model.rows.model.config, "type_vocab_size", 0) or 0) > 1


def _case(
    session: Session,
    card: HeadCard,
    example: Example,
    encoding: Encoding,
    problems: Problems,
    prompts: Prompts | None,
) -> Case:
    record, space, text = example.record, session.tokenizer.space, str(example.record.raw)
    bounds = None
    targets: Floats
    if isinstance(example.label, Spans):
        spans = example.label
        if not card.of_parts:
            raise DataError("labels of parts, where others have one of the record", remedy="correct it")
        if card.kind == "entities" and _alone(example):
            spans = _dense(spans, unit_bounds(encoding))
        where, kept = pieces(encoding, space, card, spans.bounds)
        if not kept.all():
            problems.note("a label of a place without a token, left out", int((~kept).sum()))
        bounds = spans.bounds
        targets = np.array([_number(card, name) for name in spans.labels], dtype=np.float32)[:, None]
        shown = [text[start:end] for start, end in bounds.tolist()]
    else:
        if card.of_parts:
            raise DataError("no labels of parts", remedy="give a label for each unit")
        if example.second is not None:
            other = session.tokenizer.encode(example.second.raw)
            shown = _units(text, encoding) + [f"2:{one}" for one in _units(str(example.second.raw), other)]
            encoding = paired(encoding, other, space, has_types(session), card.length)
        else:
            shown = _units(text, encoding)
        where = pieces(encoding, space, card)[0] if prompts is None else prompts.pieces(record)
        targets = _target(card, example.label)
    group = group_of(session, example)
    return Case(replace(record, raw=""), group, where, targets, shown)


def _units(text: str, encoding: Encoding) -> list[str]:
    if encoding.spans is None:
        return []
    return [text[start:end] for start, end in unit_bounds(encoding).tolist()]


def _number(card: HeadCard, name: str) -> int:
    try:
        return card.names.index(name)
    except ValueError:
        raise DataError(
            f"the label {name!r} is in no training example", remedy=f"known are {', '.join(card.names[:20])}"
        ) from None


def _target(card: HeadCard, label: Any) -> Floats:
    """(1, K) what the head is to give for a record."""
    if card.kind == "value":
        values: Floats = (np.asarray(label) - np.array(card.center)) / np.array(card.scale)
        return values[None].astype(np.float32)
    if card.kind == "multilabel":
        for name in label:
            _number(card, name)
        return np.array([[name in label for name in card.names]], dtype=np.float32)
    return np.array([[_number(card, label)]], dtype=np.float32)


def _dense(spans: Spans, units: Any) -> Spans:
    """A tag for each unit, from the spans of entities alone."""
    tags = ["O"] * len(units)
    for (start, end), name in zip(spans.bounds.tolist(), spans.labels, strict=True):
        inside = np.flatnonzero((units[:, 1] > start) & (units[:, 0] < end))
        for number, unit in enumerate(inside.tolist()):
            tags[unit] = f"{'I' if number else 'B'}-{name}"
    return Spans(bounds=units, labels=tuple(tags))


def truth_of(card: HeadCard, found: Sequence[Case]) -> Any:
    """The true labels, as `seqmlm.evaluation.predictions.measures` takes them."""
    if card.kind == "entities":
        return [[card.names[int(one)] for one in case.targets[:, 0]] for case in found]
    every = np.concatenate([case.targets for case in found])
    if card.kind == "value":
        return every * np.array(card.scale) + np.array(card.center)
    return (every if card.kind == "multilabel" else every[:, 0]).astype(np.int64)


def groups_of(card: HeadCard, found: Sequence[Case]) -> list[str]:
    """The group of each item that `truth_of` gives."""
    if card.kind == "tags":
        return [case.group for case in found for _ in range(len(case.targets))]
    return [case.group for case in found]


def drawn(train: Sequence[Example], shots: int | None, seed: int) -> list[Example]:
    """So many training examples, of each class alike where they are classes; all for None."""
    if shots is None or shots >= len(train):
        return list(train)
    order = np.random.default_rng(seed).permutation(len(train))
    queues: dict[Any, list[Example]] = {}
    for one in (train[n] for n in order.tolist()):
        queues.setdefault(one.label if isinstance(one.label, str) else None, []).append(one)
    turns = [
        one for own in zip(*(_padded(q, shots) for q in queues.values()), strict=True) for one in own if one
    ]
    return list(islice(turns, shots))


def _padded(queue: list[Example], size: int) -> list[Example | None]:
    return [*queue[:size], *([None] * (size - len(queue)))]
