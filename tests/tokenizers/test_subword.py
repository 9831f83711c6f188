"""wordpiece.v1, bpe.v1 and unigram.v1: units, spans, determinism, and the same ids after a round trip."""

from __future__ import annotations

import gzip
import random
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers import subword
from seqmlm.tokenizers.base import fingerprint
from seqmlm.tokenizers.subword import SPECIAL, BpeTokenizer, UnigramTokenizer, WordPieceTokenizer
from tests.tokenizers.conftest import corpus

KINDS = (BpeTokenizer, WordPieceTokenizer, UnigramTokenizer)
TRICKY = (
    *("", "a", " ", "Straße, señor!  Das ist (yes) 3.14.", "мир e\u0301 \u00a0x 😀 你好, Ω!"),
    *("\ttab and\nnewline ", "It costs 5€ – don't… “quote”", "[MASK] [CLS] and [PAD]"),
)
# Spaces in front and behind aside, what people write.
prose = st.text(alphabet=st.sampled_from("abceéü ßΩ你,.!?-'()3 мир😀\u0301B"), max_size=40)


def corpus_of(name: str) -> list[str]:
    source = random.Random(name)
    words = ["".join(source.choices("abcdeéfgh", k=source.randint(1, 6))) for _ in range(300)]
    return [" ".join(source.choices(words, k=6)) + "." for _ in range(400)]


def words_of(text: str) -> list[tuple[int, int]]:
    """Spans of the words as documented: no white space, punctuation marks alone."""

    def mark(c: str) -> bool:
        return (c.isascii() and not c.isalnum()) or unicodedata.category(c).startswith("P")

    spans: list[tuple[int, int]] = []
    for piece in re.finditer(r"\S+", text):
        start = piece.start()
        for i in range(*piece.span()):
            if mark(text[i]):
                spans += [(start, i)] if i > start else []
                spans.append((i, i + 1))
                start = i + 1
        spans += [(start, piece.end())] if piece.end() > start else []
    return spans


@given(text=prose)
@settings(max_examples=80)
def test_bpe_units_are_words_and_spans_cover_them(bpe, text):
    encoding = bpe.encode(text)
    units: dict[int, list[tuple[int, int]]] = {}
    for group, (start, end) in zip(encoding.groups.tolist(), encoding.spans.tolist(), strict=True):
        if group >= 0:
            units.setdefault(group, []).append((start, end))
    covered = [(min(s for s, _ in spans), max(e for _, e in spans)) for spans in units.values()]
    # Runs of several spaces make units of white space alone, with empty spans.
    assert [span for span in covered if text[slice(*span)].strip()] == words_of(text)


@pytest.mark.parametrize("text", TRICKY)
def test_spans_point_at_the_text_of_their_token(tokenizer, text):
    encoding = tokenizer.encode(text)
    assert encoding.spans[[0, -1]].tolist() == [[0, 0], [0, 0]]
    for token, (start, end) in zip(encoding.ids.tolist(), encoding.spans.tolist(), strict=True):
        surface = tokenizer.spelling.surface(token)
        if token in tokenizer.space.special:
            continue
        assert 0 <= start <= end <= len(text)
        if "\ufffd" not in surface:  # part of a character's bytes
            assert text[start:end].strip() == surface
        assert not text[start:end][:1].isspace()


@given(text=st.text(max_size=30))
@settings(max_examples=100)
def test_bpe_loses_nothing_and_knows_everything(bpe, text):
    ids = bpe.encode(text).ids
    assert bpe.space.unk not in ids
    assert bpe.hf().decode(ids[1:-1].tolist()) == (" " + text if text else "")
    assert bpe.unknown(text) == []


@settings(deadline=None)
@given(
    text=st.lists(
        st.sampled_from(
            [
                *(" ", "  ", "the", "river", "Straße", "e\u0301", "\u0301", "1", "'s", "\u3000", "深", "\n"),
                "[MASK]",
            ]
        )
        | st.text(max_size=3),
        max_size=60,
    ).map("".join),
    size=st.integers(1, 30),
)
def test_pieces_give_what_the_whole_gives(tokenizer, text, size):
    whole = tokenizer.encode(text)
    rules = type(tokenizer)._normalizer(False), type(tokenizer)._pre_tokenizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subword, "PIECE", size)
        assert " ".join(piece for _, piece in subword.pieces(text)) == text
        [found, short] = tokenizer.encode_batch([text, "a"])
        counts = subword.count_words([text], *rules)
    for name in ("ids", "groups", "spans"):
        assert np.array_equal(getattr(found, name), getattr(whole, name))
    assert np.array_equal(short.ids, tokenizer.encode("a").ids)
    assert counts == subword.count_words([text], *rules)


def test_special_tokens_cannot_be_written_into_data(tokenizer):
    encoding = tokenizer.encode("[MASK] [SEP]")
    assert tokenizer.space.mask not in encoding.ids
    assert (encoding.ids == tokenizer.space.end).sum() == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_training_is_deterministic_whatever_the_order(kind):
    texts = corpus_of("order")
    first = kind.train(texts, vocabulary_size=400)
    again = kind.train(reversed(texts), vocabulary_size=400)
    other = kind.train(corpus_of("other"), vocabulary_size=400)
    assert first.tokens == again.tokens
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_lowercase_folds_case_and_is_remembered(kind, tmp_path: Path):
    tokenizer = kind.train(corpus_of("case"), vocabulary_size=400, lowercase=True)
    tokenizer.save(tmp_path)
    loaded = kind.load(tmp_path)
    assert loaded.options == {"lowercase": True}
    assert loaded.encode("ABÉ fE").ids.tolist() == tokenizer.encode("abé fe").ids.tolist()
    assert fingerprint(loaded) != fingerprint(kind.train(corpus_of("case"), vocabulary_size=400))


def test_frequent_words_become_tokens_and_rare_ones_are_cut(tokenizer):
    frequent = "so"
    assert len(tokenizer.encode("and " + frequent)) > 3
    (token,) = [
        t
        for t, g in zip(tokenizer.encode(frequent).ids, tokenizer.encode(frequent).groups, strict=True)
        if g >= 0
    ]
    assert tokenizer.spelling.surface(int(token)) == frequent
    pieces = tokenizer.encode("tanbücanfé")
    assert len(set(pieces.groups[1:-1].tolist())) == 1
    assert len(pieces) > 4


def test_unknown_characters_are_unknown_words():
    tokenizer = WordPieceTokenizer.train(corpus_of("unknown"), vocabulary_size=400)
    assert tokenizer.unknown("ab Ж ab z") == [(3, "Ж"), (8, "z")]
    encoding = tokenizer.encode("ab Ж")
    assert encoding.groups[encoding.ids == tokenizer.space.unk].tolist() == [-1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_size_is_kept_and_specials_come_first(kind):
    tokenizer = kind.train(corpus_of("size"), vocabulary_size=350)
    assert tokenizer.space.size <= 350
    assert tokenizer.tokens[:5] == SPECIAL
    assert len(set(tokenizer.tokens)) == tokenizer.space.size
    with pytest.raises(UsageError, match="at least"):
        kind.train(corpus_of("size"), vocabulary_size=5)
    with pytest.raises(UsageError, match="no option 'lowercased'"):
        kind.train(corpus_of("size"), lowercased=True)
    with pytest.raises(DataError, match="no text"):
        kind.train(["", "  "])


@pytest.mark.parametrize("language", ["en", "de", "fr"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_units_of_real_sentences_are_their_words(kind, language, real_data: Path):
    path = real_data / "text" / "ud_pud_parallel" / f"{language}_pud-ud-test.conllu.gz"
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        texts = [
            line.removeprefix("# text = ").rstrip("\n") for line in handle if line.startswith("# text = ")
        ]
    assert len(texts) == 1000
    tokenizer = kind.train(texts)
    for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
        if tokenizer.space.unk in encoding.ids:
            continue
        first = np.flatnonzero(np.diff(encoding.groups, prepend=-1) > 0)
        last = np.append(first[1:], len(encoding) - 1) - 1
        units = np.stack([encoding.spans[first, 0], encoding.spans[last, 1]], axis=1)
        assert [tuple(unit) for unit in units.tolist()] == words_of(text)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_alone_is_a_word_of_one_token_behind_another_word(kind) -> None:
    corpus = corpus_of("alone")
    tokenizer = kind.train(corpus, vocabulary_size=400)
    whole, pieces = set(), set()
    for text in corpus[:100]:
        encoding = tokenizer.encode(f"a {text}")
        for group in range(1, int(encoding.groups.max()) + 1):
            own = encoding.ids[encoding.groups == group].tolist()
            (whole if len(own) == 1 else pieces).update(own[:1] if len(own) == 1 else own[1:])
    assert whole
    assert pieces - whole
    alone = tokenizer.spelling.unit_text
    assert set(map(alone, whole)) == set(map(tokenizer.spelling.surface, whole))
    assert set(map(alone, pieces - whole)) == set(map(alone, tokenizer.space.special)) == {None}


def test_a_space_before_a_word_of_several_tokens_is_a_token_of_that_word() -> None:
    tokenizer = BpeTokenizer.train(["the cat sees the dog"] * 20, vocabulary_size=300)
    found = tokenizer.encode("the  zebra ")
    space = tokenizer.tokens.index("\u0120")
    at = np.flatnonzero(found.ids == space)
    assert found.groups[at].tolist() == [1, 2, 3]  # a unit of its own, of the word, and another at the end
    assert (found.groups == 2).sum() == 1 + len("zebra")
    assert (found.spans[at, 0] == found.spans[at, 1]).all()
    assert found.spans[at[1], 0] == "the  zebra ".index("z")
    assert tokenizer.encode("zebra").groups.tolist() == [-1, *[0] * 6, -1]


@pytest.mark.parametrize("text", [*[one for one in corpus() if "你" not in one][:9], "the"])
def test_text_around_a_mask_is_divided_as_without_one_by_hugging_face(tokenizer, text):
    encoding, plain = tokenizer.encode(text), tokenizer.hf()
    ids, groups, spans = encoding.ids.tolist(), encoding.groups.tolist(), encoding.spans.tolist()
    for start, end in words_of(text):
        inside = next((n for n, (a, b) in enumerate(spans) if start <= a < b <= end and groups[n] >= 0), None)
        if inside is None:
            continue  # the vocabulary does not have it
        own = [number for number, group in enumerate(groups) if group == groups[inside]]
        expected = [*ids[: own[0]], tokenizer.space.mask, *ids[own[-1] + 1 :]]
        assert plain(f"{text[:start]}[MASK]{text[end:]}")["input_ids"] == expected, text[start:end]
