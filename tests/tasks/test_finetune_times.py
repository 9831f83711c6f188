"""Labels of subjects at times: nothing later is seen, and nothing of a person is shown."""

from __future__ import annotations

import csv
import json
import stat
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fork_server import Run
from histories import histories, table
from text_models import text_model
from tiny_models import random_model, saved

from seqmlm.data.clock import Clock
from seqmlm.domains.ehr.history import History, iso
from seqmlm.domains.ehr.tokenizer import EventsTokenizer

PEOPLE = 60
NAMES = "subject_id,prediction_time,boolean_value"
CODE = "ICD10//E11.9"
Asked = tuple[str, str, str, str]


def times(one: History) -> list[float]:
    """When the visits of a patient but the last are over."""
    starts = sorted({event.time for event in one.events if event.kind and event.time is not None})
    return [time + 300 for time in starts[:-1]]


def questions(people: Sequence[History]) -> list[Asked]:
    """Subject, time, whether the patient had a code by then, and how many visits there were by then."""
    found = []
    for one in people:
        for number, time in enumerate(times(one)):
            had = any(event.code == CODE and event.time <= time for event in one.events if event.time)
            found.append((one.subject, iso(time), str(had).lower(), "several" if number else "one"))
    return found


def written(path: Path, rows: Sequence[Sequence[str]], names: str) -> Path:
    path.write_text("\n".join([names, *map(",".join, rows)]) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("times")
    people = histories(PEOPLE)
    model = random_model("ehr", EventsTokenizer.train(people, min_subjects=1), max_length=256)
    saved(model, path / "cohort", sensitive=True)
    (path / "events.csv").write_text("\n".join(table(people)) + "\n")
    written(path / "labels.csv", questions(people), "subject_id,prediction_time,boolean_value,visits")
    return path


def learnt(folder: Path, *more: object) -> tuple[object, ...]:
    labels = () if "--label-file" in more else ("--label-file", folder / "labels.csv")
    data = ("--train", folder / "events.csv", *labels)
    return ("finetune", folder / "cohort", *data, "--tune", "none", "--name", "learnt", *more)


def test_columns_beside_histories_are_of_a_time(folder: Path, tmp_path: Path, seqmlm: Run) -> None:
    """Each row is found by subject and time: a number there says whether the patient had the code by then."""
    asked = questions(histories(PEOPLE))
    rows = [
        (subject, time, str(n % 7 + 9 * (had == "true"))) for n, (subject, time, had, _) in enumerate(asked)
    ]
    table = written(tmp_path / "t.csv", rows, "subject_id,prediction_time,size")
    done = seqmlm(*learnt(folder, "--table", table, "--json")).ok().json
    assert done["rivals"]["boosted columns"]["auroc"] == 1
    assert not [note for note in done["notes"] if "--table" in note]
    labels = [(subject, time, str(int(had == "true"))) for subject, time, had, _ in asked]
    copied = written(tmp_path / "c.csv", labels, "subject_id,prediction_time,readmitted")
    again = learnt(folder, "--table", copied, "--name", "again")
    seqmlm(*again).refused(3, "no column besides ids and labels")


def test_predictions_see_nothing_later(folder: Path, tmp_path: Path, seqmlm: Run) -> None:
    done = seqmlm(*learnt(folder, "--json")).ok()
    assert done.json["auroc"] > 0.7
    kept = tmp_path / "runs" / "learnt" / "predictions.parquet"
    judged = pq.read_table(kept).to_pylist()
    assert len({row["group"] for row in judged}) < len(judged)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600

    asked = ("predict", "learnt", "--set", f"labels={folder / 'labels.csv'}", "--out")
    out, cut, ends = (tmp_path / name for name in ("out.jsonl", "cut.jsonl", "ends.jsonl"))
    seqmlm(*asked, out, folder / "events.csv").ok()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["prediction_time"][:19]) for row in rows] == [
        (name, time[:19]) for name, time, *_ in questions(histories(PEOPLE))
    ]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    of = {(row["id"], row["prediction_time"]): row["p"] for row in rows}
    assert all(of[row["id"], row["prediction_time"]] == pytest.approx(row["p"], abs=1e-4) for row in judged)

    # The last visit of each patient is later than all questions.
    last = {one.subject: times(one)[-1] for one in histories(PEOPLE)}
    lines = (folder / "events.csv").read_text().splitlines()
    before = tmp_path / "before.csv"
    clock = Clock()
    early = [
        line
        for line, row in zip(lines[1:], csv.DictReader(lines), strict=True)
        if not row["time"] or clock[row["time"]] <= last[row["patient"]]
    ]
    assert len(early) < len(lines) - PEOPLE
    before.write_text("\n".join([lines[0], *early]) + "\n")
    seqmlm(*asked, cut, before).ok()
    assert cut.read_bytes() == out.read_bytes()

    # Without times, a prediction is at the end of what there is.
    seqmlm("predict", "learnt", before, "--out", ends).ok()
    at_end = {row["id"]: row["p"] for row in map(json.loads, ends.read_text().splitlines())}
    for row in rows:
        if row["prediction_time"][:19] == iso(last[row["id"]])[:19]:
            assert row["p"] == pytest.approx(at_end.pop(row["id"]), abs=1e-5)
    assert not at_end


def test_another_column_names_several_classes(folder: Path, tmp_path: Path, seqmlm: Run) -> None:
    done = seqmlm(*learnt(folder, "--label", "visits", "--json", "--rivals", "off")).ok()
    assert done.json["kind"] == "class"
    row = pq.read_table(tmp_path / "runs" / "learnt" / "predictions.parquet").to_pylist()[0]
    assert set(row["p"]) == {"one", "several"}


FIRST = "p0,2030-01-01,true"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("p0,never,true", "labels.csv:3: field 'prediction_time': not a time"),
        ("p0,1990-01-01,true", "labels.csv:3: field 'prediction_time': a time before the first event"),
        ("p1,2030-01-01,perhaps", "labels.csv:3: field 'boolean_value': neither true nor false"),
        ("p1,2030-01-01,", "labels.csv:3: field 'boolean_value': no label"),
        (FIRST, "labels.csv:3: a second label for the same subject and time"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_its_line(
    folder: Path, tmp_path: Path, seqmlm: Run, rows: str, said: str
) -> None:
    labels = written(tmp_path / "labels.csv", [[FIRST], [rows]], NAMES)
    done = seqmlm(*learnt(folder, "--label-file", labels))
    done.refused(3, said)
    assert "p0" not in done.err.replace(str(tmp_path), "")


def test_subjects_without_data_are_counted(folder: Path, tmp_path: Path, seqmlm: Run) -> None:
    asked = questions(histories(PEOPLE))
    strangers = [(f"q{n}", "2030-01-01", "true") for n in range(12)]
    labels = written(tmp_path / "labels.csv", [*(one[:3] for one in asked), *strangers], NAMES)
    done = seqmlm(*learnt(folder, "--label-file", labels, "--rivals", "off", "--json")).ok()
    assert done.json["notes"]["a label whose id matches no record, ignored"] == 12
    done = seqmlm(*learnt(folder, "--label-file", written(labels, strangers, NAMES), "--name", "none"))
    done.refused(3, "none of its subjects")
    again = ("predict", "learnt", folder / "events.csv", "--set", f"labels={labels}", "--out", "o.jsonl")
    seqmlm(*again).refused(3, "none of its subjects")


def test_nothing_of_few_people_is_shown(folder: Path, tmp_path: Path, seqmlm: Run) -> None:
    people = histories(9)
    few = tmp_path / "few.csv"
    few.write_text("\n".join(table(people)) + "\n")
    asked = [questions([own])[-1] for own in people]
    labels = written(tmp_path / "l.csv", [one[:3] for one in asked], NAMES)
    data = ("finetune", folder / "cohort", "--train", few, "--label-file", labels, "--set", "epochs=1")
    done = seqmlm(*data, "--name", "few").ok()
    assert "few:1 was trained on <11 examples" in " ".join(done.out.split())
    told = seqmlm(*data, "--name", "again", "--json").ok()
    assert told.json["train"] == told.json["items"] == "<11"
    told = seqmlm("predict", "few", few, "--out", tmp_path / "p.jsonl").ok()
    assert "<11 records" in told.err + told.out
    assert not [one for one in people if f"{one.subject} " in told.err + told.out + done.err + done.out]
    seqmlm(*data, "--test", few, "--name", "shared").refused(3, "are also in the training data")


def test_a_field_without_times(tmp_path: Path, seqmlm: Run) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": "a", "text": "the cat"}\n')
    labels = written(tmp_path / "l.csv", [("a", "2030-01-01", "true")], NAMES)
    data = ("--train", tmp_path / "t.jsonl", "--label-file", labels)
    seqmlm("finetune", text_model(tmp_path / "m"), *data).refused(2, "have no times, so they cannot be cut")


def test_a_history_at_a_time(folder: Path) -> None:
    from seqmlm.plugins import domain

    times_of, [one] = domain("ehr").times, histories(1)
    time = times(one)[0]
    cut = times_of.history_at(one, time)
    assert cut == replace(one, events=tuple(e for e in one.events if e.time is None or e.time <= time))
    assert times_of.history_at(one, 0.0) is None


def test_meds_folders_with_labels_in_parquet(folder: Path, tmp_path: Path, seqmlm: Run) -> None:
    people, asked = histories(PEOPLE), questions(histories(PEOPLE))
    numbers = {one.subject: number for number, one in enumerate(people)}
    events = [
        {"subject_id": numbers[one.subject], "time": moment(event.time), "code": event.code}
        for one in people
        for event in one.events
    ]
    splits = [{"subject_id": n, "split": "held_out" if n < 15 else "train"} for n in numbers.values()]
    labels = [
        {
            "subject_id": numbers[name],
            "prediction_time": datetime.fromisoformat(time),
            "boolean_value": had == "true",
            "integer_value": None,
        }
        for name, time, had, _ in asked
    ]
    for name, rows in {
        "meds/data/0.parquet": events,
        "meds/metadata/subject_splits.parquet": splits,
        "labels.parquet": labels,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    data = ("--train", tmp_path / "meds", "--label-file", tmp_path / "labels.parquet")
    done = seqmlm("finetune", folder / "cohort", *data, "--tune", "none", "--name", "meds", "--json").ok()
    held = [one for one in asked if numbers[one[0]] < 15]
    assert done.json["test"] == len(held)
    rows = pq.read_table(tmp_path / "runs" / "meds" / "predictions.parquet").to_pylist()
    found = {(row["id"], row["prediction_time"][:19]): row["truth"] for row in rows}
    assert found == {(str(numbers[name]), time[:19]): had for name, time, had, _ in held}


def moment(time: float | None) -> datetime | None:
    return None if time is None else datetime(1970, 1, 1) + timedelta(seconds=time)
