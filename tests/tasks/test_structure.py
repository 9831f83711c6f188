"""`seqmlm structure`: rows, graphs, figures, and requests that make no sense."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pytest
from checkpoints import checkpoint, log_probs
from fork_server import Run
from histories import histories
from sklearn.metrics import average_precision_score, roc_auc_score
from structures import Best, Equal, value
from tiny_models import protein_model, random_model, residues, saved
from written import rows as rows_of

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.errors import DataError, SeqmlmError, StateError, UsageError, duration_text
from seqmlm.inference.maps import Maps
from seqmlm.inference.record_batches import Budget
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Summary
from seqmlm.structure.maps import DependenceMap
from seqmlm.tasks.run import run
from seqmlm.tasks.structure import EDGES_ALONE, NEAR, TOPK, Structure, StructureConfig, usual_settings
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
        monkeypatch.setitem(vars(plugins.domain(name)), "structure", Best)
    return made


@pytest.fixture
def fasta(tracked_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty sequences, mapped four at a time."""
    monkeypatch.setattr("seqmlm.tasks.reading.BATCH_RECORDS", 4)
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


def printed(text: str) -> list[dict[str, Any]]:
    """The rows on standard output."""
    return [json.loads(line) for line in text.splitlines()]


def _map(model: str, *paths: Path, **settings: Any) -> Summary:
    config = StructureConfig(**{"model": model, "paths": tuple(map(str, paths)), **settings})
    return run("structure", Structure, config, as_json=True)


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
    found = printed(done.out)
    assert found
    assert all(row["predicted"] for row in found)
    assert f"20 sequences, {len(found)} edges (method cmi/equal)" in done.err
    every = printed(seqmlm("structure", model, fasta, "--set", "all=true").out)
    assert [row for row in every if row["predicted"]] == found
    ids, pairs = _ids(model), [(n, x, p) for n, x in _sequences(fasta) for p in _expected(x, _ids(model))]
    assert [(row["id"], (row["i"], row["j"])) for row in every] == [(n, p) for n, _, p in pairs]
    for row, (_, text, pair) in zip(every, pairs, strict=True):
        assert row["value"] == pytest.approx(_expected(text, ids)[pair], abs=1e-12)
        assert (row["unit_i"], row["unit_j"]) == (text[pair[0]], text[pair[1]])
        assert (row["method"], row["mass"]) == ("cmi/equal", 1 / len(text))
        assert row["z"] is row["p"] is row["se"] is None


def test_sequences_are_mapped_together_as_long_as_that_is_cheap(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqmlm.tasks.reading.BATCH_RECORDS", 256)
    monkeypatch.setattr(Budget, "of", lambda model: Budget(commit_interval=200))
    of, batches = Maps.of, list[int]()

    def counted(self: Maps, given: Any) -> Any:
        batches.append(sum(len(one.encodings[0]) ** 2 for one in given))  # a copy for each token
        batches.append(len(given))
        return of(self, given)

    monkeypatch.setattr(Maps, "of", counted)
    _map(model, fasta)
    costs, counts = batches[::2], batches[1::2]
    assert sum(counts) == 20
    assert all(cost >= 200 for cost in costs[:-1])
    assert max(counts) > 1
    assert max(costs) < 200 + 14**2


def test_pairs_are_as_far_apart_as_is_said(model: str, fasta: Path, equal: list[Equal]) -> None:
    out = fasta.parent / "out.jsonl"
    _map(model, fasta, out=out, min_separation=3, distance=5)
    assert {row["j"] - row["i"] for row in rows_of(out)} == {3, 4, 5}


def test_graphs_and_a_report_are_made_of_the_rows_and_kept_by_a_run(
    model: str, fasta: Path, equal: list[Equal], truth: Path, seqmlm: Run
) -> None:
    out, folder, page = (fasta.parent / name for name in ("edges.jsonl", "graphs", "r.html"))
    made = ("--out", out, "--graphs", folder, "--report", page)
    done = seqmlm("structure", model, fasta, *made, "--truth", truth, "--json").ok()
    names = {"edges.json", "edges.graphml", "pairs.txt", "units.txt"}
    assert {path.name for path in folder.iterdir()} == names
    rows = rows_of(out)
    assert done.json["pairs"] == len(rows)
    edges = [(row["id"], row["i"], row["j"]) for row in rows if row["predicted"]]
    assert done.json["edges"] == len(edges) > 20
    told = json.loads((folder / "edges.json").read_text())
    assert [(one["id"], "".join(one["units"])) for one in told] == _sequences(fasta)
    assert [(one["id"], edge["i"], edge["j"]) for one in told for edge in one["edges"]] == edges
    graph = nx.read_graphml(folder / "edges.graphml")
    assert (len(graph), graph.number_of_edges()) == (sum(len(x) for _, x in _sequences(fasta)), len(edges))
    assert graph.nodes["7:2"] == {"sequence": "p7", "place": 2, "unit": _sequences(fasta)[7][1][2]}
    assert (folder / "units.txt").read_text().split() == [text for _, text in _sequences(fasta)]
    report = page.read_text()
    assert "picture of 8 units" in report
    assert "minus the distance" in report
    [kept] = [one for one in Tracker(Workspace.locate()).runs() if one.tags.get("task") == "structure"]
    assert kept.metrics["auroc"] == pytest.approx(done.json["auroc"])
    assert kept.metrics["share"] == done.json["share"] == done.json["measures"]["share"]
    artifacts = {path.name for path in (fasta.parent / "mlartifacts").rglob("*") if path.is_file()}
    assert names | {"r.html"} <= artifacts


def test_figures_are_those_of_the_pairs_that_the_truth_speaks_of(
    model: str, fasta: Path, equal: list[Equal], truth: Path
) -> None:
    told = _map(model, fasta, truth=truth).to_dict()
    known, ids = json.loads(truth.read_text()), _ids(model)
    found = []
    for name, text in _sequences(fasta):
        if known.get(name):
            pairs = _expected(text, ids)
            labels = [list(pair) in known[name] for pair in pairs]
            ranked = list(pairs.values()), [i - j for i, j in pairs]
            each = [judge(labels, x) for judge in (roc_auc_score, average_precision_score) for x in ranked]
            found.append([*each, np.mean(labels)])
    own = told["ranking"]
    means = [own["model"]["auroc"], own["distance"]["auroc"], own["model"]["auprc"], own["distance"]["auprc"]]
    expected = np.mean(found, axis=0).tolist()
    assert [*(one["value"] for one in means), told["prevalence"]] == pytest.approx(expected)
    assert own["sequences"] == len(found) == 7
    assert told["with_truth"] == 8, "one of them has no pair"
    assert all(one["low"] < one["value"] < one["high"] for one in means)
    assert told["measures"]["share"] > 0
    lengths = [len(text) for _, text in _sequences(fasta) if len(text) > 1]
    assert told["details"] == {"mass": pytest.approx(np.mean([1 / size for size in lengths]))}


def test_what_was_mapped_is_not_mapped_again_to_learn_more_of_it(
    model: str, fasta: Path, equal: list[Equal], truth: Path
) -> None:
    first, second, graphs = (fasta.parent / name for name in ("a.jsonl", "b.jsonl", "graphs"))
    _map(model, fasta, out=first)
    asked = len(equal)
    more = _map(model, fasta, edges=first, out=second, truth=truth, graphs=graphs)
    assert not any(one.asked for one in equal[asked:])
    assert second.read_bytes() == first.read_bytes()
    assert more.figures == _map(model, fasta, truth=truth).figures
    assert (graphs / "edges.json").exists()
    assert EDGES_ALONE not in more.notes
    edges = [line for line in first.read_text().splitlines() if json.loads(line)["predicted"]]
    first.write_text("".join(f"{line}\n" for line in edges))
    assert _map(model, fasta, edges=first).notes[EDGES_ALONE] > 0
    first.write_text('{"id": "p1"}\n')
    with pytest.raises(DataError, match=r"a.jsonl:1.*not a pair of units"):
        _map(model, fasta, edges=first)


@pytest.mark.parametrize("settings", [{"graphs": Path("graphs")}, {"edges": Path("a.jsonl")}])
def test_an_input_that_changed_meanwhile_is_no_basis_of_files(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.chdir(fasta.parent)
    _map(model, fasta, out=Path("a.jsonl"))
    encoded = Maps.encoded

    def changed(self: Maps, records: Any, problems: Any) -> Any:
        """Whoever reads it quietly reads it again."""
        again = problems.on_error == "skip" or "edges" in settings
        return (one for n, one in enumerate(encoded(self, records, problems)) if n != 9 or not again)

    monkeypatch.setattr(Maps, "encoded", changed)
    with pytest.raises(StateError, match="the input changed"):
        _map(model, fasta, **settings)


def test_people_are_told_of_in_large_numbers_alone(
    tracked_workspace: Path, equal: list[Equal], seqmlm: Run
) -> None:
    loaded = random_model("ehr", EventsTokenizer.train(histories(40), min_subjects=1))
    folder = saved(loaded, tracked_workspace / "model", sensitive=True)
    table, out, graphs, page, truth = (
        tracked_workspace / name for name in ("events.csv", "out.jsonl", "graphs", "r.html", "t.json")
    )
    lines = [f"person{n},20{10 + y}-01-01,{code}" for n in range(12) for y, code in
             enumerate(("DRUG//metformin", "DRUG//sertraline"))]  # fmt: skip
    table.write_text("subject_id,time,code\n" + "\n".join(lines) + "\n")
    truth.write_text(json.dumps({f"person{n}": [[0, 1]] for n in range(3)}))
    made = ("--out", out, "--graphs", graphs, "--report", page)
    done = seqmlm("structure", folder, table, *made, "--truth", truth, "--json").ok()
    assert "person" not in done.out + done.err + page.read_text()
    assert {path.stat().st_mode & 0o777 for path in graphs.iterdir()} == {0o600}
    assert "person7" in out.read_text()
    assert done.json["with_truth"] == "<11"
    assert not {"auroc", "share", "measures"} & done.json.keys()
    assert "withheld" in page.read_text()
    [kept] = [one for one in Tracker(Workspace.locate()).runs() if one.tags.get("task") == "structure"]
    assert not [name for name in kept.metrics if "share" in name]


def test_records_of_a_code_are_one_unit_unless_they_shall_stand_apart(tracked_workspace: Path, seqmlm: Run):
    others = [  # another code of one family
        replace(one, events=tuple(x._replace(code=x.code.replace("I50.9", "I50.1")) for x in one.events))
        for one in histories(40)
    ]
    tokenizer = EventsTokenizer.train([*histories(40), *others], min_subjects=1)
    folder = saved(random_model("ehr", tokenizer), tracked_workspace / "model")
    table = tracked_workspace / "events.csv"

    def write(*codes: str) -> None:
        lines = [f"one,{1800 + year}-01-01,{code}" for year, code in enumerate(codes)]
        table.write_text("subject_id,time,code\n" + "\n".join(lines) + "\n")

    write("DRUG//metformin", "DRUG//sertraline", "DRUG//metformin", "DRUG//metformin")

    every = ("--set", "all=true")

    def pairs(*flags: str) -> list[tuple[int, int]]:
        done = seqmlm("structure", folder, table, *every, *flags).ok()
        return [(row["i"], row["j"]) for row in printed(done.out)]

    assert pairs() == pairs("--method", "cpmi") == pairs("--method", "pmi") == [(0, 1)]
    assert len(pairs("--set", "together=false")) == 6

    def passes(*flags: str) -> int:
        dry = ("--json", "--set", "dry_run=true")
        return int(seqmlm("structure", folder, table, *dry, *flags).json["passes"])

    assert passes("--method", "cpmi") == 3
    assert passes("--method", "cpmi", "--set", "together=false") == 10
    write("ICD10//I50.1", "ICD10//I50.9", "ICD10//I50.1", "DRUG//metformin")
    assert passes("--method", "cpmi") == 6, "codes of one family are not one code"
    write(*(["DRUG//metformin", "DRUG//sertraline"] * 100), "DRUG//calcitriol")
    assert pairs("--method", "cpmi") == [(0, 1), (0, 200), (1, 200)], "once, whatever the windows"


def test_a_family_has_one_map_of_its_first_row(model: str, equal: list[Equal], tracked_workspace: Path):
    file, out, graphs = (tracked_workspace / name for name in ("family.fasta", "out.jsonl", "graphs"))
    file.write_text(">query\nMK-TAYM\n>other\nMKWT--M\n>third\n-KWTAYM\n")
    result = _map(model, file, out=out, graphs=graphs, family=True)
    rows = {(row["i"], row["j"]): row for row in rows_of(out)}
    assert {row["id"] for row in rows.values()} == {"query"}
    assert "".join(json.loads((graphs / "edges.json").read_text())[0]["units"]) == "MKTAYM"
    ids = _ids(model)
    # Columns of T and M: places 2 and 5 of the query, 3 and 4 of the second, 2 and 5 of the third row.
    own = [value(ids["T"], ids["M"], i, j) for i, j in ((2, 5), (3, 4), (2, 5))]
    assert rows[2, 5]["value"] == pytest.approx(np.mean(own))
    assert rows[2, 5]["se"] == pytest.approx(np.std(own, ddof=1) / np.sqrt(3))
    assert result.items == 1
    assert _map(model, file, family=True, sequences=1, dry_run=True).figures["passes"] == 6
    file.write_text(">query\nMK-TAYM\n>other\nMKWT-M\n")
    with pytest.raises(DataError, match="rows differ in length"):
        _map(model, file, out=out, family=True)


def test_a_field_without_a_decoder_has_values_alone(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch, seqmlm: Run
) -> None:
    monkeypatch.setitem(vars(plugins.domain("protein")), "structure", None)
    graphs, page = fasta.parent / "graphs", fasta.parent / "r.html"
    done = seqmlm("structure", model, fasta, "--report", page).ok()
    assert "has no rule for edges" in done.out
    assert "picture" not in page.read_text().replace("Pictures are", "")
    rows = printed(seqmlm("structure", model, fasta).out)
    assert len(rows) > 100
    assert not any("predicted" in row for row in rows)
    for option in (("--truth", fasta), ("--graphs", graphs)):
        seqmlm("structure", model, fasta, *option).refused(2, "has no decoder for maps")


def test_what_it_takes_is_counted_before(model: str, fasta: Path, equal: list[Equal], seqmlm: Run):
    done = seqmlm("structure", model, fasta, "--set", "dry_run=true").ok()
    rows = printed(done.out)
    assert [(row["id"], row["units"], row["passes"]) for row in rows] == [
        (name, len(text), len(text)) for name, text in _sequences(fasta)
    ]
    assert f"20 sequences: {sum(row['passes'] for row in rows)} passes (method cmi/equal)" in done.err
    assert not equal[-1].asked


def test_a_long_map_is_foretold(
    model: str, fasta: Path, seqmlm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "estimated time" not in seqmlm("structure", model, fasta).ok().err
    monkeypatch.setattr("seqmlm.tasks.structure.tokens_per_second", lambda model: 0.1)
    config = StructureConfig(model=model, paths=(str(fasta),), method="cmi")
    first = Structure(config, Session.open(model))
    [subject] = islice(first.items(first.records(Problems()), Problems()), 1)
    [encoding] = subject.map_input.encodings
    said = seqmlm("structure", model, fasta, "--method", "cmi").ok().err
    seconds = duration_text(first.maps.cost(encoding) / 0.1)
    assert f"estimated time for the first map: {seconds}; --set distance=N" in said
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(fasta.read_bytes())))
    assert "estimated time" not in seqmlm("structure", model, "-").ok().err


def test_null_models_leave_standard_input_unread(
    model: str, equal: list[Equal], seqmlm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b">one\nMKTAYIAK\n")))
    settings = ("--set", "format=fasta", "--set", "null=2", "--set", "all=true")
    rows = printed(seqmlm("structure", model, "-", *settings).ok().out)
    assert len(rows) == 8 * 7 / 2
    assert all(row["p"] is not None for row in rows)


def test_units_that_cannot_be_moved_are_refused_before_anything_is_written(
    tracked_workspace: Path, seqmlm: Run
) -> None:
    loaded = random_model("ehr", EventsTokenizer.train(histories(40), min_subjects=1))
    folder, out = saved(loaded, tracked_workspace / "model"), tracked_workspace / "out.jsonl"
    table = tracked_workspace / "events.csv"
    table.write_text(
        "subject_id,time,code\n" + "".join(f"one,2010-01-01,DRUG//{x}\n" for x in ("metformin", "sertraline"))
    )
    for asked in (("--out", out), ("--set", "dry_run=true")):
        done = seqmlm("structure", folder, table, "--set", "null=3", *asked)
        done.refused(2, "not possible in these sequences; leave out --set null")
    assert not out.exists()


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
    file, out = tracked_workspace / name, tracked_workspace / "out.jsonl"
    file.write_text(content)
    words = ("structure", tracked_workspace / kind, file, "--set", f"domain={domain}", "--out", out)
    seqmlm(*words, "--method", "cpmi", "--set", "apc=false", "--set", "min_separation=1").ok()
    rows = rows_of(out)
    pairs = [(row["i"], row["j"]) for row in rows]
    count = max(j for _, j in pairs) + 1
    assert pairs == [(i, j) for i in range(count) for j in range(i + 1, count)]
    alone = {place: _log_probs(theirs, fast, text, (place,))[place] for place in range(count)}
    for (i, j), row in zip(pairs, rows, strict=True):
        both = _log_probs(theirs, fast, text, (i, j))
        own = (alone[i] - both[i] + alone[j] - both[j]) / 2
        assert row["value"] == pytest.approx(own, abs=1e-4)
    assert any(row["predicted"] for row in rows)
    seqmlm(*words[:-2], "--set", "estimator=fast").ok()


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"paths": ()}, UsageError, "nothing to read"),
        ({"paths": ("-",), "graphs": Path("x")}, UsageError, "graphs needs the input twice"),
        ({"paths": ("-",), "method": "pmi", "report": Path("x")}, UsageError, "report, method pmi needs"),
        ({"graphs": Path()}, UsageError, "contains input files"),
        ({"graphs": Path("empty.json")}, UsageError, "is a file; name a folder"),
        ({"graphs": Path("x"), "out": Path("x/edges.json")}, UsageError, "the same file"),
        ({"distance": 2, "min_separation": 3}, UsageError, "which leaves no pair"),
        ({"sequences": 0}, UsageError, "sequences must be at least 1"),
        ({"dry_run": True, "graphs": Path("x")}, UsageError, "dry_run does not run the model: remove graphs"),
        ({"truth": Path("nowhere.json")}, DataError, "no such file"),
        (
            {"out": Path("out"), "truth": Path("empty.json")},
            DataError,
            "no sequence of the input is in this truth file",
        ),
        ({"together": True}, UsageError, "has no names for units: leave out --set together"),
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
        _map(model, fasta)
    result = _map(model, fasta, on_error="skip", graphs=fasta.parent / "graphs")
    assert (result.items, result.bad) == (16, 4)
    assert len(json.loads((fasta.parent / "graphs/edges.json").read_text())) == 16


def test_an_edge_without_a_value_stays_an_edge(
    model: str, fasta: Path, equal: list[Equal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree connects pairs that nobody asked about."""

    def chain(self: Best, record: Any, units: Any, dependence: DependenceMap) -> Any:
        return frozenset({(0, len(units) - 1)}) if len(units) > 1 else frozenset()

    monkeypatch.setattr(Best, "decode", chain)
    graphs = fasta.parent / "graphs"
    result = _map(model, fasta, graphs=graphs, distance=2)
    told = json.loads((graphs / "edges.json").read_text())
    assert [len(one["edges"]) for one in told] == [0 if n == 3 else 1 for n in range(20)]
    assert told[0]["edges"] == [{"i": 0, "j": 3, "value": None}]
    assert result.figures["edges"] == 19


def test_progress_is_heard_while_one_map_is_made(model: str, tracked_workspace: Path, tmp_path: Path) -> None:
    class Heard:
        items: ClassVar[list[int]] = []

        def message(self, text: str) -> None: ...

        def progress(self, items: int, alarms: int = 0, share: float | None = None) -> None:
            self.items.append(items)

    sequence = tmp_path / "one.fasta"
    sequence.write_text(">one\nMKVLAAGICRDEFGHIKLMNPQRSTVWY\n")
    asked = {"out": tmp_path / "rows.jsonl", "method": "jacobian", "tokens_per_batch": 256}
    config = StructureConfig(model=model, paths=(str(sequence),), **asked)
    run("structure", Structure, config, stdout=None, progress=Heard(), as_json=True)
    assert Heard.items[-1] == 1
    assert Heard.items.count(0) > 3, "before the only sequence is done"


def test_the_default_method_goes_by_the_symbols(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of them are tried at every place; of many the most probable ones, in pairs that are near."""
    session = Session.open(model)
    assert usual_settings(session) == {"method": "jacobian"}
    monkeypatch.setattr("seqmlm.tasks.structure.SMALL_ALPHABET", 4)
    assert usual_settings(session) == {"method": "cmi", "estimator": "topk", "k": TOPK, "distance": NEAR}


def test_rows_count_positions_from_one(model: str, fasta: Path, equal: list[Equal]) -> None:
    out = fasta.parent / "out.jsonl"
    _map(model, fasta, out=out)
    rows = rows_of(out)
    assert {row["i"] for row in rows} >= {0}
    assert all((row["position_i"], row["position_j"]) == (row["i"] + 1, row["j"] + 1) for row in rows)
