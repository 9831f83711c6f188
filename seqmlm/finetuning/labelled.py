"""Labelled records for fine-tuning: read them, divide them into parts, and describe their labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.counts import People, Things
from seqmlm.data.examples import Example, LabelSource, Part, Spans, examples
from seqmlm.data.files import COMPRESSED
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import number
from seqmlm.data.splits import hash64
from seqmlm.data.tags import scheme_of
from seqmlm.domains.refusals import past_reader
from seqmlm.engine.labels import Kind
from seqmlm.engine.types import Floats
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.predictions import PRIMARY
from seqmlm.inference.pieces import HeadCard, Pool, standardized
from seqmlm.inference.session import Session
from seqmlm.tasks.columns import Labelling, labelled_records

Parts = dict[Part, list[Example]]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
MOST_CLASSES = 2000
_MOST_NAMED = 3  # places of examples that one message lists
FEW = 40
"""The smallest number of labelled records of which a fifth is held out for testing."""
MANY = 200
"""The smallest number of records of which a tenth is held out for validation.

With fewer validation records, chance would determine when to stop.
"""
RARE = 0.2
"""One of two classes is rare if its share of the training examples is below this."""
ODD = 0.02
"""The largest share of labels that are not numbers, if the labels are read as values."""
AGAIN = 3
"""Whole numbers are codes of classes if each occurs in at least this many examples on average."""
_NUMBERS = 20  # more different numbers than this are values, not classes


@dataclass(frozen=True, kw_only=True)
class Lesson(Labelling):
    """Settings for the labels to learn, and for the examples to learn them from.

    Args:
        train: PATH: labelled data for training: files, folders or Hugging Face data sets; repeatable.
        valid: PATH: data that decide when to stop. Default: a held-out part of the training data.
        test: PATH: data for the results. Default: a held-out part of the training data.
        shots: train on only this many examples, drawn anew for each seed.
        allow_overlap: allow test records that are also in the training data.
        seed: random seed for the first training, and for the held-out parts.
        head: which output of the encoder predicts the label. `start` is the first token of the record or
            labelled part. `mean` is the mean of its tokens. `prompt` is the gap of a template with a word for
            each class.
        template: text of the prompt, with a gap and {text}, as in zeroshot.
        words: CLASS=WORD: the word in the gap for a class; a list.
        crf: predict the tags of entities together, with a linear-chain CRF, not one by one.
    """

    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    shots: int | None = None
    allow_overlap: bool = False
    seed: int = 0
    head: Pool | None = None
    template: str = ""
    words: tuple[str, ...] = ()
    crf: bool = False


def read_parts(session: Session, lesson: Lesson, problems: Problems) -> tuple[Parts, HeadCard]:
    """The labelled examples for training, validation and test, and the card of the head for these labels.

    Raises:
        UsageError: sources of labels exclude each other, or the labels do not suit the task.
        DataError: files cannot be read, labels cannot be learnt, or test data are also training data.
    """
    paths = {"train": lesson.train, "validation": lesson.valid, "test": lesson.test}
    file_parts: Parts = {}
    for part in PARTS:
        labelling = lesson if part == "train" else replace(lesson, classes=())
        file_parts[part] = list(read_examples(session, labelling, paths[part], problems))
    if not any(file_parts.values()):
        raise problems.nothing()
    if lesson.task is None and is_numeric(file_parts["train"]):
        file_parts = {part: as_values(examples, problems) for part, examples in file_parts.items()}
    file_parts["train"] = train = _without_rare(file_parts["train"], problems)
    parts = divide_examples(file_parts, session, lesson.seed)
    if lesson.shots is not None and lesson.shots < MANY and not lesson.valid:
        parts["validation"] = []  # with so few labels, none are available for validation
    length = min(session.card.max_length, 512)
    card = card_of(train, parts["train"], lesson, problems, length=length)
    if card.kind == "class":
        alike = len(card.names) - len({name.casefold() for name in card.names})
        problems.note(
            "a class whose name differs from another class only in upper and lower case: both are kept apart",
            Things(alike),
        )
    if file_parts["validation"] and not lesson.allow_overlap:
        _refuse_overlap(overlapping_examples(parts, session, "validation"), parts, "validation", session)
    shared = [] if lesson.allow_overlap else overlapping_examples(parts, session)
    if shared and not file_parts["test"] and not any(example.part == "test" for example in train):
        problems.note("a held-out test record that is also in the training data, left out", len(shared))
        parts["test"] = [example for example in parts["test"] if example not in set(shared)]
    else:
        _refuse_overlap(shared, parts, "test", session)
    return parts, card


def _refuse_overlap(shared: Sequence[Example], parts: Parts, part: Part, session: Session) -> None:
    """Refuse examples that are also in an earlier part. The message has the places of the first examples."""
    if not shared:
        return
    withheld = People(len(shared)).withheld
    amount = "some" if withheld else f"{len(shared):,} of {len(parts[part]):,}"
    first = shared[: 1 if withheld else _MOST_NAMED]  # several places would reveal the number of examples
    places = [
        f"{place_of(example.record)} repeats {_earlier_place(example, parts, part, session)}"
        for example in first
    ]
    raise DataError(
        f"{amount} {part} examples, or other members of their groups, are also in the training data (such as "
        f"{'; '.join(places)})",
        remedy="remove them, or allow this with --set allow_overlap=true",
    )


def place_of(record: Record) -> str:
    """The file and line of a record. They reveal nothing about its content."""
    return record.source if record.line is None else f"{record.source}:{record.line}"


def _earlier_place(example: Example, parts: Parts, part: Part, session: Session) -> str:
    """The place of the first example in an earlier part with the same record or the same group."""
    names = _overlap_names(session, example)
    earlier = (twin for prior_part in PARTS[: PARTS.index(part)] for twin in parts[prior_part])
    return next(place_of(twin.record) for twin in earlier if names & _overlap_names(session, twin))


def read_examples(
    session: Session, labelling: Labelling, paths: Sequence[str], problems: Problems
) -> Iterator[Example]:
    """The examples in some files.

    Raises:
        UsageError: sources of labels exclude each other, or one file has two classes.
    """
    of_class = dict(_file_and_class(class_text) for class_text in labelling.classes)
    if len(of_class) < len(labelling.classes):
        raise UsageError("--class names a file twice: all records of a file have one class")
    source = LabelSource(
        columns=labelling.labels,
        numeric=labelling.task == "value",
        letters=labelling.task in ("tags", "entities"),
        dense=labelling.task == "tags",
        labels=labelling.label_file,
        mask=labelling.mask,
        classes=of_class,
        pair=labelling.pair,
        raw=lambda text, fields: session.domain.text.of_text(text, {**labelling.options, **fields}),
        until=past_reader(session.domain),
    )
    if files := [*paths, *of_class]:
        yield from examples(labelled_records(session, labelling, files, problems), problems, source)


def _file_and_class(text: str) -> tuple[str, str]:
    """The file and the class in a text NAME=FILE."""
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise UsageError(f"--class takes NAME=FILE, not {text!r}")
    return path, name


def divide_examples(file_parts: Mapping[Part, Sequence[Example]], session: Session, seed: int) -> Parts:
    """Divide examples into parts, without duplicates.

    The files or the data determine the parts. If they do not, whole groups are held out by their hash. In
    fields whose records are ordered by time, the latest groups are held out, as in `seqmlm train`. If there
    are few examples, all of them train and none is held out.
    """
    parts: Parts = {part: list(file_parts.get(part, ())) for part in PARTS}
    part_counts, train = Counter(example.part for example in parts["train"]), parts["train"]
    if part_counts["test"] or part_counts["validation"]:
        parts["train"] = [example for example in train if example.part in (None, "train")]
        for part in PARTS[1:]:
            parts[part] += [example for example in train if example.part == part]
    count = len(parts["train"])
    shares: dict[Part, tuple[float, int]] = {"test": (0.2, FEW), "validation": (0.1, MANY)}
    for part, (share, fewest) in shares.items():
        if not parts[part] and count >= fewest:
            keys = _group_keys(session, parts["train"])
            held_groups = _held_out_groups(session, keys, share, seed)
            parts[part] = [example for example, key in keys.items() if key in held_groups]
            parts["train"] = [example for example, key in keys.items() if key not in held_groups]
    return parts


def why_untested(parts: Mapping[Part, Sequence[Example]]) -> str:
    """The reason why `divide_examples` held out nothing for testing."""
    return f"fewer than {FEW} examples" if len(parts["train"]) < FEW else "all examples are of one document"


def _held_out_groups(session: Session, keys: Mapping[Example, str], share: float, seed: int) -> set[str]:
    """Groups with about this share of the examples: the latest, or by their hash without very large ones."""
    sizes, (order, in_time) = Counter(keys.values()), _group_order(session, keys, seed)
    target, count, groups = max(1, round(share * len(keys))), 0, set[str]()
    for key in order[:-1]:
        if count < target and (in_time or count + sizes[key] <= 2 * target):
            groups.add(key)
            count += sizes[key]
    return groups or set(order[:1] if len(order) > 1 else ())


def _group_order(session: Session, keys: Mapping[Example, str], seed: int) -> tuple[list[str], bool]:
    """The groups in the order in which they are held out, and whether this order is by time."""
    if session.domain.defaults.split == "chronological":
        order = session.domain.keys.order
        times: dict[str, Any] = {key: order(example.record) for example, key in keys.items()}
        if None not in times.values():
            return sorted(times, key=times.__getitem__, reverse=True), True
    return sorted(dict.fromkeys(keys.values()), key=lambda key: hash64(key, seed)), False


def _group_keys(session: Session, examples: Sequence[Example]) -> dict[Example, str]:
    """The key of each example. Examples of one group, and examples with equal records, have the same key."""
    identity_of = session.domain.keys.identity
    names = {
        example: (f"g{group_of(session, example)}", f"i{identity_of(example.record)}") for example in examples
    }
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while (above := parent.setdefault(name, name)) != name:
            parent[name] = parent[above]
            name = above
        return name

    for group, identity in names.values():
        parent[root(identity)] = root(group)
    return {example: root(group) for example, (group, _) in names.items()}


def group_of(session: Session, example: Example) -> str:
    """The group that stays in one part: patient, document, package or equal sequences.

    Both orders of a pair have the same group.
    """
    group = session.domain.keys.split(example.record)
    return group if example.second is None else min(group, session.domain.keys.split(example.second))


def overlapping_examples(
    parts: Mapping[Part, Sequence[Example]], session: Session, part: Part = "test"
) -> list[Example]:
    """Examples whose record or group is also in an earlier part. The order within a pair does not matter."""
    earlier = (example for prior_part in PARTS[: PARTS.index(part)] for example in parts[prior_part])
    prior_names = {name for example in earlier for name in _overlap_names(session, example)}
    return [example for example in parts[part] if _overlap_names(session, example) & prior_names]


def _overlap_names(session: Session, example: Example) -> set[tuple[str, ...]]:
    """Names of the record and the group of an example. Two parts must not have a common name."""
    keys = session.domain.keys
    if example.second is not None:
        return {tuple(sorted((keys.identity(example.record), keys.identity(example.second))))}
    return {("record", keys.identity(example.record)), ("group", group_of(session, example))}


def resembling_count(parts: Mapping[Part, Sequence[Example]], session: Session) -> int:
    """Number of test records that share a cluster with a training record; 0 in fields without clusters."""
    if session.domain.keys.clusters is None:
        return 0
    cluster = session.domain.keys.clusters()
    train_clusters = {cluster(example.record) for example in parts["train"]}
    return sum(cluster(example.record) in train_clusters for example in parts["test"])


def _stem(path: str | Path) -> str:
    """The name of a file without its ending and without the ending of a compression."""
    path = Path(path)
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).stem


def card_of(
    examples: Sequence[Example],
    train: Sequence[Example],
    lesson: Lesson,
    problems: Problems,
    *,
    length: int = 512,
) -> HeadCard:
    """The card of the head that predicts these labels.

    Args:
        examples: all examples of the training files, including the held-out ones.
        train: the examples for training. They determine the scale of values.
        problems: decides whether messages may name labels.
        length: tokens in the longest window.

    Raises:
        DataError: nothing can be learnt from the labels.
        UsageError: the labels do not suit the task.
    """
    if not train:
        raise DataError("no example to train on", remedy="give records with labels")
    kind, names = _kind_and_names(examples, lesson, problems)
    center, scale = standardized(_values(train)) if kind == "value" else ((), ())
    of_parts = kind in ("tags", "entities")
    if lesson.pair is not None and of_parts:
        raise UsageError(
            "--pair needs one label per pair of sequences, but these labels are for parts of a sequence: "
            "remove --pair"
        )
    if lesson.crf and kind != "entities":
        raise UsageError(
            "a CRF joins the tags of entities; other labels do not depend on each other: leave out crf=true"
        )
    if lesson.head == "prompt" and kind != "class":
        raise UsageError(
            f"--head prompt predicts only classes, and these labels are {kind}: choose --head start or mean"
        )
    return HeadCard(
        kind=kind,
        label=",".join(lesson.labels) or _stem(lesson.label_file or "label"),
        names=tuple(names),
        pool=lesson.head or ("start" if of_parts else "mean"),
        crf=lesson.crf,
        center=center,
        scale=scale,
        pair=lesson.pair,
        pairing=lesson.pairing,
        length=length,
        template=lesson.template if lesson.head == "prompt" else "",
        words=_class_words(lesson.words, names, problems) if lesson.head == "prompt" else (),
    )


def _values(examples: Sequence[Example]) -> Floats:
    """(N, K) the values of the examples."""
    values = [example.label for example in examples]
    if len({len(numbers) if isinstance(numbers, tuple) else 0 for numbers in values}) > 1:
        raise DataError("different numbers of values", remedy="give every record as many")
    return np.array(values, dtype=np.float32)


def _kind_and_names(
    examples: Sequence[Example], labelling: Labelling, problems: Problems
) -> tuple[Kind, Sequence[str]]:
    """The kind of the labels, and the names of the outputs of the head."""
    labels = [example.label for example in examples]
    first = next((label for label in labels if isinstance(label, Spans)), labels[0])
    if isinstance(first, Spans):
        label_names = [name for label in labels if isinstance(label, Spans) for name in label.labels]
        names, entities_only = sorted(set(label_names)), any(map(has_entities_only, examples))
        are_entities = entities_only or scheme_of(names) is not None
        if labelling.task == "entities" or (labelling.task is None and are_entities):
            kinds = names if entities_only else sorted({name.partition("-")[2] for name in names} - {""})
            return "entities", ["O", *(f"{at}-{name}" for name in kinds for at in "BI")]
        _check_names(names, label_names, problems)
        return "tags", names
    if labelling.task in ("tags", "entities"):
        raise UsageError(f"--task {labelling.task} needs a label for each unit, and a record has one")
    if isinstance(first, tuple) and first and isinstance(first[0], float):
        one_each = len(labelling.labels) == len(first)
        return "value", labelling.labels if one_each else [f"value_{n}" for n in range(len(first))]
    if isinstance(first, tuple):
        classes = {str(name) for label in labels if isinstance(label, tuple) for name in label}
        return "multilabel", labelling.labels if len(labelling.labels) > 1 else sorted(classes)
    label_names = [str(label) for label in labels]
    _check_names(sorted(set(label_names)), label_names, problems)
    return "class", sorted(set(label_names))


def has_entities_only(example: Example) -> bool:
    """Whether only entities are labelled, not the units between them."""
    return isinstance(example.label, Spans) and example.label.entities_only


def _check_names(names: Sequence[str], labels: Sequence[str], problems: Problems) -> None:
    """Refuse classes that cannot be learnt. `labels` has the class of each example."""
    counts = Counter(labels)
    if len(names) == 1:
        which = problems.quoted(f": {names[0]!r}")
        raise DataError(f"one class only{which}", remedy="give examples of another one")
    rare = [name for name in names if counts[name] == 1]
    points = [number(name.replace(",", ".")) for name in names]
    if rare and any("," in name for name in names) and not any(map(math.isnan, points)):
        raise DataError("labels that are numbers with a comma", remedy="write a point: 0.5")
    if len(names) == len(labels) > _NUMBERS:
        raise DataError(
            "as many classes as examples: this column names the records", remedy="name another with --label"
        )
    if len(names) > MOST_CLASSES:
        raise DataError(
            f"{len(names):,} classes, but at most {MOST_CLASSES:,} are possible",
            remedy="if the labels are numbers, add --task value",
        )
    if rare:
        which = problems.quoted(f": {rare[0]!r}")
        raise DataError(
            f"a class with only one example{which}",
            remedy="add examples, or leave the class out with --on-error skip: it cannot be both trained and "
            "tested",
        )


def _without_rare(examples: list[Example], problems: Problems) -> list[Example]:
    """Leave out the only example of a class, if bad records are left out and other examples remain."""
    counts = Counter(example.label for example in examples if isinstance(example.label, str))
    rare = [example for example in examples if isinstance(example.label, str) and counts[example.label] == 1]
    if problems.on_error == "raise" or len(rare) == counts.total():
        return examples
    for example in rare:
        record = example.record
        at: dict[str, Any] = {"source": record.source, "line": record.line}
        single = DataError("a class with only one example", **at, remedy="add examples")
        problems.bad(single, str(record.raw))
    return [example for example in examples if example not in {*rare}]


def primary_measure(card: HeadCard, parts: Mapping[Part, Sequence[Example]]) -> str:
    """The primary measure: `PRIMARY` of this kind, or AUROC for two classes if one is rare.

    For a rare class, always predicting the other class is nearly always right. No training would then seem to
    improve the accuracy.
    """
    counts = [Counter(example.label for example in parts[part]) for part in PARTS if parts[part]]
    two = card.kind == "class" and all(len(classes) == 2 for classes in counts)
    rare = two and min(counts[0].values()) < RARE * counts[0].total()
    return "auroc" if rare else PRIMARY[card.kind]


def is_numeric(train: Sequence[Example]) -> bool:
    """Whether the labels are numbers that are values, not codes of classes.

    Some labels may be missing (`ODD`). Fractions are values. Whole numbers that repeat often (`AGAIN`) are
    codes of classes.
    """
    texts = [example.label for example in train if isinstance(example.label, str)]
    numbers = [numeral for numeral in map(number, texts) if not math.isnan(numeral)]
    if not numbers or len(texts) - len(numbers) > ODD * len(texts):
        return False
    different = set(numbers)
    if any(numeral != int(numeral) for numeral in different):
        return len(different) > 2
    return len(different) > _NUMBERS and len(numbers) < AGAIN * len(different)


def as_values(examples: Sequence[Example], problems: Problems) -> list[Example]:
    """Examples with their labels as numbers. `problems` receives the others."""
    converted = []
    for example in examples:
        value = number(example.label)
        if not math.isnan(value):
            converted.append(replace(example, label=(value,)))
            continue
        remedy = "correct it, or predict it as a class: --task class"
        record = example.record
        error = DataError(
            "a label that is not a number", source=record.source, line=record.line, remedy=remedy
        )
        problems.bad(error, str(record.raw))
    return converted


def reading_note(card: HeadCard, task: Kind | None) -> str:
    """How numeric labels were read without --task, and how to change that; "" in other cases."""
    if task is None and card.kind == "value" and len(card.names) == 1:
        return "read as values: --task class for classes"
    codes = card.kind == "class" and len(card.names) > 2 and not any(map(math.isnan, map(number, card.names)))
    return "read as classes: --task value for values" if task is None and codes else ""


def _class_words(texts: Sequence[str], names: Sequence[str], problems: Problems) -> tuple[str, ...]:
    """The word of each class, from texts CLASS=WORD.

    Raises:
        UsageError: a text names an unknown class.
    """
    words_by_class = dict(text.partition("=")[::2] for text in texts)
    if unknown := sorted(words_by_class.keys() - set(names)):
        there = problems.quoted(f"the classes are {', '.join(names)}", "there is no such class")
        raise UsageError(f"a word for the class {unknown[0]!r}, and {there}")
    return tuple(words_by_class[name] for name in names if name in words_by_class)
