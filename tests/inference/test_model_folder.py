"""A model folder knows its own files: damage is found, a kill leaves a folder that loads, nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from tiny_models import saved

from seqmlm.anomaly.judge import Normal
from seqmlm.engine import durable
from seqmlm.errors import StateError
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import Stored, store, stored_calibrations
from seqmlm.inference.model_folder import CARD, LOCK, LoadedModel, check_files, put_file, read_card
from seqmlm.management.models import export_model

EXTRA = "log_templates.json"


@pytest.fixture
def folder(model: LoadedModel, tmp_path: Path) -> Path:
    path = saved(model, tmp_path / "model")
    put_file(path / EXTRA, b'{"seen": 0.5}')
    return path


def checked(folder: Path) -> None:
    """What every command does with a folder before it reads from it."""
    card = read_card(folder)
    check_files(folder, card)


def test_the_card_lists_every_other_file(folder: Path) -> None:
    card = read_card(folder)
    assert set(card.files) == {path.name for path in folder.iterdir()} - {CARD, LOCK}
    for name, accepted in card.files.items():
        assert accepted == [durable.entry_of(folder / name)]
    checked(folder)


def test_a_flipped_byte_in_any_file_is_found(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir() if path.name not in (CARD, LOCK))
    assert {"model.safetensors", "config.json", "tokenizer.json", EXTRA} <= set(names)
    for name in names:
        whole = (folder / name).read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 1):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            (folder / name).write_bytes(damaged)
            with pytest.raises(StateError, match=f"{name} is damaged .* copy"):
                model_folder.load(folder)
        (folder / name).unlink()
        with pytest.raises(StateError, match=f"{name} is missing: copy"):
            model_folder.load(folder)
        (folder / name).write_bytes(whole)
    model_folder.load(folder)


def test_a_flipped_bit_in_the_card_is_found_or_changes_nothing(folder: Path) -> None:
    card = read_card(folder)
    whole = (folder / CARD).read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 7)
        (folder / CARD).write_bytes(damaged)
        try:
            found = read_card(folder)
        except StateError:
            continue
        assert found == card


def test_a_file_that_would_be_read_and_is_not_listed_is_refused(folder: Path) -> None:
    (folder / "README.md").write_text("notes of a person")
    (folder / "notes.txt").write_text("are nobody's business")
    checked(folder)
    for name in ("special_tokens_map.json", "adapter_config.json", "calibration.safetensors"):
        (folder / name).write_text("{}")
        with pytest.raises(StateError, match=f"{name} is not one of the files .* remove it"):
            model_folder.load(folder)
        (folder / name).unlink()


class Snapshots(durable.Disk):
    """Keeps a copy of a folder as a kill at each operation would leave it; a write is half done then."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self.folder, self.kept, self.count = folder, kept, 0

    def _keep(self) -> None:
        shutil.copytree(self.folder, self.kept / str(self.count))
        self.count += 1

    def write(self, handle: IO[bytes], data: bytes | memoryview) -> None:
        half = len(data) // 2
        super().write(handle, data[:half])
        self._keep()
        super().write(handle, data[half:])

    def sync(self, path: Path) -> None:
        self._keep()

    def rename(self, source: Path, target: Path) -> None:
        self._keep()
        super().rename(source, target)
        self._keep()


@pytest.mark.parametrize(
    ("before", "after"), [(b'{"seen": 0.5}', b'{"seen": 0.25}'), (None, b"{}"), (b'{"seen": 0.5}', None)]
)
def test_a_kill_at_any_moment_leaves_a_folder_that_loads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None, after: bytes | None
) -> None:
    put_file(folder / EXTRA, before)
    disk = Snapshots(folder, tmp_path / "kept")
    with monkeypatch.context() as patched:
        patched.setattr(durable, "DISK", disk)
        patched.setattr(model_folder, "DISK", disk)
        put_file(folder / EXTRA, after)
    assert disk.count >= 8
    seen = set()
    for number in range(disk.count):
        there = tmp_path / "kept" / str(number)
        checked(there)
        found = (there / EXTRA).read_bytes() if (there / EXTRA).exists() else None
        assert found in (before, after)
        seen.add(found)
        # Who comes next finishes it.
        put_file(there / EXTRA, b"[]")
        checked(there)
        card = read_card(there)
        assert card.files[EXTRA] == [durable.entry_of(there / EXTRA)]
    assert seen == {before, after}
    checked(folder)


def test_a_file_that_is_replaced_while_a_model_is_loaded_is_not_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [read_card(folder)]
    put_file(folder / EXTRA, b"new")
    monkeypatch.setattr(model_folder, "read_card", lambda path: cards.pop() if cards else read_card(path))
    loaded = model_folder.load(folder)
    assert not cards
    assert loaded.card == read_card(folder)


def test_a_full_disk_leaves_the_old_file_and_a_folder_that_loads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable.DISK, "rename", full)
        with pytest.raises(StateError, match=r"log_templates\.json: No space left .* copy the model"):
            put_file(folder / EXTRA, b"new")
    assert (folder / EXTRA).read_bytes() == b'{"seen": 0.5}'
    checked(folder)


def test_calibrations_made_at_once_are_all_kept(folder: Path) -> None:
    rng = np.random.default_rng(0)
    fitted = Normal.fit({"sum": rng.normal(size=40)}, np.full(40, 9), seed=0)

    def calibrate(number: int) -> None:
        store(folder, {(f"level{number % 4}", f"partition:{number + 2}"): Stored(fitted=fitted)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calibrate, range(12)))
    assert len(stored_calibrations(folder)) == 12
    checked(folder)


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", ["seqmlm_tokenizer.json", "calibration.safetensors", "log_templates.json"])
def test_no_file_is_a_pipe_or_leads_out_of_a_folder(folder: Path, tmp_path: Path, name: str, kind: str):
    (tmp_path / "outside").write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"{}")
    (folder / name).unlink(missing_ok=True)
    if kind == "link":
        (folder / name).symlink_to(tmp_path / "outside")
    else:
        os.mkfifo(folder / name)
    for load in (model_folder.load, model_folder.load_tokenizer):
        with pytest.raises(StateError, match=r"outside the model's folder|not a regular file"):
            load(folder)


def test_a_card_without_a_checksum_is_refused(folder: Path) -> None:
    values = json.loads((folder / CARD).read_text())
    del values["files"], values["checksum"]
    (folder / CARD).write_text(json.dumps(values))
    with pytest.raises(StateError, match=r"checksum does not match.*export or copy the model again"):
        model_folder.load(folder)


def test_a_damaged_model_is_not_exported(folder: Path, tmp_path: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    with pytest.raises(StateError, match=r"model\.safetensors is damaged"):
        export_model(str(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("sensitive", "file", "directory"), [(False, 0o664, 0o775), (True, 0o600, 0o700)])
def test_modes(model: LoadedModel, tmp_path: Path, sensitive: bool, file: int, directory: int) -> None:
    before = os.umask(0o002)
    try:
        saved(model, tmp_path / "model", sensitive=sensitive)
        put_file(tmp_path / "model" / EXTRA, b"{}")
        export_model(str(tmp_path / "model"), tmp_path / "out")
        assert os.umask(0o002) == 0o002, "as it was"
    finally:
        os.umask(before)
    for folder in (tmp_path / "model", tmp_path / "out"):
        assert stat.S_IMODE(folder.stat().st_mode) == directory
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        modes.pop(LOCK, None)  # without content
        assert modes == dict.fromkeys(modes, file)
