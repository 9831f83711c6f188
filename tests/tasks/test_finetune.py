"""Fine-tuning through its command: every kind of label, what is trained, kills, and input that is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fork_server import Finished, Run
from safetensors.torch import load_file
from text_models import text_model
from time_limits import FakeTime
from tiny_models import random_model, saved
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer
from written import jsonl
from written import rows as read

from seqmlm.data.examples import Example
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.tags import tagged
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.templates import TemplateTokenizer
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.types import Encoding
from seqmlm.finetuning import worth
from seqmlm.finetuning.cases import units_of
from seqmlm.finetuning.table import Columns
from seqmlm.inference.pieces import HeadCard, pieces, pieces_of_pair, pieces_read_together
from seqmlm.tasks import deadline
from seqmlm.training.observers import Recorder

Rows = Sequence[dict[str, Any]]
BRIEF = "--rivals off --set epochs=1"
WORDS = ["the", "cat", "sees", "a", "dog", "and", "so", "no", "dogs", "bark", "loudly", "here"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    protein = saved(random_model("protein", ResidueTokenizer(), spread=4), folder / "protein")
    return {"text": text_model(folder / "text"), "protein": protein}


def sentences(n: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[WORDS[k] for k in rng.integers(0, len(WORDS), rng.integers(4, 9))] for _ in range(n)]


class Teach:
    """Fine-tunes a small model, on rows in `t.jsonl` or on files, in the workspace `home`."""

    def __init__(self, seqmlm: Run, models: dict[str, Path], home: Path) -> None:
        self.seqmlm, self.models, self.home, self.file = seqmlm, models, home, home / "t.jsonl"

    def __call__(
        self, data: Rows | Sequence[object], options: str, *more: object, model: str = "text"
    ) -> Finished:
        if data and isinstance(data[0], dict):
            data = ("--train", jsonl(self.file, data))
        return self.seqmlm("finetune", self.models[model], *data, *options.split(), *more)

    def predict(self, name: str, *words: object) -> list[Any]:
        """The rows of predictions."""
        self.seqmlm("predict", name, *words, "--out", self.home / "p.jsonl").ok()
        return read(self.home / "p.jsonl")

    def kept(self, name: str) -> list[dict[str, Any]]:
        """The predictions of the test data that a run keeps."""
        return list(pq.read_table(self.home / "runs" / name / "predictions.parquet").to_pylist())

    def head(self, name: str) -> dict[str, Any]:
        """What a model's card says of its head."""
        return dict(json.loads((self.home / "runs" / name / "model/seqmlm.json").read_text())["head"])


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of resamplings, which tests/evaluation tests."""
    for name in ("worth", "difference"):
        monkeypatch.setattr(worth, name, partial(getattr(worth, name), draws=100))


@pytest.fixture
def teach(seqmlm: Run, models: dict[str, Path], tmp_path: Path) -> Teach:
    return Teach(seqmlm, models, tmp_path)


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
def test_labels_are_learnt_judged_kept_and_predicted(kind: str, tune: str, teach: Teach) -> None:
    model, data = "protein" if kind == "tags" else "text", labelled(kind, teach.home)
    learns = kind in ("class", "files") and tune in ("all", "none")
    beside = learns or tune == "all"
    asked = f"--name learnt --tune {tune} --json --set epochs={12 if learns else 3}"
    done = teach(data, asked if beside else f"{asked} --rivals off", model=model).ok().json
    primary = PRIMARY.get(kind, "accuracy")
    low, high = done["intervals"][primary]
    assert low <= done[primary] <= high
    assert not beside or {"most frequent"} < set(done["rivals"])
    table = teach.kept("learnt")
    assert table
    folders = (teach.models[model], teach.home / "runs/learnt/model")
    parent, own = (load_file(one / "model.safetensors") for one in folders)
    moved = {name for name in parent if not torch.equal(parent[name], own[name])}
    if tune == "all":
        assert any("embeddings" in name for name in moved)
    elif tune == "none":
        assert not moved
    else:
        assert moved
        assert not [name for name in moved if "embeddings" in name or "decoder" in name]
        assert tune != "last:1" or not [name for name in moved if "layers.0" in name]
    if learns:
        assert done["accuracy"] > done["rivals"]["most frequent"]["accuracy"] + 0.05
    rows = teach.predict("learnt", data[1] if data[0] == "--train" else teach.home / "yes.txt")
    if kind in ("class", "pair", "bi"):
        of = {row["id"]: row["p"]["yes"] for row in rows}
        assert all(one["p"]["yes"] == pytest.approx(of[one["id"]], abs=1e-4) for one in table)
    assert kind != "tags" or len(rows) == 80 * 12
    assert all("prediction" in row for row in rows)


def test_two_fine_tunings_are_compared_by_their_predictions(teach: Teach) -> None:
    data, options = labelled("class", teach.home), "--rivals off --json --tune none --name"
    whole, few = (teach(data, f"{options} {own}").ok().json for own in ("whole", "few --shots 8"))
    compare = ("runs", "compare", "--metric", "macro_f1", "whole")
    found = teach.seqmlm(*compare, "few", "--json").ok().json
    assert found["difference"] == pytest.approx(whole["macro_f1"] - few["macro_f1"])
    teach(data, f"{options} other --set seed=1").ok()
    teach.seqmlm(*compare, "other").refused(2, "on different records")


@pytest.mark.parametrize("kind", ["class", "tags"])
def test_transformers_predicts_what_seqmlm_predicts(kind: str, teach: Teach) -> None:
    data, plainly = labelled(kind, teach.home), teach.home / "plain"
    model = "protein" if kind == "tags" else "text"
    teach(data, "--name learnt --rivals off --set epochs=3 --tune lora:2", model=model).ok()
    teach.seqmlm("models", "export", "learnt", plainly).ok()
    rows = teach.predict("learnt", data[1])
    auto = AutoModelForTokenClassification if kind == "tags" else AutoModelForSequenceClassification
    plain, tokenizer = auto.from_pretrained(plainly).eval(), AutoTokenizer.from_pretrained(plainly)
    lines = Path(str(data[1])).read_text().splitlines()
    texts = lines[1::2] if kind == "tags" else [json.loads(line)["text"] for line in lines]
    with torch.inference_mode():
        logits = [plain(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    found = torch.cat([one[1:-1] for one in logits]) if kind == "tags" else torch.stack(logits)
    names = [plain.config.id2label[number] for number in range(plain.config.num_labels)]
    told = [[row["p"][name] for name in names] for row in rows]
    np.testing.assert_allclose(found.softmax(-1).numpy(), told, atol=1e-5)


def test_boosting_finds_what_only_a_table_knows(teach: Teach) -> None:
    sizes = np.random.default_rng(0).normal(size=200).tolist()
    texts = [" ".join(words) for words in sentences(200)]
    rows = [{"id": f"r{n}", "text": texts[n], "y": "ab"[int(one > 0)]} for n, one in enumerate(sizes)]
    table = [
        {"id": row["id"], "size": one, "y": "", "again": row["y"], "renamed": 1 + "ba".index(row["y"])}
        for row, one in zip(rows, sizes, strict=True)
    ]
    beside = jsonl(teach.home / "c.jsonl", table[:-2])
    ran = teach(rows, "--label y --tune none --json --name beside", "--table", beside).ok()
    assert "fitting baselines on the same examples" in ran.err  # it takes time, and is no training
    done = ran.json
    assert done["rivals"]["boosted columns"]["accuracy"] > 0.9 > done["accuracy"]
    assert done["lead"]["over"] == "boosted columns"
    assert done["over_columns"]["this model"]["high"] < 0 < done["rivals"]["model and columns"]["accuracy"]
    assert {text: n for text, n in done["notes"].items() if "--table" in text} == {
        "an example without a row in --table: its columns are missing": 2,
        "the column 'y' of --table is the label, left out": 1,
        "the column 'again' of --table is the label, left out": 1,
        "the column 'renamed' of --table is the label, left out": 1,
    }
    teach(rows, "--label y --rivals off", "--table", beside).refused(2, "omit one of the two")
    data = labelled("entities", teach.home)
    teach(data, "", "--table", beside).refused(2, "are entities")
    twice = [{**row, "y": 2 * one} for row, one in zip(rows, sizes, strict=True)]
    done = teach(twice, "--label y --tune none --json --name value", "--table", beside).ok().json
    assert done["rivals"]["boosted columns"]["spearman"] > 0.9 > done["over_columns"]["this model"]["low"]
    jsonl(beside, [{"id": row["id"], "copied": row["y"]} for row in twice])
    teach(twice, "--label y", "--table", beside).refused(3, "no column besides ids and labels")
    jsonl(beside, [{**row, "id": f"x{n}"} for n, row in enumerate(table)])
    teach(twice, "--label y", "--table", beside).refused(3, "no id in this table")


@pytest.mark.parametrize(
    ("filled", "n", "odd", "left"),
    [
        (40, 40, 0, False),
        (20, 40, 0, False),
        (19, 38, 0, True),  # few go together by chance
        (40, 81, 0, True),
        (40, 40, 1, True),
    ],
)
def test_a_label_by_other_names_is_no_column(
    filled: int, n: int, odd: int, left: bool, tmp_path: Path
) -> None:
    card = HeadCard(kind="class", label="y", names=("no", "yes"))
    own = [
        Example(record=Record(id=f"r{k}", raw="x", source="f", line=1), label=card.names[k % 2])
        for k in range(n)
    ]
    rows = [{"id": f"r{k}", "size": k, "is": (k + (k < odd)) % 2 if k < filled else None} for k in range(n)]
    parts: Any = {"train": own[: n // 2], "test": own[n // 2 :]}
    found = Columns(jsonl(tmp_path / "t.jsonl", rows), card, parts, Problems())
    assert ("is" in found.names, "size" in found.names) == (left, True)


def test_a_model_that_has_learnt_nothing_says_so(teach: Teach) -> None:
    rng = np.random.default_rng(0)
    rows = [{"text": " ".join(words), "y": "ab"[rng.integers(2)]} for words in sentences(60)]
    done = teach(rows, "--label y --set epochs=1").ok()
    assert re.search("; (equal to|clearly worse than|not clearly (better|worse) than) ", done.out)
    assert "clearly better than" not in done.out.replace("not clearly", "")
    few = teach(rows[:12], "--label y --name few").ok()
    assert "nothing was held out to test it" in few.out


def test_a_rival_that_cannot_be_fitted_is_named_and_not_replaced(teach: Teach) -> None:
    """No unit occurs twice in training: a bag of units has nothing to read."""
    rows = [{"text": "".join(words) + str(n), "y": "ab"[n % 2]} for n, words in enumerate(sentences(280))]
    done = teach(rows, "--label y --tune none --name bagless").ok()
    answer = " ".join(done.out.split())
    assert "; bags of units could not be fitted: no unit occurs in two examples" in answer
    told = {line.split("\t")[0]: line.split("\t")[1:] for line in done.out.splitlines() if "\t" in line}
    assert told["bags of units"][0] == "could not be fitted: no unit occurs in two examples"
    assert set(told["bags of units"][1:]) == {"-"}
    page = (teach.home / "runs/bagless/training.html").read_text()
    assert page.count("could not be fitted: no unit occurs in two examples") > 1, "head and table"
    found = teach(rows, "--label y --tune none --json --name again").ok().json
    assert found["unfitted"].keys() == {"bags of units"}
    assert found["rivals"].keys() == {"most frequent", "unit at each place"}
    rows = [{"text": "the cat sees", "y": "ab"[n % 2]} for n in range(60)] + rows[:20]
    found = teach(rows, "--label y --tune none --json --name unequal").ok().json
    assert found["unfitted"] == {"unit at each place": "examples differ in length"}
    assert "bags of units" in found["rivals"]


def test_rivals_read_the_units_of_the_model() -> None:
    """Lines that differ in a block's number alone are one template to the model, and to its rivals."""
    lines = [f"received block blk_{n} of size {n * 7}" for n in range(100, 140)]
    tokenizer = TemplateTokenizer.train([LogLines(lines=tuple(lines))])
    found = [units_of(tokenizer, tokenizer.encode(LogLines(lines=(line,)))) for line in lines]
    assert len({*map(tuple, found)}) == 1
    assert units_of(ResidueTokenizer(), ResidueTokenizer().encode("MKV")) == ["M", "K", "V"]


def test_of_a_rare_class_the_ranking_decides(teach: Teach) -> None:
    for nth, primary in ((8, "auroc"), (4, "accuracy")):
        rows = [{"text": " ".join(words), "y": "ab"[n % nth == 0]} for n, words in enumerate(sentences(200))]
        done = teach(rows, f"--label y --tune none --name {primary} --json").ok().json
        assert done["primary"] == primary
        assert done["rivals"]["most frequent"]["auroc"] == 0.5


@pytest.mark.parametrize(
    ("kind", "tune", "steps"), [("class", "all", (1, 3, 6)), ("class", "lora:2", (3,)), ("bi", "all", (3,))]
)
def test_killed_at_any_step_and_resumed_it_reaches_the_same_weights(
    kind: str, tune: str, steps: tuple[int, ...], teach: Teach, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = labelled(kind, teach.home)
    options = f"--tune {tune} --rivals off --set epochs=2 --set tokens_per_step=200 --name"
    teach(data, f"{options} whole").ok()
    on_step = Recorder.on_step
    for step in steps:

        def stopping(recorder: Recorder, report: Any, step: int = step) -> None:
            on_step(recorder, report)
            if report.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "on_step", stopping)
            done = teach(data, f"{options} at{step}")
        assert done.code == 143
        assert "--resume" in done.err
        teach(data, f"{options} at{step}").refused(4)  # not by chance
        teach(data, f"{options} at{step} --resume").ok()
        whole, killed = (teach.home / "runs" / name / "model" for name in ("whole", f"at{step}"))
        for name in ("model.safetensors", "head.safetensors"):
            assert (killed / name).read_bytes() == (whole / name).read_bytes()


def test_trainings_share_a_time_limit_and_rivals_that_have_none_left_are_left_out(
    teach: Teach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clock that moves by ten seconds at each look; a resumed run with more time fits the rivals."""
    data = [{"text": " ".join(words), "z": "dog" in words} for words in sentences(80)]
    options = "--label z --seeds 2 --name timed --json --set epochs=1"
    with monkeypatch.context() as patch:
        patch.setattr(deadline, "time", FakeTime(tick=10.0))
        figures = teach(data, f"{options} --max-time 100s").ok().json
    cuts = json.loads((tmp_path / "runs/timed" / deadline.CUTS).read_text())["cuts"]
    starts = [cuts[f"timed-seed{seed}"] for seed in (0, 1)]
    assert starts[0]["elapsed"] + starts[0]["steps"] < 100, "the second one has time, too"
    assert starts[0]["elapsed"] < starts[1]["elapsed"]
    late = set(figures["unfitted"])
    assert late
    assert set(figures["unfitted"].values()) == {worth.LATE}
    assert not late & set(figures["rivals"])
    again = teach(data, f"{options} --max-time 1h --resume").ok().json
    assert worth.LATE not in again.get("unfitted", {}).values()
    assert set(figures["rivals"]) < set(again["rivals"])


def test_several_trainings_are_children_of_one_run(teach: Teach) -> None:
    data = labelled("class", teach.home)
    done = teach(data, "--seeds 3 --shots 40 --json --name three", *BRIEF.split()).ok().json
    assert len(done["seeds"]) == 3
    assert done["mean"] == pytest.approx(np.mean([*done["seeds"].values()]))
    assert done["train"] == 40
    said = teach(data, "--seeds 3 --shots 40 --name three --resume", *BRIEF.split()).ok()
    assert f"{done['mean']:.3f} (sd {done['sd']:.3f}) on average of 3 seeds" in said.out + said.err
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{teach.home / 'mlflow.db'}")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    parents = [run.info.run_id for run in runs if run.info.run_name == "three"]
    assert [run.data.tags.get("mlflow.parentRunId") for run in runs].count(parents[0]) == 3
    assert {run.data.tags["kind"] for run in runs if run.info.run_name.startswith("three")} == {"training"}
    run = client.get_run(parents[0])
    compared = {"test/accuracy", "test/auroc", "test/macro_f1", "test/mean"}
    assert {name for name in run.data.metrics if name.startswith("test/")} == compared
    assert float(run.data.tags["test/sd"]) == pytest.approx(done["sd"], rel=1e-5)
    assert run.data.tags["mlflow.note.content"].startswith(
        "three:1 was trained on 40 examples to predict 'y'"
    )
    [read] = run.inputs.dataset_inputs
    assert read.dataset.name == run.data.params["data"] == Path(str(data[1])).name
    assert "training.html" in {one.path for one in client.list_artifacts(parents[0])}
    page = (teach.home / "runs" / "three" / "training.html").read_text()
    assert "loss, nats per masked token" not in page
    assert ">loss<" in page
    assert "Figures of the test data" in page


ROWS = [
    {"text": " ".join(words), "y": "yes" if "cat" in words else "no", "n": n}
    for n, words in enumerate(sentences(60))
]
BAD: dict[str, tuple[Rows, str, int, str]] = {
    "no such column": (
        ROWS,
        "--label z",
        3,
        "t.jsonl:1: no column 'z' in its first 100 lines (correct the name; there are: text, y, n)",
    ),
    "a label is missing": ([*ROWS[:5], {**ROWS[5], "y": None}], "--label y", 3, "t.jsonl:6"),
    "one class": ([{**row, "y": "a"} for row in ROWS], "--label y", 3, "one class only: 'a'"),
    "a class of one": (
        [{**ROWS[0], "y": "rare"}, *ROWS[1:]],
        "--label y",
        3,
        "class with only one example: 'rare'",
    ),
    "commas": ([{**row, "y": f"{n},5"} for n, row in enumerate(ROWS)], "--label y", 3, "write a point: 0.5"),
    "ids": ([{**row, "y": f"id{n}"} for n, row in enumerate(ROWS)], "--label y", 3, "names the records"),
    "values of words": (ROWS, "--label y --task value", 3, "t.jsonl:1"),
    "tags of records": (ROWS, "--label y --task tags", 3, "t.jsonl:1"),
    "rank 0": (ROWS, "--label y --tune lora:0", 2, "lora:R with a number above 0"),
    "too many layers": (ROWS, "--label y --tune last:9", 2, "takes 1 to 2"),
    "a CRF of classes": (ROWS, "--label y --set crf=true", 2, "CRF joins the tags"),
    "a pair of one": (ROWS, "--label y --set pairing=bi", 2, "the other one with --pair"),
    "a prompt of two": (ROWS, "--label y --pair n --head prompt", 2, "one sequence"),
    "nothing": (ROWS, "--label y --shots 0", 2, "shots must be at least 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_learnt_from_is_refused_in_a_sentence(name: str, teach: Teach) -> None:
    rows, options, code, told = BAD[name]
    teach(rows, f"{options} --name bad --rivals off").refused(code, told)
    assert not (teach.home / "runs/bad/model").exists()


def test_few_classes_are_named_with_their_counts(teach: Teach) -> None:
    names = ["good"] * 30 + ["Good"] * 22 + ["bad"] * 8
    rows = [{**row, "y": name} for row, name in zip(ROWS, names, strict=True)]
    asked = f"--label y {BRIEF} --tune none"
    done = teach(rows, f"{asked} --name named --json").ok()
    assert "class: 3 classes ('Good' 22, 'bad' 8, 'good' 30); 48 examples to train on" in done.err
    assert done.json["notes"] == {
        "a class whose name differs from another class only in upper and lower case: both are kept apart": 1
    }
    teach.models = {"people": text_model(teach.home / "people", sensitive=True)}
    done = teach(rows, f"{asked} --name people --json", model="people").ok()
    assert "class: 3 classes; 48 examples to train on" in done.err
    many = [{**row, "y": f"c{n % 11}"} for n, row in enumerate(ROWS)]
    assert "class: 11 classes; " in teach(many, f"{asked} --name many", model="people").ok().err


def test_a_class_of_one_example_may_be_left_out(teach: Teach) -> None:
    rows = [{**ROWS[0], "y": "rare"}, *ROWS[1:]]
    done = teach(rows, f"--label y {BRIEF} --rivals off --on-error skip --name left --json").ok().json
    assert done["bad"] == 1
    assert "rare" not in teach.head("left")["names"]


def test_records_that_are_in_training_do_not_test(teach: Teach) -> None:
    test = jsonl(teach.home / "test.jsonl", [*ROWS[:3], {"text": "bark bark bark dogs dogs dogs", "y": "no"}])
    asked = f"--label y {BRIEF} --test {test}"
    teach(ROWS, asked).refused(3, "3 of 4 test examples, or other members")
    teach(ROWS, asked.replace("--test", "--valid")).refused(3, "of 4 validation examples, or other members")
    message = teach(ROWS, asked).refused(3).err
    assert all(f"{test}:{line} repeats " in message for line in (1, 2, 3))
    assert re.search(rf"{re.escape(str(test))}:2 repeats \S+:2[;)]", message.replace("\n", " "))
    assert ROWS[1]["text"] not in message
    teach(ROWS, f"{asked} --set allow_overlap=true --name lax").ok()
    jsonl(test, [{"text": "so the dogs bark here and here and here", "y": "maybe"}])
    teach(ROWS, f"{asked} --name new").refused(3, "'maybe' is in no training example")


def test_models_are_used_for_what_they_are(teach: Teach) -> None:
    teach(ROWS, f"--label y {BRIEF} --name learnt").ok()
    teach.seqmlm("score", "learnt", teach.file).refused(2, "use seqmlm predict")
    teach.seqmlm("predict", teach.models["text"], teach.file).refused(2, "seqmlm finetune")
    again = ("--train", teach.file, "--label", "y", "--name", "twice")
    teach.seqmlm("finetune", "learnt", *again).refused(2, "already fine-tuned")
    train = ("train", "--domain", "text", teach.file, "--max-steps", "1", "--name", "again")
    teach.seqmlm(*train, "--init", "learnt").refused(2, "was fine-tuned")


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
    assert pieces_read_together(found, card) == [found]


def test_a_training_begins_with_what_the_frozen_encoder_knows(teach: Teach) -> None:
    """Its first loss is less than that of chance, which dropout of a fitted head would make it."""
    of = {"label": "y", "names": ("a", "b")}
    cards = [HeadCard(kind=kind, **of) for kind in ("class", "value", "tags")]
    cards.append(HeadCard(kind="value", pair="z", pairing="bi", **of))
    assert [card.config.dropout for card in cards] == [0, 0.1, 0.1, 0]
    teach(ROWS, "--label y --rivals off --name still --set epochs=0.01 --set learning_rate=1e-12").ok()
    steps = read(teach.home / "runs/still/metrics.jsonl")
    assert next(row["train/loss"] for row in steps if "train/loss" in row) < 0.9 * np.log(2)


def test_a_prompt_begins_as_zero_shot_and_learns(teach: Teach) -> None:
    template, told = "{text} so [MASK]", teach.home / "z.jsonl"
    zero = ("--template", template, "--label", "yes=cat", "--label", "no=dog", "--set", "calibration=none")
    model, path = teach.models["text"], jsonl(teach.file, ROWS)
    teach.seqmlm("zeroshot", model, path, *zero, "--out", told).ok()
    asked = "--label y --head prompt --rivals off --name"
    words = ("--set", f"template='{template}'", "--set", "words=[yes=cat,no=dog]")
    teach(ROWS, f"{asked} still --set epochs=0.01 --set learning_rate=1e-12", *words).ok()
    warmth = teach.head("still")["temperature"]
    for one, other in zip(read(told), teach.predict("still", path), strict=True):
        odds = [np.log(p["yes"] / p["no"]) for p in (one["scores"], other["p"])]
        assert odds[0] == pytest.approx(odds[1] * warmth, abs=2e-4 * warmth)
    teach(ROWS, f"{asked} moved --set epochs=2", *words).ok()
    teach(ROWS, f"{asked} none").refused(2, "--head prompt needs --set template")
    teach(ROWS, f"{asked} none --set words=[maybe=cat]", *words[:2]).refused(2, "the class 'maybe'")


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
def test_tags_of_every_scheme_are_entities(scheme: str, teach: Teach) -> None:
    data = ("--train", conll(teach.home / "t.conll", scheme))
    done = teach(data, "--name ner --rivals off --set epochs=2 --json").ok().json
    assert done["kind"] == "entities"
    assert "f1" in done
    assert teach.head("ner")["names"] == ["O", "B-PET", "I-PET"]
    found, units = (teach.predict("ner", data[1], "--level", level) for level in ("entity", "unit"))
    assert found
    for one in found:
        own = [x["p"] for x in units if x["line"] == one["line"] and one["start"] <= x["start"] < one["end"]]
        assert one["probability"] == pytest.approx(min(p["B-PET"] + p["I-PET"] for p in own), abs=1e-5)


@pytest.mark.parametrize("odd", ["\u2603", " "])
def test_a_word_without_a_token_costs_itself(odd: str, teach: Teach) -> None:
    """Unknown to a WordPiece, or blank: the sentence goes on."""
    teach.models = {"text": text_model(teach.home / "wordpiece", wordpiece=True)}
    rows = []
    for words in sentences(60):
        text = f"{odd} {' '.join(words)}"
        spans = [(0, len(odd), "X")]
        for word in words:
            start = spans[-1][1] + 1
            spans.append((start, start + len(word), "Y" if word == "cat" else "N"))
        rows.append({"text": text, "words": [odd, *words], "spans": [list(one[:2]) for one in spans]})
        rows[-1]["t"] = [one[2] for one in spans]
    done = teach(rows, f"--label t --option keep=words,spans,t --name tags --json {BRIEF}").ok()
    assert done.json["accuracy"] > 0


def test_what_is_another_run_is_not_written_over(teach: Teach) -> None:
    asked, runs = f"--label y {BRIEF} --name", teach.home / "runs"
    (runs / "english").mkdir(parents=True)
    (runs / "english/config.yaml").write_text("domain: text\n")
    for more in ("", "--resume"):
        teach(ROWS, f"{asked} english {more}").refused(4, "is a run of another kind")
    assert [one.name for one in (runs / "english").iterdir()] == ["config.yaml"]
    teach(ROWS, f"{asked} z --seeds 2").ok()
    shutil.rmtree(runs / "z")
    teach(ROWS, f"{asked} z --seeds 2").refused(4, "z-seed0")
    teach(ROWS, f"{asked} one").ok()
    begun = runs / "one/finetune.yaml"
    for more in ("", "--set patience=5"):
        begun.write_text(begun.read_text().replace("patience: 4\n", ""))  # before that could be said
        done = teach(ROWS, f"{asked} one --resume {more}")
        done.refused(4, "other values of patience") if more else done.ok()
    teach(ROWS[:-1], f"{asked} one --resume").refused(4, "of data: give the original values, or")


def test_what_decides_when_to_stop_does_not_test(teach: Teach) -> None:
    held = jsonl(teach.home / "v.jsonl", ROWS[40:])
    asked = f"--label y --rivals off --test {held}"
    teach(ROWS[:40], f"{asked} --valid {held}").refused(3, "20 of 20 test examples")
    pairs = [{**row, "other": ROWS[n - 1]["text"]} for n, row in enumerate(ROWS)]
    jsonl(held, [{**row, "text": row["other"], "other": row["text"]} for row in pairs[:2]])
    teach(pairs, f"{asked} --pair other").refused(3, "2 of 2 test examples")


def test_measures_that_cannot_be_had_end_nothing(teach: Teach) -> None:
    rows = [{**row, "v": 0.0 if n > 3 else n + 0.5} for n, row in enumerate(ROWS)]
    assert "spearman" in teach(rows, "--label v --task value --name zeros --set epochs=1").ok().out
    teach(ROWS, "--label y --shots 1 --name few --set epochs=1").ok()


def test_what_stands_in_two_documents_keeps_them_together(teach: Teach) -> None:
    rows = [{**row, "doc": f"d{n // 6}"} for n, row in enumerate(ROWS)]
    rows += [{**ROWS[0], "doc": f"d{n}"} for n in range(3)]
    done = teach(rows, f"--label y --option document_field=doc --name docs {BRIEF} --json").ok().json
    assert done["notes"] == {}
    table = teach.kept("docs")
    assert len({"d0", "d1", "d2"} & {row["group"] for row in table}) in (0, 3)
    assert len(table) == done["test"]
    twice = ("--class", f"a={teach.file}", "--class", f"b={teach.file}")
    teach(twice, "").refused(2, "names a file twice")
