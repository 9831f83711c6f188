"""Python returns exactly what the command line returns; its public names are listed, documented and light."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fork_server import Run
from log_models import NORMAL, write_log_model
from text_models import text_model
from tiny_models import SHAPE, random_model, residues, saved

import seqmlm as package
from seqmlm import plugins
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.parsing import word_list

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "python.md"

SURFACE = word_list(
    "DataError Detector Embedder Model NotFiniteError RowFrame Scorer SeqmlmError StateError TrainingError "
    "UsageError load train"
)
ERRORS = {name for name in SURFACE if name.endswith("Error")}
METHODS = word_list("detector embed embedder fill generate predict run score structure variants zeroshot")

FILES = {
    "text": "text.txt",
    "protein": "protein.fasta",
    "dna": "dna.fasta",
    "code": "code",
    "ehr": "meds",
    "logs": "service.log",
}
"""Of each field, the data inside its sample's folder."""


def rows(path: Path) -> pd.DataFrame:
    return pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])


def equal(frame: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Fail where two frames differ in a digit."""
    pd.testing.assert_frame_equal(pd.DataFrame(frame), expected, check_exact=True)


@pytest.fixture
def protein(workspace: Path) -> Path:
    return saved(random_model("protein", ResidueTokenizer(), spread=1), workspace / "protein")


@pytest.fixture
def sequences() -> list[str]:
    return [residues(length) for length in range(12, 40)]


# The surface


def test_public_names_are_these() -> None:
    assert package.__all__ == sorted(SURFACE)
    assert {*SURFACE, "__version__"} <= {*dir(package)}
    methods = [name for name, _ in inspect.getmembers(package.Model, callable) if not name.startswith("_")]
    assert methods == [*METHODS]
    with pytest.raises(AttributeError, match="no attribute 'sampel'"):
        _ = package.sampel


def test_types_are_declared_for_every_public_name() -> None:
    stub = Path(package.__file__).with_suffix(".pyi").read_text()
    assert sorted(re.findall(r" as (\w+)$", stub, re.MULTILINE)) == sorted(SURFACE)


def test_an_import_is_light() -> None:
    code = "import sys, seqmlm; dir(seqmlm); print({'torch', 'pandas', 'numpy', 'sklearn'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# The same numbers


@pytest.mark.parametrize("field", FILES)
def test_a_field_trained_and_scored_as_the_command_does(
    field: str, seqmlm: Run, tracked_workspace: Path
) -> None:
    for seed, (name, number) in enumerate({"known": 300 if field == "ehr" else 60, "new": 20}.items()):
        plugins.domain(field).sample.draw(tracked_workspace / name, n=number, seed=seed)
    known, data = (tracked_workspace / name / FILES[field] for name in ("known", "new"))
    settings = {"train.evaluation_records": 8, "train.learning_rate": 5e-3, "model.overrides": SHAPE}
    model = package.train(known, domain=field, name="own", size="tiny", max_steps=2, settings=settings)
    assert model.domain == field
    out = tracked_workspace / "rows.jsonl"
    seqmlm("score", "own", data, "--mode", "one-pass", "--out", out).ok()
    found = model.score(data, mode="one-pass")
    equal(found, rows(out))
    assert len(found)
    assert found.attrs["sensitive"] == (field == "ehr")
    assert ("not shown" in found._repr_html_()) == (field == "ehr")


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda x: pd.DataFrame({"text": x, "n": 1})])
def test_strings_are_scored_as_those_of_a_file(
    kind: Any, protein: Path, sequences: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "p.fasta"
    file.write_text("".join(f">{n}\n{one}\n" for n, one in enumerate(sequences)))
    model = package.load(protein)
    found = model.score(kind(sequences), mode="exact", per_unit=True)
    assert found["line"].tolist() == [*range(1, len(sequences) + 1)]
    assert set(found["source"]) == {"data"}
    left_out = ["id", "source", "line"]
    expected = model.score([file], mode="exact", per_unit=True)
    equal(found.drop(columns=left_out), pd.DataFrame(expected.drop(columns=left_out)))


def test_a_column_of_a_table_is_named(protein: Path, sequences: list[str]) -> None:
    model = package.load(protein)
    table = pd.DataFrame({"name": [*map(str, range(28))], "sequence": sequences})
    found = model.score(table, options={"text": "sequence", "id_column": "name"})
    equal(found[["score"]], pd.DataFrame(model.score(sequences)[["score"]]))


def test_strings_need_no_column_of_the_training(workspace: Path) -> None:
    head = {"kind": "class", "label": "mood", "names": ["bad", "good"]}
    stored = {"column": "Review text", "field": "Review text", "id_column": "number"}
    folder = text_model(workspace, head=head, reading=stored)
    model, own = package.load(folder), ["a dog barks", "no cats"]
    table = pd.DataFrame({"Review text": own, "number": [7, 8]})
    expected = model.predict(table)
    assert expected["id"].tolist() == ["7", "8"]
    for data in (own, np.array(own), table["Review text"]):
        equal(model.predict(data)[["p"]], pd.DataFrame(expected[["p"]]))
        assert model.embed(data).vectors().shape[0] == 2
    found = package.Scorer(str(folder), "predict")({"text": own})
    assert found["probability"] == expected["probability"].tolist()
    equal(model.predict(table.rename(columns={"Review text": "text"}))[["p"]], pd.DataFrame(expected[["p"]]))
    with pytest.raises(package.DataError, match="no column of this name"):
        model.predict(table.rename(columns={"Review text": "review"}))
    with pytest.raises(package.DataError, match="field 'other'"):
        model.predict(own, options={"column": "other"})


def test_settings_are_lists_and_mappings(workspace: Path, seqmlm: Run, tmp_path: Path) -> None:
    text, file, out = text_model(workspace), tmp_path / "t.csv", tmp_path / "rows.jsonl"
    file.write_text("text\na dog\na cat\n")
    seqmlm(
        *("zeroshot", text, file, "--out", out, "--template", "{text} it was [MASK]."),
        *("--label", "good=great,cat", "--label", "bad=terrible"),
    ).ok()
    asked = {"templates": "{text} it was [MASK].", "labels": {"good": ["great", "cat"], "bad": "terrible"}}
    equal(package.load(text).zeroshot(file, **asked), rows(out))


def test_a_gap_is_filled_in_a_string_and_in_strings(protein: Path) -> None:
    model = package.load(protein)
    (alone,) = model.fill("MKT_YIA", top=2)["masks"]
    (listed,) = model.fill(["MKT_YIA"], top=2)["masks"]
    assert alone == listed
    assert len(alone[0]["candidates"]) == 2


def test_a_map_is_an_array_and_a_picture(protein: Path) -> None:
    found = package.load(protein).structure(["MKTAYIAKQRQISFV"], method="cmi", min_separation=1)
    made = found.matrix()
    assert made.shape == (15, 15)
    for row in found.to_dict("records"):
        assert made[row["i"], row["j"]] == made[row["j"], row["i"]] == row["value"]
    assert "1 M, 2 K" in found._repr_html_()
    with pytest.raises(package.UsageError, match="no rows of 'x'"):
        found.matrix("x")
    with pytest.raises(package.UsageError, match="not pairs of units"):
        package.load(protein).score(["MKTAYIA"]).matrix()


def test_a_notebook_shows_sequences_in_colour(protein: Path) -> None:
    model = package.load(protein)
    shown = model.score(["MKTAYIA", "QRQISF"], per_unit=True)._repr_html_()
    assert shown.count("tabindex") >= 13
    assert "iframe" in shown
    assert "iframe" not in model.score(["MKTAYIA"])._repr_html_()
    assert "residue.v1" in model._repr_html_()
    assert repr(model) == f"<Model {protein}: protein, residue.v1>"


# What is refused


def test_errors_are_those_of_the_command(protein: Path, tmp_path: Path) -> None:
    with pytest.raises(package.StateError):
        package.load("no-such-model")
    model = package.load(protein)
    with pytest.raises(package.UsageError, match="did you mean 'level'"):
        model.score(["MK"], levl="residue")
    with pytest.raises(package.DataError, match="data: no sequences given: the list is empty"):
        model.score([])
    with pytest.raises(package.DataError, match=r"\Adata:2: .* is not in the protein alphabet"):
        model.score(["MK", "M1K"])
    with pytest.raises(package.UsageError, match="no task 'train'"):
        model.run("train")
    with pytest.raises(package.UsageError, match=r"'finetune' is not a task .* as 'seqmlm finetune'"):
        model.run("finetune")
    with pytest.raises(package.UsageError, match=r"'scor' that returns rows; did you mean 'score'"):
        model.run("scor")
    for text in ("MKTAYIA", "MKTAYIA" * 99):
        with pytest.raises(package.DataError, match=r"a sequence goes into a list: embed\(\[\.\.\.\]\)"):
            model.embed(text)
    with pytest.raises(package.DataError, match=r"no such file or folder \(check the path\)\Z"):
        model.score([tmp_path / "none.fasta"])
    with pytest.raises(package.UsageError, match="the rows are returned"):
        model.score(["MK"], out=tmp_path / "x.jsonl")
    assert len(model.score(["MK", "M1K"], on_error="skip")) == 1


def test_a_message_is_told_once(protein: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = package.load(protein)
    for _ in range(2):
        model.score(["MKTAYIA"], mode="partition:4")
        model.score(["MKTAYIA"])
    told = capsys.readouterr().err.splitlines()
    assert told
    assert len(told) == len({*told})


# scikit-learn


def test_a_detector_keeps_its_rate_and_the_contract(protein: Path, sequences: list[str]) -> None:
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    model = package.load(protein)
    own = model.detector(fpr=0.1)
    with pytest.raises(NotFittedError):
        own.predict(sequences)
    again = clone(own).set_params(fpr=0.2)
    assert (own.get_params()["fpr"], again.get_params()["fpr"]) == (0.1, 0.2)
    assert own.fit(sequences) is own
    scores = -model.score(sequences)["score"].to_numpy()
    np.testing.assert_array_equal(own.score_samples(sequences), scores)
    threshold = np.sort(-scores)[int(np.ceil(0.9 * 29)) - 1]
    np.testing.assert_array_equal(own.predict(sequences), np.where(-scores > threshold, -1, 1))
    assert (own.fit_predict(sequences) == own.predict(sequences)).all()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(own)).predict(sequences), own.predict(sequences))
    upper = make_pipeline(FunctionTransformer(lambda some: [one.upper() for one in some]), clone(own))
    assert (upper.fit([one.lower() for one in sequences]).predict(sequences) == own.predict(sequences)).all()
    odd = np.array([1, 0] * 14)
    found = cross_val_score(own, np.array(sequences), odd, cv=2, scoring="roc_auc")
    assert ((found >= 0) & (found <= 1)).all()
    search = GridSearchCV(own, {"fpr": [0.1, 0.2]}, cv=2, scoring="accuracy")
    search.fit(np.array(sequences), np.ones(28))
    assert search.best_params_ == {"fpr": 0.1}


@pytest.mark.parametrize("kind", [package.Detector, package.Embedder])
def test_checks_of_scikit_learn_that_need_no_numbers(kind: Any) -> None:
    from sklearn.utils import estimator_checks as checks

    for check in (
        checks.check_estimator_cloneable,
        checks.check_estimator_repr,
        checks.check_estimator_tags_renamed,
        checks.check_estimators_unfitted,
        checks.check_get_params_invariance,
        checks.check_mixin_order,
        checks.check_no_attributes_set_in_init,
        checks.check_set_params,
        checks.check_valid_tag_types,
    ):
        check(kind.__name__, kind(object()))


def test_a_detector_needs_enough_normal_sequences(protein: Path, sequences: list[str]) -> None:
    with pytest.raises(package.UsageError, match="19 are needed"):
        package.load(protein).detector(fpr=0.05).fit(sequences[:18])
    package.load(protein).detector(fpr=0.05).fit(sequences[:19])
    package.Detector(package.load(protein), fpr=0.05).fit(pd.Series(sequences[:19]))


def test_vectors_go_into_a_classifier(protein: Path, sequences: list[str]) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline

    model = package.load(protein)
    own = model.embedder(pool="max")
    vectors = own.fit(sequences).transform(sequences)
    expected = model.embed(sequences, pool="max")["vector"]
    np.testing.assert_array_equal(vectors, np.array(expected.tolist(), dtype=np.float32))
    pipeline = make_pipeline(own, LogisticRegression())
    classes = ["short" if len(one) < 26 else "long" for one in sequences]
    assert pipeline.fit(sequences, classes).predict(sequences[:1]).tolist() == ["short"]
    assert len(cross_val_score(pipeline, np.array(sequences), classes, cv=2)) == 2
    with pytest.raises(package.UsageError, match="no vectors"):
        model.score(sequences).vectors()


@pytest.mark.parametrize("named", [str, Path])
def test_an_estimator_takes_the_name_of_a_model(named: Any, protein: Path, sequences: list[str]) -> None:
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    name, model = named(protein), package.load(protein)
    own = clone(package.Embedder(name, pool="max"))
    assert own.get_params()["model"] == name
    expected = model.embedder(pool="max").transform(sequences)
    np.testing.assert_array_equal(own.fit_transform(sequences), expected)
    assert own.get_params()["model"] == name
    classes = ["short" if len(one) < 26 else "long" for one in sequences]
    assert make_pipeline(own, LogisticRegression()).fit(sequences, classes).predict(sequences[:1]) == "short"
    found = clone(package.Detector(name)).fit(sequences).score_samples(sequences)
    np.testing.assert_array_equal(found, -model.score(sequences)["score"].to_numpy())
    with pytest.raises(package.StateError):
        package.Detector("no-such-model").fit(sequences)


def test_lines_of_a_log_are_no_sequences_of_their_own(workspace: Path) -> None:
    write_log_model(workspace / "log")
    with pytest.raises(package.UsageError, match="4 strings became 1 records"):
        package.load(workspace / "log").embedder().transform(list(NORMAL))


# The page of the documents


def test_the_page_has_every_public_name() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [f"seqmlm.{name}" for name in SURFACE]
    for name in ("Model", "RowFrame"):
        members = vars(getattr(package, name))
        names += [
            f"{name}.{method}"
            for method, member in members.items()
            if isinstance(member, types.FunctionType) and not method.startswith("_")
        ]
    assert not [name for name in names if not re.search(rf"`{name}\b", text)]
    documented = re.findall(r"^::: (seqmlm[\w.]+)", text, re.MULTILINE)
    assert {name.rpartition(".")[2] for name in documented} >= {*SURFACE} - {*ERRORS}
    members_line = re.search(r"members: \[(.*)\]", text)
    assert members_line
    assert {*members_line[1].split(", ")} == ERRORS
