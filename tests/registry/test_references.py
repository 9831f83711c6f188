"""References to models: which reading of a word wins, and what is said when none fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from registered import origin

from seqmlm.errors import StateError, UsageError
from seqmlm.registry.references import ModelRef, resolve
from seqmlm.registry.store import Registry
from seqmlm.workspace import Workspace


@pytest.fixture
def here(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, also the current directory, with model `a` in two versions, the first being champion."""
    monkeypatch.chdir(workspace)
    for run in ("run1", "run2"):
        _folder(workspace / "runs" / run / "model")
    with Registry(Workspace.locate()) as registry:
        for run in ("run1", "run2"):
            aliases = ["champion"] if run == "run1" else []
            registry.register("a", workspace / "runs" / run / "model", origin(), aliases=aliases)
    return workspace.resolve()


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").touch()
    return path


@pytest.mark.parametrize(
    ("reference", "run"),
    [("a", "run2"), ("a:1", "run1"), ("a:2", "run2"), ("a@champion", "run1"), ("a@latest", "run2")],
)
def test_registered(reference: str, run: str, here: Path) -> None:
    found = resolve(reference)
    assert found.path == here / "runs" / run / "model"
    assert found.location == str(found.path)
    assert found.entry.name == "a"


@pytest.mark.parametrize("reference", ["./runs/run1/model", "runs/run1/model", "runs/run1", "./runs/run1"])
def test_folders(reference: str, here: Path) -> None:
    found = resolve(reference)
    assert (found.path, found.entry, found.hub_id) == (here / "runs/run1/model", None, None)


def test_absolute_and_path_objects(here: Path) -> None:
    assert resolve(str(here / "runs/run1/model")).path == here / "runs/run1/model"
    assert resolve(Path("runs/run1/model")).path == here / "runs/run1/model"


def test_home_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    assert resolve("~/runs/run1").path == here / "runs/run1/model"


def test_a_registered_name_wins_over_a_folder_of_that_name(here: Path) -> None:
    _folder(here / "a")
    assert resolve("a").path == here / "runs/run2/model"
    assert resolve("./a").path == here / "a"


def test_a_bare_folder_name_when_nothing_is_registered_under_it(here: Path) -> None:
    _folder(here / "exported")
    assert resolve("exported").path == here / "exported"


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


def test_a_folder_wins_over_a_hub_id(here: Path) -> None:
    _folder(here / "facebook" / "esm")
    assert resolve("facebook/esm").path == here / "facebook" / "esm"


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
        ("", UsageError, "no model is named"),
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
