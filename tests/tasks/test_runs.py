"""Comparing runs: what differs is shown, the best is marked where there is a best, unfair terms are named."""

from __future__ import annotations

from typing import Any

from seqmlm.management.runs import compare
from seqmlm.tracking import RunInfo


def _run(
    name: str, params: dict[str, str] | None = None, status: str = "FINISHED", **metrics: Any
) -> RunInfo:
    given = {"experiment": "e", "started": 1, "ended": 2, "tags": {}, "tracked": True, "params": params or {}}
    metrics = {key.replace("__", "/"): value for key, value in metrics.items()}
    return RunInfo(name=name, run_id=name * 32, status=status, metrics=metrics, **given)


def test_only_params_that_differ() -> None:
    found = compare([_run("a", {"lr": "1", "seed": "0"}), _run("b", {"lr": "2", "seed": "0", "new": "x"})])
    assert found.params == {"lr": ["1", "2"], "new": [None, "x"]}


def test_an_empty_param_and_an_absent_one_are_equal_equals_have_no_best_and_machines_do_not_count() -> None:
    first = _run("a", {"init": ""}, eval__loss=1.0, system__memory_fill=3.0)
    found = compare([first, _run("b", eval__loss=1.0)])
    assert (found.params, found.best) == ({}, {"eval/loss": [False, False]})


def test_the_best_is_marked_each_way() -> None:
    runs = [
        _run("a", eval__loss=2.0, tokens_per_second=10.0, learning_rate=0.1, eval__unigram_bits_per_unit=4.0),
        _run("b", eval__loss=1.0, tokens_per_second=20.0, learning_rate=0.2, eval__unigram_bits_per_unit=3.0),
        _run("c", eval__loss=1.0),
    ]
    found = compare(runs)
    assert found.metrics["tokens_per_second"] == [10.0, 20.0, None]
    assert found.best == {
        "eval/loss": [False, True, True],
        "eval/unigram_bits_per_unit": [False] * 3,
        "learning_rate": [False] * 3,
        "tokens_per_second": [False, True, False],
    }
    assert found.to_dict()["best"] == {"eval/loss": ["b", "c"], "tokens_per_second": ["b"]}


def test_unfair_terms_and_unfinished_runs_are_noted() -> None:
    fair = compare([_run("a", {"lr": "1"}), _run("b", {"lr": "2"})])
    assert fair.notes == []
    found = compare([_run("a", {"data_fingerprint": "1"}), _run("b", {"data_fingerprint": "2"}, "KILLED")])
    assert "data_fingerprint" in found.notes[0]
    assert found.notes[1] == "not finished: b (KILLED)"
