"""`seqmlm train --domain D` with a file of every format, and without data, through the real entry point.

What follows on reading does not depend on the format: a file of every format is read, divided and packed
(`--dry-run`), and one of each field trains, besides its sample.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from fork_server import Run
from formats import DNA, MESSAGES, saved
from hostile_formats import KEYS, hostile_formats, place

from seqmlm import plugins

FORMATS = [tuple(key.split("-")) for key in KEYS if not key.startswith("pairs")]
# Data sets that `datasets` saved, where no clean file of the hostile formats is one.
SAVED = {"dna": ({"chain": DNA, "n": DNA}, "text=chain"), "logs": ({"line": MESSAGES}, "text=line")}
NAMED = ("wide", "source")  # what neither a file nor its folder says


FAST = (*tiny_models.FAST, "--max-steps", 1, "--json")


def test_every_format_of_every_domain_is_here() -> None:
    found = {*FORMATS, *((domain, "huggingface") for domain in SAVED)}
    assert {domain for domain, _ in found} == set(plugins.names("domains"))
    for name in plugins.names("domains"):
        if name != "logs":  # the log reader tells formats by their lines
            assert {(name, one) for one in plugins.domain(name).formats} <= found


@pytest.mark.parametrize(("domain", "format"), [*FORMATS, *((domain, "huggingface") for domain in SAVED)])
def test_a_file_of_this_format_is_trained_on(seqmlm: Run, tmp_path: Path, domain: str, format: str) -> None:
    folder = tmp_path / "input"
    words: list[Any]
    if (domain, format) in FORMATS:
        one = hostile_formats(30)[f"{domain}-{format}"]
        words = [f"{one.prefix}{place(one, folder)}", *(word.format(folder) for word in one.options)]
        words += ["--set", f"data.format={format}"] if format in NAMED else []
    else:
        columns, option = SAVED[domain]
        words = saved(folder, columns, "--option", option)
    words += ["--name", "one", *FAST]
    done = seqmlm("train", "--domain", domain, *words, "--dry-run").ok()
    assert done.json["records"] > 10
    if format == "huggingface":
        done = seqmlm("train", "--domain", domain, *words).ok()
        assert done.json["domain"] == domain
        assert math.isfinite(done.json["eval_bits_per_unit"])
    assert "left out" not in done.err.replace("of the test split, left out", "")
    assert "Traceback" not in done.err


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("domain", plugins.names("domains"))
def test_without_data_the_sample_trains(seqmlm: Run, domain: str) -> None:
    done = seqmlm("train", "--domain", domain, *FAST).ok()
    assert done.json["run_name"].startswith(f"{domain}-tiny-")
    listed = seqmlm("models", "list", "--json").json
    assert [(entry["name"], entry["domain"]) for entry in listed] == [(done.json["model"], domain)]
