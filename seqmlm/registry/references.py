"""References to models, as users write them, and how they are resolved.

The first form that matches is used:

    ./folder  /folder  ~/folder  folder/sub   a model folder, or a run folder with a model in it
    hf:NAME  hf:OWNER/NAME                    a model on the Hugging Face hub
    NAME:VERSION  NAME@ALIAS  NAME            a registered model; NAME means its newest version
    NAME                                      a model folder of that name in the current directory
    OWNER/NAME                                a model on the Hugging Face hub, if no such folder exists
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqmlm.errors import StateError, UsageError, nearest
from seqmlm.workspace import Workspace

if TYPE_CHECKING:
    from seqmlm.registry.entries import ModelEntry

_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_REGISTERED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<version>[^:@/]*)|@(?P<alias>[^:@/]*))?"
)


@dataclass(frozen=True, kw_only=True)
class ModelRef:
    """The location of a model: exactly one of `path` and `hub_id` is set."""

    path: Path | None = None
    hub_id: str | None = None
    entry: ModelEntry | None = None
    """The registered version, if the reference names one; else None."""

    @property
    def location(self) -> str:
        """The folder or hub id, in the form that transformers accepts."""
        return str(self.path) if self.path is not None else str(self.hub_id)


def resolve(reference: str | Path, workspace: Workspace | None = None) -> ModelRef:
    """Find the model that a reference names; see the module's docstring.

    Args:
        workspace: the workspace whose registry is opened if needed; None for the current workspace.

    Raises:
        UsageError: the reference is empty or malformed.
        StateError: there is no such model. The message names the nearest known name.
    """
    text = str(reference)
    if not text.strip():
        raise UsageError(
            "the model argument is empty: give a name, NAME@ALIAS, NAME:VERSION, a folder or a hub id"
        )
    if text.startswith("hf:"):
        return ModelRef(hub_id=text.removeprefix("hf:"))
    folder = Path(text).expanduser()
    explicit = isinstance(reference, Path) or text.startswith((".", "~")) or folder.is_absolute()
    if explicit or ((os.sep in text or "/" in text) and folder.exists()):
        return ModelRef(path=_model_folder(folder))
    if _HUB.fullmatch(text):
        return ModelRef(hub_id=text)
    match = _REGISTERED.fullmatch(text)
    if match is None:
        if folder.is_dir():  # its name cannot be that of a registered model: "my model"
            return ModelRef(path=_model_folder(folder))
        raise StateError(
            f"no model {text!r}: there is no such folder, and it is not NAME, NAME@ALIAS or NAME:VERSION"
        )
    return _registered(text, match, folder, workspace)


def _registered(text: str, match: re.Match[str], folder: Path, workspace: Workspace | None) -> ModelRef:
    from seqmlm.registry.store import Registry  # SQLAlchemy is imported only if a name must be looked up

    name, version, alias = match["name"], match["version"], match["alias"]
    if version is not None and not version.isdigit():
        raise UsageError(
            f"{text!r}: a version is a number, as in {name}:1; an alias is written {name}@champion"
        )
    with Registry(workspace or Workspace.locate()) as opened:
        names = opened.names()
        if name in names:
            entry = opened.get(name, version=int(version) if version is not None else None, alias=alias)
            if not entry.present:
                raise StateError(
                    f"model {entry.reference} was in {entry.path}, which is gone; train or copy it again"
                )
            return ModelRef(path=entry.path, entry=entry)
    if version is None and alias is None and folder.is_dir():
        return ModelRef(path=_model_folder(folder))
    hint = nearest(name, names) if names else "; none is registered here yet"
    raise StateError(
        f"no model {name!r}{hint} (a folder is written ./{name}, a hub model hf:{name} or OWNER/{name})"
    )


def _model_folder(folder: Path) -> Path:
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate.resolve()
    if not folder.exists():
        raise StateError(f"there is no folder {folder}")
    raise StateError(f"{folder} is not a model folder: it has no config.json (nor has its folder model/)")
