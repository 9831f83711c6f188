"""What a training says of the counts it made."""

from __future__ import annotations

from seqmlm import plugins
from seqmlm.tasks.finalize import counts_verdict


def test_levels_that_never_mix_counts_in_are_named() -> None:
    proteins, patients = (plugins.domain(name).levels for name in ("protein", "ehr"))
    assert counts_verdict(proteins, better=True) == "scores mix both"
    told = counts_verdict(patients, better=True)
    assert told.startswith("scores mix both, those of visit, ")
    assert "hindsight" not in told
    assert counts_verdict(patients, better=False) == "scores use the model alone"
