"""What the registry takes and gives: plain values, free of any database session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A data set as it was read."""

    fingerprint: str
    domain: str
    sources: tuple[str, ...]
    counts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenizerEntry:
    """A tokenizer."""

    hash: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    vocabulary_size: int


@dataclass(frozen=True, kw_only=True)
class CalibrationEntry:
    """The calibration of a model version at one level and in one mode."""

    level: str
    mode: str
    rows: int
    source: str
    """Fingerprint of the normal data."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a model comes from."""

    domain: str
    dataset: DatasetEntry
    tokenizer: TokenizerEntry
    masking: Mapping[str, Any]
    init: str | None = None
    """What its training started from, as a reference, folder or hub id; None from scratch."""
    mlflow_run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Origin):
    """One version of a model."""

    id: int
    name: str
    version: int
    path: Path
    """Absolute; the folder may have gone since."""
    parent: str | None
    """NAME:VERSION of the model it was trained on from, where that is one of ours."""
    aliases: tuple[str, ...]
    created: datetime

    @property
    def reference(self) -> str:
        """NAME:VERSION."""
        return f"{self.name}:{self.version}"

    @property
    def present(self) -> bool:
        """Whether the model's folder is still there."""
        return (self.path / "config.json").is_file()
