"""Logs through the command line: trained without options, and nothing of a sensitive line shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from seqmlm.domains.logs import LOGS

TOKENIZER = LOGS.defaults.tokenizer
pytestmark = pytest.mark.skipif(
    TOKENIZER not in entry_points(group="seqmlm.tokenizers").names, reason=f"needs the tokenizer {TOKENIZER}"
)
SHORT = ("--size", "tiny", "--max-steps", 2, "--json", "--name")


def test_a_secret_is_found_nowhere(
    seqmlm: Callable[..., Any], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("elsewhere")
    path = LOGS.sample.draw(folder, n=60).files[0]
    stamp = "2024-03-04T07:00:00.000000+00:00 shop1 auth[534]:"
    with path.open("ab") as out:
        out.write(f"{stamp} hunter1secret was typed request_id=hunter2secret\n".encode())
        out.write(f"{stamp} hunter3secret \n".encode().replace(b" \n", b" \xff\n"))
    options = ("--set", "data.sensitive=true", "--set", "data.on_error=quarantine")
    done = seqmlm("train", "--domain", "logs", path, *options, *SHORT, "run").ok()
    [refused] = (tmp_path / "runs" / "run" / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(refused)["reason"] == "bytes that are not UTF-8"
    strict = seqmlm("train", "--domain", "logs", path, "--set", "data.sensitive=true", *SHORT, "strict")
    assert strict.code == 3
    shown = (done.out + done.err + strict.out + strict.err).encode()
    for file in (one for one in tmp_path.rglob("*") if one.is_file()):
        shown += file.read_bytes()
    for number in (1, 2, 3):
        assert f"hunter{number}secret".encode() not in shown


def test_whole_lines_are_scored_as_they_were_trained(seqmlm: Callable[..., Any], tmp_path: Path):
    path = LOGS.sample.draw(tmp_path, n=60).files[0]
    whole = ("--option", "keep_header=true")
    seqmlm("train", "--domain", "logs", path, *whole, *SHORT, "run").ok()
    plain, given, other = (
        seqmlm("score", "run", path, *options).ok().out
        for options in ((), whole, ("--option", "keep_header=false"))
    )
    assert plain == given
    assert plain != other, "an option that is given is taken"
