"""`seqmlm train --domain D` with a file of every format, and without data, through the real entry point."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from formats import FORMATS

from seqmlm import plugins

Run = Callable[..., Any]


FAST = (
    *("--size", "tiny", "--max-steps", 1, "--tokens-per-batch", 1024, "--json"),
    *("--set", "model.overrides={num_hidden_layers: 1, hidden_size: 16, intermediate_size: 32}"),
    *("--set", "train.evaluation_records=10"),
)


def test_every_format_of_every_domain_is_here() -> None:
    """Formats that only other suffixes or presets of these stand for are tested with real files."""
    assert set(FORMATS) == set(plugins.names("domains"))
    for name, built in FORMATS.items():
        if name != "logs":  # the log reader tells formats by their lines
            assert set(plugins.domain(name).formats) - set(built) <= {"diabetes130"}


@pytest.mark.parametrize(("domain", "format"), [(d, f) for d, built in FORMATS.items() for f in built])
def test_a_file_of_this_format_trains(seqmlm: Run, tmp_path: Path, domain: str, format: str) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    words = FORMATS[domain][format](folder)
    done = seqmlm("train", "--domain", domain, *words, "--name", "one", *FAST)
    assert done.code == 0, done.err
    assert done.json["domain"] == domain
    assert math.isfinite(done.json["eval_bits_per_unit"])
    assert "left out" not in done.err.replace("of the test split, left out", "")
    assert "Traceback" not in done.err


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("domain", plugins.names("domains"))
def test_without_data_the_sample_trains(seqmlm: Run, domain: str) -> None:
    done = seqmlm("train", "--domain", domain, "--name", "sample", *FAST)
    assert done.code == 0, done.err
    assert done.json["model"] == "sample"
    listed = seqmlm("models", "list", "--json")
    assert [entry["domain"] for entry in listed.json] == [domain]
