"""References to models: which reading of a word wins, and what is said when none fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from registered import origin
from written import written

from seqmlm.errors import StateError, UsageError
from seqmlm.registry.references import ModelRef, resolve
from seqmlm.registry.store import Registry
from seqmlm.workspace import Workspace


@pytest.fixture
def here(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, also the current directory, with model `a` in two versions, the first being champion."""
    monkeypatch.chdir(workspace)
    with Registry(Workspace.locate()) as registry:
        for run, aliases in (("run1", ["champion"]), ("run2", [])):
            folder = _folder(workspace / "runs" / run / "model")
            registry.register("a", folder, origin(), aliases=aliases)
    return workspace.resolve()


def _folder(path: Path) -> Path:
    return written(path / "config.json", "").parent


@pytest.mark.parametrize(
    ("reference", "folder"),
    [
        *(("a", "run2"), ("a:1", "run1"), ("a:2", "run2"), ("a@champion", "run1"), ("a@latest", "run2")),
        *((one, "run1") for one in ("./runs/run1/model", "runs/run1/model", "runs/run1", "./runs/run1")),
        *((one, "run1") for one in ("{here}/runs/run1/model", "~/runs/run1", Path("runs/run1/model"))),
        *(("exported", "exported"), ("./a", "a"), ("facebook/esm", "facebook/esm")),
    ],
)
def test_what_is_here(
    reference: str | Path, folder: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registered name wins over a folder of that name, a folder over an id of the hub."""
    monkeypatch.setenv("HOME", str(here))
    for name in ("a", "exported", "facebook/esm"):
        _folder(here / name)
    named = reference if isinstance(reference, Path) else reference.format(here=here)
    found, path = resolve(named), here / "runs" / folder / "model"
    assert (found.path, found.hub_id) == (path if folder.startswith("run") else here / folder, None)
    assert found.location == str(found.path)
    is_name = isinstance(reference, str) and reference.startswith("a")
    assert (found.entry and found.entry.name) == ("a" if is_name else None)


@pytest.mark.parametrize(
    ("reference", "hub"),
    [
        ("facebook/esm2_t6_8M_UR50D", "facebook/esm2_t6_8M_UR50D"),
        ("hf:bert-base-uncased", "bert-base-uncased"),
        ("hf:a", "a"),
    ],
)
def test_hub(reference: str, hub: str, here: Path) -> None:
    assert resolve(reference) == ModelRef(hub_id=hub)
    assert resolve(reference).location == hub


def test_paths_and_hub_ids_open_no_registry(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(Registry, "__init__", never)
    for reference in ("./runs/run1", "runs/run1/model", "hf:x", "owner/name"):
        resolve(reference)


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("b", StateError, "no model 'b'; known: a .a folder is written"),
        ("aa", StateError, "did you mean 'a'"),
        ("a:9", StateError, "no version 9; it has 1, 2"),
        ("a@champ", StateError, "did you mean 'champion'"),
        ("a:first", UsageError, "a version is a number"),
        ("./nothing", StateError, "there is no folder nothing"),
        ("./runs", StateError, "not a model folder"),
        ("x/y/z", StateError, "no model 'x/y/z'"),
        ("", UsageError, "the model argument is empty"),
        ("a@b@c", StateError, "no model 'a@b@c'"),
    ],
)
def test_nothing_fits(reference: str, error: type[Exception], message: str, here: Path) -> None:
    with pytest.raises(error, match=message):
        resolve(reference)


def test_a_registered_model_whose_folder_is_gone(here: Path) -> None:
    (here / "runs" / "run2" / "model" / "config.json").unlink()
    with pytest.raises(StateError, match=r"a:2 was in .*, which is gone"):
        resolve("a")


def test_nothing_registered(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    with pytest.raises(StateError, match="none is registered here yet"):
        resolve("a")
