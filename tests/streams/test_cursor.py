"""Cursors: the same request goes on, another is told what differs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqmlm import plugins
from seqmlm.errors import DataError, StateError
from seqmlm.privacy import handling_sensitive_data
from seqmlm.scoring.config import ScoreConfig
from seqmlm.streams.cursor import DEFAULTS, Cursor, Position, differences, file_facts
from seqmlm.tasks import run
from seqmlm.tasks.task import Output, Task
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.request import stream_request

POSITION = Position(records=7, output={"bytes": 100}, counts={"units": 5}, problems={"bad": {"x": 1}})


def _request(folder: Path, **changes: Any) -> dict[str, Any]:
    files = file_facts([folder / "a.txt", folder / "b.txt"])
    return {"mode": "exact", "options": {"column": "text"}, "input": files, **changes}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    return tmp_path


def test_a_position_comes_back(folder: Path) -> None:
    cursor = Cursor(folder / "out.jsonl", _request(folder))
    assert cursor.load() is None
    cursor.save(Position())
    with handling_sensitive_data():
        cursor.save(POSITION)
    assert Cursor(folder / "out.jsonl", _request(folder)).load() == POSITION
    assert Cursor(folder / "out.jsonl", {}).unfinished() == (POSITION, _request(folder))
    assert (folder / "out.jsonl.resume.json").stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in folder.iterdir()) == ["a.txt", "b.txt", "out.jsonl.resume.json"]
    cursor.remove()
    assert cursor.load() is None
    assert cursor.unfinished() == (None, {})


def test_what_differs_is_named(folder: Path) -> None:
    out = folder / "out.jsonl"
    Cursor(out, _request(folder)).save(POSITION)

    def refused(request: dict[str, Any]) -> str:
        with pytest.raises(StateError) as caught:
            Cursor(out, request).load()
        return str(caught.value)

    assert "mode was exact and is one-pass" in refused(_request(folder, mode="one-pass"))
    assert "options column has changed" in refused(_request(folder, options={"column": "b"}))
    assert "level was not given and is word" in refused(_request(folder, level="word"))
    backwards = dict(reversed(file_facts([folder / "a.txt", folder / "b.txt"]).items()))
    assert "the order of input has changed" in refused(_request(folder, input=backwards))
    fewer = file_facts([folder / "a.txt"])
    assert f"input {folder / 'b.txt'} is missing" in refused(_request(folder, input=fewer))
    os.utime(folder / "a.txt", (1, 1))
    assert Cursor(out, _request(folder)).load() == POSITION, "the same content with another time"
    (folder / "a.txt").write_text("z")
    os.utime(folder / "a.txt", (1, 1))
    assert f"input {folder / 'a.txt'} has changed" in refused(_request(folder))
    assert Cursor(out, _request(folder)).unfinished()[0] == POSITION


def test_every_byte_of_a_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    data = bytearray(range(250)) * 8
    path.write_bytes(data)
    os.utime(path, (1, 1))
    before = file_facts([path])
    data[777] ^= 1
    path.write_bytes(data)
    os.utime(path, (1, 1))
    assert file_facts([path]) != before
    data[777] ^= 1
    path.write_bytes(data)
    assert file_facts([path]) == before


def test_what_is_read_once_is_not_read_for_its_fingerprint(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert file_facts([tmp_path / "pipe", "hf:x@1"]) == {str(tmp_path / "pipe"): "", "hf:x@1": ""}
    with pytest.raises(DataError, match="No such file"):
        file_facts([tmp_path / "none"])


@pytest.mark.parametrize("damage", ["torn", "binary", "list", "digit", "pipe"])
def test_a_broken_cursor_is_refused_and_can_be_started_over(folder: Path, damage: str) -> None:
    cursor = Cursor(folder / "out.jsonl", {})
    cursor.save(POSITION)
    whole = cursor.path.read_bytes()
    if damage == "pipe":
        cursor.path.unlink()
        os.mkfifo(cursor.path)
    else:
        bad = {
            "torn": whole[:20],
            "binary": b"\xff\0",
            "list": b"[3]",
            "digit": whole.replace(b"100", b"900"),
        }
        assert bad[damage] != whole
        cursor.path.write_bytes(bad[damage])
    with pytest.raises(StateError, match="run the command again without --resume"):
        cursor.load()
    assert cursor.unfinished() == (None, {})


# Settings that another version does not have

TASKS = [
    made.Config
    for entry in plugins.entries("tasks").values()
    if isinstance(made := entry.load(), type) and issubclass(made, Task) and made is not Task
]


def settings(kind: type[Any], **values: Any) -> Any:
    """A config with the settings that have no default, and some others."""
    needed = {
        one.name: "x" for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING
    }
    return kind(**{**needed, "model": "m", "paths": ("-",), **values})


def request_of(config: Any) -> dict[str, Any]:
    """What a stream or an output of such a config stores."""
    session = SimpleNamespace(model=SimpleNamespace(files=[]), precision="fp32", counts="none")
    if isinstance(config, WatchConfig):
        model: Any = SimpleNamespace(reference="m:1", digests={}, sensitive=False)
        return stream_request(config, ["*.log"], model)
    work = SimpleNamespace(
        config=replace(config, out=Path("rows.jsonl")),
        input_files=list,
        session=session,
        output=Output(settled={"mode": "exact", "level": "line"}),
    )
    return run._request(work)


def older(request: Mapping[str, Any], name: str, *, defaults: bool) -> dict[str, Any]:
    """The request of a version without a setting, which may have stored no defaults at all."""
    before = {key: value for key, value in request.items() if key not in (name, DEFAULTS)}
    own = {key: value for key, value in request[DEFAULTS].items() if key != name}
    return {**before, DEFAULTS: own} if defaults else before


@pytest.mark.parametrize("defaults", [True, False])
@pytest.mark.parametrize("kind", [*TASKS, WatchConfig], ids=lambda kind: kind.__name__)
def test_a_setting_that_one_version_lacks_is_as_its_default(
    kind: type[Any], defaults: bool, folder: Path
) -> None:
    """In both directions; and another value than the default is another request."""
    out = folder / "rows.jsonl"
    now = request_of(settings(kind))
    names = [one.name for one in fields(kind) if one.name in now and one.name in now[DEFAULTS]]
    assert len(names) > 1
    for name in names:
        before = older(now, name, defaults=defaults)
        Cursor(out, before).save(POSITION)
        assert Cursor(out, now).load() == POSITION, f"{name} is new"
        assert differences(before, {**now, name: "another"}), name
        if defaults or not now[name]:  # a version that stored no defaults had this one
            had = now if defaults else {key: value for key, value in now.items() if key != DEFAULTS}
            Cursor(out, had).save(POSITION)
            assert Cursor(out, before).load() == POSITION, f"{name} is gone"
        Cursor(out, {**now, name: "another"}).save(POSITION)
        for later in (now, before):
            with pytest.raises(StateError, match=f"{name} was another"):
                Cursor(out, later).load()


def test_a_mode_that_was_chosen_is_no_mode_that_was_asked_for() -> None:
    chosen, asked = (request_of(settings(ScoreConfig, mode=mode)) for mode in (None, "exact"))
    assert chosen["mode"] == asked["mode"] == "exact"
    assert not differences(older(chosen, "mode", defaults=True), chosen)
    assert differences(older(asked, "mode", defaults=True), asked) == ["mode was not given and is exact"]


def test_a_setting_that_was_given_is_still_refused_where_it_is_new() -> None:
    now = request_of(settings(WatchConfig, fpr=0.01))
    for defaults in (True, False):
        assert differences(older(now, "fpr", defaults=defaults), now) == ["fpr was not given and is 0.01"]
