"""`seqmlm data inspect` on good and bad files, through the real entry point."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from written import written

from seqmlm import plugins


def _inspected(seqmlm, *words: object) -> dict:
    done = seqmlm("data", "inspect", "--json", *map(str, words)).ok()
    return json.loads(done.out)


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("domain", plugins.names("domains"))
def test_the_sample_of_every_domain(seqmlm, workspace: Path, domain: str) -> None:
    found = _inspected(seqmlm, "--domain", domain)
    assert (
        found["records"] == sum(found["split"][part] for part in ("train", "validation", "calibration")) > 0
    )
    assert found["vocabulary"]["size"] > 5
    assert found["unit_quantiles"]["0.75"] > 0
    assert not found["estimated"]
    sensitive = plugins.domain(domain).sensitive
    assert bool(found["example"]) is not sensitive
    again = _inspected(seqmlm, "--domain", domain, "--show-records")
    assert again["example"]["before"] != again["example"]["chosen"]


def test_duplicates_leaks_and_bad_records_are_counted_with_their_place(seqmlm, workspace: Path) -> None:
    file = written(workspace / "mixed.fasta", ">a\nMKV\n>b\nMKV\n>c\n>d\nMK1V\n>e\nMKVLW\n")
    found = _inspected(seqmlm, "--domain", "protein", file)
    assert (found["records"], found["duplicates"]) == (4, 1)
    assert found["problems"] == {"a FASTA record without a sequence": 1}
    assert found["places"] == {"a FASTA record without a sequence": f"{file}:5"}
    assert found["outside_alphabet"] == {"1": 1}
    assert found["length_quantiles"]["1.0"] == 5


def test_sensitive_data_show_no_value_and_no_small_count(seqmlm, workspace: Path) -> None:
    file = written(workspace / "secrets.txt", "the usual words of many people\n" * 30 + "password hunter2\n")
    done = seqmlm("data", "inspect", "--domain", "text", "--sensitive", str(file)).ok()
    assert "hunter2" not in done.out + done.err
    assert "usual" not in done.out, "only counts are told"
    assert "31" in done.out
    found = _inspected(seqmlm, "--domain", "text", "--sensitive", file)
    assert found["example"] == found["outside_alphabet"] == {}
    assert all(count in ("<11", "withheld", 0) or count >= 11 for count in found["split"].values())


def test_sensitive_data_of_few_records_show_no_count_nor_what_gives_it_away(seqmlm, workspace: Path) -> None:
    file = workspace / "few.txt"
    file.write_text("".join(f"note {n} of many\n" for n in range(40)) + "note 1 of many\n")
    arguments = ("--domain", "text", "--sensitive", file)
    found = _inspected(seqmlm, *arguments)
    assert (found["records"], found["duplicates"]) == (41, "<11")
    assert found["split"]["validation"] == "<11"
    assert found["split"]["train"] == "withheld", "the total less this one is the other"
    file.write_text("note of nobody\n" * 5)
    found = _inspected(seqmlm, *arguments)
    assert found["records"] == found["duplicates"] == "<11"


def test_a_missing_column_comes_with_the_option_that_names_it(seqmlm, workspace: Path) -> None:
    reviews, patients = workspace / "reviews.csv", workspace / "patients.csv"
    reviews.write_text("review,stars\nBad film,1\nGood film,5\n")
    patients.write_text("PatientNo;Date;Diagnosis\n1;2020-01-01;E11.9\n")
    for domain, file, option in (("text", reviews, "column="), ("ehr", patients, "patient=")):
        done = seqmlm("data", "inspect", "--domain", domain, str(file)).refused(
            3, "no column of this name", option
        )
    assert "PatientNo" not in done.err, "a first row may be data"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "x.fasta: no record could be read; the first problem is: the file is empty"),
        (b"\n\n", "no record was found"),
        (b">a\n>b\n", "x.fasta:1: no record could be read; the first problem is: a FASTA record without"),
        (bytes(range(256)) * 4, "x.fasta: no record could be read; the first problem is: binary data"),
        (b">a\n--\n", "no record is left: a row of gaps only, left out"),
    ],
)
def test_to_read_nothing_is_an_error_that_says_why(seqmlm, workspace: Path, data: bytes, said: str) -> None:
    file = written(workspace / "x.fasta", data)
    train, export = ("train", "--set", "data.on_error=skip"), ("data", "export", "--out", "e")
    for words in (("data", "inspect"), train, (*export, "--on-error", "skip")):
        seqmlm(*words, "--domain", "protein", str(file)).refused(3, said)


def test_only_what_a_command_can_do_is_proposed(seqmlm, workspace: Path) -> None:
    file = written(workspace / "x.fasta", b">a\nMKV1\n")
    asked = ("--domain", "protein", file)
    export = seqmlm("data", "export", *asked, "--out", "e").refused(3, "hint: --on-error skip ignores bad")
    assert "quarantine" not in export.err
    seqmlm("train", *asked).refused(3, "data.on_error=quarantine also saves them")


@pytest.mark.parametrize("name", ["pipe", "folder/pipe", "/dev/null"])
def test_what_is_no_file_is_said_and_never_waited_for(seqmlm, workspace: Path, name: str) -> None:
    (workspace / "folder").mkdir()
    os.mkfifo(workspace / "pipe")
    os.mkfifo(workspace / "folder" / "pipe")
    for words in (("data", "inspect"), ("train",), ("data", "export", "--out", "e")):
        seqmlm(*words, "--domain", "protein", str(workspace / name)).refused(
            3, f"{name}: ", "a pipe, socket or device"
        )
        done = seqmlm(*words, "--domain", "protein", str(workspace / "folder"))
        done.refused(3, "the folder contains no files")


def test_a_format_of_folders_is_not_read_from_standard_input(seqmlm, workspace: Path) -> None:
    for domain, format in (("ehr", "omop"), ("ehr", "synthea"), ("ehr", "mimic3"), ("code", "worktree")):
        for path in ("-", "/dev/stdin"):
            done = seqmlm("data", "inspect", "--domain", domain, "--format", format, path)
            done.refused(2, "- is not a folder")


def test_formats_and_their_options_are_listed(seqmlm, workspace: Path) -> None:
    listed = seqmlm("data", "formats", "--domain", "ehr", "--format", "wide").ok()
    assert "patient=patient_id" in listed.out
    listed = [one["name"] for one in seqmlm("data", "formats", "-d", "protein", "--json").json]
    assert listed[:2] == ["fasta", "a3m"]
    assert listed[-1] == "huggingface"
    seqmlm("data", "formats", "--domain", "ehr", "--format", "wid").refused(2, "wide")


def test_an_export_is_trained_on(seqmlm, workspace: Path) -> None:
    out = workspace / "proteins"
    done = seqmlm("data", "export", "--domain", "protein", "--out", out, "--json").ok()
    assert done.json["splits"]["train"] > 2000
    again = _inspected(
        seqmlm, "--domain", "protein", "--data", f"hf:{out}:validation", "--option", "text=text"
    )
    assert again["records"] == done.json["splits"]["validation"]
    done = seqmlm("data", "export", "--domain", "ehr", "--out", workspace / "patients")
    done.refused(2, "records of sensitive data cannot be exported")
    seqmlm("data", "export", "--domain", "protein", "--out", out, "--on-error", "skp").refused(2)
