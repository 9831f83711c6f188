"""Tags and entities are made of each other without a loss, and what is wrong is read as seqeval reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from seqmlm.data.tags import Entity, Scheme, entities, scheme_of, tagged
from seqmlm.errors import DataError

TYPES = ("LOC", "PER", "a-b")


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Entities of a sentence, side by side or apart, and its length."""
    found, at = [], 0
    for kind in draw(st.lists(st.sampled_from(TYPES), max_size=5)):
        first = at + draw(st.integers(0, 2))
        at = first + draw(st.integers(1, 3))
        found.append((first, at, kind))
    return found, at + draw(st.integers(0, 2))


@given(sentences())
def test_entities_survive_their_tags_and_tags_each_other(sentence: tuple[list[Entity], int]) -> None:
    found, n = sentence
    schemes: tuple[Scheme, ...] = ("bio", "bioes")
    for scheme in schemes:
        tags = tagged(found, n, scheme)
        assert entities(tags, scheme=scheme) == (found, 0)
        assert [(first, end + 1, kind) for kind, first, end in get_entities(tags)] == found
    flat = tagged(found, n, "io")
    joined, _ = entities(flat, scheme="io")
    assert tagged(joined, n, "io") == flat
    assert {at for first, end, _ in joined for at in range(first, end)} == {
        at for first, end, _ in found for at in range(first, end)
    }


@given(st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in TYPES)])))
def test_wrong_tags_are_read_as_seqeval_reads_them(tags: list[str]) -> None:
    found, repaired = entities(tags, scheme="bioes")
    assert [(kind, first, end - 1) for first, end, kind in found] == get_entities(tags)
    assert entities(tags)[0] == found
    assert (repaired == 0) == (tagged(found, len(tags), "bioes") == tags)


@given(st.lists(st.sampled_from(["O", "B-LOC", "I-LOC", "I-PER"])))
def test_repairs_are_counted(tags: list[str]) -> None:
    found, repaired = entities(tags)
    changed = [one for one, other in zip(tagged(found, len(tags), "bio"), tags, strict=True) if one != other]
    assert repaired == len(changed)


def test_what_does_not_follow_is_counted_by_its_scheme() -> None:
    assert entities(["B-X", "O", "I-X"]) == ([(0, 1, "X"), (2, 3, "X")], 1)
    assert entities(["B-X", "I-X"], scheme="bioes") == ([(0, 2, "X")], 1)
    assert entities(["I-X", "I-X"], scheme="io") == ([(0, 2, "X")], 0)


@pytest.mark.parametrize("tag", ["NOUN", "B", "B-", "X-LOC", "o"])
def test_a_tag_of_no_scheme_is_refused(tag: str) -> None:
    with pytest.raises(DataError, match=r"a\.txt:3: not a tag of entities"):
        entities(["O", tag], source="a.txt", line=3)
    assert scheme_of(["O", "B-LOC", tag]) is None


@pytest.mark.parametrize("found", [[(0, 2, "X"), (1, 3, "Y")], [(2, 4, "X")], [(1, 1, "X")], [(-1, 1, "X")]])
def test_entities_that_no_tags_spell_are_refused(found: list[Entity]) -> None:
    with pytest.raises(DataError, match="overlap, or are not within"):
        tagged(found, 3, "bio")


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (["I-X", "O"], "io"),
        (["I-X", "B-X", "O", ""], "bio"),
        (["B-X", "E-X"], "bioes"),
        (["U-X", "I-X"], "bioes"),
        (["O"], None),
        ([], None),
    ],
)
def test_the_scheme_of_a_data_set(tags: list[str], scheme: Scheme | None) -> None:
    assert scheme_of(tags) == scheme


def test_bilou_is_bioes_in_other_letters() -> None:
    assert entities(["B-X", "L-X", "U-Y"], scheme="bioes") == ([(0, 2, "X"), (2, 3, "Y")], 0)
