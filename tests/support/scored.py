"""Scoring without a command line."""

from __future__ import annotations

from typing import TextIO

from seqmlm.tasks.score import Score
from seqmlm.tasks.score_config import ScoreConfig
from seqmlm.tasks.task import Progress, Summary, run


def score_files(config: ScoreConfig, stdout: TextIO | None, progress: Progress | None = None) -> Summary:
    """What `seqmlm score` does."""
    return run("score", Score, config, stdout=stdout, progress=progress)
