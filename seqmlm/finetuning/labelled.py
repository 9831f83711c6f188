"""Labelled records as a fine-tuning sees them: read, divided, spelled in tokens, with what they teach."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.counts import SMALLEST, Things
from seqmlm.data.examples import Example, LabelSource, Part, Spans, examples
from seqmlm.data.files import COMPRESSED
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import number
from seqmlm.data.splits import hash64
from seqmlm.data.tags import scheme_of
from seqmlm.domains.field import past_reader
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
_MOST_NAMED = 3  # examples whose places one message names
FEW = 40
"""Labelled records from which on a fifth is held out to test."""
MANY = 200
"""Those from which on a tenth is held out to validate: by fewer, chance would say when to stop."""
RARE = 0.2
"""Share of training examples below which a class of two is rare."""
ODD = 0.02
"""Share of labels that may be no numbers where the others are."""
AGAIN = 3
"""Examples of a whole number, on average, from which on numbers are codes of classes."""
_NUMBERS = 20  # different numbers from which on they are values, not classes


@dataclass(frozen=True, kw_only=True)
class Lesson(Labelling):
    """What is to be learnt, and from which examples.

    Args:
        train: PATH: labelled data to train on: files, folders or Hugging Face data sets; repeatable.
        valid: PATH: data that decide when to stop; default: held out of training.
        test: PATH: data that the figures are of; default: held out of training.
        shots: train on so many examples only, drawn anew for each seed.
        allow_overlap: test on records that are in training, too.
        seed: of the first training, and of what is held out.
        head: what is read of a record, or of a labelled part: start (its first token) or mean (over its
            tokens); prompt: the gap of a template, where a word stands for each class.
        template: of a prompt: text with a gap and {text}, as in zeroshot.
        words: CLASS=WORD: what stands in the gap for a class; a list.
        crf: entities as one chain of tags (a linear-chain CRF), not one by one.
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


def read_parts(session: Session, asked: Lesson, problems: Problems) -> tuple[Parts, HeadCard]:
    """Read what is labelled, divide it, and say what is to be predicted.

    Raises:
        UsageError: labels that exclude each other, or a task that they cannot be of.
        DataError: what cannot be read or learnt from; test data that training has, too.
    """
    files: dict[Part, Sequence[str]] = {"train": asked.train, "validation": asked.valid, "test": asked.test}
    read: Parts = {}
    for part, paths in files.items():
        own = asked if part == "train" else replace(asked, classes=())
        read[part] = list(read_examples(session, own, paths, problems))
    if not any(read.values()):
        raise problems.nothing()
    if asked.task is None and is_numeric(read["train"]):
        read = {part: as_values(own, problems) for part, own in read.items()}
    read["train"] = _without_rare(read["train"], problems)
    parts = divided(read, session, asked.seed)
    if asked.shots is not None and asked.shots < MANY and not asked.valid:
        parts["validation"] = []  # whoever has so few labels has none to validate with
    length, sensitive = min(session.card.max_length, 512), session.card.sensitive
    card = card_of(read["train"], parts["train"], asked, length=length, sensitive=sensitive)
    if card.kind == "class":
        alike = len(card.names) - len({name.casefold() for name in card.names})
        problems.note("a class that differs from another one in case only", Things(alike))
    if read["validation"] and not asked.allow_overlap:
        _apart(overlap(parts, session, "validation"), parts, "validation", session)
    shared = [] if asked.allow_overlap else overlap(parts, session)
    if shared and not read["test"] and not any(one.part == "test" for one in read["train"]):
        problems.note("a record held out to test that training has, too, left out", len(shared))
        parts["test"] = [one for one in parts["test"] if one not in set(shared)]
    else:
        _apart(shared, parts, "test", session)
    return parts, card


def _apart(shared: Sequence[Example], parts: Parts, part: Part, session: Session) -> None:
    """Refuse examples that an earlier part has, with the places of the first ones."""
    if not shared:
        return
    sensitive = session.card.sensitive
    many = f"{len(shared):,} of {len(parts[part]):,}"
    told = "some" if sensitive and len(shared) < SMALLEST else many
    first = shared[: 1 if sensitive else _MOST_NAMED]  # how many there are is not told of people
    places = [f"{place_of(one.record)} repeats {_earlier(one, parts, part, session)}" for one in first]
    raise DataError(
        f"{told} {part} examples are in training, or of a group that is (such as {'; '.join(places)})",
        remedy="take them out, or --set allow_overlap=true",
    )


def place_of(record: Record) -> str:
    """The file and line of a record, which say nothing of what it holds."""
    return record.source if record.line is None else f"{record.source}:{record.line}"


def _earlier(example: Example, parts: Parts, part: Part, session: Session) -> str:
    """The place of the first example of an earlier part that is the same, or of the same group."""
    names = _overlap_names(session, example)
    earlier = (other for before in PARTS[: PARTS.index(part)] for other in parts[before])
    return next(place_of(other.record) for other in earlier if names & _overlap_names(session, other))


def read_examples(
    session: Session, asked: Labelling, paths: Sequence[str], problems: Problems
) -> Iterator[Example]:
    """The examples of some files; UsageError where sources of labels exclude each other."""
    of_class = dict(_class_file(one) for one in asked.classes)
    if len(of_class) < len(asked.classes):
        raise UsageError("--class names a file twice: the records of a file are of one class")
    source = LabelSource(
        columns=asked.labels,
        numeric=asked.task == "value",
        letters=asked.task in ("tags", "entities"),
        dense=asked.task == "tags",
        labels=asked.label_file,
        mask=asked.mask,
        classes=of_class,
        pair=asked.pair,
        raw=lambda text, fields: session.domain.text.of_text(text, {**asked.options, **fields}),
        until=past_reader(session.domain),
    )
    if files := [*paths, *of_class]:
        yield from examples(labelled_records(session, asked, files, problems), problems, source)


def _class_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise UsageError(f"--class takes NAME=FILE, not {text!r}")
    return path, name


def divided(read: Mapping[Part, Sequence[Example]], session: Session, seed: int) -> Parts:
    """Examples by part: as the files or the data say, else whole groups by their hash; none twice.

    Few examples all train, and nothing is held out. Where a field's records are in an order of time, the
    latest groups are held out, as its trainings do.
    """
    found: Parts = {part: list(read.get(part, ())) for part in PARTS}
    told, train = Counter(one.part for one in found["train"]), found["train"]
    if told["test"] or told["validation"]:
        found["train"] = [one for one in train if one.part in (None, "train")]
        for part in PARTS[1:]:
            found[part] += [one for one in train if one.part == part]
    given = len(found["train"])
    shares: dict[Part, tuple[float, int]] = {"test": (0.2, FEW), "validation": (0.1, MANY)}
    for part, (share, least) in shares.items():
        if not found[part] and given >= least:
            keys = _together(session, found["train"])
            held = _held(session, keys, share, seed)
            found[part] = [one for one, key in keys.items() if key in held]
            found["train"] = [one for one, key in keys.items() if key not in held]
    return found


def why_untested(parts: Mapping[Part, Sequence[Example]]) -> str:
    """Why `divided` held nothing out to test."""
    return f"fewer than {FEW} examples" if len(parts["train"]) < FEW else "all examples are of one document"


def _held(session: Session, keys: Mapping[Example, str], share: float, seed: int) -> set[str]:
    """Groups with a share of the examples, about: the latest, else by their hash, without the largest."""
    sizes, (order, in_time) = Counter(keys.values()), _order(session, keys, seed)
    wanted, count, held = max(1, round(share * len(keys))), 0, set[str]()
    for key in order[:-1]:
        if count < wanted and (in_time or count + sizes[key] <= 2 * wanted):
            held.add(key)
            count += sizes[key]
    return held or set(order[:1] if len(order) > 1 else ())


def _order(session: Session, keys: Mapping[Example, str], seed: int) -> tuple[list[str], bool]:
    """Groups, those that are held out first: the latest, else by their hash; and whether it is by time."""
    if session.domain.defaults.split == "chronological":
        times: dict[str, Any] = {key: session.domain.keys.order(one.record) for one, key in keys.items()}
        if None not in times.values():
            return sorted(times, key=times.__getitem__, reverse=True), True
    return sorted(dict.fromkeys(keys.values()), key=lambda key: hash64(key, seed)), False


def _together(session: Session, found: Sequence[Example]) -> dict[Example, str]:
    """Examples by what keeps them on one side: their group, and that of any equal record."""
    names = {
        one: (f"g{group_of(session, one)}", f"i{session.domain.keys.identity(one.record)}") for one in found
    }
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while (above := parent.setdefault(name, name)) != name:
            parent[name] = parent[above]
            name = above
        return name

    for group, identity in names.values():
        parent[root(identity)] = root(group)
    return {one: root(group) for one, (group, _) in names.items()}


def group_of(session: Session, example: Example) -> str:
    """What must stay together: patient, document, package; else equal sequences; pairs in any order."""
    own = session.domain.keys.split(example.record)
    return own if example.second is None else min(own, session.domain.keys.split(example.second))


def overlap(parts: Mapping[Part, Sequence[Example]], session: Session, part: Part = "test") -> list[Example]:
    """Examples whose record, or what must stay with it, is in a part before, too; pairs in any order."""
    before = PARTS[: PARTS.index(part)]
    seen = {name for earlier in before for one in parts[earlier] for name in _overlap_names(session, one)}
    return [one for one in parts[part] if _overlap_names(session, one) & seen]


def _overlap_names(session: Session, example: Example) -> set[tuple[str, ...]]:
    """What two examples of different parts must not have in common."""
    keys = session.domain.keys
    if example.second is not None:
        return {tuple(sorted((keys.identity(example.record), keys.identity(example.second))))}
    return {("record", keys.identity(example.record)), ("group", group_of(session, example))}


def resembling(parts: Mapping[Part, Sequence[Example]], session: Session) -> int:
    """Test records that are in a cluster with a training record; 0 where a field has no clusters."""
    if session.domain.keys.clusters is None:
        return 0
    cluster = session.domain.keys.clusters()
    seen = {cluster(one.record) for one in parts["train"]}
    return sum(cluster(one.record) in seen for one in parts["test"])


def _stem(path: str | Path) -> str:
    """A file's name without its ending, and without that of a compression."""
    path = Path(path)
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).stem


def card_of(
    every: Sequence[Example],
    train: Sequence[Example],
    asked: Lesson,
    *,
    length: int = 512,
    sensitive: bool = False,
) -> HeadCard:
    """What is to be predicted, from labels.

    Args:
        every: all examples of the training files, what is held out of them, too.
        train: what is trained on, by which values are scaled.
        length: of the longest window.
        sensitive: name no labels in messages.

    Raises:
        DataError: labels that nothing can be learnt from.
        UsageError: a task that these labels cannot be of.
    """
    if not train:
        raise DataError("no example to train on", remedy="give records with labels")
    kind, names = _outputs(every, asked, sensitive)
    center, scale = standardized(_values(train)) if kind == "value" else ((), ())
    of_parts = kind in ("tags", "entities")
    if asked.pair is not None and of_parts:
        raise UsageError("--pair is for one label of two sequences, and these are labels of parts")
    if asked.crf and kind != "entities":
        raise UsageError("a CRF joins the tags of entities; other labels do not depend on each other")
    if asked.head == "prompt" and kind != "class":
        raise UsageError("--head prompt has a word for each class, and predicts classes")
    return HeadCard(
        kind=kind,
        label=",".join(asked.labels) or _stem(asked.label_file or "label"),
        names=tuple(names),
        pool=asked.head or ("start" if of_parts else "mean"),
        crf=asked.crf,
        center=center,
        scale=scale,
        pair=asked.pair,
        pairing=asked.pairing,
        length=length,
        template=asked.template if asked.head == "prompt" else "",
        words=_words_of(asked.words, names, sensitive) if asked.head == "prompt" else (),
    )


def _values(found: Sequence[Example]) -> Floats:
    """(N, K) the numbers of examples."""
    values = [one.label for one in found]
    if len({len(one) if isinstance(one, tuple) else 0 for one in values}) > 1:
        raise DataError("different numbers of values", remedy="give every record as many")
    return np.array(values, dtype=np.float32)


def _outputs(every: Sequence[Example], asked: Labelling, sensitive: bool) -> tuple[Kind, Sequence[str]]:
    """What kind of labels there are, and the names of what is predicted."""
    labels = [one.label for one in every]
    first = next((one for one in labels if isinstance(one, Spans)), labels[0])
    if isinstance(first, Spans):
        given = [name for one in labels if isinstance(one, Spans) for name in one.labels]
        names, alone = sorted(set(given)), any(map(is_alone, every))
        if asked.task == "entities" or (asked.task is None and (alone or scheme_of(names) is not None)):
            kinds = names if alone else sorted({name.partition("-")[2] for name in names} - {""})
            return "entities", ["O", *(f"{at}-{name}" for name in kinds for at in "BI")]
        _check_names(names, given, sensitive)
        return "tags", names
    if asked.task in ("tags", "entities"):
        raise UsageError(f"--task {asked.task} needs a label for each unit, and a record has one")
    if isinstance(first, tuple) and first and isinstance(first[0], float):
        one_each = len(asked.labels) == len(first)
        return "value", asked.labels if one_each else [f"value_{n}" for n in range(len(first))]
    if isinstance(first, tuple):
        known = {str(name) for one in labels if isinstance(one, tuple) for name in one}
        return "multilabel", asked.labels if len(asked.labels) > 1 else sorted(known)
    given = [str(one) for one in labels]
    _check_names(sorted(set(given)), given, sensitive)
    return "class", sorted(set(given))


def is_alone(example: Example) -> bool:
    """Whether entities alone are labelled, not what is between them."""
    return isinstance(example.label, Spans) and example.label.alone


def _check_names(names: Sequence[str], labels: Sequence[str], sensitive: bool) -> None:
    counts = Counter(labels)
    if len(names) == 1:
        which = "" if sensitive else f": {names[0]!r}"
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
            f"{len(names):,} classes, more than {MOST_CLASSES:,}", remedy="is it a number: --task value"
        )
    if rare:
        which = "" if sensitive else f": {rare[0]!r}"
        raise DataError(
            f"a class of one example{which}",
            remedy="give it more, or leave it out (--on-error skip): it could not be tested",
        )


def _without_rare(found: list[Example], problems: Problems) -> list[Example]:
    """Without examples that are alone of their class, where bad records are left out; not if all are."""
    counts = Counter(one.label for one in found if isinstance(one.label, str))
    rare = [one for one in found if isinstance(one.label, str) and counts[one.label] == 1]
    if problems.on_error == "raise" or len(rare) == counts.total():
        return found
    for one in rare:
        at: dict[str, Any] = {"source": one.record.source, "line": one.record.line}
        problems.bad(DataError("a class of one example", **at, remedy="give it more"), str(one.record.raw))
    return [one for one in found if one not in {*rare}]


def primary(card: HeadCard, parts: Mapping[Part, Sequence[Example]]) -> str:
    """The measure that decides: `PRIMARY`, but AUROC of two classes of which one is rare.

    To say the other one, always, is then nearly always right, and no training would seem to teach anything.
    """
    counts = [Counter(one.label for one in parts[part]) for part in PARTS if parts[part]]
    two = card.kind == "class" and all(len(own) == 2 for own in counts)
    rare = two and min(counts[0].values()) < RARE * counts[0].total()
    return "auroc" if rare else PRIMARY[card.kind]


def is_numeric(train: Sequence[Example]) -> bool:
    """Whether classes are numbers, and so many or so fine that they are meant as values.

    Some may be missing (`ODD`). Whole numbers that come again and again (`AGAIN`) are codes of classes.
    """
    texts = [one.label for one in train if isinstance(one.label, str)]
    numbers = [one for one in map(number, texts) if not math.isnan(one)]
    if not numbers or len(texts) - len(numbers) > ODD * len(texts):
        return False
    different = set(numbers)
    if any(one != int(one) for one in different):
        return len(different) > 2
    return len(different) > _NUMBERS and len(numbers) < AGAIN * len(different)


def as_values(found: Sequence[Example], problems: Problems) -> list[Example]:
    """Examples with the numbers that their labels are; `problems` receives others."""
    made = []
    for one in found:
        value = number(one.label)
        if not math.isnan(value):
            made.append(replace(one, label=(value,)))
            continue
        remedy = "correct it, or predict it as a class: --task class"
        record = one.record
        error = DataError("a label that is no number", source=record.source, line=record.line, remedy=remedy)
        problems.bad(error, str(record.raw))
    return made


def doubt(card: HeadCard, task: Kind | None) -> str:
    """How labels that are numbers were read where nobody said it, and how to change that."""
    if task is None and card.kind == "value" and len(card.names) == 1:
        return "read as values: --task class for classes"
    codes = card.kind == "class" and len(card.names) > 2 and not any(map(math.isnan, map(number, card.names)))
    return "read as classes: --task value for values" if task is None and codes else ""


def _words_of(texts: Sequence[str], names: Sequence[str], sensitive: bool = False) -> tuple[str, ...]:
    """The word of each class, of texts CLASS=WORD; UsageError for one that is none, or of no class."""
    given = dict(text.partition("=")[::2] for text in texts)
    if unknown := sorted(given.keys() - set(names)):
        there = "there is no such class" if sensitive else f"the classes are {', '.join(names)}"
        raise UsageError(f"a word for the class {unknown[0]!r}, and {there}")
    return tuple(given[name] for name in names if name in given)
