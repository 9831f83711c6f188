"""Words planted in sensitive data, looked for in every byte that is written or shown.

A word of at least ten subjects may be in a model; one of fewer may be nowhere but in the rows and reports
that their owner asked for, and that nobody else may read. What looks like a secret is not even there.
"""

from __future__ import annotations

import json
import re
import stat
import traceback
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import histories as patients
import pytest
from fork_server import Run
from tiny_models import TINY, protein_model, proteins, saved

from seqmlm.cli import main
from seqmlm.data.counts import redacted
from seqmlm.errors import SeqmlmError

SHORT = (*TINY, "--max-steps", 2, "--set", "model.max_length=64")
SECRETS = ("canaryone", "canarynine", "canarywindow", "canarypass", "canarybearer", "canarybad", "canaryuser")
MAY = "canaryten"


def log_files(folder: Path, day: int = 4) -> list[Path]:
    """A service's log in three rotations: sessions by request id, and lines of no session."""
    lines = []
    for number in range(150):
        stamp = f"2024-03-0{day}T0{number // 60}:{number % 60:02}:"
        said = [
            "GET started",
            f"took {number} ms",
            "password=canarypass accepted",
            "Authorization: Bearer canarybearer",
        ]
        said += ["the canaryten sang"] * (number < 10) + ["a canarynine sang"] * (number < 9)
        said += ["one canaryone sang"] * (3 if number == 4 else 0)
        said += [f"mail from canaryuser{number}@example.org", "done"]
        lines += [f"{stamp}{i:02}Z {text} request_id=r{day}-{number}" for i, text in enumerate(said)]
        lines += [f"{stamp}59Z idle {i} canarywindow waits" for i in range(2)]
    third = len(lines) // 3
    paths = [folder / name for name in ("app.log.2", "app.log.1", "app.log")]
    for place, path in enumerate(paths):
        path.write_text("\n".join(lines[place * third : (place + 1) * third]) + "\n")
    with paths[0].open("ab") as file:
        file.write(b"2024-03-04T03:00:00Z canarybad \xff request_id=canaryone\n")
    return paths


def patients_table(folder: Path, seed: int = 0) -> Path:
    """Patients, some of whose codes, words, units and descriptions are those of 1, 9 and 40 of them."""
    histories = patients.histories(120, seed)
    header, *rows = patients.table(histories)
    lines = [f"{header},unit,description", *(f"{row},," for row in rows)]
    for count, word in ((1, "canaryone"), (9, "canarynine"), (40, MAY)):
        for history in histories[:count]:
            for repeated in range(3):
                lines.append(f"{history.subject},2001-01-0{repeated + 1},DX//{word},,,w{repeated},,")
                lines.append(f"{history.subject},2001-01-0{repeated + 1},LAB//5778-6,,{word},w{repeated},,")
                measured = f"LAB//2345-7,{repeated},,w{repeated},{word},of {word}"
                lines.append(f"{history.subject},2001-01-0{repeated + 1},{measured}")
    lines.append("canaryuser,2001-01-01,SEX//F,31337.25,,v,,")
    lines.append("canaryuser,canarybad,SEX//F,,,v,,")
    path = folder / "events.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def holding(root: Path, words: Iterable[str]) -> dict[str, list[str]]:
    """Files below a folder that hold any of some words, in any of the usual encodings."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            own = [w for w in words if w.encode() in content or w.encode("utf-16-le") in content]
            if own or any(word in str(path) for word in words):
                found[str(path.relative_to(root))] = own
    return found


def is_private(path: Path, root: Path) -> bool:
    """Whether nobody but the owner may read it, or reach it."""
    own = [path, *(one for one in path.parents if one.is_relative_to(root) and one != root)]
    return any(not stat.S_IMODE(one.stat().st_mode) & 0o077 for one in own)


READS = ("train", "calibrate", "score", "inspect", "export", "strict", "strict, debugging")


def everything(
    seqmlm: Run, out: Path, kind: tuple[Any, ...], data: list[Path], fresh: list[Path]
) -> tuple[dict[str, int], str]:
    """Run all commands that read sensitive data: exit codes that are wrong, and all that was shown."""
    sensitive = ("--set", "data.sensitive=true")
    skip = ("--on-error", "skip")
    aside = ("--set", "data.on_error=quarantine")
    domain, reading = kind[:2], SESSIONS if "logs" in kind else ()
    rows, labels = out / "rows.jsonl", out / "labels.csv"
    labels.write_text("id,label\ncanaryuser,1\n")
    said, wrong = "", {}
    more = ("--fpr", 0.1, "--set", "per_unit=true")
    for name, (expected, *arguments) in {
        "train": (0, "train", *kind, *data, *SHORT, *sensitive, *aside, "--name", "m"),
        "calibrate": (0, "calibrate", "m", *fresh, *skip),
        "score": (0, "score", "m", *data, *skip, "--out", rows, "--report", out / "r.html", *more),
        "evaluate": (3, "evaluate", rows, "--labels", labels),
        "inspect": (0, "data", "inspect", *domain, *data, "--sensitive"),
        "export": (2, "data", "export", *domain, *data, "--out", out / "exported", "--sensitive"),
        "models export": (0, "models", "export", "m", "--out", out / "model"),
        "models show": (0, "models", "show", "m"),
        "score on the console": (2, "score", "m", *data, *skip),
        "strict": (3, "train", *kind, *data, *SHORT, *sensitive, "--name", "n"),
        "strict, debugging": (3, "--debug", "train", *kind, *data, *SHORT, *sensitive),
    }.items():
        try:
            done = seqmlm(*arguments, *(reading if name in READS else ()))
            code, told = done.code, done.out + done.err
        except SeqmlmError as error:
            code, told = error.exit_code, traceback.format_exc()
        wrong |= {name: code} if code != expected else {}
        said += f"\n## {name}\n{told}"
    return wrong, said


KINDS = {
    "log templates": ("--domain", "logs"),
    "log words": ("--domain", "logs", "--set", "tokenizer.name=log_words.v1"),
    "patients": ("--domain", "ehr"),
}
# Lines of no session make windows, far more than ten.
SESSIONS = ("--option", r"session=request_id=(\S+)", "--option", "window=16")


@pytest.mark.parametrize("kind", KINDS)
def test_what_few_subjects_have_is_found_nowhere(kind, seqmlm, workspace, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SEQMLM_DEBUG", "")  # is set by --debug
    elsewhere = tmp_path_factory.mktemp("data")
    asked = tmp_path_factory.mktemp("asked")
    later = elsewhere / "later"
    later.mkdir()
    logs = "log" in kind
    data = log_files(elsewhere) if logs else [patients_table(elsewhere)]
    fresh = log_files(later, day=5) if logs else [patients_table(later, seed=1)]
    wrong, said = everything(seqmlm, asked, KINDS[kind], data, fresh)
    assert wrong == {}, said
    assert [word for word in SECRETS if word in said] == [], said
    found = holding(workspace, SECRETS)
    personal = {name for name in found if name.startswith("runs/.cache/")}
    for name in personal:  # prepared data say whose a record is
        assert found[name] == ["canaryuser"]
        assert is_private(workspace / name, workspace)
    assert set(found) == personal
    assert set(holding(asked, SECRETS)) <= {"rows.jsonl", "r.html", "labels.csv"}
    shown = holding(asked, ("canarypass", "canarybearer"))
    assert not shown, shown
    for name in ("rows.jsonl", "r.html"):
        assert is_private(asked / name, asked)
    for name in ("prepared", "tokenizers"):
        for entry in (workspace / "runs" / ".cache" / name).iterdir():
            assert entry.is_file() or is_private(entry, workspace)
    # The search would find what is there.
    model = holding(workspace / "runs" / "m" / "model", [MAY])
    assert model or kind == "log words"
    assert holding(elsewhere, SECRETS)
    assert json.loads((workspace / "runs/m/model/seqmlm.json").read_text())["sensitive"]


def _never() -> bool:
    return False


EXITS: dict[str, dict[str, Any]] = {
    "files": {"seqmlm.privacy.owner_only": nullcontext},
    "summary": {"seqmlm.reports.summary.released": dict},
    "page": {"seqmlm.reports.page.sensitive_data": _never},
    "tracked run": {
        "seqmlm.tracking.run.sensitive_data": _never,
        "seqmlm.data.sources.sensitive_data": _never,
    },
    "errors": {"seqmlm.data.problems.sensitive_data": _never},
    "counts in sentences": {
        "seqmlm.data.counts.sensitive_data": _never,
        "seqmlm.reports.summary.released": redacted,
    },
}
"""What each exit of the process asks before it lets something out, and what disables it."""


def leaking_exits(workspace: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Score three sequences, and one that no model can read, by a sensitive model; the exits that leak."""
    model = saved(protein_model(), workspace / "model", sensitive=True)
    records = proteins(workspace / "canaryname.fasta", 3, seed=0)
    with records.open("a") as file:
        file.write(">bad\nCANARYCANARY1\n")
    rows, report = workspace / "rows.jsonl", workspace / "r.html"
    shown = []
    for more in (["--json"], []):
        words = [
            "score",
            model,
            records,
            "--out",
            rows,
            "--report",
            report,
            "--on-error",
            "quarantine",
            *more,
        ]
        with pytest.raises(SystemExit) as stop:
            main([*map(str, words), "--on-error", "quarantine"])
        assert not stop.value.code
        shown.append(capsys.readouterr())
        rows.unlink()
    tracked = [path for path in workspace.rglob("*") if path.is_file() and "runs" in path.parts]
    tracked += [workspace / "mlflow.db"]
    quarantine = next(workspace.rglob("*quarantine*")).read_text()
    leaks = {
        "files": report.stat().st_mode & 0o077 != 0,
        "summary": json.loads(shown[0].out)["items"] != "<11",
        "page": b"seqmlm score" in report.read_bytes(),
        "tracked run": any(b"canaryname" in path.read_bytes() for path in tracked),
        "errors": "CANARY" in quarantine or "CANARY" in shown[0].err + shown[1].err,
        "counts in sentences": re.search(r"\b3 records|records/s", shown[1].err) is not None,
    }
    return {name for name, leaked in leaks.items() if leaked}


@pytest.mark.parametrize("disabled", [None, *EXITS])
def test_each_exit_withholds_what_no_other_would(
    disabled: str | None,
    tracked_workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With an exit disabled, the search finds what that exit lets out, and nothing else."""
    for place, stand_in in EXITS.get(disabled or "", {}).items():
        monkeypatch.setattr(place, stand_in)
    assert leaking_exits(tracked_workspace, capsys) == ({disabled} if disabled else set())
