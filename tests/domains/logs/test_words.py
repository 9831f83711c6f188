"""log_words.v1: normalised lines in words, spelled whatever they say, spans in the raw lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.words import LogWordTokenizer
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.subword import SPECIAL

lines = st.lists(
    st.sampled_from(
        ["done", "", "user ann logged in", "blk_-17: x<NUM>é", "wrote /var/a/b.bin in 12ms", "[SEP] [MASK]",
         "a" * 250, "Ω unseen 10.0.0.7:80", "  two  spaces ", "x=1,y=2;z=0xff"]
    ),
    max_size=6,
)  # fmt: skip


def window(*texts: str) -> LogLines:
    return LogLines(lines=texts, times=None)


def service(n: int = 40) -> list[LogLines]:
    return [
        window(f"request {i} from 10.0.0.{i % 250}", f"user {'ann' if i % 2 else 'bob'} logged in", "done")
        for i in range(n)
    ]


@pytest.fixture(scope="module")
def tokenizer() -> LogWordTokenizer:
    return LogWordTokenizer.train(service())


def test_words_marks_and_lines(tokenizer):
    raw = window("user eve logged in from /10.1.2.3:80", "done")
    encoding = tokenizer.encode(raw)
    text = str(raw)
    units: dict[int, list[str]] = {}
    for group, (start, end) in zip(encoding.groups.tolist(), encoding.spans.tolist(), strict=True):
        units.setdefault(group, []).append(text[start:end])
    words = ["user", "eve", "logged", "in", "from", "/", "10.1.2.3:80", "done"]
    assert ["".join(units[group]) for group in range(len(words))] == words
    assert sorted(units) == [-1, *range(len(words))]
    tokens = [tokenizer.tokens[token] for token in encoding.ids.tolist()]
    assert tokens.count("<IP>") == 1
    assert [t for t in tokens if t in SPECIAL] == ["[CLS]", "[SEP]", "[SEP]"]
    assert (tokens[0], tokens[-1], tokens[-3:-1]) == ("[CLS]", "[SEP]", ["[SEP]", "done"])


@given(records=st.lists(lines, max_size=5))
@settings(max_examples=80)
def test_spans_hold_their_tokens(tokenizer, records):
    raws = [window(*texts) for texts in records]
    for raw, encoding in zip(raws, tokenizer.encode_batch(raws), strict=True):
        text, done = "\n".join(raw.lines), 0
        for token, group, (start, end) in zip(
            encoding.ids.tolist(), encoding.groups.tolist(), encoding.spans.tolist(), strict=True
        ):
            surface = tokenizer.spelling.surface(token)
            if token == tokenizer.space.unk:
                assert group == -1
                assert text[start:end]
            elif token in tokenizer.space.special:
                assert (group, start, end) == (-1, 0, 0)
            else:
                assert group >= 0
                assert surface.startswith("<") or text[start:end] == surface
            if end:
                assert done <= start < end
                done = end
        # Everything but white space is in some span.
        held = np.zeros(len(text), dtype=bool)
        for start, end in encoding.spans.tolist():
            held[start:end] = True
        assert all(held[i] for i, letter in enumerate(text) if not letter.isspace())


def test_new_ascii_words_are_spelled_and_other_scripts_are_unknown(tokenizer):
    assert tokenizer.unknown(window("segfault~in {libQQ.so}", "", "a" * 300)) == []
    assert tokenizer.unknown(window("done", "привет it")) == [(5, "привет")]


def test_training_is_deterministic_and_a_secret_teaches_nothing(tmp_path: Path):
    texts = service(60)
    texts[30] = window("password canaryzq canaryzq canaryzq accepted", "done")
    first = LogWordTokenizer.train(texts, **LogWordTokenizer.traits.sensitive_options)
    assert (
        first.tokens
        == LogWordTokenizer.train(texts[::-1], **LogWordTokenizer.traits.sensitive_options).tokens
    )
    first.save(tmp_path)
    for path in tmp_path.iterdir():
        assert not any(piece in path.read_text() for piece in ("canary", "anary", "password"))
    assert "logged" in first.tokens
    assert any("canary" in token for token in LogWordTokenizer.train(texts).tokens)


def test_sizes_and_options_are_checked():
    small = LogWordTokenizer.train(service(), vocabulary_size=220)
    assert small.space.size == 220
    with pytest.raises(UsageError, match="vocabulary_size of at least"):
        LogWordTokenizer.train(service(), vocabulary_size=50)
    with pytest.raises(UsageError, match=r"no option 'pattern'.*patterns"):
        LogWordTokenizer.train(service(), pattern={})
    with pytest.raises(DataError, match="no log lines"):
        LogWordTokenizer.train([window("", " ")])
    own = LogWordTokenizer.train(service(), patterns={"WHO": "ann|bob"})
    assert "<WHO>" in own.tokens
    encoding = own.encode(window("user bob logged in"))
    assert encoding.spans[2].tolist() == [5, 8]


def test_real_lines_are_known_word_by_word(real_data: Path):
    with gzip.open(real_data / "logs/loghub_2k/OpenSSH_2k.log.gz", "rt") as file:
        texts = [line.rstrip("\n") for line in file]
    raws = [window(*texts[i : i + 20]) for i in range(0, len(texts), 20)]
    made = LogWordTokenizer.train(raws[:50])
    assert all(made.unknown(raw) == [] for raw in raws[50:])
