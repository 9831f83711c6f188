"""Scoring without a command line."""

from __future__ import annotations

from typing import TextIO

from seqmlm.reports.summary import Progress, Summary
from seqmlm.scoring.config import ScoreConfig
from seqmlm.scoring.score import Score
from seqmlm.tasks.run import run


def score_files(config: ScoreConfig, stdout: TextIO | None, progress: Progress | None = None) -> Summary:
    """What `seqmlm score` does."""
    return run("score", Score, config, stdout=stdout, progress=progress)
