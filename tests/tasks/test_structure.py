"""`seqmlm structure` end to end: rows, files, figures, stops and resumes, and requests that make no sense."""

from __future__ import annotations

import io
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from checkpoints import checkpoint, log_probs
from fork_server import Run
from histories import histories
from sklearn.metrics import average_precision_score, roc_auc_score
from stopped import stop_at
from structures import Best, Equal, value
from tiny_models import protein_model, random_model, residues, saved

from seqmlm import plugins
from seqmlm.data.rows import read_rows
from seqmlm.errors import DataError, SeqmlmError, StateError, UsageError
from seqmlm.inference import batches, runner
from seqmlm.structure.maps import DependenceMap
from seqmlm.tasks.structure import StructureResult, map_structure
from seqmlm.tasks.structure_plan import Plan, StructureConfig
from seqmlm.tokenizers.events import EventsTokenizer
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(protein_model(64), tmp_path_factory.mktemp("model")))


@pytest.fixture
def equal(monkeypatch: pytest.MonkeyPatch) -> list[Equal]:
    """Maps need no model, and every protein's structure is the best partner of each residue."""
    made: list[Equal] = []

    def estimator(*given: Any, **named: Any) -> Equal:
        made.append(Equal(*given, **named))
        return made[-1]

    monkeypatch.setattr("seqmlm.inference.maps.estimator", estimator)
    for name in ("protein", "ehr"):
        monkeypatch.setattr(type(plugins.domain(name)), "decoder", lambda self: Best())
    return made


@pytest.fixture
def fasta(tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty sequences, mapped four at a time; a commit after every second batch."""
    monkeypatch.setattr(batches, "BATCH_RECORDS", 4)
    monkeypatch.setattr(runner, "COMMIT_RECORDS", 8)
    file = tracked_workspace / "p.fasta"
    text = residues(70)
    # One residue alone has no pair; two records of one name are two sequences.
    lengths = [1 if n == 3 else 4 + n % 9 for n in range(20)]
    file.write_text("".join(f">p{n - (n == 6)}\n{text[n : n + size]}\n" for n, size in enumerate(lengths)))
    return file


@pytest.fixture
def truth(tracked_workspace: Path) -> Path:
    """Of eight sequences: neighbours by two, and one that has no pair at all."""
    file = tracked_workspace / "truth.json"
    known = {f"p{n}": [[i, i + 2] for i in range(2 + n % 3)] for n in range(8, 15)}
    file.write_text(json.dumps({**known, "p3": []}))
    return file


def _map(model: str, *paths: Path, **settings: Any) -> StructureResult:
    config = StructureConfig(**{"model": model, "paths": tuple(map(str, paths)), **settings})
    return map_structure(config, io.StringIO())


def _sequences(fasta: Path) -> list[tuple[str, str]]:
    lines = fasta.read_text().split()
    return [(name[1:], text) for name, text in zip(lines[::2], lines[1::2], strict=True)]


def _expected(text: str, ids: dict[str, int]) -> dict[tuple[int, int], float]:
    own = [ids[letter] for letter in text]
    return {(i, j): value(own[i], own[j], i, j) for i in range(len(own)) for j in range(i + 1, len(own))}


def _ids(model: str) -> dict[str, int]:
    tokens = protein_model().tokenizer.tokens
    return {text: number for number, text in enumerate(tokens)}


def test_edges_go_to_standard_output_and_all_pairs_where_they_are_asked_for(
    model: str, fasta: Path, equal: list[Equal], seqmlm: Run
) -> None:
    done = seqmlm("structure", model, fasta).ok()
    found = [json.loads(line) for line in done.out.splitlines()]
    assert found
    assert all(row["predicted"] for row in found)
    every = [json.loads(line) for line in seqmlm("structure", model, fasta, "--all").out.splitlines()]
    assert [row for row in every if row["predicted"]] == found
    ids, pairs = _ids(model), [(n, x, p) for n, x in _sequences(fasta) for p in _expected(x, _ids(model))]
    assert [(row["id"], (row["i"], row["j"])) for row in every] == [(n, p) for n, _, p in pairs]
    for row, (_, text, pair) in zip(every, pairs, strict=True):
        assert row["value"] == pytest.approx(_expected(text, ids)[pair], abs=1e-12)
        assert (row["unit_i"], row["unit_j"]) == (text[pair[0]], text[pair[1]])
        assert row["z"] is row["p"] is row["se"] is None
    table = seqmlm("structure", model, fasta, "--format-out", "tsv").out.splitlines()
    assert table[0].split("\t") == list(found[0])
    assert len(table) == len(found) + 1
    assert "--estimator auto: cmi/equal" in done.err
    assert "20 sequences" in done.err


def test_pairs_are_as_far_apart_as_is_said(model: str, fasta: Path, equal: list[Equal]) -> None:
    out = fasta.parent / "out"
    _map(model, fasta, folder=out, separation=3, distance=5)
    found = [int(row["j"]) - int(row["i"]) for _, row in read_rows(str(out / "edges.tsv"))]
    assert set(found) == {3, 4, 5}


def test_a_folder_holds_edges_graphs_and_a_report_that_a_run_keeps(
    model: str, fasta: Path, equal: list[Equal], truth: Path, seqmlm: Run
) -> None:
    out = fasta.parent / "out"
    done = seqmlm("structure", model, fasta, "--out", out, "--truth", truth, "--json").ok()
    names = ("edges.tsv", "edges.json", "edges.graphml", "pairs.txt", "units.txt", "report.html")
    assert tuple(done.json["files"]) == names
    assert {path.name for path in out.iterdir()} == {*names, "settings.json"}
    rows = [row for _, row in read_rows(str(out / "edges.tsv"))]
    assert done.json["pairs"] == len(rows)
    edges = [(row["id"], int(row["i"]), int(row["j"])) for row in rows if row["predicted"] == "true"]
    assert done.json["edges"] == len(edges) > 20
    told = json.loads((out / "edges.json").read_text())
    assert [(one["id"], "".join(one["units"])) for one in told] == _sequences(fasta)
    assert [(one["id"], edge["i"], edge["j"]) for one in told for edge in one["edges"]] == edges
    graph = nx.read_graphml(out / "edges.graphml")
    assert (len(graph), graph.number_of_edges()) == (sum(len(x) for _, x in _sequences(fasta)), len(edges))
    assert graph.nodes["7:2"] == {"sequence": "p7", "place": 2, "unit": _sequences(fasta)[7][1][2]}
    assert (out / "units.txt").read_text().split() == [text for _, text in _sequences(fasta)]
    report = (out / "report.html").read_text()
    assert "picture of 8 units" in report
    assert "minus the distance" in report
    [run] = [one for one in Tracker(Workspace.locate()).runs() if one.tags.get("task") == "structure"]
    assert run.metrics["auroc"] == pytest.approx(done.json["auroc"])
    assert run.metrics["share"] == done.json["share"] == done.json["measures"]["share"]


def test_figures_are_those_of_the_pairs_that_the_truth_speaks_of(
    model: str, fasta: Path, equal: list[Equal], truth: Path
) -> None:
    result = _map(model, fasta, truth=truth)
    known, ids = json.loads(truth.read_text()), _ids(model)
    found = []
    for name, text in _sequences(fasta):
        if known.get(name):
            pairs = _expected(text, ids)
            labels = [list(pair) in known[name] for pair in pairs]
            near = [i - j for i, j in pairs]
            found.append(
                [
                    *(roc_auc_score(labels, x) for x in (list(pairs.values()), near)),
                    *(average_precision_score(labels, x) for x in (list(pairs.values()), near)),
                    np.mean(labels),
                ]
            )
    assert result.ranking is not None
    own = result.ranking
    told = [own.values["auroc"], own.distance["auroc"], own.values["auprc"], own.distance["auprc"]]
    assert [*(one.value for one in told), own.prevalence] == pytest.approx(np.mean(found, axis=0).tolist())
    assert own.sequences == len(found) == 7
    assert result.known == 8, "one of them has no pair"
    assert all(one.low < one.value < one.high for one in told)
    assert result.folder is None
    assert result.measures["share"] > 0


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("stopped", [1, 2, 4])
@pytest.mark.parametrize("kind", ["killed", "told"])
def test_a_stopped_run_goes_on_to_the_same_files(
    model: str, fasta: Path, equal: list[Equal], truth: Path, monkeypatch: pytest.MonkeyPatch,
    stopped: int, kind: str,
) -> None:  # fmt: skip
    whole, out = fasta.parent / "whole", fasta.parent / "out"
    once = _map(model, fasta, folder=whole, truth=truth)
    with monkeypatch.context() as patched:
        stop_at(patched, Plan, "decoded", stopped, KeyboardInterrupt() if kind == "killed" else None)
        if kind == "killed":
            with pytest.raises(KeyboardInterrupt):
                _map(model, fasta, folder=out, truth=truth)
        else:
            result = _map(model, fasta, folder=out, truth=truth)
            assert result.written.stopped == signal.SIGTERM
            assert not (out / "report.html").exists()
    if stopped == 4:  # something was committed
        with pytest.raises(StateError, match="distance was not given and is 3"):
            _map(model, fasta, folder=out, truth=truth, resume=True, distance=3)
    again = _map(model, fasta, folder=out, truth=truth, resume=True)
    assert _contents(out) == _contents(whole)
    assert again.figures() == once.figures()
    if stopped == 4:
        assert len(equal[-1].asked) < 20, "what was committed is not asked again"


def test_what_was_mapped_is_not_mapped_again_to_learn_more_of_it(
    model: str, fasta: Path, equal: list[Equal], truth: Path
) -> None:
    out = fasta.parent / "out"
    first = _map(model, fasta, folder=out)
    assert first.ranking is None
    (out / "report.html").unlink()
    more = _map(model, fasta, folder=out, truth=truth, resume=True)
    assert not equal[-1].asked
    assert more.ranking is not None
    assert (more.pairs, more.passes, more.details) == (first.pairs, first.passes, first.details)
    assert (out / "report.html").exists()
    edges = out / "edges.tsv"
    edges.write_text(edges.read_text().replace("p8", "p9"))
    _map(model, fasta, folder=out, resume=True)
    assert equal[-1].asked, "a table that somebody changed is made anew"


def test_an_input_that_changed_meanwhile_is_no_basis_of_files(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Plan.again

    def changed(self: Plan) -> Any:
        return (one for number, one in enumerate(again(self)) if number != 9)

    monkeypatch.setattr(Plan, "again", changed)
    with pytest.raises(StateError, match="has changed meanwhile"):
        _map(model, fasta, folder=fasta.parent / "out")


def test_people_are_told_of_in_files_of_their_own_and_in_large_numbers_alone(
    tracked_workspace: Path, equal: list[Equal], seqmlm: Run
) -> None:
    loaded = random_model("ehr", EventsTokenizer.train(histories(40), min_subjects=1))
    folder = saved(loaded, tracked_workspace / "model", sensitive=True)
    table, out, truth = (tracked_workspace / name for name in ("events.csv", "out", "t.json"))
    lines = [f"person{n},20{10 + y}-01-01,{code}" for n in range(12) for y, code in
             enumerate(("DRUG//metformin", "DRUG//sertraline"))]  # fmt: skip
    table.write_text("subject_id,time,code\n" + "\n".join(lines) + "\n")
    truth.write_text(json.dumps({f"person{n}": [[0, 1]] for n in range(3)}))
    seqmlm("structure", folder, table).refused(2, "not shown on the console")
    done = seqmlm("structure", folder, table, "--out", out, "--truth", truth, "--json").ok()
    assert "person" not in done.out + done.err + (out / "report.html").read_text()
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}
    assert "person7" in (out / "edges.tsv").read_text()
    assert done.json["with_truth"] == "<11"
    assert "auroc" not in done.json
    assert "share" not in done.json
    assert "withheld" in (out / "report.html").read_text()
    [run] = [one for one in Tracker(Workspace.locate()).runs() if one.tags.get("task") == "structure"]
    assert "share" not in run.metrics
    assert seqmlm("structure", folder, table, "--json").code == 0


def test_records_of_a_code_are_one_unit_unless_they_shall_stand_apart(tracked_workspace: Path, seqmlm: Run):
    others = [  # another code of one family
        replace(one, events=tuple(replace(x, code=x.code.replace("I50.9", "I50.1")) for x in one.events))
        for one in histories(40)
    ]
    tokenizer = EventsTokenizer.train([*histories(40), *others], min_subjects=1)
    folder = saved(random_model("ehr", tokenizer), tracked_workspace / "model")
    table = tracked_workspace / "events.csv"

    def write(*codes: str) -> None:
        lines = [f"one,{1800 + year}-01-01,{code}" for year, code in enumerate(codes)]
        table.write_text("subject_id,time,code\n" + "\n".join(lines) + "\n")

    write("DRUG//metformin", "DRUG//sertraline", "DRUG//metformin", "DRUG//metformin")

    def pairs(*flags: str) -> list[tuple[int, int]]:
        done = seqmlm("structure", folder, table, "--all", *flags).ok()
        return [(row["i"], row["j"]) for row in map(json.loads, done.out.splitlines())]

    assert pairs() == pairs("--method", "cpmi") == pairs("--method", "pmi") == [(0, 1)]
    assert len(pairs("--apart")) == 6

    def passes(*flags: str) -> int:
        asked = ("structure", folder, table, "--json", *flags)
        found: list[int] = [seqmlm(*asked, *dry).json["passes"] for dry in (["--dry-run"], [])]
        assert found[0] == found[1], "what is announced is what is done"
        return found[0]

    assert passes("--method", "cpmi") == 3
    assert passes("--method", "cpmi", "--apart") == 10
    write("ICD10//I50.1", "ICD10//I50.9", "ICD10//I50.1", "DRUG//metformin")
    assert passes("--method", "cpmi") == 6, "codes of one family are not one code"
    write(*(["DRUG//metformin", "DRUG//sertraline"] * 100), "DRUG//calcitriol")
    assert pairs("--method", "cpmi") == [(0, 1), (0, 200), (1, 200)], "once, whatever the windows"


def test_a_family_has_one_map_of_its_first_row(model: str, equal: list[Equal], tracked_workspace: Path):
    file, out = tracked_workspace / "family.fasta", tracked_workspace / "out"
    file.write_text(">query\nMK-TAYM\n>other\nMKWT--M\n>third\n-KWTAYM\n")
    result = _map(model, file, folder=out, family=True)
    rows = {(int(r["i"]), int(r["j"])): r for _, r in read_rows(str(out / "edges.tsv"))}
    assert {row["id"] for row in rows.values()} == {"query"}
    assert "".join(json.loads((out / "edges.json").read_text())[0]["units"]) == "MKTAYM"
    ids = _ids(model)
    # Columns of T and M: places 2 and 5 of the query, 3 and 4 of the second, 2 and 5 of the third row.
    own = [value(ids["T"], ids["M"], i, j) for i, j in ((2, 5), (3, 4), (2, 5))]
    assert float(rows[2, 5]["value"]) == pytest.approx(np.mean(own))
    assert float(rows[2, 5]["se"]) == pytest.approx(np.std(own, ddof=1) / np.sqrt(3))
    assert result.sequences == 1
    two = _map(model, file, folder=out, family=True, sequences=1)
    assert two.passes == 6
    file.write_text(">query\nMK-TAYM\n>other\nMKWT-M\n")
    with pytest.raises(DataError, match="rows differ in length"):
        _map(model, file, folder=out, family=True)


def test_a_field_without_a_decoder_has_values_alone(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch, seqmlm: Run
) -> None:
    def none(self: Any) -> Any:
        raise UsageError("domain protein does not say what its maps of dependence mean")

    monkeypatch.setattr(type(plugins.domain("protein")), "decoder", none)
    out = fasta.parent / "out"
    done = seqmlm("structure", model, fasta, "--out", out).ok()
    assert "none is taken for an edge" in done.err
    assert "predicted" not in (out / "edges.tsv").read_text().splitlines()[0]
    assert {path.name for path in out.iterdir()} == {"edges.tsv", "report.html", "settings.json"}
    assert len(seqmlm("structure", model, fasta).out.splitlines()) > 100
    seqmlm("structure", model, fasta, "--truth", fasta).refused(2, "does not say what")


def test_what_it_takes_is_estimated_from_the_input(model: str, fasta: Path, equal: list[Equal], seqmlm: Run):
    done = seqmlm("structure", model, fasta, "--dry-run", "--json").ok()
    assert done.json["passes"] == sum(len(text) for _, text in _sequences(fasta))
    assert done.json["seconds"] > 0
    assert not equal[-1].asked
    told = _map(model, fasta, folder=fasta.parent / "out")
    assert told.passes == done.json["passes"]
    assert "passes" in seqmlm("structure", model, fasta, "--dry-run").out


def test_null_models_leave_standard_input_unread(
    model: str, equal: list[Equal], seqmlm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b">one\nMKTAYIAK\n")))
    done = seqmlm("structure", model, "-", "--format", "fasta", "--null", "2", "--all").ok()
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert len(rows) == 8 * 7 / 2
    assert all(row["p"] is not None for row in rows)


def test_units_that_cannot_be_moved_are_refused_before_anything_is_written(
    tracked_workspace: Path, seqmlm: Run
) -> None:
    loaded = random_model("ehr", EventsTokenizer.train(histories(40), min_subjects=1))
    folder, out = saved(loaded, tracked_workspace / "model"), tracked_workspace / "out"
    table = tracked_workspace / "events.csv"
    table.write_text(
        "subject_id,time,code\none,2010-01-01,DRUG//metformin\none,2010-01-01,DRUG//sertraline\n"
    )
    for asked in (("--out", out), ("--dry-run",)):
        done = seqmlm("structure", folder, table, "--null", "3", *asked)
        done.refused(2, "cannot be moved alone: leave out --null")
    assert not out.exists()


def test_a_model_that_is_asked_goes_on_to_the_same_bytes(
    model: str, fasta: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was packed with what must not show."""
    whole, out = fasta.parent / "whole", fasta.parent / "out"
    wanted = {"method": "cpmi", "null": 2, "distance": 3}
    _map(model, fasta, folder=whole, **wanted)
    with monkeypatch.context() as patched:
        stop_at(patched, Plan, "decoded", 4, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            _map(model, fasta, folder=out, **wanted)
    _map(model, fasta, folder=out, resume=True, **wanted)
    assert _contents(out) == _contents(whole)
    rows = [row for _, row in read_rows(str(out / "edges.tsv"))]
    assert all(0 < float(row["p"]) <= 1 for row in rows)


def _log_probs(theirs: Any, fast: Any, text: str, hidden: tuple[int, ...]) -> dict[int, float]:
    """By transformers, log-probability of what stands at each hidden place (from 0, behind a start token)."""
    ids = fast(text)["input_ids"]
    found = log_probs(theirs, [fast.mask_token_id if at - 1 in hidden else one for at, one in enumerate(ids)])
    return {place: float(found[place + 1, ids[place + 1]]) for place in hidden}


@pytest.mark.parametrize(
    ("kind", "domain", "name", "content", "text"),
    [
        ("bert", "text", "a.txt", "the cat sees the dog .\n", "the cat sees the dog ."),
        ("esm", "protein", "a.fasta", ">a\nMKTAYIAK\n", "MKTAYIAK"),
    ],
)
def test_a_checkpoint_of_transformers_has_the_maps_of_transformers(
    tracked_workspace: Path, seqmlm: Run,
    kind: str, domain: str, name: str, content: str, text: str,
) -> None:  # fmt: skip
    theirs, fast = checkpoint(kind, tracked_workspace / kind)
    file, out = tracked_workspace / name, tracked_workspace / "out"
    file.write_text(content)
    words = ("structure", tracked_workspace / kind, file, "--domain", domain, "--out", out)
    seqmlm(*words, "--method", "cpmi", "--no-apc", "--min-separation", 1).ok()
    rows = [row for _, row in read_rows(str(out / "edges.tsv"))]
    pairs = [(int(row["i"]), int(row["j"])) for row in rows]
    count = max(j for _, j in pairs) + 1
    assert pairs == [(i, j) for i in range(count) for j in range(i + 1, count)]
    alone = {place: _log_probs(theirs, fast, text, (place,))[place] for place in range(count)}
    for (i, j), row in zip(pairs, rows, strict=True):
        both = _log_probs(theirs, fast, text, (i, j))
        own = (alone[i] - both[i] + alone[j] - both[j]) / 2
        assert float(row["value"]) == pytest.approx(own, abs=1e-4)
    assert any(row["predicted"] == "true" for row in rows)
    seqmlm(*words[:-2], "--dry-run", "--json").ok()
    seqmlm(*words[:-2], "--estimator", "fast").ok()


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"paths": ()}, UsageError, "nothing to read"),
        ({"paths": ("-",), "folder": Path("x")}, UsageError, "standard input cannot be read twice"),
        ({"paths": ("-",), "truth": Path("x")}, UsageError, "standard input cannot be read twice"),
        ({"folder": Path("."), "format_out": "csv"}, UsageError, "--format-out is of standard output"),
        ({"folder": Path()}, UsageError, "holds what is read"),
        ({"distance": 2, "separation": 3}, UsageError, "no pair is"),
        ({"sequences": 0}, UsageError, "sequences is at least 1"),
        ({"resume": True}, UsageError, "--resume continues"),
        ({"truth": Path("nowhere.json")}, DataError, "no such file"),
        ({"folder": Path("out"), "truth": Path("empty.json")}, DataError, "none of the sequences is in"),
        ({"together": True}, UsageError, "does not say which units have one name: leave out --together"),
        ({"paths": ("empty.fasta",), "truth": Path("empty.json")}, DataError, "the file is empty"),
    ],
)
def test_requests_that_make_no_sense_are_refused_in_a_sentence(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any], error: type[SeqmlmError], told: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(fasta.parent)
    Path("empty.json").write_text("{}")
    Path("empty.fasta").touch()
    with pytest.raises(error, match=told):
        _map(model, **{"paths": (fasta.name,), **settings})
    assert not any(one.asked for one in equal), "before anything is asked"


def test_a_sequence_too_long_for_a_map_is_a_bad_record(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmlm.inference.maps.MOST_UNITS", 10)
    with pytest.raises(DataError, match="11 units, too many"):
        _map(model, fasta, folder=fasta.parent / "out")
    result = _map(model, fasta, folder=fasta.parent / "out", on_error="skip")
    assert (result.sequences, result.bad) == (16, 4)


def test_an_edge_without_a_value_stays_an_edge(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree connects pairs that nobody asked about."""

    def chain(self: Best, record: Any, units: Any, dependence: DependenceMap) -> Any:
        return frozenset({(0, len(units) - 1)}) if len(units) > 1 else frozenset()

    monkeypatch.setattr(Best, "decode", chain)
    out = fasta.parent / "out"
    result = _map(model, fasta, folder=out, distance=2)
    told = json.loads((out / "edges.json").read_text())
    assert [len(one["edges"]) for one in told] == [0 if n == 3 else 1 for n in range(20)]
    assert told[0]["edges"] == [{"i": 0, "j": 3, "value": None}]
    assert result.edges == 19
