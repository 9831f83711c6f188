"""`seqmlm lexicon`: the words that decide, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fork_server import Run
from scipy.optimize import minimize
from text_models import TEXTS

from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.errors import UsageError
from seqmlm.inference.maskers import make_masker
from seqmlm.tasks.lexicon import rank_words
from seqmlm.tokenizers.subword import WordPieceTokenizer


def reviews(path: Path, count: int = 60) -> Path:
    words = ("a good film", "a bad film", "the good one", "the bad one")
    rows = (f"{words[n % 4]} it is,{'no' if n % 2 else 'yes'}" for n in range(count))
    path.write_text("\n".join(["text,liked", *rows]) + "\n")
    return path


def test_words_that_decide_come_first(tmp_path: Path, seqmlm: Run) -> None:
    file, out = reviews(tmp_path / "r.csv"), tmp_path / "words.txt"
    done = seqmlm("lexicon", file, "--label", "liked", "--top", 2, "--out", out, "--json").ok().json
    assert {(one["word"], one["class"]) for one in done["words"]} == {("good", "yes"), ("bad", "no")}
    assert sorted(out.read_text().split()) == ["bad", "good"]
    told = seqmlm("lexicon", file, "--label", "liked").ok()
    assert "good" in told.out


def test_coefficients_are_those_of_the_regression() -> None:
    texts, labels = ["a b", "a", "b c", "c", "a c", "b"], ["x", "x", "y", "y", "x", "y"]
    present = np.array([[word in text.split() for word in "abc"] for text in texts], dtype=float)
    signs = np.array([1.0 if label == "y" else -1.0 for label in labels])

    def loss(values: np.ndarray) -> float:
        margins = signs * (present @ values[:3] + values[3])
        return float(np.logaddexp(0, -margins).sum() + (values[:3] ** 2).sum() / 2)

    best = minimize(loss, np.zeros(4), tol=1e-10).x
    found = {word: (size, kind) for word, size, kind in rank_words(texts, labels, 1)}
    for word, weight in zip("abc", best, strict=False):
        assert found[word] == (pytest.approx(abs(weight), abs=1e-3), "y" if weight > 0 else "x")


def test_three_classes() -> None:
    texts, labels = ["red"] * 3 + ["green"] * 3 + ["blue"] * 3, ["r"] * 3 + ["g"] * 3 + ["b"] * 3
    assert {(word, kind) for word, _, kind in rank_words(texts, labels, 1)} == {
        *(("red", "r"), ("green", "g"), ("blue", "b"))
    }


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--label", "liked"), 3, "all labels are 'yes'"),
        (("--label", "stars"), 3, "no column 'stars'"),
        (("--label", "text", "--set", "least=99"), 3, "no word occurs in 99 texts"),
        (("--label", "liked", "--top", "0"), 2, "top and least must be at least 1"),
        (("--label", "liked", "--domain", "ehr"), 2, "has data about people"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path, seqmlm: Run
) -> None:
    file = tmp_path / "r.csv"
    file.write_text("text,liked\n" + "".join(f"a film {n},yes\n" for n in range(9)))
    seqmlm("lexicon", file, *arguments).refused(code, message)


def test_nothing_to_read(seqmlm: Run) -> None:
    seqmlm("lexicon").refused(2, "nothing to read")


def test_a_lexicon_of_words_that_no_token_spells_is_refused() -> None:
    tokenizer = WordPieceTokenizer.train(TEXTS, vocabulary_size=300)
    config = MaskingConfig(masker="lexicon.v1", options={"words": ["日本", "語"]})
    with pytest.raises(UsageError, match="lexicon"):
        make_masker(config, tokenizer)


def test_a_lexicon_without_a_word_of_the_data_is_refused(tmp_path: Path, seqmlm: Run) -> None:
    text, words = tmp_path / "t.txt", tmp_path / "words.txt"
    text.write_text("".join(f"the film number {n} is good\n" for n in range(60)))
    masking = ("--set", "masking.masker=lexicon", "--set", f"masking.options.words_file={words}")
    arguments = ("train", "--domain", "text", text, "--max-steps", 1, "--name", "m", *masking)
    words.write_text("quorum\nxylophone\n")
    seqmlm(*arguments).refused(2, "hides nothing in", "seqmlm lexicon finds some")
    words.write_text("quorum\ngood\n")
    seqmlm(*arguments).ok()
