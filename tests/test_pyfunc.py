"""What a training registers is loaded by MLflow, and gives what the command gives."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
from fork_server import Run
from text_models import text_model
from tiny_models import residues

import seqmlm as package
from seqmlm import plugins
from seqmlm.pyfunc import PRIVATE, Answers, _load_pyfunc


def test_a_registered_model_is_one_of_mlflow(fasta: Path, seqmlm: Run, tracked_workspace: Path) -> None:
    import mlflow

    train = ("train", fasta, "--domain", "protein", "--name", "mine", "--size", "tiny", "--max-steps", "2")
    seqmlm(*train, "--set", "train.evaluation_records=8", "--set", "data.calibration=0.3").ok()
    text = (tracked_workspace / "runs" / "mine" / "model" / "MLmodel").read_text()
    assert "loader_module: seqmlm.pyfunc" in text
    assert str(tracked_workspace) not in text
    mlflow.set_tracking_uri(f"sqlite:///{tracked_workspace / 'mlflow.db'}")
    table = pd.DataFrame({"text": [residues(20), residues(31)]})
    expected = package.load("mine").score(table, fpr=0.5)
    loaded = mlflow.pyfunc.load_model("models:/mine@champion", model_config={"fpr": 0.5})
    found = loaded.predict(table)
    assert found["score"].tolist() == expected["score"].tolist()
    assert found["p_value"].tolist() == expected["p_value"].tolist()
    assert found["alarm"].tolist() == expected["alarm"].tolist()
    assert "alarm" not in mlflow.pyfunc.load_model("models:/mine/1").predict(table)
    assert [one.name for one in loaded.metadata.signature.inputs] == ["id", "text"]
    assert loaded.predict(loaded.input_example)["score"].notna().all()
    with pytest.raises(mlflow.MlflowException, match=r"missing inputs.*text"):
        loaded.predict(table.rename(columns={"text": "words"}))


def test_of_sensitive_data_p_values_alone_are_given(seqmlm: Run, tracked_workspace: Path) -> None:
    plugins.domain("text").sample.draw(Path(tracked_workspace / "known"), n=300)
    train = ("train", tracked_workspace / "known" / "text.txt", "--domain", "text", "--name", "mine")
    steps = ("--size", "tiny", "--max-steps", "2", "--set", "train.evaluation_records=20")
    seqmlm(*train, *steps, "--set", "data.sensitive=true").ok()
    found = Answers(package.load("mine"), {}).predict(pd.DataFrame({"text": ["the dog sees the cat"]}))
    assert {"p_value"} <= set(found) <= set(PRIVATE)


def test_a_fine_tuned_model_predicts(workspace: Path) -> None:
    head = {"kind": "class", "label": "pet", "names": ["cat", "dog"]}
    folder = text_model(workspace, head=head)
    table = pd.DataFrame({"text": ["a dog barks", "no cats sleep here"]})
    found = _load_pyfunc(str(folder)).predict(table)
    assert found["prediction"].tolist() == package.load(folder).predict(table)["prediction"].tolist()
    with pytest.raises(package.DataError, match="the input is not a table"):
        _load_pyfunc(str(folder)).predict(["a dog"])


def test_spark_gives_what_the_command_gives(
    fasta: Path, seqmlm: Run, tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = pytest.importorskip("pyspark.sql", exc_type=ImportError)
    pytest.importorskip("pyspark.sql.functions", exc_type=ImportError)
    import mlflow

    train = ("train", fasta, "--domain", "protein", "--name", "mine", "--size", "tiny", "--max-steps", "2")
    seqmlm(*train, "--set", "train.evaluation_records=8").ok()
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    table = pd.DataFrame({"text": [residues(20), residues(31), residues(25)]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Spark and what it loads
        spark = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        try:
            mlflow.set_tracking_uri(f"sqlite:///{tracked_workspace / 'mlflow.db'}")
            folder = str(tracked_workspace / "runs" / "mine" / "model")
            score = mlflow.pyfunc.spark_udf(spark, folder, result_type="score double", env_manager="local")
            found = [
                row.own.score
                for row in spark.createDataFrame(table)
                .select(score(sql.functions.struct("text")).alias("own"))
                .collect()
            ]
        finally:
            spark.stop()
    assert found == package.load("mine").score(table)["score"].tolist()
