"""A model folder in our registry and in MLflow: where it comes from, its version, and its calibrations."""

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
    """The origin of a model, by its card; `sources` and `counts` are of the data, where they are known."""
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
    """Register a model folder in our registry, which decides its version; `track_model` tells MLflow.

    The first version of a name becomes its `champion`; `seqmlm models alias` moves that. A folder registered
    before keeps its version. A server that cannot be reached is tried again for a minute: a training has
    ended here, and a server that is restarted must not cost it its end.

    Raises:
        StateError: the registry cannot be used, or the folder holds no model.
    """

    def enter() -> ModelEntry:
        # May be repeated as a whole: the folder keeps its version, and with it the alias.
        with Registry(Workspace.locate()) as registry:
            return registered_version(registry, name, directory, origin)

    return patiently(enter)


def registered_version(registry: Registry, name: str, folder: Path, origin: Origin) -> ModelEntry:
    """Register a folder with the model it was trained on from; the first one of a name is its champion."""
    first = not any(CHAMPION in model.aliases for model in registry.models(name))
    parent = _parent(registry, origin.init)
    return registry.register(name, folder, origin, parent=parent, aliases=[CHAMPION] if first else [])


def track_model(
    run: TrackedRun, entry: ModelEntry, metrics: Mapping[str, float], *, dataset: str | None = None
) -> None:
    """Register a version in MLflow too, its folder complete.

    `metrics` are final ones, measured on the data that `run.dataset` was given as `dataset`.
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
    """Tell the registry which calibrations a version's folder has."""
    entries = [
        CalibrationEntry(level=level, mode=mode, rows=calibration.rows, source=calibration.source)
        for (level, mode), calibration in stored_calibrations(entry.path).items()
    ]
    registry.set_calibrations(entry, entries)


def _parent(registry: Registry, init: str | None) -> ModelEntry | None:
    """The registered model that training started from, where it is one: by reference, or by its folder."""
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
