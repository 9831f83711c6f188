"""Input and output values of the registry, independent of any database session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A data set, as read with given options."""

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
    """The origin of a model: its data, tokenizer, settings and initial model."""

    domain: str
    dataset: DatasetEntry
    tokenizer: TokenizerEntry
    masking: Mapping[str, Any]
    init: str | None = None
    """Reference, folder or hub id of the model that training started from; None for a new model."""
    mlflow_run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Origin):
    """One version of a model."""

    id: int
    name: str
    version: int
    path: Path
    """Absolute path of the folder. The folder may have been deleted since."""
    parent: str | None
    """NAME:VERSION of the registered model that training started from, if there is one."""
    aliases: tuple[str, ...]
    created: datetime

    @property
    def reference(self) -> str:
        """The reference NAME:VERSION."""
        return f"{self.name}:{self.version}"

    @property
    def present(self) -> bool:
        """Whether the model's folder still exists."""
        return (self.path / "config.json").is_file()
