"""What a decoder makes of maps over lexer tokens, and its truth, by hand and on the sample."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from decoded import decoded, map_of

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.code import CODE
from seqmlm.domains.code.formulas import FILE, draw
from seqmlm.domains.code.lexers.source import SourceText
from seqmlm.domains.code.structure import BRACKET, PARENT, USE, Structure, SyntaxDecoder
from seqmlm.domains.code.syntax import syntax
from seqmlm.domains.code.tokenizer import CodeTokenizer
from seqmlm.domains.structure import Decoded
from seqmlm.errors import DataError


def record_of(text: str, language: str = "python") -> Record:
    return Record(id="f", raw=SourceText(text, language), source="f.py", line=1)


UNIT = r"\n\s*|\w+|[^\w\s]"


def units_of(text: str) -> list[str]:
    """As `code.v1` has them where there are no operators of two characters: line breaks are units."""
    return re.findall(UNIT, text)


def decoded_of(text: str, pairs: dict[tuple[int, int], float], path: Path) -> Decoded:
    decoder, units, record = SyntaxDecoder(), units_of(text), record_of(text)
    truth = decoder.truths(path, Problems())(record, units)
    return decoded(decoder, record, units, map_of(len(units), pairs, 0.001), truth)


def test_the_tree_is_over_lexer_tokens():
    text = "x = 'a b'  # c\ny"
    units = units_of(text)
    assert units == ["x", "=", "'", "a", "b", "'", "#", "c", "\n", "y"]
    found = SyntaxDecoder().decode(
        record_of(text), units, map_of(10, {(0, 4): 5, (4, 9): 4, (7, 8): 9, (0, 1): 3}, 0.001)
    )
    assert found == {(0, 1), (0, 2), (2, 9)}  # the string is one token; comment and line break are none


def test_the_truth_is_computed_from_the_source(tmp_path: Path):
    text = "x = (1)\ny = x\n"
    one = decoded_of(text, {}, tmp_path)
    assert isinstance(one.truth, Structure)
    assert one.units == ["x", "=", "(", "1", ")", "\n", "y", "=", "x", "\n"]
    assert one.truth.kinds == {
        (0, 1): PARENT,
        (0, 2): PARENT,
        (0, 3): PARENT,
        (0, 4): PARENT,
        (6, 7): PARENT,
        (6, 8): PARENT,
        (0, 8): USE,
        (2, 4): BRACKET,
    }
    assert one.truth.covers((1, 6))
    assert not one.truth.covers((0, 5))


def test_measures_count_by_hand(tmp_path: Path):
    text = "f(a + b * c, [b])\nb\n"
    one = decoded_of(text, {(5, 4): 1, (5, 6): 2, (0, 1): 3, (0, 12): 4, (1, 12): 5}, tmp_path)
    assert one.units == ["f", "(", "a", "+", "b", "*", "c", ",", "[", "b", "]", ")", "\n", "b", "\n"][:15]
    figures = SyntaxDecoder().measures([one])
    assert next(iter(figures)) == SyntaxDecoder.measure == "parents"
    assert figures["precedence"] == 1
    assert "parents_low" not in figures  # of one file
    assert figures["precedence_left"] == 0
    assert figures["brackets_nearest"] == 1
    turned = decoded_of(text, {(3, 4): 1}, tmp_path)
    assert SyntaxDecoder().measures([turned])["precedence"] == 0
    assert SyntaxDecoder().measures([one, turned])["precedence"] == 0.5


def test_partners_of_names_and_brackets(tmp_path: Path):
    text = "a = 1\nb = 2\nc = a\nf((b))\n"
    units = units_of(text)
    a, b, c, f = (units.index(name) for name in "abcf")
    use_a, use_b = units.index("a", a + 1), units.index("b", b + 1)
    good = {(a, use_a): 1.0, (b, use_b): 1.0, (f + 1, f + 5): 1.0, (f + 2, f + 4): 1.0}
    figures = SyntaxDecoder().measures([decoded_of(text, good, tmp_path)])
    assert figures["def_use"] == figures["brackets"] == figures["def_use_nearest"] == 1
    assert figures["brackets_nearest"] == 0.5  # the outer one is not the nearest
    bad = {(b, use_a): 1.0, (c, use_b): 1.0, (f + 2, f + 5): 1.0, (f + 1, f + 4): 1.0}
    figures = SyntaxDecoder().measures([decoded_of(text, bad, tmp_path)])
    assert figures["def_use"] == figures["brackets"] == 0
    assert "precedence" not in figures  # there is nothing to be found


def test_a_map_that_knows_distances_alone_is_its_own_rival(tmp_path: Path):
    text = "a = f(b, (c))\nb = a + b * c\n"
    size = len(units_of(text))
    far = {(i, j): float(j - i) for i in range(size) for j in range(i + 1, size)}
    figures = SyntaxDecoder().measures([decoded_of(text, far, tmp_path)])
    for name in ("def_use", "brackets"):
        assert figures[f"{name}_matched"] == figures[name]
    assert figures["def_use"] < figures["def_use_nearest"] == 1  # it takes the farthest


def test_a_perfect_map_beats_its_rivals(tmp_path: Path):
    sample = CODE.sample.draw(tmp_path, n=3, seed=1)
    records = list(CODE.read(list(sample.files), Problems()))
    tokenizer = CodeTokenizer.train([record.raw for record in records])
    decoder = CODE.structure()
    planted = decoder.truths(sample.truth, Problems())
    computed = decoder.truths(sample.files[0], Problems())
    found = []
    for record, encoding in zip(records, tokenizer.encode_batch([one.raw for one in records]), strict=True):
        units = _units(record, encoding)
        truth = planted(record, units)
        own = computed(record, units)
        assert (truth.edges, truth.kinds) == (own.edges, own.kinds)
        made = map_of(len(units), dict.fromkeys(truth.edges, 1.0) | dict.fromkeys(truth.parents, 2.0), 0.001)
        found.append(decoded(decoder, record, units, made, truth))
        assert truth.parents <= found[-1].predicted
    figures = decoder.measures(found)
    assert figures["parents"] == figures["parents_low"] == 1
    assert max(figures["parents_chain"], figures["parents_matched"]) < 0.6
    assert figures["brackets_matched"] < figures["brackets"]
    assert decoder.measures([]) == {}


def test_partners_in_a_formula_are_its_truth(tmp_path: Path):
    sample = CODE.sample.draw(tmp_path, n=20, seed=2)
    problems = Problems()
    knows = CODE.structure().truths(sample.truth, problems)
    records = list(CODE.read([tmp_path / FILE], Problems()))
    for record, formula in zip(records, draw(20, 2), strict=True):
        units = units_of(str(record.raw))
        place = {found.start(): n for n, found in enumerate(re.finditer(UNIT, record.raw))}
        own = knows(record, units)
        assert own.edges == {(place[a], place[b]) for a, b in formula.pairs}
        breaks = {n for n, unit in enumerate(units) if unit == "\n"}
        assert all(own.covers((0, n)) == (n not in breaks) for n in range(1, len(units)))
        assert knows(record, ["x"]) is None
    assert problems.counts


def _units(record: Record, encoding) -> list[str]:
    numbers = [one for one in dict.fromkeys(encoding.groups.tolist()) if one >= 0]
    spans = [encoding.spans[encoding.groups == one] for one in numbers]
    return [record.raw[own[:, 0].min() : own[:, 1].max()] for own in spans]


def test_the_sample_says_where_tokens_stand(tmp_path: Path):
    import json

    sample = CODE.sample.draw(tmp_path, n=2, seed=5)
    truth = json.loads(sample.truth.read_text())
    assert len(truth["modules"]) == 2
    for module in truth["modules"]:
        text = (tmp_path / "code" / module["file"]).read_text()
        own = syntax(text)
        assert {name: [tuple(link) for link in module[name]] for name in own._fields} == own._asdict()
        assert all(text[a] + text[b] in ("()", "[]", "{}") for a, b in module["brackets"])


def test_what_has_no_truth_is_said(tmp_path: Path):
    problems, decoder = Problems(), SyntaxDecoder()
    truth = decoder.truths(tmp_path, problems)
    assert truth(record_of("def f(:"), ["def", "f", "(", ":"]) is None
    assert truth(record_of("int x;", "java"), ["int", "x", ";"]) is None
    assert truth(record_of("x = 1"), ["y"]) is None
    assert sorted(problems.counts.values()) == [1, 2]
    (tmp_path / "a.java").write_text("int x;")
    for path in (tmp_path / "a.java", tmp_path / "none"):
        with pytest.raises(DataError, match="computed only for Python"):
            decoder.truths(path, problems)
    (tmp_path / "truth.json").write_text("[]")
    with pytest.raises(DataError, match="not a truth file with the schema"):
        decoder.truths(tmp_path, problems)


def test_a_truth_without_its_files_is_said(tmp_path: Path):
    sample = CODE.sample.draw(tmp_path, n=1)
    for path in sample.files[0].rglob("*.py"):
        path.unlink()
    with pytest.raises(DataError, match=r"keep truth\.json next to"):
        CODE.structure().truths(sample.truth, Problems())
