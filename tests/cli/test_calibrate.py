"""Calibration through the command line: what training leaves, what replaces it, what is refused."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
from fork_server import Run
from histories import histories, table
from tiny_models import proteins
from written import rows as rows_of

from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import CALIBRATION, stored_calibrations, stored_trained_on
from seqmlm.privacy import PERSONAL
from seqmlm.registry.store import Registry
from seqmlm.scoring.output import TRAINED_ON
from seqmlm.workspace import Workspace

FAST = (*tiny_models.FAST, "--max-steps", 3)


def test_train_then_calibrate(seqmlm: Run, workspace: Path) -> None:
    mine, normal = (proteins(workspace / "mine.fasta", 300, 1), proteins(workspace / "normal.fasta", 150, 2))
    seqmlm(
        "train", "-d", "protein", mine, *FAST, "--name", "mine", "--set", "data.calibration=0.3", "--json"
    ).ok()
    folder = workspace / "runs/mine/model"
    first = stored_calibrations(folder)
    [level] = {level for level, _ in first}
    assert {mode for _, mode in first} == {"one-pass", "partition:4"}
    rows = {mode: one.rows for (_, mode), one in first.items()}
    assert 35 < rows["one-pass"] < 130, "the third that was set aside"
    assert _registered(workspace) == [(level, mode, rows[mode]) for mode in sorted(rows)]

    seqmlm("calibrate", "mine", mine).refused(
        3, f"{mine}:", "was trained on", "--on-error skip", "of the 300 records"
    )
    assert (folder / CALIBRATION).read_bytes(), "untouched"
    assert stored_calibrations(folder).keys() == first.keys()

    done = seqmlm("calibrate", "mine", normal, mine, "--on-error", "skip", "--json", "--fpr", "0.2").ok()
    told = done.json
    assert told["level"] == level
    assert told["left_out"] + told["records"] == 450
    assert told["records"] > 200, "the fresh ones, and those of the first file that were held out"
    known = seqmlm("score", "mine", mine, "--fpr", 0.2)
    assert f"{told['left_out']} × {TRAINED_ON} (first: " in known.err
    assert "from the training data" not in seqmlm("score", "mine", normal, "--fpr", 0.2).err
    again = stored_calibrations(folder)
    for mode, facts in told["modes"].items():
        assert facts["rows"] == again[level, mode].rows == told["records"]
        assert facts["alpha"] == {"rate": 0.2, "rests_on": "ranks"}
    assert [one[2] for one in _registered(workspace)] == [again[level, m].rows for m in sorted(told["modes"])]
    model = model_folder.load(folder)
    other = next(one.name for one in model.domain.levels if one.name != level)
    assert seqmlm("calibrate", "mine", normal, "--records", 40, "--level", other).code == 0
    assert {(level, "one-pass"), (other, "one-pass")} < stored_calibrations(folder).keys()

    only = seqmlm("calibrate", "mine", normal, "--mode", "partition:2", "--records", 60).ok()
    assert f"{level}\tpartition:2\t60" in only.out
    assert len(stored_calibrations(folder)) == 5

    poorer = seqmlm("calibrate", "mine", normal, "--mode", "partition:2", "--records", 30).ok()
    assert "replaces a calibration with more normal rows: the model was calibrated level" in poorer.err
    assert f"{level}: partition:2 60 rows" in poorer.err
    assert "replaces a calibration" not in only.err

    # A file of another version is refused, and calibrating takes its place.
    written = (folder / CALIBRATION).read_bytes()
    older = written.replace(b'\\"format\\": 5', b'\\"format\\": 1')
    assert older != written
    model_folder.put_file(folder / CALIBRATION, older)
    seqmlm("score", "mine", normal, "--fpr", "0.2").refused(
        4, f"{CALIBRATION} cannot be read (format 1; this version of seqmlm reads 5)", "seqmlm calibrate"
    )
    mended = seqmlm("calibrate", "mine", normal, "--json").ok()
    assert "are dropped" in mended.err
    assert seqmlm("score", "mine", normal, "--fpr", "0.2").code == 0


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_rates_that_the_normal_rows_do_not_guarantee(
    seqmlm: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, normal = (proteins(workspace / "mine.fasta", 100, 1), proteins(workspace / "normal.fasta", 400, 2))
    new = proteins(workspace / "new.fasta", 5, 3)
    seqmlm("train", "-d", "protein", mine, *FAST, "--name", "mine", "--set", "data.calibration=0.3").ok()
    assert seqmlm("calibrate", "mine", normal).code == 0
    assert seqmlm("calibrate", "mine", normal, "--mode", "partition:4", "--records", 40).code == 0

    chosen = seqmlm("score", "mine", new, "--fpr", 0.01).ok()
    assert chosen.err.startswith("using one-pass")
    assert "partition:4, the protein default, has too few calibration rows for this rate (40)" in (chosen.err)
    seqmlm("score", "mine", new, "--fpr", 0.0001, "--set", "extrapolate=true", "--mode", "one-pass").ok()

    # Before the model is loaded; from a pipe as from a file.
    monkeypatch.setattr(model_folder, "load", _killed)
    for source in (new, "-"):
        done = seqmlm("score", "mine", source, "--fpr", "0.000001")
        done.refused(2, "level protein has 400 calibration rows")
    stored = {
        mode: one.fitted for (_, mode), one in stored_calibrations(workspace / "runs/mine/model").items()
    }
    for mode, fitted in stored.items():
        refused = seqmlm("score", "mine", new, "--fpr", "0.0005", "--mode", mode).refused(2)
        [rate] = re.findall(r"the lowest possible rate is ([0-9.]+):", refused.err)
        assert fitted.smallest_rate <= float(rate) < 1.1 * fitted.smallest_rate
        assert f"--mode {mode}'" in refused.err
        assert ("extrapolate=true" in refused.err) is fitted.has_tail
    done = seqmlm("score", "mine", new, "--fpr", "0.01", "--mode", "exact")
    done.refused(4, "mode exact: calibrate with normal data")
    assert (
        "extrapolate needs a rate of alarms" in seqmlm("score", "mine", new, "--set", "extrapolate=true").err
    )


def test_what_cannot_be_used_is_named(seqmlm: Run, workspace: Path) -> None:
    mine, normal = proteins(workspace / "mine.fasta", 40, 1), proteins(workspace / "n.fasta", 20, 2)
    empty = workspace / "empty.fasta"
    empty.write_text("")
    seqmlm("train", "-d", "protein", mine, *FAST, "--name", "mine", "--set", "data.validation=0.01").ok()
    folder = workspace / "runs/mine/model"
    known = stored_trained_on(folder)
    assert known is not None
    texts = mine.read_text().split(">")[1:]
    mine.write_text("".join(">" + one for one in texts if one.split()[1] in known))  # nothing is held out
    before = (folder / CALIBRATION).read_bytes()
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (2, "nothing to calibrate with", ("mine",)),
        (3, "empty", ("mine", empty)),
        (3, "no normal record is left", ("mine", mine, "--on-error", "skip")),
        (2, "no level 'sentence'", ("mine", normal, "--level", "sentence")),
        (2, "guess", ("mine", normal, "--mode", "guess")),
        (2, "between 0 and 1", ("mine", normal, "--fpr", "2")),
        (4, "no model 'other'", ("other", normal)),
    ]
    for code, words, given in cases:
        seqmlm("calibrate", *given).refused(code, words)
    assert (folder / CALIBRATION).read_bytes() == before


def test_nothing_of_a_patient_is_in_the_calibration(seqmlm: Run, workspace: Path) -> None:
    people = [replace(one, subject=f"subject{one.subject}") for one in histories(80)]
    path = workspace / "events.csv"
    for share, calibrated in (("0.5", True), ("0.05", False)):
        path.write_text("\n".join(table(people if calibrated else people[:40])) + "\n")
        name = f"p{share[2:]}"
        shares = ("--set", f"data.calibration={share}", "--set", "data.validation=0.3")
        done = seqmlm("train", "-d", "ehr", path, *FAST, "--name", name, *shares).ok()
        folder = workspace / "runs" / name / "model"
        assert bool(stored_calibrations(folder)) == calibrated, "fewer than eleven rows are none"
        for file in ("trained_on.safetensors", *([CALIBRATION] if calibrated else [])):
            assert stat.S_IMODE((folder / file).stat().st_mode) == 0o600
            content = (folder / file).read_bytes()
            assert b"subject" not in content
            assert b"DRUG" not in content
        assert calibrated or "sensitive data need 11; give more normal data" in done.err
    assert seqmlm("models", "export", "p5", "--out", workspace / "out").code == 0
    assert (workspace / "out/model.safetensors").exists()
    for file in PERSONAL:
        assert (workspace / "runs/p5/model" / file).exists()
        assert not (workspace / "out" / file).exists(), "who holds it could tell who was a patient"
    refused = seqmlm("calibrate", "p5", path).refused(3)
    assert "subject" not in refused.err.replace("subjects", "")
    assert "trained on some of the records" in refused.err, "nor how many, who may be few"
    told = seqmlm("calibrate", "p5", path, "--on-error", "skip", "--json").ok()
    assert all(isinstance(json.loads(told.out)[name], int | str) for name in ("records", "left_out"))


def _registered(workspace: Path) -> list[tuple[str, str, int]]:
    with Registry(Workspace.locate()) as registry:
        return [(one.level, one.mode, one.rows) for one in registry.calibrations(registry.get("mine"))]


def test_a_calibration_knows_its_precision_and_scores_in_another_say_so(seqmlm: Run, workspace: Path) -> None:
    mine, normal = (proteins(workspace / "mine.fasta", 60, 1), proteins(workspace / "n.fasta", 60, 2))
    assert seqmlm("train", "-d", "protein", mine, *FAST, "--name", "mine").code == 0
    folder = workspace / "runs/mine/model"
    assert {one.precision for one in stored_calibrations(folder).values()} == {"fp32"}
    asked = ("--mode", "partition:4", "--set", "precision=bf16", "--json")
    done = seqmlm("calibrate", "mine", normal, *asked).ok()
    assert done.json["modes"]["partition:4"]["precision"] == "bf16"
    kept = {mode: one.precision for (_, mode), one in stored_calibrations(folder).items()}
    assert kept == {"partition:4": "bf16", "one-pass": "fp32"}
    out, rows = workspace / "out.jsonl", {}
    for precision in ("fp32", "bf16"):
        asked = ("score", "mine", normal, "--out", out, "--json", "--set", f"precision={precision}")
        done = seqmlm(*asked).ok()
        assert done.json["precision"] == precision
        assert ("the calibration used bf16, this scoring uses fp32" in done.err) == (precision == "fp32")
        rows[precision] = rows_of(out)
    plls = [[row["pll"] for row in part] for part in rows.values()]
    assert plls[0] != plls[1]
    assert plls[0] == pytest.approx(plls[1], abs=0.5)
    assert all(0 < row["p_value"] <= 1 for part in rows.values() for row in part)
