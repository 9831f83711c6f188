"""Zero-shot classification: its formulas against transformers, its figures against a count by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import checkpoint, log_probs
from fork_server import Finished, Run
from mlflow.tracking import MlflowClient
from text_models import text_model
from written import rows as rows_of

from seqmlm.errors import UsageError
from seqmlm.inference.classifier import Verbalizer

REVIEWS = ("the cat sees", "a dog barks loudly", "it was terrible", "great cats", "unable dog") * 5


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    rows = [f"{text},{'good' if number % 3 else 'bad'}" for number, text in enumerate(REVIEWS)]
    path.write_text("text,stars\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def classified(
    tmp_path: Path, reviews: Path, seqmlm: Run
) -> Callable[..., tuple[list[dict[str, Any]], Finished]]:
    """The rows of the reviews that a model and some arguments give, and how the command ended."""

    def run(model: object, *arguments: object) -> tuple[list[dict[str, Any]], Finished]:
        done = seqmlm("zeroshot", model, reviews, *arguments, "--out", tmp_path / "p.jsonl").ok()
        return rows_of(tmp_path / "p.jsonl"), done

    return run


ARGUMENTS = ("--template", "{text} it was [MASK].", "--label", "good=great,cat", "--label", "bad=terrible")


def test_scores_are_those_of_transformers(tmp_path: Path, classified: Callable[..., Any]):
    model, fast = checkpoint("bert", tmp_path / "bert")
    given = ("--template", "[MASK] ! {text}", "--set", "domain=text", "--set", "calibration=none")
    rows, _ = classified(tmp_path / "bert", *ARGUMENTS, *given)
    assert [row["line"] for row in rows] == list(range(2, 27))

    def log_prob(before: str, word: str, after: str) -> float:
        """Of a word in a template, by the chain rule, per token."""
        whole = fast(f"{before}{word}{after}")["input_ids"]
        first = len(fast(before.strip())["input_ids"]) - 1 if before.strip() else 1
        last = len(whole) - (len(fast(after.strip())["input_ids"]) - 1)
        total = 0.0
        for place in range(first, last):
            hidden = [fast.mask_token_id if place <= at < last else one for at, one in enumerate(whole)]
            total += float(log_probs(model, hidden)[place, whole[place]])
        return total / (last - first)

    for row, text in zip(rows, REVIEWS, strict=True):
        shares = []
        for before, after in ((f"{text} it was ", "."), ("", f" ! {text}")):
            words = np.array([log_prob(before, word, after) for word in ("great", "cat", "terrible")])
            words -= np.logaddexp.reduce(words)
            means = np.exp([words[:2].mean(), words[2]])
            shares.append(means / means.sum())
        assert list(row["scores"].values()) == pytest.approx(np.mean(shares, axis=0).tolist(), abs=1e-5)
        assert row["prediction"] == ("good", "bad")[int(np.mean(shares, axis=0).argmax())]


def test_figures_are_those_of_a_count_by_hand(tmp_path: Path, classified: Callable[..., Any]):
    given = ("--template", "[MASK] {text}", "--truth", "stars", "--json", "--report", tmp_path / "r.html")
    rows, done = classified(text_model(tmp_path), *ARGUMENTS, *given)
    pairs = [(row["truth"], row["prediction"]) for row in rows]
    found = done.json
    assert found["n"] == len(rows) == 25
    assert found["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / 25)
    assert found["interval"][0] <= found["accuracy"] <= found["interval"][1]
    assert found["majority"] == pytest.approx(16 / 25)
    guessed = {name: sum(b == name for _, b in pairs) / 25 for name in ("good", "bad")}
    assert found["calibrated_random"] == pytest.approx(16 / 25 * guessed["good"] + 9 / 25 * guessed["bad"])
    f1 = []
    for name in ("good", "bad"):
        hits = sum(a == b == name for a, b in pairs)
        f1.append(2 * hits / max(1, sum(a == name for a, _ in pairs) + sum(b == name for _, b in pairs)))
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    assert found["calibration"] == "contextual"  # 25 inputs are enough
    spread = found["sensitivity"]
    wordings = {"{text} it was [MASK].", "[MASK] {text}", "great, terrible", "cat, terrible"}
    assert set(spread["wordings"]) == wordings
    assert spread["min"] == min(spread["wordings"].values()) <= spread["max"]
    for name, share in spread["wordings"].items():
        assert share == sum(row["wordings"][name] == row["truth"] for row in rows) / 25
    assert spread["wordings"][spread["best"]] == spread["max"]
    assert found["confusion"]["good"]["bad"] == pairs.count(("good", "bad"))
    store = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    [run] = store.search_runs([store.get_experiment_by_name("seqmlm-text").experiment_id])
    assert run.data.metrics["accuracy"] == found["accuracy"]
    told = run.data.params["sensitivity/wordings/_MASK_ _text_"]
    assert float(told) == pytest.approx(spread["wordings"]["[MASK] {text}"])
    assert run.data.params["n"] == "25"
    assert "n" not in run.data.metrics
    page = (tmp_path / "r.html").read_text()
    assert "Accuracy by wording" in page
    assert "terrible" in page


def test_one_wording_of_several_is_what_it_is_alone(tmp_path: Path, classified: Callable[..., Any]):
    model, accuracy, given = text_model(tmp_path), {}, (*ARGUMENTS[2:], "--truth", "stars", "--json")
    templates = ("{text} it was [MASK].", "[MASK] {text}")
    for template in templates:
        accuracy[template] = classified(model, "--template", template, *given)[1].json["accuracy"]
    _, both = classified(model, *(word for one in templates for word in ("--template", one)), *given)
    wordings = both.json["sensitivity"]["wordings"]
    assert {name: wordings[name] for name in accuracy} == pytest.approx(accuracy)


def test_calibration_takes_off_what_words_have_anyway(tmp_path: Path, classified: Callable[..., Any]):
    """Over the inputs it was calibrated on, each word is as probable as any other."""
    model, shares = text_model(tmp_path), {}
    given = (*ARGUMENTS[:2], "--label", "a=cat", "--label", "b=dog")
    for how in ("none", "contextual"):
        rows, _ = classified(model, *given, "--set", f"calibration={how}")
        odds = [np.log(row["scores"]["a"] / row["scores"]["b"]) for row in rows]
        shares[how] = abs(float(np.mean(odds)))
    assert shares["contextual"] < shares["none"] / 2


def test_a_template_without_a_place_for_the_text_stands_behind_it(
    tmp_path: Path, classified: Callable[..., Any]
):
    model, templates = text_model(tmp_path), ("The review is [MASK].", "{text} The review is [MASK].")
    first, second = (classified(model, "--template", one, *ARGUMENTS[2:])[0] for one in templates)
    assert first == second


def test_data_cannot_write_a_gap(tmp_path: Path, seqmlm: Run):
    model = text_model(tmp_path)
    (tmp_path / "t.txt").write_text("the [MASK] sees \\[MASK] {x}\n")
    done = seqmlm("zeroshot", model, tmp_path / "t.txt", *ARGUMENTS).ok()
    assert json.loads(done.out)["prediction"] in ("good", "bad")


LACKING = (
    (("--template", "{stars} {writer} [MASK]", *ARGUMENTS[2:]), "field 'writer'"),
    ((*ARGUMENTS, "--truth", "rating"), "field 'rating'"),
    ((*ARGUMENTS[:4], "--label", "meh=dog", "--truth", "stars"), "the class 'bad' has no words"),
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *LACKING,
        (("--template", "no gap", *ARGUMENTS[2:]), "has 0 gaps"),
        (("--template", "[MASK] and [MASK]", *ARGUMENTS[2:]), "has 2 gaps"),
        ((*ARGUMENTS[:4], "--label", "bad="), "has no words"),
        ((*ARGUMENTS[:4],), "at least two classes"),
        ((*ARGUMENTS[:4], "--label", "bad=[SEP]"), "which does not occur in data"),
        ((*ARGUMENTS[:4], "--label", "bad=cat"), "is used for two classes"),
        ((*ARGUMENTS[:4], "--label", "bad"), "write CLASS=WORD"),
        ((*ARGUMENTS, "--label", "good=x"), "names the class 'good' twice"),
        ((*ARGUMENTS[2:],), "a template is needed"),
        ((*ARGUMENTS, "--set", "calibration=some"), "must be one of auto, pmi, contextual, none"),
    ],
)
def test_requests_without_sense(
    tmp_path: Path, reviews: Path, seqmlm: Run, arguments: tuple[str, ...], said: str
):
    done = seqmlm("zeroshot", text_model(tmp_path), reviews, *arguments)
    lacking = (arguments, said) in LACKING  # something of the records, which are named
    assert done.code == 2 + lacking
    assert said in done.err
    assert ("reviews.csv" in done.err) == lacking


def test_a_task_in_a_file(tmp_path: Path, reviews: Path, seqmlm: Run):
    model, task = text_model(tmp_path), tmp_path / "task.yaml"
    task.write_text(
        'templates: ["{text} it was [MASK]."]\nlabels:\n  good: [great, cat]\n  bad: [terrible]\n'
    )
    first = seqmlm("zeroshot", model, reviews, "--set", f"task={task}")
    assert first.out == seqmlm("zeroshot", model, reviews, *ARGUMENTS).out
    both = seqmlm("zeroshot", model, reviews, *ARGUMENTS, "--set", f"task={task}")
    both.refused(2, "leave --template and --label out")
    task.write_text("template: x\n")
    seqmlm("zeroshot", model, reviews, "--set", f"task={task}").refused(2, "did you mean 'templates'")


def test_words_of_a_class_count_by_their_mean():
    spoken = Verbalizer.of({"a": ["x", "y"], "b": ["z"]})
    found = spoken.probabilities(np.log([[0.2, 0.4, 0.4]]))
    assert found[0] == pytest.approx(np.array([0.08**0.5, 0.4]) / (0.08**0.5 + 0.4))
    assert [own.tolist() for own in spoken.word_sets()] == [[0, 2], [1, 2]]
    with pytest.raises(UsageError, match="two classes"):
        Verbalizer.of({"a": ["x"], "b": ["x"]})
