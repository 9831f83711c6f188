"""Labelled records in tokens, and the model's predictions for them.

A case is an example in tokens. It has the positions where labels are read, and the target of the head there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.examples import NO_ENTITIES, Example, Spans
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.tags import entities, scheme_of, tagged
from seqmlm.engine.types import Encoding, Floats
from seqmlm.engine.units import unit_symbols
from seqmlm.errors import DataError
from seqmlm.finetuning.labelled import group_of, has_entities_only
from seqmlm.inference.pieces import HeadCard, Piece, pieces, pieces_of_pair, pieces_read_together, unit_bounds
from seqmlm.inference.record_batches import batches, encoded
from seqmlm.inference.session import Session
from seqmlm.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from seqmlm.engine.packing import PackedBatch, PackedRow
    from seqmlm.inference.labeller import Labeller
    from seqmlm.inference.prompts import Prompts


@dataclass(frozen=True, eq=False)
class Case:
    """An example in tokens.

    Args:
        record: the record without its sequence.
        group: its group. Cases of a group are resampled together and stay in one part.
        pieces: its windows.
        targets: (N, K) targets of the labels (`seqmlm.engine.labels.Labels`); values have the card's scale.
        units: input for the baselines: units of the record, or the text of each labelled part. Empty without
            baselines.
    """

    record: Record
    group: str
    pieces: list[Piece]
    targets: Floats
    units: list[str]


def spelled_cases(
    session: Session,
    card: HeadCard,
    examples: Sequence[Example],
    problems: Problems,
    prompts: Prompts | None = None,
    *,
    units: bool = True,
) -> list[Case]:
    """Examples in tokens, with `units` for the baselines if requested.

    `problems` receives examples that cannot be encoded.
    """
    cases: list[Case] = []
    records = [replace(example.record) for example in examples]  # a record may be in several pairs
    example_of = {id(record): example for record, example in zip(records, examples, strict=True)}
    for batch in batches(records):
        for record, encoding in encoded(session.domain, session.tokenizer, batch, problems):
            example = example_of[id(record)]
            try:
                case = _case(session, card, example, encoding, problems, prompts)
                cases.append(case if units else replace(case, units=[]))
            except DataError as error:
                place: dict[str, Any] = {"source": record.source, "line": record.line}
                problems.bad(DataError(error.reason, **place, remedy=error.remedy), str(record.raw))
    return cases


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
    targets: Floats
    if card.kind == "entities" and example.label == ():  # an empty list, if other labels are spans
        example = replace(example, label=NO_ENTITIES)
    if isinstance(example.label, Spans):
        spans = example.label
        if not card.of_parts:
            raise DataError(
                "labels for parts of the record, but other records have one label each",
                remedy="give every record the same kind of label",
            )
        if card.kind == "entities":
            only = has_entities_only(example)
            spans = _dense_tags(spans, _own_units(record, encoding)) if only else _bio_tags(spans, problems)
        windows, has_token = pieces(encoding, space, card, spans.bounds)
        if not has_token.all():
            problems.note("a label at a place without a token, left out", int((~has_token).sum()))
            labels = tuple(name for name, has in zip(spans.labels, has_token, strict=True) if has)
            spans = Spans(bounds=spans.bounds[has_token], labels=labels)
            windows, _ = pieces(encoding, space, card, spans.bounds)
        if not windows:
            raise DataError(
                "none of its labels is at a place that has a token", remedy="correct it, or leave it out"
            )
        targets = _class_indices(card, spans.labels, problems)[:, None]
        unit_texts = [text[start:end] for start, end in spans.bounds.tolist()]
    else:
        if card.of_parts:
            raise DataError("no labels of parts", remedy="give a label for each unit")
        if example.second is not None:
            second = session.tokenizer.encode(example.second.raw)
            tokenizer = session.tokenizer
            unit_texts = units_of(tokenizer, encoding) + [f"2:{unit}" for unit in units_of(tokenizer, second)]
            windows = pieces_of_pair(encoding, second, space, card, has_types(session))
        else:
            unit_texts = units_of(session.tokenizer, encoding)
            windows = pieces(encoding, space, card)[0] if prompts is None else prompts.pieces(record)
        targets = target(card, example.label, problems)
    return Case(replace(record, raw=""), group_of(session, example), windows, targets, unit_texts)


def units_of(tokenizer: Tokenizer, encoding: Encoding) -> list[str]:
    """The text of each unit of a sequence, from the symbols that the model reads.

    The raw text of a unit may contain more, such as the block number in a log line. No two units would then
    be equal.
    """
    rule, spelling = tokenizer.units, tokenizer.spelling
    spell = spelling.surface if rule.facts.names is None else rule.facts.names.__getitem__
    return ["".join(map(spell, symbols)) for symbols in unit_symbols(rule, encoding) if symbols]


def _class_indices(card: HeadCard, labels: Sequence[str], problems: Problems) -> Floats:
    """(N,) the index of each label among the outputs."""
    if (unknown := next((name for name in labels if name not in card.names), None)) is not None:
        label = problems.quoted(f"the label {unknown!r}", "a label that")
        remedy = problems.quoted(f"known are {', '.join(card.names[:20])}", "correct it, or leave it out")
        raise DataError(f"{label} is in no training example", remedy=remedy)
    return np.array([card.names.index(name) for name in labels], dtype=np.float32)


def target(card: HeadCard, label: Any, problems: Problems) -> Floats:
    """(1, K) the target of the head for a record."""
    if card.kind == "value":
        values: Floats = (np.asarray(label) - np.array(card.center)) / np.array(card.scale)
        return values[None].astype(np.float32)
    if card.kind == "multilabel":
        _class_indices(card, label, problems)
        return np.array([[name in label for name in card.names]], dtype=np.float32)
    return _class_indices(card, [label], problems)[None]


def _own_units(record: Record, encoding: Encoding) -> NDArray[np.int32]:
    """(U, 2) bounds of the units of a record, without context that belongs to another record."""
    bounds = unit_bounds(encoding)
    first, stop = record.meta.get("own", (0, len(str(record.raw))))
    own_bounds: NDArray[np.int32] = bounds[(bounds[:, 0] >= first) & (bounds[:, 0] < stop)]
    return own_bounds


def _dense_tags(spans: Spans, units: Any) -> Spans:
    """A tag for each unit, from spans of entities only."""
    tags = ["O"] * len(units)
    for (start, end), name in zip(spans.bounds.tolist(), spans.labels, strict=True):
        inside = np.flatnonzero((units[:, 1] > start) & (units[:, 0] < end))
        for number, unit in enumerate(inside.tolist()):
            tags[unit] = f"{'I' if number else 'B'}-{name}"
    return Spans(bounds=units, labels=tuple(tags))


def _bio_tags(spans: Spans, problems: Problems) -> Spans:
    """Convert tags of any scheme to B-, I- and O. Entities that begin with I- are counted."""
    entity_spans, repaired = entities(spans.labels, scheme=scheme_of(spans.labels) or "bio")
    problems.note("an entity whose tags do not follow from each other, repaired", repaired)
    return Spans(bounds=spans.bounds, labels=tuple(tagged(entity_spans, len(spans.labels), "bio")))


def truth_of(card: HeadCard, cases: Sequence[Case]) -> Any:
    """The true labels in the form that `seqmlm.evaluation.predictions.measures` needs."""
    if card.kind == "entities":
        return [[card.names[int(tag)] for tag in case.targets[:, 0]] for case in cases]
    targets = np.concatenate([case.targets for case in cases])
    if card.kind == "value":
        return targets * np.array(card.scale) + np.array(card.center)
    return (targets if card.kind == "multilabel" else targets[:, 0]).astype(np.int64)


def items_of(card: HeadCard, cases: Sequence[Case]) -> list[Case]:
    """The case of each item that `truth_of` returns."""
    return [case for case in cases for _ in range(len(case.targets) if card.kind == "tags" else 1)]


class CaseRows:
    """The windows of cases as packed rows, for `Loop`."""

    def __init__(self, cases: Sequence[Case], card: HeadCard) -> None:
        self._pieces = [(case, group) for case in cases for group in pieces_read_together(case.pieces, card)]
        lengths = [sum(len(piece.encoding) for piece in group) for _, group in self._pieces]
        self.lengths = np.array(lengths, dtype=np.int32)

    def __getitem__(self, row: PackedRow) -> PackedBatch:
        from seqmlm.engine.packing import pack

        documents = []
        for sample in row.samples:
            case, group = self._pieces[sample]
            for piece in group:
                labels = piece.labels._replace(targets=case.targets[piece.numbers])
                documents.append(labels.document(piece.encoding, sample))
        return pack(documents)


def outputs_of(labeller: Labeller, cases: Sequence[Case]) -> Iterator[Floats]:
    """(N, K) outputs of the head for each case."""
    return labeller.outputs((case.pieces for case in cases), [len(case.targets) for case in cases])


def predictions_of(labeller: Labeller, cases: Sequence[Case]) -> Any:
    """Predictions of cases in the form that `measures` needs."""
    outputs = list(outputs_of(labeller, cases))
    if labeller.card.kind == "entities":
        return [labeller.chain(logits) for logits in outputs]
    return labeller.probabilities(np.concatenate(outputs))


def few_shot_cases(card: HeadCard, train: Sequence[Case], shots: int | None, seed: int) -> list[Case]:
    """Draw `shots` training cases, equally many of each class if possible; all cases for None."""
    if shots is None or shots >= len(train):
        return list(train)
    queues: dict[float, list[Case]] = {}
    for number in np.random.default_rng(seed).permutation(len(train)).tolist():
        name = float(train[number].targets[0, 0]) if card.kind == "class" else 0.0
        queues.setdefault(name, []).append(train[number])
    turns = (case for turn in zip_longest(*queues.values()) for case in turn if case is not None)
    return list(islice(turns, shots))
