"""Labelled records as the model sees them, and its predictions of them.

A case is an example in tokens: where its labels are read, and what the head is to give there.
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
from seqmlm.finetuning.labelled import group_of, is_alone
from seqmlm.inference.batches import batches, encoded
from seqmlm.inference.pieces import HeadCard, Piece, pieces, pieces_of_pair, pieces_read_together, unit_bounds
from seqmlm.inference.session import Session
from seqmlm.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from seqmlm.engine.packing import PackedBatch, PackedRow
    from seqmlm.inference.labeller import Labeller
    from seqmlm.inference.prompts import Prompts


@dataclass(frozen=True, eq=False)
class Case:
    """An example as the model sees it.

    Args:
        record: without its sequence.
        group: what it is resampled and divided with.
        pieces: its windows.
        targets: (N, K) of its labels (`seqmlm.engine.heads.Labels`); values in units of the card's scale.
        units: what rivals see: of the record, or the text of each labelled part; nothing without rivals.
    """

    record: Record
    group: str
    pieces: list[Piece]
    targets: Floats
    units: list[str]


def cases(
    session: Session,
    card: HeadCard,
    found: Sequence[Example],
    problems: Problems,
    prompts: Prompts | None = None,
    *,
    units: bool = True,
) -> list[Case]:
    """Spell examples in tokens, with `units` where rivals will see them; those that cannot be go to
    `problems`."""
    made: list[Case] = []
    own = [replace(one.record) for one in found]  # a record may be in several pairs
    example_of = {id(record): one for record, one in zip(own, found, strict=True)}
    for some in batches(own):
        for record, encoding in encoded(session.domain, session.tokenizer, some, problems):
            example = example_of[id(record)]
            try:
                case = _case(session, card, example, encoding, problems, prompts)
                made.append(case if units else replace(case, units=[]))
            except DataError as error:
                place: dict[str, Any] = {"source": record.source, "line": record.line}
                problems.bad(DataError(error.reason, **place, remedy=error.remedy), str(record.raw))
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
    targets: Floats
    if card.kind == "entities" and example.label == ():  # an empty list, where others are of spans
        example = replace(example, label=NO_ENTITIES)
    if isinstance(example.label, Spans):
        spans = example.label
        if not card.of_parts:
            raise DataError("labels of parts, where others have one of the record", remedy="correct it")
        if card.kind == "entities":
            alone = is_alone(example)
            spans = _dense(spans, _own_units(record, encoding)) if alone else _in_bio(spans, problems)
        where, kept = pieces(encoding, space, card, spans.bounds)
        if not kept.all():
            problems.note("a label of a place without a token, left out", int((~kept).sum()))
            labels = tuple(name for name, has in zip(spans.labels, kept, strict=True) if has)
            spans = Spans(bounds=spans.bounds[kept], labels=labels)
            where, _ = pieces(encoding, space, card, spans.bounds)
        if not where:
            raise DataError("no label of a place with a token", remedy="correct it, or leave it out")
        targets = _numbers(card, spans.labels, problems.sensitive)[:, None]
        shown = [text[start:end] for start, end in spans.bounds.tolist()]
    else:
        if card.of_parts:
            raise DataError("no labels of parts", remedy="give a label for each unit")
        if example.second is not None:
            other = session.tokenizer.encode(example.second.raw)
            tokenizer = session.tokenizer
            shown = units_of(tokenizer, encoding) + [f"2:{unit}" for unit in units_of(tokenizer, other)]
            where = pieces_of_pair(encoding, other, space, card, has_types(session))
        else:
            shown = units_of(session.tokenizer, encoding)
            where = pieces(encoding, space, card)[0] if prompts is None else prompts.pieces(record)
        targets = target(card, example.label, problems.sensitive)
    return Case(replace(record, raw=""), group_of(session, example), where, targets, shown)


def units_of(tokenizer: Tokenizer, encoding: Encoding) -> list[str]:
    """The units of a sequence as the model reads them: the symbols of each, spelled.

    The raw text of a unit may have more, such as the block number in a line of a log; then no two are equal.
    """
    rule, spelling = tokenizer.units, tokenizer.spelling
    spell = spelling.surface if rule.facts.names is None else rule.facts.names.__getitem__
    return ["".join(map(spell, symbols)) for symbols in unit_symbols(rule, encoding) if symbols]


def _numbers(card: HeadCard, labels: Sequence[str], sensitive: bool) -> Floats:
    """(N,) the outputs that labels are."""
    if (unknown := next((name for name in labels if name not in card.names), None)) is not None:
        if sensitive:
            raise DataError("a label that is in no training example", remedy="correct it, or leave it out")
        remedy = f"known are {', '.join(card.names[:20])}"
        raise DataError(f"the label {unknown!r} is in no training example", remedy=remedy)
    return np.array([card.names.index(name) for name in labels], dtype=np.float32)


def target(card: HeadCard, label: Any, sensitive: bool) -> Floats:
    """(1, K) what the head is to give for a record."""
    if card.kind == "value":
        values: Floats = (np.asarray(label) - np.array(card.center)) / np.array(card.scale)
        return values[None].astype(np.float32)
    if card.kind == "multilabel":
        _numbers(card, label, sensitive)
        return np.array([[name in label for name in card.names]], dtype=np.float32)
    return _numbers(card, [label], sensitive)[None]


def _own_units(record: Record, encoding: Encoding) -> NDArray[np.int32]:
    """(U, 2) the units of a record, but none that is shown beside it: that is another one's."""
    found = unit_bounds(encoding)
    first, stop = record.meta.get("own", (0, len(str(record.raw))))
    own: NDArray[np.int32] = found[(found[:, 0] >= first) & (found[:, 0] < stop)]
    return own


def _dense(spans: Spans, units: Any) -> Spans:
    """A tag for each unit, from the spans of entities alone."""
    tags = ["O"] * len(units)
    for (start, end), name in zip(spans.bounds.tolist(), spans.labels, strict=True):
        inside = np.flatnonzero((units[:, 1] > start) & (units[:, 0] < end))
        for number, unit in enumerate(inside.tolist()):
            tags[unit] = f"{'I' if number else 'B'}-{name}"
    return Spans(bounds=units, labels=tuple(tags))


def _in_bio(spans: Spans, problems: Problems) -> Spans:
    """Tags of any scheme as B-, I- and O; entities that begin with I- are counted."""
    found, repaired = entities(spans.labels, scheme=scheme_of(spans.labels) or "bio")
    problems.note("an entity whose tags do not follow from each other, repaired", repaired)
    return Spans(bounds=spans.bounds, labels=tuple(tagged(found, len(spans.labels), "bio")))


def truth_of(card: HeadCard, found: Sequence[Case]) -> Any:
    """The true labels, as `seqmlm.evaluation.predictions.measures` takes them."""
    if card.kind == "entities":
        return [[card.names[int(one)] for one in case.targets[:, 0]] for case in found]
    every = np.concatenate([case.targets for case in found])
    if card.kind == "value":
        return every * np.array(card.scale) + np.array(card.center)
    return (every if card.kind == "multilabel" else every[:, 0]).astype(np.int64)


def items_of(card: HeadCard, found: Sequence[Case]) -> list[Case]:
    """The case of each item that `truth_of` gives."""
    return [case for case in found for _ in range(len(case.targets) if card.kind == "tags" else 1)]


class CaseRows:
    """The windows of cases as packed rows, for `Loop`."""

    def __init__(self, own: Sequence[Case], card: HeadCard) -> None:
        self._pieces = [(case, some) for case in own for some in pieces_read_together(case.pieces, card)]
        lengths = [sum(len(piece.encoding) for piece in some) for _, some in self._pieces]
        self.lengths = np.array(lengths, dtype=np.int32)

    def __getitem__(self, row: PackedRow) -> PackedBatch:
        from seqmlm.engine.packing import pack

        documents = []
        for sample in row.samples:
            case, some = self._pieces[sample]
            for piece in some:
                labels = piece.labels._replace(targets=case.targets[piece.numbers])
                documents.append(labels.document(piece.encoding, sample))
        return pack(documents)


def outputs_of(labeller: Labeller, own: Sequence[Case]) -> Iterator[Floats]:
    """(N, K) outputs of each case."""
    return labeller.outputs((one.pieces for one in own), [len(one.targets) for one in own])


def predicted(labeller: Labeller, own: Sequence[Case]) -> Any:
    """Predictions of cases, as `measures` takes them."""
    each = list(outputs_of(labeller, own))
    if labeller.card.kind == "entities":
        return [labeller.chain(one) for one in each]
    return labeller.probabilities(np.concatenate(each))


def drawn(card: HeadCard, train: Sequence[Case], shots: int | None, seed: int) -> list[Case]:
    """So many training cases, of each class alike where they are classes; all for None."""
    if shots is None or shots >= len(train):
        return list(train)
    queues: dict[float, list[Case]] = {}
    for number in np.random.default_rng(seed).permutation(len(train)).tolist():
        name = float(train[number].targets[0, 0]) if card.kind == "class" else 0.0
        queues.setdefault(name, []).append(train[number])
    turns = (one for own in zip_longest(*queues.values()) for one in own if one is not None)
    return list(islice(turns, shots))
