"""The code sample: every bug is where it says, and everything else is sound."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from written import jsonl

from seqmlm.data.problems import Problems
from seqmlm.domains.code import CODE, formulas
from seqmlm.domains.code.sample import KINDS, TEMPLATES, draw, fill_template


def clean(text: str, bugs: list[dict]) -> str:
    for bug in sorted(bugs, key=lambda one: -one["start"]):
        assert text[bug["start"] : bug["end"]] == bug["found"]
        text = text[: bug["start"]] + bug["original"] + text[bug["end"] :]
    return text


def test_a_bug_is_found_in_its_line(tmp_path: Path):
    for bug in json.loads(CODE.sample.draw(tmp_path, n=60, seed=3).truth.read_text(encoding="utf-8"))[
        "anomalies"
    ]:
        lines = (tmp_path / "code" / bug["file"]).read_text().splitlines()
        assert bug["found"].splitlines()[0] in lines[bug["line"] - 1]


def test_every_bug_is_where_the_truth_says_and_nowhere_else():
    modules, bugs = draw(200, 1)
    sound = {fill_template(template, "noun", "verb")[0].split("(")[0] for template in TEMPLATES.values()}
    assert len(sound) == len(TEMPLATES)
    rules = {
        "total": "+=",
        "find": "raise KeyError",
        "at": "raise IndexError",
        "length": "return end - start",
        "ratio": "except ZeroDivisionError",
    }
    for path, text in modules.items():
        own = [bug for bug in bugs if bug["file"] == path]
        mended = clean(text, own)
        assert (mended != text) == bool(own)
        ast.parse(text)
        for function in ast.walk(ast.parse(mended)):
            if isinstance(function, ast.FunctionDef):
                source = ast.get_source_segment(mended, function) or ""
                for idiom, rule in rules.items():
                    if function.name.startswith((f"{idiom}_",)) or function.name.endswith(f"_{idiom}"):
                        assert rule in source, source
    assert set(Counter(bug["kind"] for bug in bugs)) == set(KINDS)
    functions = sum(text.count("\n\n\n") for text in modules.values())
    assert len(bugs) / functions == pytest.approx(0.05, abs=0.02)


def test_clean_functions_run():
    """The idioms do what they say, so the right side of a slot is right."""
    space: dict = {}
    for template in TEMPLATES.values():
        exec(fill_template(template, "box", "keep")[0], space)
    assert space["total_box"]([1, 2, 3]) == 6
    assert space["mean_box"]([1, 2, 3]) == 2
    assert space["find_box"]({"a": 1}, "a") == space["get_box"]({"a": 1}, "a") == 1
    assert space["box_at"]([5, 6], 1) == 6
    assert space["box_length"](2, 5) == 3
    assert space["largest_box"]([2, 9, 4]) == 9
    assert space["count_boxs"]([1, 5, 9], 4) == 2
    assert (space["parse_box"]("7"), space["parse_box"]("x")) == (7, 0)
    assert (space["box_ratio"](1, 4), space["box_ratio"](1, 0)) == (0.25, 0.0)
    assert space["load_boxs"]("/nowhere/at/all") == []
    store = space["BoxStore"](1)
    store.keep("a", 1)
    assert store.room() == 0
    with pytest.raises(OverflowError):
        store.keep("b", 2)
    with pytest.raises(KeyError):
        space["find_box"]({}, "a")
    with pytest.raises(IndexError):
        space["box_at"]([1], 1)


def test_a_formula_is_taken_back_and_every_token_that_varies_has_its_partner(tmp_path: Path):
    drawn = list(formulas.draw(1500, 3))
    truth = formulas.truth(drawn)
    known = {one["id"]: one for one in truth["formulas"]}
    path = jsonl(tmp_path / formulas.FILE, [one.row() for one in drawn])
    records = list(CODE.read([path], Problems()))
    assert [one.id for one in records] == list(known)
    shapes = {one["name"]: one["preferred"] for one in truth["shapes"]}
    preferred = {name: Counter[int]() for name in shapes}
    tested = 0
    for record in records:
        text, shape = str(record.raw), known[record.id]["shape"]
        tokens = {found.start(): found[0] for found in re.finditer(r"\w+|[-+*/]", text)}
        pairs = known[record.id]["pairs"]
        assert sorted(place for pair in pairs for place in pair) == sorted(tokens)
        assert all(a <= text.index("\n") < b for a, b in pairs)
        for a, b in pairs:
            assert tokens[b] == formulas.INVERSE.get(tokens[a], tokens[a])
        first = [tokens[a] for a, _ in pairs]
        prefers = [piece for one in shapes[shape] for piece in re.findall(r"\w+|[-+*/]", one)]
        preferred[shape].update(n for n, (a, b) in enumerate(zip(first, prefers, strict=True)) if a == b)
        names = {name: 2.0 + number for number, name in enumerate(formulas.NAMES)}
        if len({one for one in first if one in names}) == sum(one in names for one in first):
            given = names[first[1]]
            exec(text, {}, names)
            assert names[first[1]] == pytest.approx(given)
            tested += 1
    assert tested > 500
    for name, prefers in shapes.items():
        count = sum(one["shape"] == name for one in known.values())
        pieces = [piece for one in prefers for piece in re.findall(r"\w+|[-+*/]", one)]
        for place, piece in enumerate(pieces):
            kinds = 4 if piece in formulas.INVERSE else 8
            share = formulas.PREFERRED + (1 - formulas.PREFERRED) / kinds
            assert abs(preferred[name][place] - count * share) < 5 * (count * share * (1 - share)) ** 0.5


def test_the_folder_reads_back_as_the_modules_drawn(tmp_path: Path):
    CODE.sample.draw(tmp_path, n=80, seed=0)
    problems = Problems()
    records = list(CODE.read([tmp_path], problems))
    assert len(records) == 80
    assert problems.counts == {}
    assert len({CODE.keys.split(record) for record in records}) == 10
