"""Register a model folder in the registry and in MLflow: its origin, version and calibrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqmlm.errors import StateError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import stored_calibrations
from seqmlm.inference.model_folder import unexported_files
from seqmlm.registry.database import UnreachableError, patiently
from seqmlm.registry.entries import CalibrationEntry, DatasetEntry, ModelEntry, Origin, TokenizerEntry
from seqmlm.registry.references import resolve
from seqmlm.registry.store import Registry
from seqmlm.tokenizers.base import Tokenizer, fingerprint
from seqmlm.tracking import TrackedRun
from seqmlm.workspace import Workspace

CHAMPION = "champion"


def origin_of(
    card: model_folder.Card,
    tokenizer: Tokenizer,
    *,
    sources: Sequence[str] = (),
    counts: Mapping[str, Any] | None = None,
) -> Origin:
    """The origin of a model according to its card. `sources` and `counts` describe the data, if known."""
    return Origin(
        domain=card.domain,
        dataset=DatasetEntry(
            fingerprint=card.dataset or "unknown",
            domain=card.domain,
            sources=tuple(sources),
            counts=counts or {},
        ),
        tokenizer=TokenizerEntry(
            hash=fingerprint(tokenizer),
            name=tokenizer.name,
            options=tokenizer.options,
            vocabulary_size=tokenizer.space.size,
        ),
        masking={} if card.head else card.masking,
        init=card.parent,
        mlflow_run_id=card.run_id,
    )


def register_model(directory: Path, name: str, origin: Origin) -> ModelEntry:
    """Register a model folder in the registry, which assigns its version.

    `track_model` registers it in MLflow.

    The first version of a name gets the alias `champion`. `seqmlm models alias` moves the alias. A folder
    that is already registered keeps its version. If the server cannot be reached, this is retried for a
    minute, so that a restarting server does not spoil a finished training.

    Raises:
        StateError: the registry cannot be used, or the folder has no model.
    """

    def enter() -> ModelEntry:
        # Repeating this is safe: the folder keeps its version and the alias.
        with Registry(Workspace.locate()) as registry:
            return registered_version(registry, name, directory, origin)

    return patiently(enter)


def registered_version(registry: Registry, name: str, folder: Path, origin: Origin) -> ModelEntry:
    """Register a folder together with its parent model. The first version of a name becomes the champion."""
    first = not any(CHAMPION in model.aliases for model in registry.models(name))
    parent = _parent(registry, origin.init)
    return registry.register(name, folder, origin, parent=parent, aliases=[CHAMPION] if first else [])


def track_model(
    run: TrackedRun, entry: ModelEntry, metrics: Mapping[str, float], *, dataset: str | None = None
) -> None:
    """Register a version in MLflow too, when its folder is complete.

    Args:
        metrics: final metrics.
        dataset: the name of the data, as given to `run.dataset`, on which they were measured.
    """
    tokenizer = entry.tokenizer
    params: dict[str, Any] = {"domain": entry.domain, "tokenizer": tokenizer.name}
    params["vocabulary_size"] = tokenizer.vocabulary_size
    run.register(
        entry.name,
        entry.path,
        version=entry.version,
        metrics=metrics,
        dataset=dataset,
        params={**params, "masker": entry.masking.get("masker"), "init": entry.init or "from scratch"},
        aliases=entry.aliases,
        withheld=unexported_files(entry.path),
    )


def register_calibrations(registry: Registry, entry: ModelEntry) -> None:
    """Enter the calibrations of a version's folder in the registry."""
    entries = [
        CalibrationEntry(level=level, mode=mode, rows=calibration.rows, source=calibration.source)
        for (level, mode), calibration in stored_calibrations(entry.path).items()
    ]
    registry.set_calibrations(entry, entries)


def _parent(registry: Registry, init: str | None) -> ModelEntry | None:
    """The registered model that training started from, found by reference or folder.

    None if there is none.
    """
    if init is None:
        return None
    try:
        reference = resolve(init)
    except UnreachableError:
        raise
    except (StateError, UsageError):
        return None
    if reference.entry is not None or reference.path is None:
        return reference.entry
    return next((model for model in registry.models() if model.path == reference.path), None)
