"""code.v1: ids without a lexer, units with one; everything spelled back; spans on the very characters."""

from __future__ import annotations

import json
import re
import sysconfig
import tokenize
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from seqmlm.domains.code.lexers.classes import CLASSES, RATES
from seqmlm.domains.code.lexers.source import SourceText
from seqmlm.domains.code.tokenizer import CodeTokenizer, even_whitespace
from seqmlm.engine.types import Encoding
from seqmlm.engine.windows import windows
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.base import fingerprint

STDLIB = Path(sysconfig.get_paths()["stdlib"])
TRICKY = (
    "",
    "x",
    " ",
    "\n",
    "\r\n\t x  =  1\r\n",
    "def f(é, *ñ):\n\t'''日本 😀  b.\n\n    c'''\n    return é<=ñ  # ok\f\n",
    'int a = b&&c || d<<2; /* x\n y */ s = "q\\""; // z',
    "print 'two', `x`, 0777L\n",
    "[MASK] = [CLS]\u00a0\u2028\x1c+ x²",  # special tokens spelled out are text to us alone
)


def source(name: str) -> SourceText:
    with tokenize.open(STDLIB / name) as handle:
        return SourceText(handle.read(), "python")


@pytest.fixture(scope="module")
def tokenizer() -> CodeTokenizer:
    names = ("json/decoder.py", "json/encoder.py", "email/message.py", "textwrap.py", "shlex.py", "queue.py")
    return CodeTokenizer.train([source(name) for name in names], vocabulary_size=900)


@pytest.fixture(scope="module")
def plain(tokenizer: CodeTokenizer) -> PreTrainedTokenizerFast:
    """As Hugging Face reads it."""
    return tokenizer.hf()


def units(encoding: Encoding, text: str) -> list[tuple[str, str, int]]:
    """(text, class, symbol) of every unit."""
    found = []
    for group in dict.fromkeys(encoding.groups[encoding.groups >= 0].tolist()):
        own = encoding.groups == group
        assert len(set(encoding.classes[own].tolist())) == 1
        assert len(set(encoding.symbols[own].tolist())) == 1
        start, end = encoding.spans[own][:, 0].min(), encoding.spans[own][:, 1].max()
        found.append((text[start:end], CLASSES[encoding.classes[own][0]], int(encoding.symbols[own][0])))
    return found


def check_spans(encoding: Encoding, text: str) -> None:
    """Every character that is not white space is under a span, and under another only as a part of itself."""
    seen = np.zeros(len(text), int)
    for start, end in sorted({tuple(span) for span in encoding.spans[1:-1].tolist()}):
        seen[start:end] += 1
    assert all(n == 1 for c, n in zip(text, seen.tolist(), strict=True) if not c.isspace())
    assert seen.max(initial=0) <= 1
    assert (np.diff(encoding.spans[1:-1, 0]) >= 0).all()


@pytest.mark.parametrize("text", TRICKY)
def test_everything_is_spelled_back_and_spans_are_exact(tokenizer, plain, text):
    encoding = tokenizer.encode(text)
    check_spans(encoding, text)
    assert plain.decode(encoding.ids[1:-1].tolist()) == even_whitespace(text)[0]
    assert encoding.groups[[0, -1]].tolist() == encoding.classes[[0, -1]].tolist() == [-1, -1]


@given(text=st.text(max_size=40))
@settings(max_examples=120)
def test_any_text_has_exact_spans_and_comes_back(tokenizer, plain, text):
    encoding = tokenizer.encode(text)
    check_spans(encoding, text)
    assert plain.decode(encoding.ids[1:-1].tolist()) == even_whitespace(text)[0]


def test_units_are_lexer_tokens_and_in_prose_words(tokenizer):
    text = (
        'def size(self, other):\n    """Say  hello to\n    you."""\n'
        '    return other - size and "a b"  # c d\n'
    )
    found = units(tokenizer.encode(text), text)
    assert [unit for unit, _, _ in found] == [
        *("def", "size", "(", "self", ",", "other", ")", ":", "\n    "),
        *('"""Say', "hello", "to", "\n    ", 'you."""', "\n    "),
        *("return", "other", "-", "size", "and", '"a', 'b"', "#", "c", "d", "\n"),
    ]
    kinds = {unit: kind for unit, kind, _ in found}
    expected = ["docstring", "string", "comment", "operator"]
    assert [kinds[unit] for unit in ("hello", '"a', "c", "-")] == expected
    named = [(unit, symbol) for unit, _, symbol in found if unit in ("size", "other")]
    assert len({symbol for unit, symbol in named if unit == "other"}) == 1
    assert len({symbol for _, symbol in named}) == 2


def test_operators_of_other_languages_are_one_unit(tokenizer):
    text = SourceText("if (a&&b != c) { x++; y ??= z->w; } // why not", "c")
    found = [unit for unit, _, _ in units(tokenizer.encode(text), text)]
    assert {"&&", "!=", "++", "->"} <= set(found)
    assert found[-3:] == ["//", "why", "not"]


def test_a_long_string_is_cut_into_units(tokenizer):
    text = 'x = "' + "ab+" * 100 + '"'
    lengths = [len(unit) for unit, kind, _ in units(tokenizer.encode(text), text) if kind == "string"]
    assert len(lengths) > 10
    assert max(lengths) <= 16 * 2


@pytest.mark.parametrize("lexer", ["python", "generic", "tree-sitter"])
def test_the_lexer_never_changes_ids(tokenizer, lexer):
    other = CodeTokenizer(tokenizer._backend, lexer=lexer)
    texts = [*TRICKY, SourceText("f(x); // y", "ruby"), source("bisect.py")]
    for one, two in zip(tokenizer.encode_batch(texts), other.encode_batch(texts), strict=True):
        assert one.ids.tolist() == two.ids.tolist()
        assert one.spans.tolist() == two.spans.tolist()
    assert fingerprint(other) != fingerprint(tokenizer)


def test_a_file_of_the_standard_library(tokenizer):
    text = source("csv.py")
    encoding = tokenizer.encode(text)
    check_spans(encoding, text)
    found = units(encoding, text)
    assert "".join(unit for unit, _, _ in found).split() == "".join(text.split(" ")).split()
    present = {kind for _, kind, _ in found}
    assert present >= set(CLASSES) - {"type", "docstring"}


def test_windows_cut_between_units(tokenizer):
    encoding = tokenizer.encode(source("shlex.py"))
    parts = windows(encoding, tokenizer.space, 128)
    assert len(parts) > 10
    for before, after in pairwise(parts):
        assert before.groups[-2] != after.groups[1] or -1 in (before.groups[-2], after.groups[1])
        assert after.classes is not None
        assert after.symbols is not None


def test_options_and_what_maskers_learn(tokenizer, tmp_path):
    assert tokenizer.units.facts.masking == {"classes": CLASSES, "class_rates": RATES}
    assert set(RATES) == set(CLASSES)
    made = CodeTokenizer.train(["x = 1\n"] * 3, lexer="generic")
    made.save(tmp_path)
    assert CodeTokenizer.load(tmp_path).options == {"lexer": "generic"}
    with pytest.raises(UsageError, match="no option 'lowercase'"):
        CodeTokenizer.train(["x"], lowercase=True)
    with pytest.raises(UsageError, match="lexer must be one of"):
        CodeTokenizer.train(["x"], lexer="ruby")
    with pytest.raises(UsageError, match="at least"):
        CodeTokenizer.train(["x"], vocabulary_size=20)
    with pytest.raises(DataError, match="no source text"):
        CodeTokenizer.train([""])


def test_training_is_deterministic_whatever_the_order():
    texts = [source("bisect.py"), source("heapq.py")]
    one, two = CodeTokenizer.train(texts), CodeTokenizer.train(reversed(texts))
    assert fingerprint(one) == fingerprint(two)
    assert one.space.size <= 8192


def as_crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def as_cr(text: str) -> str:
    return text.replace("\n", "\r")


def with_tabs(text: str) -> str:
    return re.sub("(?m)^(?:    )+", lambda match: "\t" * (len(match[0]) // 4), text)


@pytest.mark.parametrize("change", [as_crlf, as_cr, with_tabs, lambda text: as_crlf(with_tabs(text))])
def test_line_ends_and_tabs_change_nothing_but_where_spans_point(tokenizer, change):
    plain = source("textwrap.py")
    other = SourceText(change(plain), "python")
    assert other != plain
    [ours, theirs] = tokenizer.encode_batch([plain, other])
    for name in ("ids", "groups", "classes", "symbols"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))
    check_spans(theirs, other)
    for (start, end), (begin, stop) in zip(ours.spans.tolist(), theirs.spans.tolist(), strict=True):
        assert plain[start:end].strip() == other[begin:stop].strip()
    assert [(change(unit), *roles) for unit, *roles in units(ours, plain)] == units(theirs, other)
    assert tokenizer.hf()(other)["input_ids"] == theirs.ids.tolist()
    learnt = CodeTokenizer.train([other], vocabulary_size=400)
    assert fingerprint(learnt) == fingerprint(CodeTokenizer.train([plain], vocabulary_size=400))


@given(st.text("\r\n\t a\f\x85\u2028", max_size=20))
def test_an_evened_text_is_the_text_in_other_white_space(text):
    even, places = even_whitespace(text)
    assert "\r" not in even
    assert not re.search("(?m)^\t", even)
    assert even_whitespace(even)[0] == even
    if places is None:
        assert even == text
        return
    assert places.tolist() == sorted(places)
    assert (places[0], places[-1]) == (0, len(text))
    for at, character in enumerate(even):
        piece = text[places[at] : places[at + 1]]
        assert piece in {"\n": ("\n", "\r", "\r\n"), " ": (" ", "\t", "")}.get(character, (character,))


def test_a_tokenizer_stored_without_a_normalizer_sees_files_as_they_are(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "normalizer": None}))
    stored = CodeTokenizer.load(tmp_path)
    plain = source("textwrap.py")
    assert np.array_equal(stored.encode(plain).ids, tokenizer.encode(plain).ids)
    assert np.array_equal(stored.encode(plain).spans, tokenizer.encode(plain).spans)
    text = "if x:\r\n\ty\r\n"
    assert stored.hf().decode(stored.encode(text).ids[1:-1].tolist()) == text


def test_what_is_expected_is_never_an_empty_text(tokenizer: CodeTokenizer) -> None:
    texts = [tokenizer.spelling.unit_text(token) for token in range(tokenizer.space.size)]
    assert all(texts)
    assert "\n    " in texts
