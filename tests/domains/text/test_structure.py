"""Trees over words: by hand, on a sample whose grammar is known, and on a real treebank."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from decoded import decoded, map_of
from written import written

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.structure import Decoded, unit_spans
from seqmlm.domains.text import TEXT
from seqmlm.domains.text.conllu import read_conllu
from seqmlm.domains.text.structure import Parse, Tree, TreeDecoder, arcs, tree_of
from seqmlm.errors import DataError
from tests.domains.text.test_conllu import row


def units_of(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def record_of(text: str, name: str = "s") -> Record:
    return Record(id=name, raw=text, source="x.txt", line=1)


def decoded_of(
    decoder: TreeDecoder, text: str, pairs: dict[tuple[int, int], float], truth: Tree | None
) -> Decoded:
    units = units_of(text)
    return decoded(decoder, record_of(text), units, map_of(len(units), pairs), truth)


def parse_of(text: str, heads: list[int], relations: list[str]) -> Parse:
    return Parse(unit_spans(text, units_of(text)), heads, relations, [one == "punct" for one in relations])


DOG = "The dog, it barked."
RELATIONS = ["det", "dislocated", "punct", "nsubj", "root", "punct"]


def test_units_are_placed_in_their_text():
    assert unit_spans("a  b.", ["a", "b", "."]) == [(0, 1), (3, 4), (4, 5)]
    assert unit_spans("a x b", ["a", "b"]) is None  # what is between is no white space
    assert unit_spans("a", ["a", "b"]) is None
    assert unit_spans("x\n  y", ["x", "\n  ", "y"]) == [(0, 1), (1, 4), (4, 5)]


def test_the_tree_leaves_punctuation_out_and_neighbours_win_ties():
    decoder = TreeDecoder()
    units = units_of("A, b (c) d%")
    assert units == ["A", ",", "b", "(", "c", ")", "d", "%"]
    made = map_of(8, {(0, 1): 9, (1, 3): 9, (0, 6): 0.5, (2, 4): -3})
    found = decoder.decode(record_of("A, b (c) d%"), units, made)
    assert found == {(0, 6), (0, 2), (2, 4), (6, 7)}  # % is a word; (4, 6) would close a circle, and is last


def test_edges_may_cross_unless_asked():
    text, pairs = "a b c d", {(0, 2): 3.0, (1, 3): 2.9, (0, 1): 0.5, (2, 3): 0.4}
    assert decoded_of(TreeDecoder(), text, pairs, None).predicted == {(0, 2), (1, 3), (0, 1)}
    assert decoded_of(TreeDecoder(projective=True), text, pairs, None).predicted == {(0, 2), (0, 1), (2, 3)}


def test_the_truth_leaves_punctuation_out():
    truth = tree_of(DOG, units_of(DOG), parse_of(DOG, [2, 5, 2, 5, 0, 5], RELATIONS))
    assert truth.kinds == {(0, 1): "det", (1, 4): "dislocated", (3, 4): "nsubj"}
    assert truth.edges == set(truth.kinds)
    assert truth.covers((0, 3))
    assert not truth.covers((0, 2))


def test_what_hangs_on_punctuation_is_linked_through_it():
    truth = tree_of("a , b", ["a", ",", "b"], parse_of("a , b", [2, 0, 2], ["x", "punct", "y"]))
    assert truth.kinds == {(0, 2): "through punctuation"}


def test_words_and_units_that_overlap_are_one(tmp_path: Path):
    path = tmp_path / "a.conllu"
    lines = [
        "# text = I don't go.",
        row("1", "I", "4"),
        row("2-3", "don't", "_"),
        row("2", "do", "4"),
        row("3", "n't", "4"),
        row("4", "go", "0", "SpaceAfter=No"),
        row("5", ".", "4").replace("NOUN", "PUNCT"),
    ]
    path.write_text("\n".join(lines) + "\n")
    [record] = read_conllu(path, Problems())
    units = units_of(record.raw)
    assert units == ["I", "don", "'", "t", "go", "."]
    truth = TreeDecoder().truths(path, Problems())(record, units)
    assert truth.nodes == [(0,), (1, 2, 3), (4,)]
    assert truth.edges == {(0, 4), (1, 4)}
    # Decoding sees the same words: the apostrophe's value is that of its word.
    assert TreeDecoder().decode(record, units, map_of(6, {(2, 4): 1, (0, 3): 0.7, (4, 5): 9})) == {
        (0, 1),
        (1, 4),
    }


@pytest.mark.parametrize("heads", [[2, 1, 0], [0, 0, 2], [2, 3, 9]])
def test_what_is_no_tree_is_no_truth(heads: list[int]):
    assert tree_of("a b c", ["a", "b", "c"], parse_of("a b c", heads, ["x"] * 3)) is None


def test_measures_count_edges_by_hand():
    decoder = TreeDecoder()
    truth = tree_of(DOG, units_of(DOG), parse_of(DOG, [2, 5, 2, 5, 0, 5], RELATIONS))
    one = decoded_of(decoder, DOG, {(0, 1): 2.0, (1, 4): 1.0, (0, 3): 0.5}, truth)
    assert one.predicted == {(0, 1), (1, 4), (0, 3)}
    figures = decoder.measures([one, decoded_of(decoder, "x y", {}, None)])
    assert next(iter(figures)) == decoder.measure == "uuas"
    assert figures["uuas"] == pytest.approx(2 / 3)
    assert figures["chain"] == pytest.approx(2 / 3)  # the comma does not separate dog and it
    assert figures["gain"] == 0
    assert "uuas_low" not in figures  # of one sentence
    assert 0 <= figures["random"] <= 1
    assert decoder.measures([decoded_of(decoder, "x y", {}, None)]) == {}
    [first, second, third] = decoder.relations([one])
    assert (first.relation, first.edges, first.hits, first.chain, first.log_odds) == ("det", 1, 1, 1, 0)
    assert (second.relation, second.hits, second.chain) == ("dislocated", 1, 0)
    assert second.log_odds == pytest.approx(np.log(3))
    assert second.z == pytest.approx(np.log(3) / np.sqrt(1 / 1.5 + 1 / 0.5))
    assert third.log_odds == -second.log_odds


def test_the_interval_is_over_sentences():
    decoder = TreeDecoder()
    good = tree_of("a b", ["a", "b"], parse_of("a b", [2, 0], ["x", "root"]))
    far = tree_of("a b c", ["a", "b", "c"], parse_of("a b c", [3, 3, 0], ["x", "y", "root"]))
    many = [decoded_of(decoder, "a b", {}, good)] * 20 + [decoded_of(decoder, "a b c", {}, far)] * 20
    figures = decoder.measures(many)
    assert figures["uuas"] == pytest.approx(40 / 60)
    assert figures["uuas_low"] < figures["uuas"] < figures["uuas_high"]
    assert figures["gain_low"] == figures["gain_high"] == 0


def test_the_truth_of_a_sample_is_aligned_with_its_lines(tmp_path: Path):
    sample = TEXT.sample.draw(tmp_path, n=60, seed=4)
    decoder = TEXT.structure()
    for path in (sample.truth, tmp_path):
        truth = decoder.truths(path, Problems())
        for record in TEXT.read([sample.files[0]], Problems()):
            units = units_of(record.raw)
            found = truth(record, units)
            assert isinstance(found, Tree)
            assert len(found.edges) == len(units) - 2  # a tree over all but the full stop
            for (i, j), relation in found.kinds.items():
                if relation == "det":
                    assert units[i].lower() in {"the", "a", "every", "this", "many", "some", "these"}
                    assert j > i
    assert truth(record_of("Nobody knows it."), ["Nobody", "knows", "it", "."]) is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("truth.json", "{}", "not a truth file with the schema"),
        ("a.conllu", "# nothing\n", "no tree in this file"),
    ],
)
def test_what_is_no_truth_is_said(name: str, text: str, message: str, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        TreeDecoder().truths(tmp_path / name, Problems())


def test_a_truth_without_its_sentences_is_said(tmp_path: Path):
    sample = TEXT.sample.draw(tmp_path, n=3)
    sample.files[0].write_text("One line.\n")
    with pytest.raises(DataError, match="3 trees for 1 sentences"):
        TreeDecoder().truths(sample.truth, Problems())
    sample.files[0].unlink()
    with pytest.raises(DataError, match=r"keep truth\.json next to"):
        TreeDecoder().truths(sample.truth, Problems())


def test_a_sentence_that_cannot_be_aligned_is_counted(tmp_path: Path):
    sample = TEXT.sample.draw(tmp_path, n=1)
    [record] = TEXT.read([sample.files[0]], Problems())
    problems = Problems()
    assert TreeDecoder().truths(sample.truth, problems)(record, ["something", "else"]) is None
    assert any("could not be aligned" in reason for reason in problems.counts)


def test_predicted_trees_as_conllu_read_back(tmp_path: Path):
    decoder = TreeDecoder()
    one = decoded_of(decoder, DOG, {(0, 1): 2.0, (1, 4): 1.0, (1, 3): 0.5}, None)
    files = decoder.files([one])
    assert list(files) == ["trees.conllu"]
    path = written(tmp_path / "trees.conllu", "".join(files["trees.conllu"]))
    [back] = read_conllu(path, Problems())
    assert (back.id, back.raw) == ("s", DOG)
    assert back.meta["words"] == units_of(DOG)
    assert back.meta["heads"] == [2, 0, 2, 2, 2, 2]  # the dog has most edges; punctuation hangs on the root
    assert back.meta["deprel"] == ["dep", "root", "punct", "dep", "dep", "punct"]


def test_relations_are_written_where_the_truth_is_known():
    decoder = TreeDecoder()
    truth = tree_of(DOG, units_of(DOG), parse_of(DOG, [2, 5, 2, 5, 0, 5], RELATIONS))
    files = decoder.files([decoded_of(decoder, DOG, {}, truth)])
    table = "".join(files["relations.tsv"]).splitlines()
    assert table[0].split("\t") == ["relation", "edges", "found", "chain", "log_odds", "z"]
    assert table[1] == "det\t1\t1\t1\t0.000\t0.00"


def test_pictures_escape_what_is_written():
    decoder = TreeDecoder()
    text = "<b> & x"
    truth = tree_of("p q", ["p", "q"], parse_of("p q", [2, 0], ["<i>", "root"]))
    shown = decoder.picture(decoded_of(decoder, "p q", {}, truth))
    assert "&lt;i&gt;" in shown
    assert "<i>" not in shown
    shown = decoder.picture(decoded_of(decoder, text, {}, None))
    assert len(re.findall(r'd="M [^"]*C', shown)) == 4  # <, b, >, & and x: symbols are words
    assert "&lt;" in shown
    assert "&amp;" in shown
    assert decoder.picture(decoded_of(decoder, "x " * 121, {}, None)) is None


def test_arcs_agree_or_not():
    drawn = arcs(
        ["a", "b", "c"], [(0, 1, "det", True), (1, 2, "obj", False)], [(0, 1, "", True), (0, 2, "", False)]
    )
    styles = re.findall(r'<path d="M [^"]*C[^"]*"[^>]*style="([^"]*)"', drawn)
    agreed, missed, wrong = ("#2f5ea8", "#cccccc", "stroke-dasharray")
    assert all(kind in style for kind, style in zip((agreed, missed, agreed, wrong), styles, strict=True))
    assert re.findall(r">(\w+)</text>", drawn) == ["det", "obj", "a", "b", "c"]


def test_a_real_treebank(real_data: Path):
    """The chain of neighbours on English sentences of at most ten words: .507 of their edges."""
    path = real_data / "text" / "ud_en_ewt" / "en_ewt-ud-dev.conllu.gz"
    decoder, problems = TreeDecoder(), Problems()
    truth = decoder.truths(path, problems)
    found, count = [], 0
    for record in read_conllu(path, Problems()):
        units = units_of(record.raw)
        tree = truth(record, units)
        count += tree is not None
        if tree is not None and len(tree.nodes) <= 10:
            made = map_of(len(units), {})
            found.append(
                Decoded(record=record, units=units, dependence=made, predicted=frozenset(), truth=tree)
            )
    assert count == 2001
    figures = decoder.measures(found)
    assert figures["uuas"] == figures["chain"] == pytest.approx(0.507, abs=0.001)
    assert figures["random"] < 0.4
