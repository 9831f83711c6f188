"""Every task on the contract: what `run` does is tested here once, for all of them.

A task needs one entry in `CASES`: a model, an input, and the arguments of its command.
"""

from __future__ import annotations

import csv
import errno
import gzip
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from commands import COMMANDS, TASKS
from fork_server import Run
from histories import histories, table
from stopped import stop_at, stopped_by_rows
from text_models import text_model
from tiny_models import random_model
from written import rows as rows_of

from seqmlm.cli.output import tell
from seqmlm.data.files import UNDER_WAY
from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.durable import FileLock
from seqmlm.errors import DataError
from seqmlm.inference import model_folder
from seqmlm.inference.record_batches import PART_SECONDS
from seqmlm.inference.session import Session
from seqmlm.rows.file import Rows, columns_of
from seqmlm.streams.sinks import write_error


@dataclass(frozen=True)
class Case:
    """How a task is asked about something small.

    Args:
        model: "text", "protein" or "ehr", or "labels" (of texts).
        name: of the input file.
        lines: of that file, more than three batches of two items.
        arguments: of the command, behind model and input.
        bad: a line that is bad, for tasks that read records.
        rows: that the input gives. each: of them, of one item.
        beside: a further file in the same folder, and its text.
    """

    model: str
    name: str
    lines: tuple[str, ...]
    arguments: tuple[str, ...]
    bad: str | None
    rows: int
    each: int = 1
    beside: tuple[str, str] | None = None

    @property
    def items(self) -> int:
        """That the input gives."""
        return self.rows // self.each


PAIRS = tuple(
    json.dumps({"id": f"p{n}", "good": f"the cat sees{' a dog' * n}", "bad": f"the cat see{' a dog' * n}"})
    for n in range(7)
)
PROTEINS = tuple(f">p{n}\nMK{'_' * (n % 3 + 1)}AYI{'LV'[n % 2] * n}" for n in range(7))
TWO_GAPS = tuple(f">p{n}\nMK_AYI{'LV'[n % 2] * n}_" for n in range(7))
TRIPLES = tuple(f">p{n}\nM{'LVAGW'[n % 5]}K" for n in range(7))
REVIEWS = tuple(
    f"a dog {'barks' * (n % 2)} {'so ' * (n % 5)}loudly,{'good' if n % 3 else 'bad'}" for n in range(21)
)
TEXTS = tuple(json.dumps({"text": f"the cat{' a dog' * n}"}) for n in range(7))
MUTANTS = tuple(f"{old}{n}W,MKTAYIAKQR" for n, old in enumerate("MKTAYIA", 1))
ASSAYS = ("DMS_id,target_seq", "measured,MKTAYIAKQR", "gone,MKTAYIAKQR")
ASSAY = "\n".join(("mutant,DMS_score", *(f"{one.partition(',')[0]},{n}" for n, one in enumerate(MUTANTS))))
CLASSES = ("--template", "{text} it was [MASK].", "--label", "good=great,cat", "--label", "bad=terrible")
CASES = {
    "assays": Case("protein", "reference.csv", ASSAYS, (), None, 7, beside=("measured.csv", ASSAY)),
    "variants": Case("protein", "v.csv", ("mutant,wt_seq", *MUTANTS), (), "Y4W,MKTAYIAKQR", len(MUTANTS)),
    "embed": Case("protein", "p.fasta", TRIPLES, (), ">bad\nMK1", 7),
    "fill": Case("protein", "gaps.fasta", PROTEINS, ("--top", "2"), ">bad\nMK1_A", 7),
    "joint": Case("protein", "two.fasta", TWO_GAPS, ("--set", "top=2"), ">bad\nM_K1_A", 7),
    "generate": Case("protein", "gaps.fasta", PROTEINS, ("--seed", "3"), ">bad\nMK1_A", 7),
    "bias": Case("text", "pairs.jsonl", PAIRS, (), '{"good": "the cat"}', 7),
    "pairs": Case("text", "pairs.jsonl", PAIRS, (), '{"good": "the cat"}', 7),
    "risk": Case(
        "ehr",
        "events.csv",
        tuple(table(histories(7))),
        ("--code", "DRUG//*", "--set", "prevalent=true"),
        "p3,never,DRUG//metformin,,,",
        7,
    ),
    "structure": Case(
        "protein",
        "p.fasta",
        TRIPLES,
        ("--method", "cpmi", "--set", "min_separation=1", "--set", "null=2"),
        ">bad\nMK1",
        21,
        each=3,
    ),
    "score": Case("protein", "p.fasta", TRIPLES, ("--mode", "exact"), ">bad\nMK1", 7),
    "predict": Case("labels", "t.jsonl", TEXTS, (), '{"id": "bad"}', 7),
    "zeroshot": Case(
        "text", "r.csv", ("text,stars", *REVIEWS), (*CLASSES, "--truth", "stars"), "a dog,meh", len(REVIEWS)
    ),
}


BEFORE = '{"id": "a", "source": "earlier", "line": 1}\n'
"""A finished file of rows of an earlier run."""


@dataclass(frozen=True)
class Asked:
    """A task's command line in a folder: `asked(OUT, ...)` runs it."""

    task: str
    case: Case
    model: Path
    input: Path
    seqmlm: Run

    def __call__(self, *more: object) -> Any:
        return self.seqmlm(self.task, self.model, self.input, *self.case.arguments, *more)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each field that a case names, and of the same data as if these were sensitive."""
    folder, found = tmp_path_factory.mktemp("tasks"), dict[str, Path]()
    for sensitive in (False, True):
        own = folder / f"sensitive-{sensitive}"
        events = EventsTokenizer.train(histories(30), min_subjects=1)
        protein, ehr = (
            random_model("protein", ResidueTokenizer()),
            random_model("ehr", events, max_length=256),
        )
        for name, one in {"protein": protein, "ehr": ehr}.items():
            card = replace(one.card, sensitive=sensitive)
            model_folder.write(own / name, one.rows, one.tokenizer, card)
        text = text_model(own / "text", sensitive=sensitive)
        head = {"kind": "class", "label": "pet", "names": ["cat", "dog"]}
        labels = text_model(own / "labels", sensitive=sensitive, head=head)
        made = {"protein": own / "protein", "ehr": own / "ehr", "text": text, "labels": labels}
        found |= {f"{name}{' sensitive' * sensitive}": path for name, path in made.items()}
    return found


@pytest.fixture(params=sorted(CASES))
def asked(request: pytest.FixtureRequest, models: dict[str, Path], tmp_path: Path, seqmlm: Run) -> Asked:
    case = CASES[request.param]
    path = tmp_path / case.name
    path.write_text("\n".join(case.lines) + "\n")
    if case.beside is not None:
        name, text = case.beside
        (tmp_path / name).write_text(text)
    return Asked(request.param, case, models[case.model], path, seqmlm)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmlm.tasks.reading.BATCH_RECORDS", 2)
    monkeypatch.setattr("seqmlm.scoring.score.COMMIT_RECORDS", 1)


def test_every_task_has_a_case() -> None:
    assert set(CASES) == TASKS.keys() - {"review"}


FIGURES, JSON_ROWS = {"assays", "bias", "pairs"}, {"fill", "generate", "joint"}
"""Tasks that print figures without --out, and tasks that print rows with --json."""

NATIVE = {"generate"}
"""Tasks that print the field's format."""


LARGER = {"score", "variants"}
"""With one parameter more: of what is live, and of a family."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_command_has_at_most_fifteen_parameters_and_all_settings_are_described(name: str) -> None:
    assert len(COMMANDS[name,].params) <= 15 + (name in LARGER)


def test_all_settings_are_printed_with_what_they_mean(asked: Asked) -> None:
    import yaml

    done = asked("--print-config").ok()
    assert {"model", "precision", "on_error"} <= set(yaml.safe_load(done.out))
    assert done.out.count("# ") >= len(yaml.safe_load(done.out))


def test_an_unknown_setting_names_the_nearest(asked: Asked) -> None:
    asked("--set", "precison=bf16").refused(2, "did you mean 'precision'?")


def test_rows_are_the_same_in_every_format(asked: Asked, tmp_path: Path) -> None:
    asked("--out", tmp_path / "rows.jsonl").ok()
    rows = rows_of(tmp_path / "rows.jsonl")
    assert len(rows) == asked.case.rows
    for format in ("csv", "parquet"):
        table = tmp_path / f"rows.{format}"
        assert asked("--out", table, "--set", f"format_out={format}").code == 0
        assert [*_cells(table)] == [*map(str, (row.get("id") for row in rows))]
    left = {path.name for path in tmp_path.iterdir()}
    assert not [name for name in left if "partial" in name or name.endswith((UNDER_WAY, ".lock"))]


def _cells(table: Path) -> Iterator[str]:
    """The first column but for tables without `id`."""
    if table.suffix == ".csv":
        with table.open(newline="") as file:
            yield from (str(row.get("id")) for row in csv.DictReader(file))
    else:
        import pyarrow.parquet as pq

        yield from (str(row.get("id")) for row in pq.read_table(table).to_pylist())


def test_json_is_all_that_stdout_has(asked: Asked) -> None:
    done = asked("--json").ok()
    found = [json.loads(line) for line in done.out.splitlines()]
    if asked.task in JSON_ROWS:
        assert len(found) == asked.case.rows
    else:
        assert found[0]["task"] == asked.task
        assert found[0]["items"] == asked.case.items


def test_a_terminal_has_lines_for_people(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.modules["seqmlm.cli.command"], "advise", tell)
    done = asked().ok()
    lines = done.out.splitlines()
    assert not [line for line in lines if line.startswith("{")]
    assert "next: " in done.err
    if asked.task not in FIGURES | NATIVE and "figure" not in done.out:
        assert 0 < len(lines) <= asked.case.rows
        assert all(20 < len(line) <= 70 for line in lines)
        assert f"{asked.input}:"[-20:] in done.out or asked.task == "risk"  # rows of subjects, as of MEDS


def test_python_gives_the_rows_of_the_command(asked: Asked, tmp_path: Path) -> None:
    import pandas as pd

    import seqmlm
    from seqmlm.config import parse_assignments

    asked("--out", tmp_path / "rows.jsonl").ok()
    expected, words = pd.DataFrame(rows_of(tmp_path / "rows.jsonl")), asked.case.arguments
    settings: dict[str, Any] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option == "--set":
            settings |= parse_assignments([value])
            continue
        name = option.removeprefix("--")
        repeated = name not in {one.name for one in fields(TASKS[asked.task].Config)}
        settings[f"{name}s" if repeated else name] = (
            [*settings.get(f"{name}s", []), value] if repeated else value
        )
    found = seqmlm.load(asked.model).run(asked.task, asked.input, **settings)
    pd.testing.assert_frame_equal(pd.DataFrame(found), expected, check_exact=True)
    assert found.attrs["task"] == asked.task


@pytest.mark.usefixtures("small_batches")
def test_stopped_anywhere_and_resumed_it_gives_the_same_bytes(asked: Asked, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert asked("--out", whole).code == 0
    stops = 0
    with stopped_by_rows() as written:
        while not out.exists() or out.with_name(out.name + UNDER_WAY).exists():
            assert stops < asked.case.items, "it does not come on"
            done = asked("--out", out, "--resume")
            assert done.code in (0, 143), done.err
            stops += done.code == 143
            assert "--resume" in done.err or done.code == 0
    assert stops >= 2
    assert out.read_bytes() == whole.read_bytes()
    assert sum(written) == asked.case.items  # nothing was asked twice


@pytest.mark.usefixtures("small_batches")
def test_a_run_that_dies_between_two_files_is_gone_on_with(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill -9 leaves it: rows behind the mark, a torn line, the mark of the commit before."""
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert asked("--out", whole).code == 0
    write = Rows.write

    def dying(rows: Rows, items: Any) -> None:
        if rows.done >= 2:
            with out.open("ab") as file:
                file.write(b'{"id": "torn')
            raise KeyboardInterrupt
        write(rows, items)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "write", dying)
        assert asked("--out", out).code == 130
    assert out.read_bytes().endswith(b"torn")
    report = tmp_path / "report.html"
    done = asked("--out", out, "--resume", "--set", f"report={report}").ok()
    assert "continuing" in done.err
    assert out.read_bytes() == whole.read_bytes()
    assert str(asked.model) in report.read_text()  # it is made of the rows, whoever wrote them


@pytest.mark.usefixtures("small_batches")
def test_shards_put_together_are_one_run(asked: Asked, tmp_path: Path) -> None:
    whole, plain, out = tmp_path / "whole.jsonl", tmp_path / "plain.jsonl", tmp_path / "out.jsonl"
    asked("--out", whole, "--shard", "0/1").ok()
    parts = [tmp_path / f"part-{number}.jsonl" for number in range(3)]
    for number, part in enumerate(parts):
        asked("--out", part, "--shard", f"{number}/3").ok()
    assert (
        asked.seqmlm("rows", "merge", *reversed(parts), "--out", out, "--json").json["items"]
        == asked.case.items
    )
    assert out.read_bytes() == whole.read_bytes()
    asked("--out", plain).ok()
    near = [{**row, **dict.fromkeys(_floats(row), 0)} for row in rows_of(plain)]
    assert near == [{**row, **dict.fromkeys(_floats(row), 0)} for row in rows_of(out)]
    asked.seqmlm("rows", "merge", *parts[1:], "--out", out).refused(4, "missing: 0/3")
    asked("--out", parts[0], "--shard", "0/3", "--set", "precision=bf16").ok()
    asked.seqmlm("rows", "merge", *parts, "--out", out).refused(4, "does not belong to the same request")
    parts[1].write_text("{}\n")
    asked.seqmlm("rows", "merge", *parts, "--out", out).refused(4, "has changed since it was finished")
    asked.seqmlm("rows", "merge", plain, "--out", out).refused(4, "is not a finished share")
    asked("--out", parts[0], "--shard", "3/3").refused(2, "--shard must be I/N")
    asked("--shard", "0/3").refused(2, "an --out that ends in .jsonl")


@pytest.mark.usefixtures("small_batches")
def test_a_shard_is_resumed(asked: Asked, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    asked("--out", whole, "--shard", "1/2").ok()
    with stopped_by_rows():
        assert asked("--out", out, "--shard", "1/2").code == 143
    asked.seqmlm("rows", "merge", out, "--out", tmp_path / "merged.jsonl").refused(
        4, "is not a finished share"
    )
    asked("--out", out, "--shard", "1/2", "--resume").ok()
    assert out.read_bytes() == whole.read_bytes()


# Parts of about 20 s of work, by estimate


@dataclass
class Work:
    """What a run asks of a model whose speed is set: forward tokens between two commits, in order."""

    patch: pytest.MonkeyPatch
    tokens: list[int] = field(default_factory=list)
    commits: int = 0

    def set_speed(self, tokens_per_second: float) -> None:
        """Make the model seem so slow, and begin to count anew."""
        self.tokens.clear()
        self.commits = 0
        for module in ("inference.record_batches", "tasks.structure", "scoring.plan", "tasks.pace"):
            self.patch.setattr(f"seqmlm.{module}.tokens_per_second", lambda model: tokens_per_second)
        self.patch.setattr("seqmlm.inference.record_batches._LEAST", {False: 1, True: 1})


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    found, commit, forget = Work(monkeypatch), Rows.commit, Session.forget

    def committing(rows: Rows) -> None:
        commit(rows)
        found.commits += 1

    def forgetting(session: Session) -> None:
        if found.commits > len(found.tokens):  # what a calibration before the first row asked is no part
            found.tokens.append(session.forward_tokens)
        forget(session)

    monkeypatch.setattr(Rows, "commit", committing)
    monkeypatch.setattr(Session, "forget", forgetting)
    return found


def test_a_part_is_about_twenty_seconds_of_work_by_estimate(
    asked: Asked, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that is slow, some items; of one that is fast, all of the few that there are."""
    with monkeypatch.context() as patch:
        patch.setattr("seqmlm.tasks.reading.BATCH_RECORDS", 1)
        patch.setattr("seqmlm.scoring.score.COMMIT_RECORDS", 1)
        asked("--out", tmp_path / "single.jsonl").ok()
    total, largest = sum(work.tokens), max(work.tokens)
    for seconds in (90, 0.5):
        speed = total / seconds
        work.set_speed(speed)
        asked("--out", tmp_path / f"{seconds}.jsonl").ok()
        spent = [tokens / speed for tokens in work.tokens]
        if seconds < PART_SECONDS:
            assert len(spent) <= 1
        else:
            assert len(spent) >= 3
            assert max(spent) <= PART_SECONDS + largest / speed


def test_a_slow_run_that_is_stopped_keeps_what_was_done(
    asked: Asked, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("seqmlm.scoring.score.COMMIT_RECORDS", 1)
        asked("--out", tmp_path / "fast.jsonl").ok()
    work.set_speed(sum(work.tokens) / 90)
    asked("--out", whole).ok()
    with monkeypatch.context() as patch:
        stop_at(patch, Rows, "write", 2, None)
        stopped = asked("--out", out)
    assert stopped.code == 143
    assert f"run the same command with --resume to complete {out}" in stopped.err
    mark = json.loads(out.with_name(out.name + UNDER_WAY).read_text())
    assert 0 < mark["position"]["records"] < asked.case.items
    asked("--out", out, "--resume").ok()
    assert out.read_bytes() == whole.read_bytes()


def test_a_long_run_says_first_how_long_it_takes_and_then_how_far_it_is(
    asked: Asked, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where stderr is no terminal; a short one says nothing."""
    short = asked("--out", tmp_path / "short.jsonl").ok()
    assert "estimated time" not in short.err
    assert "left" not in short.err
    with monkeypatch.context() as patch:
        patch.setattr("seqmlm.scoring.score.COMMIT_RECORDS", 1)
        asked("--out", tmp_path / "single.jsonl").ok()
    work.set_speed(sum(work.tokens) / 400)
    monkeypatch.setattr("seqmlm.cli.console.LINE_SECONDS", 0.0)
    long = asked("--out", tmp_path / "long.jsonl").ok()
    (told,) = re.findall(r"estimated time: (\d+) minutes", long.err)
    assert 3 <= int(told) <= 25  # equal sequences are asked once, and are estimated each
    shares = [int(one) for one in re.findall(r"(\d+)%", long.err)]
    assert shares == sorted(shares)
    assert len({*shares}) > 2
    assert "left" in long.err


def test_a_run_that_is_stopped_before_its_first_commit_does_not_offer_to_resume(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    stop_at(monkeypatch, TASKS[asked.task], "rows", 1, None)
    stopped = asked("--out", out)
    assert stopped.code == 143
    assert "--resume" not in stopped.err
    assert "run the same command again" in stopped.err


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("number", [1, 2])
def test_a_full_disk_offers_to_resume_what_can_be_resumed(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    out = tmp_path / "out.jsonl"
    full = write_error(out, OSError(errno.ENOSPC, "No space left on device"))
    stop_at(monkeypatch, Rows, "write", number, full)
    failed = asked("--out", out).refused(4, "No space left on device; ", "free space there")
    assert ("with --resume" in failed.err) == (number > 1)
    assert ("the same command again" in failed.err) == (number == 1)


def _floats(row: dict[str, Any]) -> set[str]:
    """Fields whose last bits depend on what was asked together."""
    return {key for key, value in row.items() if isinstance(value, (float, list, dict))}


@pytest.mark.usefixtures("small_batches")
def test_another_request_is_not_gone_on_with(asked: Asked, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with stopped_by_rows():
        assert asked("--out", out).code == 143
    asked("--out", out, "--resume", "--set", "precision=bf16").refused(4, "precision")
    asked.input.write_text("\n".join(asked.case.lines[:-1]) + "\n")
    asked("--out", out, "--resume").refused(4, "has changed")
    assert "written again from the beginning" in asked("--out", out).ok().err


def test_two_runs_do_not_write_one_file(asked: Asked, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with FileLock(out.with_name("out.jsonl.lock")):
        asked("--out", out).refused(4, "in use")
    assert not out.exists()


def test_a_bad_record_costs_itself(asked: Asked, tmp_path: Path) -> None:
    if asked.case.bad is None:
        pytest.skip("every input of this task is good")
    middle = len(asked.case.lines) // 2
    lines = [*asked.case.lines[:middle], asked.case.bad, *asked.case.lines[middle:]]
    asked.input.write_text("\n".join(lines) + "\n")
    asked("--out", tmp_path / "raised.jsonl").refused(3, f"{asked.input}:", "--on-error skip")
    done = asked("--out", tmp_path / "rows.jsonl", "--on-error", "quarantine", "--json").ok()
    if asked.task not in JSON_ROWS:
        assert (done.json["items"], done.json["bad"]) == (asked.case.items, 1)
    assert len(rows_of(tmp_path / "rows.jsonl")) == asked.case.rows
    (aside,) = rows_of(tmp_path / "rows.jsonl.quarantine.jsonl")
    told = asked("--out", tmp_path / "again.jsonl", "--on-error", "quarantine").ok()
    assert f"bad records are in {tmp_path / 'again.jsonl.quarantine.jsonl'}" in told.err
    assert aside["source"] == str(asked.input)
    assert aside["line"]
    assert aside["reason"]


def test_bad_records_alone_are_an_error(asked: Asked, tmp_path: Path) -> None:
    if asked.case.bad is None:
        pytest.skip("every input of this task is good")
    header = asked.case.lines[:1] if asked.input.suffix in (".csv", ".tsv") else ()
    asked.input.write_text("\n".join([*header, asked.case.bad]) + "\n")
    out = tmp_path / "out.jsonl"
    out.write_text(BEFORE)
    asked("--out", out, "--on-error", "skip").refused(3, "no record could be read")
    assert out.read_text() == BEFORE
    assert not out.with_name(out.name + UNDER_WAY).exists()


def test_nothing_to_read_is_an_error_and_leaves_no_file(asked: Asked, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(BEFORE)
    asked.input.write_text("")
    assert asked("--out", out).code == 3
    assert out.read_text() == BEFORE
    assert not out.with_name(out.name + UNDER_WAY).exists()
    asked.input.unlink()
    assert asked("--out", out).code in (2, 3)


def test_a_report_stands_alone_and_is_logged(asked: Asked, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    asked("--out", tmp_path / "rows.jsonl", "--set", f"report={report}").ok()
    html = report.read_text()
    assert str(asked.model) in html
    assert "src=" not in html
    listed = asked.seqmlm("runs", "list", "--json")
    assert asked.task in listed.out, listed


def test_outputs_are_no_inputs_and_one_file_each(asked: Asked, tmp_path: Path) -> None:
    assert asked("--out", asked.input).code == 2
    same = tmp_path / "same"
    asked("--out", same, "--set", f"report={same}").refused(2, "the same file")


def test_sensitive_rows_go_to_a_private_file_or_nowhere(
    asked: Asked, models: dict[str, Path], tmp_path: Path
) -> None:
    private = replace(asked, model=models[f"{asked.case.model} sensitive"])
    private().refused(2, "not shown on the console")
    out, report = tmp_path / "rows.csv", tmp_path / "r.html"
    private("--out", out, "--set", "format_out=csv", "--set", f"report={report}").ok()
    assert [path.stat().st_mode & 0o777 for path in (out, report)] == [0o600, 0o600]
    kept = [path for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file()]
    assert not [path for path in kept if path.suffix in (".html", ".jsonl", ".csv")]


FORMATS = ("jsonl", "jsonl.gz", "csv", "csv.gz", "tsv", "parquet")


@pytest.mark.parametrize("format", FORMATS)
def test_an_output_takes_the_place_of_an_earlier_one_and_of_no_other_file(
    asked: Asked, tmp_path: Path, format: str
) -> None:
    """One command a format, since a run costs a second: no task says itself how its rows begin."""
    if FORMATS.index(format) != sorted(CASES).index(asked.task) % len(FORMATS) and format != "csv":
        pytest.skip("another task has this format")
    out = tmp_path / f"rows.{format}"
    asked("--out", out).ok()
    rows = out.read_bytes()
    asked("--out", out).ok()
    assert out.read_bytes() == rows
    if format.endswith(".gz"):
        found = gzip.decompress(rows).decode().splitlines()
        assert len(found) == asked.case.rows + (format == "csv.gz")
    out.write_bytes(b"a thesis\n")
    report = tmp_path / "page.html"
    report.write_text("<html>a page of another program</html>")
    asked("--out", out).refused(4, str(out), "move it away")
    asked("--set", f"report={report}").refused(4, str(report), "move it away")
    assert (out.read_bytes(), report.read_bytes()) == (
        b"a thesis\n",
        b"<html>a page of another program</html>",
    )
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((UNDER_WAY, ".lock"))]


@pytest.mark.parametrize("name", ["x.bedgraf", "x.doc.gz", "seqmlm.db", "x.parquet.gz", "notes.v2", "x.docx"])
def test_an_unknown_ending_is_refused_before_the_model_is_looked_for(
    asked: Asked, tmp_path: Path, name: str
) -> None:
    other = replace(asked, model=tmp_path / "no model")
    other("--out", tmp_path / name).refused(2, name, ".jsonl", ".csv")
    other("--set", f"report={tmp_path / 'x.pdf'}").refused(2, "x.pdf", ".html")
    assert not (tmp_path / name).exists()


# The file of rows itself


def test_columns_are_those_of_the_values() -> None:
    rows = [{"a": 1, "b": None, "c": True, "e": None}, {"a": 0.5, "b": "x", "c": None, "d": [1], "e": None}]
    kinds = {"a": "number", "b": "text", "c": "flag", "e": "text", "d": "json"}
    assert columns_of(rows, {}) == kinds
    assert columns_of(rows, {"e": "flag"}) == kinds | {"e": "flag"}


def test_problems_of_items_that_are_done_are_not_met_twice(tmp_path: Path) -> None:
    out, aside = tmp_path / "rows.jsonl", tmp_path / "aside.jsonl"

    def items(problems: Problems) -> Iterator[int]:
        for number in range(6):
            if number % 2:
                problems.bad(DataError("odd", source="x", line=number), str(number))
            else:
                yield number

    def some(stop: int, resume: bool) -> tuple[int, str]:
        with (
            Problems("quarantine", quarantine=aside) as problems,
            Rows(out, {"of": "x"}, problems, resume=resume) as rows,
        ):
            stream = items(problems)
            with problems.replaying(problems.snapshot()):
                for _ in range(rows.done):
                    next(stream)
            for number in stream:
                rows.write([[{"n": number}]])
                rows.commit()
                if number >= stop:
                    return problems.bad_count, aside.read_text()
            rows.finish()
            return problems.bad_count, aside.read_text()

    some(2, False)
    assert some(9, True) == (3, aside.read_text())
    assert [json.loads(line)["line"] for line in aside.read_text().splitlines()] == [1, 3, 5]
    assert [row["n"] for row in rows_of(out)] == [0, 2, 4]
