"""Two processes train as one does: same rows, same masks, same losses to rounding; they also fail as one.

One launch of torchrun runs all scenarios (tests/support/two_processes.py); the tests read its results. The
one-process counterparts run here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny
import torch

from seqmlm.engine import checkpoint

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which torchrun has run all scenarios."""
    folder = tmp_path_factory.mktemp("two_processes")
    command = [sys.executable, "-W", "error", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(SUPPORT / "two_processes.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def main(root: Path) -> dict[str, Any]:
    """What the process of rank 0 saw, scenario by scenario."""
    results: dict[str, Any] = json.loads((root / "rank0.json").read_text())
    return results


@pytest.fixture(scope="module")
def other(root: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((root / "rank1.json").read_text())
    return results


def alone(folder: Path, rows: Any = None, **changes: Any) -> Any:
    _, seen = tiny.trained(folder, tiny.TinyRows(dropout=0.0) if rows is None else rows, **changes)
    return seen


def assert_same(found: dict[str, Any], seen: Any) -> None:
    assert found["losses"] == pytest.approx(seen.losses, rel=1e-5)
    assert found["norms"] == pytest.approx([report.grad_norm for report in seen.reports], rel=1e-4)
    assert found["masked"] == [report.masked for report in seen.reports]
    assert found["tokens"] == seen.reports[-1].tokens


def test_ddp_equals_one_process_where_shares_differ(tmp_path: Path, main: dict[str, Any]) -> None:
    """Three rows a batch: one process computes two of them, so a mean of means would be wrong."""
    assert_same(main["plain"], alone(tmp_path))


def test_ddp_equals_one_process_with_loss_weights(tmp_path: Path, main: dict[str, Any]) -> None:
    assert_same(main["weighted"], alone(tmp_path, dataset=tiny.dataset(tiny.Periodic(weighted=True))))


def test_a_process_without_a_row_counts_for_nothing(tmp_path: Path, main: dict[str, Any]) -> None:
    assert_same(main["one_row"], alone(tmp_path, rows_per_batch=1))


def test_ddp_equals_one_process_on_a_real_encoder(tmp_path: Path, main: dict[str, Any]) -> None:
    assert_same(main["modernbert"], alone(tmp_path, tiny.modernbert(0.0)))


@pytest.mark.parametrize("pairs", [False, True])
def test_ddp_equals_one_process_on_a_head(tmp_path: Path, main: dict[str, Any], pairs: bool) -> None:
    """A class of each sequence, or of two that are embedded apart."""
    seen = alone(tmp_path, tiny.headed(pairs=pairs), dataset=tiny.Classes(pairs=pairs))
    assert_same(main["pairs" if pairs else "head"], seen)


def test_only_the_main_process_reports(main: dict[str, Any], other: dict[str, Any]) -> None:
    assert len(main["plain"]["losses"]) == 12
    assert other["plain"]["losses"] == other["memory"]["events"] == []
    assert other["plain"]["steps"] == 12


def test_a_signal_to_one_stops_both_and_they_go_on_exactly(
    main: dict[str, Any], other: dict[str, Any]
) -> None:
    for seen in (main["killed"], other["killed"]):
        assert (seen["status"], seen["signal"]) == ("killed", 15)
        assert 1 <= seen["steps"] < 12
    assert main["killed"]["steps"] == other["killed"]["steps"] == main["resumed"]["resumed_from"]
    # Each process has a dropout stream of its own, and each was put back: equal to the last bit.
    assert main["killed"]["losses"] + main["resumed"]["losses"] == main["dropout"]["losses"]


def test_one_process_goes_on_with_what_two_began(root: Path, tmp_path: Path, main: dict[str, Any]) -> None:
    training, seen = tiny.make_loop(root / "plain", tiny.TinyRows(dropout=0.0), max_steps=14)
    assert training.run(resume=True).resumed_from == 12
    assert dict(seen.events)["settings_changed"] == {"max_steps": [12, 14], "processes": [2, 1]}
    _, expected = tiny.trained(tmp_path, tiny.TinyRows(dropout=0.0))
    _, rest = tiny.trained(tmp_path, tiny.TinyRows(dropout=0.0), max_steps=14, resume=True)
    assert seen.losses == pytest.approx(rest.losses, rel=1e-5)
    assert main["plain"]["losses"] == pytest.approx(expected.losses, rel=1e-5)


def test_memory_that_one_process_lacks_halves_the_budget_of_both(
    tmp_path: Path, main: dict[str, Any]
) -> None:
    assert_same(main["memory"], alone(tmp_path))
    assert [kind for kind, _ in main["memory"]["events"]] == ["out_of_memory"]
    assert main["memory"]["events"][0][1]["micro_tokens"] <= 32


def test_a_nan_in_one_process_skips_the_step_in_both(main: dict[str, Any]) -> None:
    assert len(main["nan"]["skipped"]) == 1
    step = main["nan"]["skipped"][0]
    assert main["nan"]["losses"][: step - 1] == pytest.approx(main["plain"]["losses"][: step - 1], rel=1e-5)
    assert all(loss == loss for loss in main["nan"]["losses"][step:])


def test_a_full_disk_of_the_main_process_ends_both(main: dict[str, Any], other: dict[str, Any]) -> None:
    assert main["full"]["error"] == "StateError"
    assert "no space left" in main["full"]["message"]
    assert other["full"]["error"] == "TrainingError"


@pytest.mark.parametrize("name", ["sharded", "sharded_modernbert"])
def test_two_shards_equal_one_process_and_are_saved_whole(
    root: Path, tmp_path: Path, main: dict[str, Any], name: str
) -> None:
    rows = tiny.modernbert(0.0) if name == "sharded_modernbert" else tiny.TinyRows(dropout=0.0)
    seen = alone(tmp_path, rows, max_steps=8)
    assert_same(main[name], seen)
    assert [step for step, _ in main[name]["evaluations"]] == [6]
    saved, whole = (
        checkpoint.open_checkpoint(folder / "step-00000008") for folder in (root / name, tmp_path)
    )
    for group in ("model", "optimizer"):
        found, expected = saved.tensors(group), whole.tensors(group)
        assert found.keys() == expected.keys()
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-6)


def test_shards_go_on_from_what_they_saved(root: Path, tmp_path: Path, main: dict[str, Any]) -> None:
    alone(tmp_path, max_steps=8)
    _, seen = tiny.trained(tmp_path, tiny.TinyRows(dropout=0.0), resume=True)
    assert main["sharded_resumed"]["resumed_from"] == 8
    assert main["sharded_resumed"]["losses"] == pytest.approx(seen.losses, rel=1e-5)
