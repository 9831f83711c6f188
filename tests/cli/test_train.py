"""`seqmlm train`, `score` and what surrounds them, through the command line."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from fork_server import ForkServer, Run
from mlflow.entities import Run as MlflowRun
from tiny_models import FAST

from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace

RESULT_KEYS = {
    *("run_id", "run_name", "model", "version", "domain", "steps", "resumed_from", "tokens"),
    *("train_loss", "eval_loss", "eval_bits_per_unit", "unigram_bits_per_unit"),
    *("tokens_per_second", "wall_seconds", "checkpoint"),
}


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    """Forty proteins that differ, as a user may have them: wrapped, lower case, with a stop."""
    path = tmp_path / "mine.fasta.gz"
    residues = "LAGVSERTIDPKQNFYMHWC"
    lines = []
    for number in range(40):
        sequence = "".join(residues[(7 * number + 3 * place * place) % 20] for place in range(30 + number))
        lines.append(f">p{number} a protein\n{sequence[:30]}\n{sequence[30:].lower()}*\n")
    path.write_bytes(gzip.compress("".join(lines).encode()))
    return path


def _losses(run_folder: Path) -> dict[int, float]:
    lines = map(json.loads, (run_folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def test_train_then_score_a_users_fasta(seqmlm: Run, fasta: Path, workspace: Path) -> None:
    trained = seqmlm(
        "train", "--domain", "protein", fasta, *FAST, "--name", "mine", "--max-steps", 4, "--json"
    ).ok()
    result = trained.json
    assert set(result) == RESULT_KEYS
    assert (result["steps"], result["run_name"], result["model"], result["version"]) == (4, "mine", "mine", 1)
    assert result["resumed_from"] is None
    assert math.isfinite(result["eval_bits_per_unit"])
    assert 3 < result["unigram_bits_per_unit"] < math.log2(25) + 1
    layers = "attention: every third layer is global, the others see 64 tokens"
    assert layers in trained.err
    assert list(_losses(workspace / "runs/mine")) == [1, 2, 3, 4]

    scored = seqmlm("score", "mine", fasta, "--set", "per_unit=true").ok()
    lines = scored.rows
    assert [line["id"] for line in lines] == [f"p{number}" for number in range(40)]
    first = lines[0]
    assert (first["source"], first["line"], first["units"]) == (str(fasta), 1, 30)
    bits = [unit["surprisal"] for unit in first["per_unit"]]
    assert sum(bits) == pytest.approx(-first["pll"] / math.log(2), rel=1e-5)
    assert first["score"] == first["bits_per_unit"] == pytest.approx(sum(bits) / 30, rel=1e-5)
    assert [(u["start"], u["end"]) for u in first["per_unit"]] == [(i, i + 1) for i in range(30)]

    again = seqmlm("train", "--domain", "protein", fasta, *FAST, "--name", "mine", "--max-steps", 4)
    again.refused(4, "seqmlm train --resume mine")


def _in_mlflow(task: str) -> MlflowRun:
    """The one run of a task in MLflow."""
    client = Tracker(Workspace.locate()).connect().client
    experiments = [one.experiment_id for one in client.search_experiments()]
    [run] = client.search_runs(experiments, f"tags.task = '{task}'")
    return client.get_run(run.info.run_id)  # with the models that it read and made


def _data_of(run: MlflowRun) -> tuple[str, str, str]:
    """Name, source and context of the one data set of a run."""
    [used] = run.inputs.dataset_inputs
    return used.dataset.name, json.loads(used.dataset.source)["uri"], used.tags[0].value


def test_runs_name_their_data_and_their_model(seqmlm: Run, fasta: Path, workspace: Path) -> None:
    trained = seqmlm("train", "-d", "protein", fasta, *FAST, "--name", "mine", "--max-steps", 1).ok()
    short = "is (equal to|(clearly |not clearly )?worse than|hardly better than) unit frequencies"
    assert re.search(rf"the model ({short}).*: train longer \(--max-time 1h\)", trained.err)
    training = _in_mlflow("pretrain")
    assert training.data.params["data"] == "mine.fasta.gz"
    assert _data_of(training) == ("mine.fasta.gz", str(fasta), "training")
    other = fasta.with_name("new.fasta")
    other.write_bytes(gzip.decompress(fasta.read_bytes()).replace(b"p3", b"q3"))
    folder = workspace / "proteins"
    folder.mkdir()
    other.rename(folder / other.name)
    arguments = ("score", "mine", folder, fasta, "--mode", "partition:4", "--out", workspace / "x.jsonl")
    seqmlm(*arguments, "--report", workspace / "x.html").ok()
    scoring = _in_mlflow("score")
    known = {key: scoring.data.params[key] for key in ("data", "model_name", "model_version")}
    assert known == {"data": "proteins and 1 more", "model_name": "mine", "model_version": "1"}
    assert _data_of(scoring) == ("proteins and 1 more", str(folder), "scoring")
    [made], [used] = training.outputs.model_outputs, scoring.inputs.model_inputs
    assert used.model_id == made.model_id


def test_names_of_files_of_sensitive_data_are_not_in_mlflow(seqmlm: Run, fasta: Path, workspace: Path):
    private = ("--set", "data.sensitive=true", "--name", "s", "--max-steps", 1)
    patient = fasta.rename(fasta.with_name("jane-doe.fasta.gz"))
    assert seqmlm("train", "-d", "protein", patient, *FAST, *private).code == 0
    assert not (workspace / "runs/s/predictions.txt").exists()
    training = _in_mlflow("pretrain")
    assert (training.data.params["data"], _data_of(training)[0]) == ("data", "data")
    arguments = ("score", "s", patient, "--mode", "partition:4", "--out", workspace / "x.jsonl")
    assert seqmlm(*arguments, "--report", workspace / "x.html").code == 0
    scoring = _in_mlflow("score")
    assert _data_of(scoring) == ("data", "withheld", "scoring")
    assert (scoring.data.params["model_name"], scoring.data.params["model_version"]) == ("s", "1")
    assert "jane" not in json.dumps(scoring.to_dictionary(), default=str)


def test_a_run_goes_on_where_it_was(seqmlm: Run, fasta: Path, workspace: Path) -> None:
    arguments = ("train", "-d", "protein", fasta, *FAST, "--json", "--set", "train.schedule=wsd")
    whole = seqmlm(*arguments, "--name", "whole", "--max-steps", 6).ok()
    part = seqmlm(*arguments, "--name", "part", "--max-steps", 6, "--set", "train.checkpoint_every_steps=3")
    assert part.code == 0, part.err
    # As a kill after step 3 would leave it: no later checkpoint, no result, later lines in the metrics.
    folder = workspace / "runs/part"
    (folder / "result.json").unlink()
    for late in (folder / "checkpoints").glob("step-*6"):
        for file in late.iterdir():
            file.unlink()
        late.rmdir()
    resumed = seqmlm("train", "--resume", "part", "--json").ok()
    assert resumed.json["resumed_from"] == 3
    assert resumed.json["run_id"] == part.json["run_id"]
    assert _losses(folder) == _losses(workspace / "runs/whole")
    usual = (folder / "config.yaml").stat().st_mode
    assert all(path.stat().st_mode == usual for path in folder.rglob("*.safetensors")), "as the umask says"
    assert resumed.json["eval_loss"] == whole.json["eval_loss"]


@pytest.mark.parametrize(
    "content", ["", "garbage", "[1]", '{"limits": {}}', '{"result": {"x": 1}}', "[" * 100_000]
)
def test_a_result_gone_bad_is_named(seqmlm: Run, fasta: Path, workspace: Path, content: str) -> None:
    folder = workspace / "runs/r"
    folder.mkdir(parents=True)
    settings = seqmlm("train", "-d", "protein", fasta, *FAST, "--max-steps", 1, "--print-config").out
    (folder / "config.yaml").write_text(settings)
    (folder / "result.json").write_text(content)
    seqmlm("train", "--resume", "r").refused(4, "result.json is not the result of a training", "--resume r")
    assert (folder / "result.json").read_text() == content


def test_a_registry_that_cannot_be_used_is_said_before_data_are_read(
    seqmlm: Run, fasta: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("data were read")

    monkeypatch.setattr("seqmlm.training.corpus.CorpusReader.corpus", read)
    monkeypatch.setenv("SEQMLM_DATABASE_URL", "postgresql+psycopg://u:secret@127.0.0.1:1/none")
    done = seqmlm("train", "-d", "protein", fasta, *FAST, "--name", "early")
    done.refused(4, "the registry at postgresql+psycopg://u:***@127.0.0.1:1/none cannot be used")
    assert "secret" not in done.err
    assert len(done.err.splitlines()) == 1
    assert not (workspace / "runs/early").exists()


def test_a_fresh_server_is_said_before_data_are_read(
    seqmlm: Run, fasta: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    monkeypatch.setenv("SEQMLM_DATABASE_URL", postgres_url)
    arguments = ("train", "-d", "protein", fasta, *FAST, "--max-steps", 1, "--name", "early")
    seqmlm(*arguments).refused(4, "run `seqmlm db upgrade` once")
    assert not (workspace / "runs").exists(), "nothing was prepared"
    assert seqmlm("db", "upgrade").code == 0
    again = seqmlm(*arguments).ok()
    assert "model early:1" in again.err


def test_a_run_has_its_result_when_it_has_ended_in_mlflow(
    seqmlm: Run, fasta: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two must leave a run that is gone on with, or it would be RUNNING for ever."""

    class Killed(BaseException): ...

    def kill(*_: Any) -> None:
        ledger = json.loads((workspace / "runs" / "one" / "tracking.json").read_text())
        assert (ledger["status"], ledger["complete"]) == ("FINISHED", True)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("seqmlm.training.run.TrainingRun.finish", kill)
        with pytest.raises(Killed):
            seqmlm("train", "--domain", "protein", fasta, "--name", "one", "--max-steps", 2, *FAST)
    assert seqmlm("train", "--resume", "one").code == 0
    [run] = seqmlm("runs", "list", "--json").json
    assert run["status"] == "FINISHED"
    assert [entry["version"] for entry in seqmlm("models", "list", "--json").json] == [1]


def test_an_extended_run_leaves_its_first_version(seqmlm: Run, fasta: Path, workspace: Path) -> None:
    arguments = ("train", "-d", "protein", fasta, *FAST, "--name", "e", "--resume", "auto", "--json")
    first = seqmlm(*arguments, "--max-steps", 2)
    assert first.json["version"] == 1, first.err
    weights = (workspace / "runs/e/model/model.safetensors").read_bytes()
    again = seqmlm(*arguments, "--max-steps", 2)
    assert again.json == first.json
    longer = seqmlm(*arguments, "--max-steps", 3)
    assert (longer.json["version"], longer.json["resumed_from"]) == (2, 2), longer.err
    assert (workspace / "runs/e/model/model.safetensors").read_bytes() == weights
    assert seqmlm("score", "e:2", fasta).out != seqmlm("score", "e:1", fasta).out


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_standard_input_is_data_too(
    name: str, seqmlm: Run, fasta: Path, monkeypatch: pytest.MonkeyPatch, workspace: Path
) -> None:
    text = gzip.decompress(fasta.read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    seqmlm("train", "-d", "protein", name, *FAST, "--name", "piped", "--max-steps", 1, "--json").ok()
    assert _data_of(_in_mlflow("pretrain"))[0] == "standard input"


def test_named_corpora_are_mixed(seqmlm: Run, tmp_path: Path) -> None:
    big, small = tmp_path / "big.txt", tmp_path / "small.txt"
    big.write_text("".join(f"the cat number {n} sleeps\n" for n in range(300)))
    small.write_text("".join(f"der hund nummer {n} bellt\n" for n in range(30)))
    arguments = ("train", "-d", "text", f"en={big}", "--data", f"de={small}", *FAST, "--max-steps", 1)
    done = seqmlm(*arguments, "--name", "mixed", "--json").ok()
    assert "en: " in done.err
    assert "de: " in done.err
    dry = seqmlm(*arguments, "--dry-run", "--json").json
    assert dry["corpora"] == "en, de"


def test_static_masks_report_their_memorization_gap(seqmlm: Run, fasta: Path, workspace: Path) -> None:
    static = ("--set", "masking.dynamic=false", "--max-steps", 1, "--name", "static")
    seqmlm("train", "-d", "protein", fasta, *FAST, *static, "--json").ok()
    lines = map(json.loads, (workspace / "runs/static/metrics.jsonl").read_text().splitlines())
    assert [line for line in lines if "train/memorization_gap" in line]


def test_text_trains_its_own_tokenizer_and_exports(seqmlm: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "notes.txt"
    corpus.write_text(
        "".join(
            f"the {a} cat sees a {b} dog .\n" for a in ["small", "big", "old"] for b in ["red", "blue"] * 20
        )
    )
    seqmlm("train", "-d", "text", corpus, *FAST, "--name", "notes", "--max-steps", 2, "--json").ok()
    seqmlm("models", "export", "notes", "--out", tmp_path / "plain").ok()
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "plain")
    logits = model(**tokenizer("the small [MASK] sees", return_tensors="pt")).logits
    assert logits.shape[-1] >= len(tokenizer)

    seqmlm(
        *("train", "-d", "text", corpus, "--init", "notes", "--name", "more", "--max-steps", 1, "--json"),
        *("--set", "train.evaluation_records=5"),
    ).ok()
    shown = seqmlm("models", "show", "more", "--json")
    assert "notes:1" in shown.out
    assert shown.json["calibrations"].startswith("calibrated level sentence: one-pass")


def test_dry_run_and_printed_config_write_no_run(seqmlm: Run, fasta: Path, workspace: Path) -> None:
    estimated = seqmlm("train", "-d", "protein", fasta, *FAST, "--max-steps", 10, "--dry-run", "--json").ok()
    report = estimated.json
    assert report["records"] == 40
    assert report["steps"] == 10
    assert report["size"] == "tiny"
    assert "size:" not in estimated.err, "it was named"
    assert report["fill"] > 0.3
    printed = seqmlm("train", "-d", "protein", "--print-config", "--set", "model.layers=nearby")
    assert "masker: uniform.v1" in printed.out
    assert "layers: nearby.v1" in printed.out
    assert "size: small" in printed.out
    assert "  # stop after this many passes over the data.\n  epochs: null" in printed.out
    spread = seqmlm("train", "-d", "logs", "--print-config", "--set", "data.calibrate_on=spread").out
    assert yaml.safe_load(spread)["data"]["calibrate_on"] == "spread"
    unknown = seqmlm("train", "-d", "logs", "--print-config", "--set", "data.calibrate_on=newest")
    unknown.refused(2, "'data.calibrate_on' must be one of latest, spread")
    timed = seqmlm("train", "-d", "protein", "--print-config", "--max-time", "5m").out
    assert "size: small" not in timed
    assert "\n# model.size: measured when the training starts, since train.max_time is set" in timed
    assert yaml.safe_load(timed)["train"]["learning_rate"] is None
    assert not [path for path in (workspace / "runs").iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["missing.fasta", "no such file"]),
        (b">a\nACD1E\n", ["bad.fasta:1", "'1'", "alphabet", "--set data.on_error=skip"]),
        (gzip.compress(b">a\nACDEFG\n" * 500, mtime=0)[:-9], ["bad.fasta", "gzip"]),
    ],
    ids=["missing", "wrong letter", "gzip cut short"],
)
def test_bad_input_is_named_and_takes_no_name(
    seqmlm: Run, tmp_path: Path, content: bytes | None, words: list[str]
) -> None:
    path = tmp_path / ("bad.fasta" if content is not None else "missing.fasta")
    if content is not None:
        path.write_bytes(content)
    seqmlm("train", "-d", "protein", path, *FAST, "--name", "x", "--max-steps", 1).refused(3, *words)
    assert not (tmp_path / "runs/x").exists()


def test_quarantine_keeps_bad_records_aside(seqmlm: Run, tmp_path: Path, workspace: Path) -> None:
    path = tmp_path / "some.fasta"
    path.write_text(
        "".join(f">p{i}\n{'ACDEFGHIKLMNPQRSTVWY'[i % 7 :]}LLKK{'AC' * (i % 5)}\n" for i in range(30))
        + ">odd\nAC1\n"
    )
    arguments = ("train", "-d", "protein", path, *FAST, "--name", "q", "--max-steps", 1)
    aside = ("--set", "data.on_error=quarantine")
    seqmlm(*arguments, *aside, "--json").ok()
    seqmlm(*arguments[:-3], "r", "--max-steps", 1, *aside).ok()
    both = [(workspace / f"runs/{name}/quarantine.jsonl").read_bytes() for name in "qr"]
    assert both[0] == both[1]  # also where the data were prepared before
    [letter] = [json.loads(line) for line in (workspace / "runs/q/quarantine.jsonl").read_text().splitlines()]
    assert (letter["source"], letter["line"], letter["raw"]) == (str(path), 61, "AC1")


@pytest.mark.slow
def test_sigterm_saves_marks_killed_and_the_run_resumes(
    fasta: Path, tracked_workspace: Path, forks: ForkServer
) -> None:
    workspace = tracked_workspace
    child = forks.start("train", "-d", "protein", fasta, *FAST, "--name", "t", "--max-steps", 100000)
    metrics = workspace / "runs/t/metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and metrics.read_text().count("\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.1)
    child.signal(signal.SIGTERM)
    child.wait(300).refused(143)
    from seqmlm.tracking import Tracker
    from seqmlm.workspace import Workspace

    [run] = Tracker(Workspace.locate()).runs()
    assert run.status == "KILLED"
    assert list((workspace / "runs/t/checkpoints").glob("step-*"))
