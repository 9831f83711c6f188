"""Fine-tuning through its command: every kind of label, what is trained, kills, and input that is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from text_models import text_model
from tiny_models import random_model, saved
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from seqmlm.data.tags import tagged
from seqmlm.engine.types import Encoding
from seqmlm.inference.labeller import HeadCard, at_once, pieces, pieces_of_pair
from seqmlm.tasks.observers import Recorder
from seqmlm.tokenizers.residue import ResidueTokenizer

Run = Callable[..., Any]
BRIEF = ("--rivals", "off", "--set", "epochs=1")
WORDS = ["the", "cat", "sees", "a", "dog", "and", "so", "no", "dogs", "bark", "loudly", "here"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    protein = saved(random_model("protein", ResidueTokenizer(), spread=4), folder / "protein")
    return {"text": text_model(folder / "text"), "protein": protein}


def sentences(n: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[WORDS[k] for k in rng.integers(0, len(WORDS), rng.integers(4, 9))] for _ in range(n)]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def spans_of(words: list[str]) -> list[dict[str, Any]]:
    """`dog` and `cat` are animals."""
    found, at = [], 0
    for word in words:
        if word in ("dog", "cat"):
            found.append({"start": at, "end": at + len(word), "label": "ANIMAL"})
        at += len(word) + 1
    return found


def labelled(kind: str, folder: Path) -> list[object]:
    """Files with labels of a kind that follow from the words, and the arguments that name them."""
    told = sentences(200)
    if kind in ("pair", "bi", "cosine"):
        told = [words[:4] for words in told]
    if kind == "tags":
        letters = ["".join("AGVL"[k] for k in np.random.default_rng(n).integers(0, 4, 12)) for n in range(80)]
        for name, values in {
            "s": letters,
            "l": [one.translate(str.maketrans("AGVL", "HHEE")) for one in letters],
            "m": ["0" + "1" * 11] * 80,
        }.items():
            (folder / f"{name}.fasta").write_text("".join(f">p{n}\n{v}\n" for n, v in enumerate(values)))
        return [
            "--train",
            folder / "s.fasta",
            "--label-file",
            folder / "l.fasta",
            "--set",
            f"mask={folder / 'm.fasta'}",
        ]
    if kind == "files":
        for name, own in {
            "yes": [w for w in told if "cat" in w],
            "no": [w for w in told if "cat" not in w],
        }.items():
            (folder / f"{name}.txt").write_text("".join(" ".join(one) + "\n" for one in own))
        return ["--class", f"yes={folder / 'yes.txt'}", "--class", f"no={folder / 'no.txt'}"]
    if kind == "bi":
        return [*labelled("pair", folder), "--set", "pairing=bi"]
    values: dict[str, Callable[[list[str]], dict[str, Any]]] = {
        "class": lambda words: {"y": "yes" if "cat" in words else "no"},
        "value": lambda words: {"y": 0.5 + sum(len(word) for word in words)},
        "multilabel": lambda words: {name: int(name in words) for name in ("cat", "dog", "no")},
        "entities": lambda words: {"spans": spans_of(words)},
        "cosine": lambda words: {"other": words[0], "y": 0.5 + sum(len(word) for word in words)},
        "pair": lambda words: {"other": " ".join(reversed(words)), "y": "yes" if "cat" in words else "no"},
    }
    path = jsonl(folder / "t.jsonl", [{"text": " ".join(one), **values[kind](one)} for one in told])
    labels = {"multilabel": ["--label", "cat", "--label", "dog", "--label", "no"], "entities": []}
    further = {
        "pair": ["--pair", "other"],
        "cosine": ["--pair", "other", "--set", "pairing=bi"],
        "entities": ["--set", "crf=true"],
    }
    return ["--train", path, *labels.get(kind, ["--label", "y"]), *further.get(kind, [])]


PRIMARY = {"value": "spearman", "cosine": "spearman", "multilabel": "micro_f1", "entities": "f1"}


@pytest.mark.parametrize(
    ("kind", "tune"),
    [
        *(("class", how) for how in ("all", "last:1", "lora:2", "none")),
        *((kind, "all") for kind in ("files", "pair", "value", "multilabel", "tags", "entities")),
        *((kind, "none") for kind in ("value", "multilabel", "tags", "bi")),
        *(("bi", "lora:2"), ("cosine", "all")),
    ],
)
def test_labels_are_learnt_judged_kept_and_predicted(
    kind: str, tune: str, models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    model = models["protein" if kind == "tags" else "text"]
    arguments = labelled(kind, tmp_path)
    done = seqmlm(
        *("finetune", model, *arguments, "--name", "learnt", "--tune", tune, "--json"),
        *("--set", "epochs=40"),
    )
    assert done.code == 0, done.err
    primary = PRIMARY.get(kind, "accuracy")
    low, high = done.json["intervals"][primary]
    assert low <= done.json[primary] <= high
    assert {"most frequent"} < set(done.json["rivals"])
    table = pq.read_table(workspace / "runs" / "learnt" / "predictions.parquet").to_pylist()
    assert table
    parent, own = (load_file(one / "model.safetensors") for one in (model, workspace / "runs/learnt/model"))
    moved = {name for name in parent if not torch.equal(parent[name], own[name])}
    if tune == "all":
        assert any("embeddings" in name for name in moved)
    elif tune == "none":
        assert not moved
    else:
        assert moved
        assert not [name for name in moved if "embeddings" in name or "decoder" in name]
        assert tune != "last:1" or not [name for name in moved if "layers.0" in name]
    if kind in ("class", "files") and tune in ("all", "none"):
        assert done.json["accuracy"] > done.json["rivals"]["most frequent"]["accuracy"] + 0.05
    source = arguments[arguments.index("--train") + 1] if "--train" in arguments else tmp_path / "yes.txt"
    again = seqmlm("predict", "learnt", source, "--out", tmp_path / "p.jsonl")
    assert again.code == 0, again.err
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    if kind in ("class", "pair", "bi"):
        of = {row["id"]: row["p"]["yes"] for row in rows}
        assert all(one["p"]["yes"] == pytest.approx(of[one["id"]], abs=1e-4) for one in table)
    if kind == "tags":
        assert len(rows) == 80 * 12
    for row in rows:
        assert "prediction" in row


def test_two_fine_tunings_are_compared_by_their_predictions(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    asked = ("finetune", models["text"], *labelled("class", tmp_path), "--rivals", "off", "--json")
    whole = seqmlm(*asked, "--tune", "none", "--name", "whole").json
    few = seqmlm(*asked, "--tune", "none", "--shots", "8", "--name", "few").json
    found = seqmlm("runs", "compare", "whole", "few", "--metric", "macro_f1", "--json")
    assert found.code == 0, found.err
    assert found.json["difference"] == pytest.approx(whole["macro_f1"] - few["macro_f1"])
    assert seqmlm(*asked, "--tune", "none", "--set", "seed=1", "--name", "other").code == 0
    seqmlm("runs", "compare", "whole", "other", "--metric", "macro_f1").refused(2, "on other records")


@pytest.mark.parametrize("kind", ["class", "tags"])
def test_transformers_predicts_what_seqmlm_predicts(
    kind: str, models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    model, arguments = models["protein" if kind == "tags" else "text"], labelled(kind, tmp_path)
    asked = ("finetune", model, *arguments, "--name", "learnt", "--rivals", "off")
    assert seqmlm(*asked, "--set", "epochs=3", "--tune", "lora:2").code == 0
    exported = seqmlm("models", "export", "learnt", tmp_path / "plain")
    assert exported.code == 0, exported.err
    done = seqmlm("predict", "learnt", arguments[1], "--out", tmp_path / "p.jsonl")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    auto = AutoModelForTokenClassification if kind == "tags" else AutoModelForSequenceClassification
    plain = auto.from_pretrained(tmp_path / "plain").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    read = arguments[1].read_text().splitlines()
    texts = read[1::2] if kind == "tags" else [json.loads(line)["text"] for line in read]
    with torch.inference_mode():
        logits = [plain(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    found = torch.cat([one[1:-1] for one in logits]) if kind == "tags" else torch.stack(logits)
    names = [plain.config.id2label[number] for number in range(plain.config.num_labels)]
    told = [[row["p"][name] for name in names] for row in rows]
    np.testing.assert_allclose(found.softmax(-1).numpy(), told, atol=1e-5)


def test_boosting_finds_what_only_a_table_knows(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    rng = np.random.default_rng(0)
    words, sizes = sentences(200), rng.normal(size=200)
    rows = [
        {"id": f"r{n}", "text": " ".join(own), "y": "ab"[int(sizes[n] > 0)]} for n, own in enumerate(words)
    ]
    table = [
        {"id": row["id"], "size": size, "y": "", "again": row["y"]}
        for row, size in zip(rows, sizes, strict=True)
    ]
    asked = (
        "finetune",
        models["text"],
        "--train",
        jsonl(tmp_path / "t.jsonl", rows),
        "--label",
        "y",
        "--json",
    )
    named = ("--table", jsonl(tmp_path / "c.jsonl", table[:-2]), "--tune", "none")
    done = seqmlm(*asked, *named, "--name", "beside").ok().json
    assert done["rivals"]["boosted columns"]["accuracy"] > 0.9 > done["accuracy"]
    assert done["lead"]["over"] == "boosted columns"
    assert done["over_columns"]["this model"]["high"] < 0 < done["rivals"]["model and columns"]["accuracy"]
    assert {text: n for text, n in done["notes"].items() if "--table" in text} == {
        "an example without a row in --table: its columns are missing": 2,
        "the column 'y' of --table is the label, left out": 1,
        "the column 'again' of --table is the label, left out": 1,
    }
    numbers = [{**row, "y": 2 * size} for row, size in zip(rows, sizes, strict=True)]
    of_values = (*asked[:3], jsonl(tmp_path / "v.jsonl", numbers), *asked[4:])
    done = seqmlm(*of_values, *named, "--name", "value").ok().json
    assert done["rivals"]["boosted columns"]["spearman"] > 0.9 > done["over_columns"]["this model"]["low"]
    copied = jsonl(tmp_path / "copy.jsonl", [{"id": row["id"], "copied": row["y"]} for row in numbers])
    seqmlm(*of_values, "--table", copied).refused(3, "no column beside ids and labels")
    seqmlm(*asked, *named, "--rivals", "off").refused(2, "leave one out")
    strangers = jsonl(tmp_path / "c.jsonl", [{**row, "id": f"x{n}"} for n, row in enumerate(table)])
    seqmlm(*asked, "--table", strangers).refused(3, "none of its ids")
    seqmlm(*asked[:2], *labelled("entities", tmp_path), "--table", strangers).refused(2, "are entities")


def test_a_model_that_has_learnt_nothing_says_so(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    rng = np.random.default_rng(0)
    rows = [{"text": " ".join(words), "y": "ab"[rng.integers(2)]} for words in sentences(60)]
    path = jsonl(tmp_path / "t.jsonl", rows)
    done = seqmlm("finetune", models["text"], "--train", path, "--label", "y", "--set", "epochs=1")
    assert done.code == 0, done.err
    assert "no better than that" in done.out or "not clearly better" in done.out
    few = seqmlm(
        "finetune", models["text"], "--train", jsonl(path, rows[:12]), "--label", "y", "--name", "few"
    )
    assert few.code == 0, few.err
    assert "nothing was held out to test it" in few.out


def test_of_a_rare_class_the_ranking_decides(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    rows = [{"text": " ".join(words), "y": "ab"[n % 8 == 0]} for n, words in enumerate(sentences(200))]
    data = ("--train", jsonl(tmp_path / "t.jsonl", rows), "--label", "y", "--tune", "none")
    rare = seqmlm("finetune", models["text"], *data, "--name", "rare", "--json")
    assert rare.json["primary"] == "auroc"
    assert rare.json["rivals"]["most frequent"]["auroc"] == 0.5
    often = [{**row, "y": "ab"[n % 4 == 0]} for n, row in enumerate(rows)]
    jsonl(tmp_path / "t.jsonl", often)
    assert (
        seqmlm("finetune", models["text"], *data, "--name", "often", "--json").json["primary"] == "accuracy"
    )


@pytest.mark.parametrize(
    ("kind", "tune", "step"),
    [
        *(("class", tune, step) for tune in ("all", "lora:2") for step in (1, 3, 6)),
        ("bi", "all", 3),
        ("cosine", "all", 3),
    ],
)
def test_killed_at_any_step_and_resumed_it_reaches_the_same_weights(
    kind: str,
    tune: str,
    step: int,
    models: dict[str, Path],
    workspace: Path,
    tmp_path: Path,
    seqmlm: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ("finetune", models["text"], *labelled(kind, tmp_path), "--tune", tune, "--rivals", "off")
    asked = (*asked, "--set", "epochs=2", "--set", "tokens_per_step=200")
    assert seqmlm(*asked, "--name", "whole").code == 0
    on_step = Recorder.on_step

    def stopping(recorder: Recorder, report: Any) -> None:
        on_step(recorder, report)
        if report.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_step", stopping)
        done = seqmlm(*asked, "--name", "killed")
    assert done.code == 143
    assert "--resume" in done.err
    assert seqmlm(*asked, "--name", "killed").code == 4  # not by chance
    done = seqmlm(*asked, "--name", "killed", "--resume")
    assert done.code == 0, done.err
    runs = workspace / "runs"
    for name in ("model.safetensors", "head.safetensors"):
        assert (runs / "killed/model" / name).read_bytes() == (runs / "whole/model" / name).read_bytes()


def test_several_trainings_are_children_of_one_run(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    asked = ("finetune", models["text"], *labelled("class", tmp_path), "--name", "three", "--rivals", "off")
    done = seqmlm(*asked, "--seeds", "3", "--shots", "40", "--set", "epochs=1", "--json")
    assert done.code == 0, done.err
    assert len(done.json["seeds"]) == 3
    assert done.json["mean"] == pytest.approx(np.mean([*done.json["seeds"].values()]))
    assert done.json["train"] == 40
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{workspace / 'mlflow.db'}")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    parents = [run.info.run_id for run in runs if run.info.run_name == "three"]
    assert [run.data.tags.get("mlflow.parentRunId") for run in runs].count(parents[0]) == 3


ROWS = [
    {"text": " ".join(words), "y": "yes" if "cat" in words else "no", "n": n}
    for n, words in enumerate(sentences(60))
]
BAD: dict[str, tuple[list[dict[str, Any]], tuple[str, ...], int, str]] = {
    "no such column": (ROWS, ("--label", "z"), 3, "t.jsonl:1: field 'z': no label"),
    "a label is missing": ([*ROWS[:5], {**ROWS[5], "y": None}], ("--label", "y"), 3, "t.jsonl:6"),
    "one class": ([{**row, "y": "a"} for row in ROWS], ("--label", "y"), 3, "one class only: 'a'"),
    "a class of one": (
        [{**ROWS[0], "y": "rare"}, *ROWS[1:]],
        ("--label", "y"),
        3,
        "class of one example: 'rare'",
    ),
    "ids as classes": (
        [{**row, "y": f"id{n}"} for n, row in enumerate(ROWS)],
        ("--label", "y"),
        3,
        "names the records",
    ),
    "values of words": (ROWS, ("--label", "y", "--task", "value"), 3, "t.jsonl:1"),
    "tags of records": (ROWS, ("--label", "y", "--task", "tags"), 3, "t.jsonl:1"),
    "rank 0": (ROWS, ("--label", "y", "--tune", "lora:0"), 2, "lora:R with a number above 0"),
    "too many layers": (ROWS, ("--label", "y", "--tune", "last:9"), 2, "takes 1 to 2"),
    "a CRF of classes": (ROWS, ("--label", "y", "--set", "crf=true"), 2, "CRF joins the tags"),
    "a pair of one": (ROWS, ("--label", "y", "--set", "pairing=bi"), 2, "the other one with --pair"),
    "a prompt of two": (ROWS, ("--label", "y", "--pair", "n", "--head", "prompt"), 2, "one sequence"),
    "nothing": (ROWS, ("--label", "y", "--shots", "0"), 2, "shots must be at least 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_learnt_from_is_refused_in_a_sentence(
    name: str, models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    rows, arguments, code, told = BAD[name]
    path = jsonl(tmp_path / "t.jsonl", rows)
    done = seqmlm("finetune", models["text"], "--train", path, *arguments, "--name", "bad", "--rivals", "off")
    assert done.code == code, done.err
    assert told in done.err
    assert not (workspace / "runs" / "bad" / "model").exists()


def test_records_that_are_in_training_do_not_test(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    train = jsonl(tmp_path / "t.jsonl", ROWS)
    unseen = [{"text": "so the dogs bark here and here and here", "y": "maybe"}]
    test = jsonl(tmp_path / "test.jsonl", [*ROWS[:3], {"text": "bark bark bark dogs dogs dogs", "y": "no"}])
    asked = ("finetune", models["text"], "--train", train, "--label", "y", *BRIEF)
    done = seqmlm(*asked, "--test", test)
    assert done.code == 3
    assert "3 of 4 test examples are in training" in done.err
    assert seqmlm(*asked, "--test", test, "--set", "allow_overlap=true", "--name", "lax").code == 0
    done = seqmlm(*asked, "--test", jsonl(test, unseen), "--name", "new")
    assert done.code == 3
    assert "'maybe' is in no training example" in done.err


def test_models_are_used_for_what_they_are(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    path = jsonl(tmp_path / "t.jsonl", ROWS)
    asked = ("--train", path, "--label", "y", *BRIEF)
    assert seqmlm("finetune", models["text"], *asked, "--name", "learnt").code == 0
    score, predict = seqmlm("score", "learnt", path), seqmlm("predict", models["text"], path)
    assert (score.code, predict.code) == (2, 2)
    assert "use seqmlm predict" in score.err
    assert "seqmlm finetune" in predict.err
    assert "fine-tuned already" in seqmlm("finetune", "learnt", *asked, "--name", "twice").err


@pytest.mark.parametrize("pool", ["start", "mean"])
@pytest.mark.parametrize("length", [8, 64])
def test_every_label_is_read_once_at_the_tokens_it_overlaps(pool: Any, length: int) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 4, 30)
    ends = np.cumsum(sizes)
    spans = np.concatenate([[[0, 0]], np.column_stack([ends - sizes, ends]), [[0, 0]]]).astype(np.int32)
    groups = np.concatenate([[-1], np.arange(30), [-1]]).astype(np.int32)
    ids = np.concatenate([[0], 5 + np.arange(30) % 20, [2]]).astype(np.int32)
    encoding = Encoding(ids=ids, groups=groups, spans=spans)
    starts = np.arange(0, int(ends[-1]), 4)
    bounds = np.column_stack([starts, np.minimum(starts + 3, ends[-1] + 2)]).astype(np.int32)
    card = HeadCard(kind="tags", label="x", names=("a", "b"), pool=pool, length=length)
    found, kept = pieces(encoding, ResidueTokenizer().space, card, bounds)
    assert kept.all()
    read = {}
    for piece in found:
        assert len(piece.encoding) <= length
        label = piece.numbers[np.cumsum(piece.labels.first) - 1]
        for number in piece.numbers.tolist():
            assert number not in read
            places = piece.labels.asked[label == number]
            read[number] = piece.encoding.spans[places].tolist()
            assert piece.labels.weights[label == number].sum() == pytest.approx(1, rel=0.5)
    for number, (start, end) in enumerate(bounds.tolist()):
        naive = [one for one in spans[1:-1].tolist() if one[1] > start and one[0] < end]
        assert read[number] == (naive[:1] if pool == "start" else naive) or length == 8
    assert len(read) == len(bounds)


def test_both_of_a_pair_are_read_once_in_windows_of_their_own() -> None:
    card = HeadCard(kind="class", label="y", names=("a", "b"), pair="other", pairing="bi", length=8)
    tokenizer = ResidueTokenizer()
    first, second = (tokenizer.encode(text) for text in ("MKTAYIAKQRQISFVK", "GAVL"))
    found = pieces_of_pair(first, second, tokenizer.space, card, types=True)
    assert max(len(one.encoding) for one in found) <= 8
    begins = [number for number, one in enumerate(found) if one.labels.first.any()]
    assert begins == [0, len(found) - 1]
    for side, own in ((first, found[:-1]), (second, found[-1:])):
        assert set(side.ids.tolist()) == {token for one in own for token in one.encoding.ids.tolist()}
        assert sum(one.labels.weights.sum() for one in own) == pytest.approx(0.5)
    assert at_once(found, card) == [found]


def test_a_prompt_begins_as_zero_shot_and_learns(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    path = jsonl(tmp_path / "t.jsonl", ROWS)
    template = "{text} so [MASK]"
    zero = ("--template", template, "--label", "yes=cat", "--label", "no=dog", "--set", "calibration=none")
    seqmlm("zeroshot", models["text"], path, *zero, "--out", tmp_path / "z.jsonl").ok()
    asked = (
        "finetune",
        models["text"],
        "--train",
        path,
        "--label",
        "y",
        "--head",
        "prompt",
        "--rivals",
        "off",
    )
    words = ("--set", f"template='{template}'", "--set", "words=[yes=cat,no=dog]")
    still = ("--set", "epochs=0.01", "--set", "learning_rate=1e-12", "--name", "still")
    seqmlm(*asked, *words, *still).ok()
    seqmlm("predict", "still", path, "--out", tmp_path / "p.jsonl").ok()
    told, said = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("z.jsonl", "p.jsonl")
    )
    warmth = json.loads((workspace / "runs/still/model/seqmlm.json").read_text())["head"]["temperature"]
    for one, other in zip(told, said, strict=True):
        odds = [np.log(p["yes"] / p["no"]) for p in (one["scores"], other["p"])]
        assert odds[0] == pytest.approx(odds[1] * warmth, abs=2e-4 * warmth)
    seqmlm(*asked, *words, "--set", "epochs=2", "--name", "moved").ok()
    seqmlm(*asked, "--name", "none").refused(2, "--head prompt needs --set template")
    seqmlm(*asked, *words[:2], "--set", "words=[maybe=cat]", "--name", "none").refused(2, "the class 'maybe'")


def conll(path: Path, scheme: str, n: int = 60) -> Path:
    """Sentences in two columns; `dog` and what follows it, and `cat`, are entities."""
    found = []
    for words in sentences(n):
        spans, at = [], 0
        while at < len(words):
            size = 2 if words[at] == "dog" and at + 1 < len(words) else 1
            if words[at] in ("dog", "cat"):
                spans.append((at, at + size, "PET"))
            at += size
        tags = tagged(spans, len(words), scheme)
        found.append("\n".join(f"{word} {tag}" for word, tag in zip(words, tags, strict=True)))
    path.write_text("\n\n".join(found) + "\n")
    return path


@pytest.mark.parametrize("scheme", ["bio", "bioes", "io"])
def test_tags_of_every_scheme_are_entities(
    scheme: str, models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    path = conll(tmp_path / "t.conll", scheme)
    asked = (
        "finetune",
        models["text"],
        "--train",
        path,
        "--name",
        "ner",
        "--rivals",
        "off",
        "--set",
        "epochs=2",
    )
    done = seqmlm(*asked, "--json").ok()
    assert done.json["kind"] == "entities"
    assert "f1" in done.json
    names = json.loads((workspace / "runs/ner/model/seqmlm.json").read_text())["head"]["names"]
    assert names == ["O", "B-PET", "I-PET"]


@pytest.mark.parametrize("odd", ["\u2603", " "])
def test_a_word_without_a_token_costs_itself(
    odd: str, models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    """Unknown to a WordPiece, or blank: the sentence goes on."""
    model = text_model(tmp_path / "wordpiece", wordpiece=True)
    rows = []
    for words in sentences(60):
        text = f"{odd} {' '.join(words)}"
        spans = [(0, len(odd), "X")]
        for word in words:
            start = spans[-1][1] + 1
            spans.append((start, start + len(word), "Y" if word == "cat" else "N"))
        rows.append({"text": text, "words": [odd, *words], "spans": [list(one[:2]) for one in spans]})
        rows[-1]["t"] = [one[2] for one in spans]
    path = jsonl(tmp_path / "t.jsonl", rows)
    asked = ("--train", path, "--label", "t", "--option", "keep=words,spans,t", "--name", "tags", "--json")
    done = seqmlm("finetune", model, *asked, "--set", "epochs=1", "--rivals", "off")
    assert done.code == 0, done.err
    assert done.json["accuracy"] > 0


def test_what_is_another_run_is_not_written_over(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    path = jsonl(tmp_path / "t.jsonl", ROWS)
    folder = workspace / "runs" / "english"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("domain: text\n")
    asked = ("finetune", models["text"], "--train", path, "--label", "y", *BRIEF)
    for more in ((), ("--resume",)):
        seqmlm(*asked, "--name", "english", *more).refused(4, "is another run")
    assert [one.name for one in folder.iterdir()] == ["config.yaml"]
    seqmlm(*asked, "--name", "z", "--seeds", "2").ok()
    shutil.rmtree(workspace / "runs" / "z")
    seqmlm(*asked, "--name", "z", "--seeds", "2").refused(4, "z-seed0")
    seqmlm(*asked, "--name", "one").ok()
    begun = workspace / "runs" / "one" / "finetune.yaml"
    begun.write_text(begun.read_text().replace("patience: 4\n", ""))  # before that could be said
    seqmlm(*asked, "--name", "one", "--resume").ok()
    begun.write_text(begun.read_text().replace("patience: 4\n", ""))
    seqmlm(*asked, "--name", "one", "--resume", "--set", "patience=5").refused(4, "other values of patience")
    jsonl(path, ROWS[:-1])
    seqmlm(*asked, "--name", "one", "--resume").refused(4, "other values of data")


def test_what_decides_when_to_stop_does_not_test(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    train, held = jsonl(tmp_path / "t.jsonl", ROWS[:40]), jsonl(tmp_path / "v.jsonl", ROWS[40:])
    asked = ("finetune", models["text"], "--train", train, "--label", "y", "--rivals", "off")
    done = seqmlm(*asked, "--valid", held, "--test", held)
    done.refused(3, "20 of 20 test examples")
    pairs = [{**row, "other": ROWS[n - 1]["text"]} for n, row in enumerate(ROWS)]
    turned = [{**row, "text": row["other"], "other": row["text"]} for row in pairs[:2]]
    train, test = jsonl(tmp_path / "p.jsonl", pairs), jsonl(tmp_path / "q.jsonl", turned)
    asked = ("finetune", models["text"], "--train", train, "--test", test, "--label", "y", "--pair", "other")
    seqmlm(*asked, "--rivals", "off").refused(3, "2 of 2 test examples")


def test_measures_that_cannot_be_had_end_nothing(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    rows = [{**row, "v": 0.0 if n > 3 else n + 0.5} for n, row in enumerate(ROWS)]
    path = jsonl(tmp_path / "t.jsonl", rows)
    asked = (
        "finetune",
        models["text"],
        "--train",
        path,
        "--label",
        "v",
        "--task",
        "value",
        "--name",
        "zeros",
    )
    done = seqmlm(*asked, "--set", "epochs=1").ok()
    assert "spearman" in done.out
    few = ("finetune", models["text"], "--train", jsonl(path, ROWS), "--label", "y", "--shots", "1")
    seqmlm(*few, "--name", "few", "--set", "epochs=1").ok()


def test_a_fine_tuned_model_is_no_beginning_of_a_training(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    path = jsonl(tmp_path / "t.jsonl", ROWS)
    asked = ("finetune", models["text"], "--train", path, "--label", "y", *BRIEF)
    seqmlm(*asked, "--name", "learnt").ok()
    done = seqmlm(
        "train", "--domain", "text", path, "--init", "learnt", "--max-steps", "1", "--name", "again"
    )
    done.refused(2, "was fine-tuned")


def test_what_stands_in_two_documents_keeps_them_together(
    models: dict[str, Path], workspace: Path, tmp_path: Path, seqmlm: Run
) -> None:
    rows = [{**row, "doc": f"d{n // 6}"} for n, row in enumerate(ROWS)]
    rows += [{**ROWS[0], "doc": f"d{n}"} for n in range(3)]
    path = jsonl(tmp_path / "t.jsonl", rows)
    asked = ("finetune", models["text"], "--train", path, "--label", "y", "--option", "document_field=doc")
    done = seqmlm(*asked, "--name", "docs", *BRIEF, "--json").ok()
    assert done.json["notes"] == {}
    table = pq.read_table(workspace / "runs/docs/predictions.parquet").to_pylist()
    together = {f"d{n}" for n in range(3)}
    assert len(together & {row["group"] for row in table}) in (0, 3)
    assert len(table) == done.json["test"]
    seqmlm(*asked[:2], "--class", f"a={path}", "--class", f"b={path}").refused(2, "names a file twice")
