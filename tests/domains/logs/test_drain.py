"""Drain: against a direct transcription of the method, frozen for good, and bounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.domains.logs.drain import WILD, Drain, DrainOptions, Templates
from seqmlm.errors import UsageError

words = st.lists(st.sampled_from(["a", "b", "c", "d1", "e", "<NUM>"]), max_size=5).map(tuple)
streams = st.lists(words, max_size=60)


class Plain:
    """The method as the paper tells it, no table of settled lines: nested dictionaries and lists of words."""

    def __init__(self, depth: int, similarity: float, max_children: int) -> None:
        self.inner, self.similarity, self.most = depth - 3, similarity, max_children
        self.root: dict = {}
        self.templates: list[list[str]] = []

    def add(self, line: tuple[str, ...]) -> int:
        found = self.search(line)
        if found is None:
            self.templates.append(list(line))
            self.insert(line)
            return len(self.templates) - 1
        template = self.templates[found]
        template[:] = [a if a == b else WILD for a, b in zip(template, line, strict=True)]
        return found

    def search(self, line):
        node = self.root.get(len(line))
        for word in line[: min(self.inner, max(len(line) - 1, 0))]:
            node = None if node is None else node.get(word, node.get(WILD))
        best, best_key = None, (-1.0, -1)
        for number in node or []:
            template = self.templates[number]
            same = sum(a == b for a, b in zip(template, line, strict=True))
            key = (same / len(line) if line else 1.0, template.count(WILD))
            if key > best_key:
                best, best_key = number, key
        return best if best_key[0] >= self.similarity else None

    def insert(self, line):
        inner = min(self.inner, max(len(line) - 1, 0))
        if not inner:
            self.root.setdefault(len(line), []).append(len(self.templates) - 1)
            return
        node = self.root.setdefault(len(line), {})
        for level, word in enumerate(line[:inner], start=1):
            full = len(node) + (WILD not in node) >= self.most
            key = word if word in node or not (full or any(c.isdigit() for c in word)) else WILD
            node = node.setdefault(key, {} if level < inner else [])
        node.append(len(self.templates) - 1)


@given(
    stream=streams,
    depth=st.integers(3, 6),
    similarity=st.sampled_from([0.2, 0.4, 0.7, 1.0]),
    children=st.integers(2, 5),
)
@settings(max_examples=200)
def test_equals_the_method_written_out(stream, depth, similarity, children):
    drain = Drain(DrainOptions(depth=depth, similarity=similarity, max_children=children))
    plain = Plain(depth, similarity, children)
    for line in stream + stream:
        assert drain.add(line) == plain.add(line)
    assert [list(one) for one in drain._templates] == plain.templates


@given(stream=streams, other=streams)
@settings(max_examples=100)
def test_frozen_ids_never_change_by_matching(stream, other):
    drain = Drain()
    for line in stream:
        drain.add(line)
    frozen = drain.freeze()
    first = [frozen.match(line) for line in stream]
    for line in other + stream:
        frozen.match(line)
    # In another order, in another object, after other lines: the same.
    again = Templates([frozen[number] for number in range(len(frozen))], frozen.options)
    backwards = [again.match(line) for line in reversed(stream)][::-1]
    assert first == backwards == [frozen.match(line) for line in stream]
    assert all(-1 <= number < len(frozen) for number in first)


@given(stream=streams)
@settings(max_examples=100)
def test_a_template_knows_a_line_with_all_its_constants(stream):
    drain = Drain()
    for line in stream:
        drain.add(line)
    frozen = drain.freeze()
    for number in range(len(frozen)):
        line = tuple("zz9" if word == WILD else word for word in frozen[number])
        assert frozen.match(line) >= 0


def test_lines_merge_and_new_ones_are_told():
    drain = Drain()
    for user in ("ann", "bob"):
        drain.add(("session", "opened", "for", user))
    drain.add(("disk", "is", "full"))
    frozen = drain.freeze()
    assert [frozen[0], frozen[1]] == [("session", "opened", "for", WILD), ("disk", "is", "full")]
    assert frozen.match(("session", "opened", "for", "eve")) == 0
    assert frozen.match(("disk", "is", "empty")) == 1
    assert frozen.match(("kernel", "panic", "now")) == -1
    assert frozen.match(("disk", "full")) == -1


def test_memory_is_bounded_and_the_common_templates_stay():
    source = random.Random(0)
    drain = Drain(max_templates=20)
    common = [(f"w{chr(97 + i)}", *"xyz") for i in range(10)]
    for number in range(3000):
        drain.add(("".join(source.choices("abcdefgh", k=9)), "noise", str(number)))
        drain.add(common[number % 10])
        assert len(drain) <= 40
    frozen = drain.freeze()
    assert len(frozen) == 20
    assert {frozen.match(line) for line in common} <= set(range(20))
    assert len({frozen.match(line) for line in common}) == len({drain.add(line) for line in common})


def test_templates_of_few_sources_are_left_out():
    drain, every = Drain(min_sources=10), Drain()
    for session in range(12):
        for one in (drain, every):
            one.add(("a", "common", "line"), session)
            one.add(("rare", "thing", "s3cret"), session % 9)  # sources come again, not one after the other
            one.add(("once", "in", "a", "while"), 3)
    frozen = drain.freeze()
    assert [frozen[number] for number in range(len(frozen))] == [("a", "common", "line")]
    assert frozen.match(("rare", "thing", "s3cret")) == -1
    assert len(every.freeze(min_lines=12)) == 3


@pytest.mark.parametrize(
    "options", [{"depth": 2}, {"similarity": 0.0}, {"similarity": 1.1}, {"max_children": 1}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        DrainOptions(**options)
    with pytest.raises(UsageError, match="max_templates"):
        Drain(max_templates=0)


STATES = ("unpacked", "half-configured", "installed")


def packages(n: int) -> list[tuple[str, ...]]:
    """Lines about many packages, each in one of three states."""
    return [("status", STATES[i % 3], f"package-{'abcdefghij'[i % 10]}{i // 3}", "<NUM>") for i in range(n)]


def test_a_place_of_few_words_is_frozen_with_each_of_them():
    plain, closed = Drain(), Drain(most_values=64)
    for line in packages(600):
        plain.add(line)
        closed.add(line)
    assert [plain.freeze()[n] for n in range(len(plain.freeze()))] == [("status", WILD, WILD, "<NUM>")]
    found = closed.freeze()
    assert {found[n] for n in range(len(found))} == {("status", state, WILD, "<NUM>") for state in STATES}
    new = ("status", "half-broken", "package-z", "<NUM>")
    assert found.match(new) == -1  # however similar the rest is
    assert found.unknown_words(new) == ("half-broken",)
    assert found.match(("status", "installed", "package-z", "<NUM>")) >= 0


@pytest.mark.parametrize(
    "words",
    [
        ["abcdefghijklmnopqrstuvwxyz"[i % 26] * (i // 26 + 1) for i in range(600)],  # always new ones
        [("<IP>", "<HEX>")[i % 2] for i in range(600)],  # values
        [("one", "two")[i % 2] for i in range(20)],  # few lines
        ["one"] * 590 + [letter * 3 for letter in "abcdefghij"],  # new ones now and then
    ],
)
def test_other_places_stay_wild(words):
    drain = Drain(most_values=64)
    for number, word in enumerate(words):
        drain.add(("state", word, "of", "disk", "/dev", str(number)))
    found = drain.freeze()
    assert {found[n][1] for n in range(len(found))} == {WILD}
    assert not found.closed


def test_a_closed_place_keeps_no_word_of_few_sources():
    drain = Drain(min_sources=3, most_values=64)
    for number, line in enumerate(packages(600)):
        drain.add(line, number % 7)
    for source in (1, 2):
        for _ in range(50):
            drain.add(("status", "private", "package", "<NUM>"), source)
    assert {drain.freeze()[n][1] for n in range(len(drain.freeze()))} == {WILD}


def test_a_trace_of_another_exception_is_another_line():
    trace = "Order failed {}: Java heap space at a.b.C.d(C.java:1) at a.b.E.f(E.java:2) at a.b.G.h(G.java:3)"
    drain = Drain()
    for name in ["java.net.SocketTimeoutException", "java.lang.OutOfMemoryError"] * 3:
        drain.add(tuple(trace.format(name).split()))
    templates = drain.freeze()
    assert len(templates) == 2
    assert WILD not in {word for number in range(2) for word in templates[number]}
    assert templates.match(tuple(trace.format("java.lang.NullPointerException").split())) == -1
    assert templates.match(tuple(trace.format("Error").split())) == -1, "no exception at all"
    pairs = [("at KeyError now", "at now KeyError"), ("was KeyError: a b", "was KeyError a b")]
    pairs.append(("is java.lang.Error: x y", "is [java.io.IOException] x y"))
    for lines in pairs:
        drain = Drain()
        numbers = [drain.add(tuple(line.split())) for line in lines]
        frozen = drain.freeze()
        assert [frozen.match(tuple(line.split())) for line in lines] == numbers == [0, 1]
