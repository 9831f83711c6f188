"""`train --init` on later logs: what the model knew keeps its ids and weights, what is new gets ids."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from fork_server import Run
from safetensors.numpy import load_file
from tiny_models import TINY

from seqmlm.inference.model_folder import load_tokenizer

OLD = ("open file 7", "read block 1 of 9", "user ann logged in", "close")
MORE = tuple(
    f"{what} {n} is {how}" for n in range(3) for what in ("disk", "fan") for how in ("full", "off now")
)
WINDOWS = ("--option", "window=8", "--option", "session=none")


def _log(path: Path, messages: tuple[str, ...], seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = [
        f"2024-03-05 {10 + n // 3600}:{n // 60 % 60:02d}:{n % 60:02d} INFO {rng.choice(messages)}"
        for n in range(800)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def _weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def test_later_logs_add_templates_and_change_nothing_else(seqmlm: Run, workspace: Path) -> None:
    """Trained at a rate of next to nothing, so that what changes is not of the training.

    Surprisals of old lines rise by less than what all new ids get: the probability of <NEW> there.
    """
    old, new = _log(workspace / "old.log", OLD, 0), _log(workspace / "new.log", (*OLD, *MORE), 1)
    fast = ("--set", "train.evaluation_records=5", *WINDOWS)
    seqmlm(*("train", "-d", "logs", old, "--name", "first", *TINY), *("--max-steps", 40, *fast)).ok()
    done = seqmlm(
        *("train", "-d", "logs", new, "--init", "first", "--name", "second", "--max-steps", 1),
        *("--set", "train.learning_rate=1e-9", "--set", "train.weight_decay=0", *fast),
    ).ok()
    folders = [workspace / f"runs/{name}/model" for name in ("first", "second")]
    before, after = map(load_tokenizer, folders)
    known = len(before.tokens)
    assert after.tokens[:known] == before.tokens
    assert f"{len(after.tokens) - known} new templates; the templates of the initial model" in done.err
    assert {"disk <NUM> is full", "fan <NUM> is off now"} <= set(after.tokens[known:])
    was, now = map(_weights, folders)
    assert was.keys() == now.keys()
    for name, values in was.items():
        rows = known if name in _BY_ID else len(values)
        np.testing.assert_allclose(now[name][:rows], values[:rows], atol=1e-6, err_msg=name)
        if name in _BY_ID and name != "decoder.bias":  # new ones began as <NEW>
            np.testing.assert_allclose(now[name][known], values[4], atol=1e-6, err_msg=name)

    scores = []
    for name in ("first", "second"):
        out = workspace / f"{name}.jsonl"
        given = ("--level", "line", "--mode", "exact", "--out", out, *WINDOWS)
        assert seqmlm("score", name, old, *given).code == 0
        scores.append([json.loads(line)["score"] for line in out.read_text().splitlines()])
    rises = np.subtract(scores[1], scores[0])
    assert len(rises) == 800
    assert rises.min() > -1e-4
    assert 0 < rises.max() < math.log2(1.2)  # <NEW> is improbable, but it is not impossible


_BY_ID = ("model.embeddings.tok_embeddings.weight", "decoder.weight", "decoder.bias")
