"""The plug-in of overlapping k-mers: its maskers, what people see, and an installation that lacks it."""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from dnabert import KmerTokenizer
from tiny_models import random_model

from seqmlm import plugins
from seqmlm.domains.dna import DNA
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.engine.masking.base import MaskingConfig
from seqmlm.errors import StateError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.maskers import make_masker

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "dnabert" / "pyproject.toml"


def test_overlapping_tokens_refuse_maskers_that_leak():
    for name in ("uniform.v1", "whole_unit.v1", "span.v1"):
        with pytest.raises(UsageError, match=r"each base in 4 neighbouring tokens.*masker=kmer_span\.v1"):
            make_masker(MaskingConfig(masker=name), KmerTokenizer(k=4))
        make_masker(MaskingConfig(masker=name), KmerBlockTokenizer())
    for tokenizer in (BaseTokenizer(), KmerTokenizer(k=4)):
        made = make_masker(MaskingConfig(masker="kmer_span.v1"), tokenizer)
        assert (made.k, made.first) == (getattr(tokenizer, "k", 1), 6)
    with pytest.raises(UsageError, match="needs the option 'first'"):
        make_masker(MaskingConfig(masker="kmer_span.v1"), KmerBlockTokenizer())


def test_what_overlapping_tokens_show():
    tokenizer, raw = KmerTokenizer(k=3), "ACGTACGTAC"
    encoding = tokenizer.encode(raw)
    # 3-mers at 2..5 show the bases 2..7; only 4 and 5 no other does
    asked = np.array([3, 4, 5, 6], dtype=np.int32)
    ids = tokenizer.encode("ACGTTTGTAC").ids[asked]
    assert DNA.text.show(tokenizer, raw, encoding, asked, ids).splitlines() == [
        "masked    ACGT__GTAC",
        "predicted ACGTTTGTAC",
        "true      ACGTACGTAC",
    ]


def test_the_entry_points_of_the_tests_are_those_of_the_project() -> None:
    """`tests/support` holds the metadata of an installation, so that the tests need none."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    installed = distribution(project["name"])
    assert installed.version == project["version"]
    declared = {
        (group, *entry) for group, names in project["entry-points"].items() for entry in names.items()
    }
    assert {(entry.group, entry.name, entry.value) for entry in installed.entry_points} == declared
    assert {name.removesuffix(".v1") for _, name, _ in declared} == plugins.MOVED.keys()


def test_a_stored_model_names_the_plug_in_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("dna", KmerTokenizer(k=3))
    model_folder.write(tmp_path / "m", model.rows, model.tokenizer, model.card)
    assert isinstance(model_folder.load(tmp_path / "m").tokenizer, KmerTokenizer)
    entries = plugins.entries

    def without(kind: plugins.Kind) -> dict[str, object]:
        return {name: entry for name, entry in entries(kind).items() if not entry.value.startswith("dnabert")}

    monkeypatch.setattr(plugins, "entries", without)
    with pytest.raises(StateError, match=r"'kmer\.v1' needs the plug-in .*`pip install \./examples/dnabert`"):
        model_folder.load(tmp_path / "m")
    with pytest.raises(UsageError, match=r"masker 'kmer_span\.v1' needs the plug-in seqmlm-dnabert"):
        make_masker(MaskingConfig(masker="kmer_span.v1"), BaseTokenizer())
