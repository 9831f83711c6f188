from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from seqmlm.config import from_dict, merge, parse_assignments, read_yaml, to_dict
from seqmlm.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.15
    kind: Literal["a", "b"] = "a"
    pair: tuple[float, float] = (0.9, 0.98)


@dataclass(frozen=True, kw_only=True)
class Outer:
    steps: int | None = None
    paths: tuple[str, ...] = ()
    flag: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner = Inner()


def test_round_trip() -> None:
    config = Outer(steps=3, paths=("a", "b"), options={"x": [1]}, inner=Inner(rate=0.3, kind="b"))
    assert from_dict(Outer, to_dict(config)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stepz": 1}, "unknown config key 'stepz'; did you mean 'steps'"),
        ({"inner": {"rte": 1}}, "unknown config key 'inner.rte'; did you mean 'rate'"),
        ({"steps": "many"}, "'steps' must be int"),
        ({"steps": 1.5}, "'steps' must be int"),
        ({"steps": True}, "'steps' must be int"),
        ({"flag": 1}, "'flag' must be bool"),
        ({"inner": 3}, "'inner' must contain keys and values"),
        ({"inner": {"kind": "c"}}, "'inner.kind' must be one of a, b"),
        ({"inner": {"pair": [1]}}, "takes 2 values"),
        ({"paths": "abc"}, "'paths' must be a list"),
        ({"options": 3}, "'options' must contain"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_dict(Outer, values)


def test_numbers_spelled_as_text_count() -> None:
    assert from_dict(Inner, {"rate": "1e-3"}).rate == 1e-3
    assert from_dict(Outer, {"steps": "1e3"}).steps == 1000
    assert from_dict(Outer, {"steps": 10**18 + 1}).steps == 10**18 + 1


def test_assignments_nest_and_later_ones_win() -> None:
    assert parse_assignments(["a.b=3", "a.c=[1, x]", "a.b=4"]) == {"a": {"b": 4, "c": [1, "x"]}}
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": [3]}}) == {"a": {"b": [3], "c": 2}}


@pytest.mark.parametrize("text", ["a", "=3", "a..b=3", "a=[1"])
def test_bad_assignments(text: str) -> None:
    with pytest.raises(UsageError, match="setting"):
        parse_assignments([text])


def test_yaml_files(tmp_path: Path) -> None:
    good, empty, listy, broken = (tmp_path / f"{n}.yaml" for n in ("good", "empty", "listy", "broken"))
    good.write_text("a: {b: 1}\n")
    empty.write_text("")
    listy.write_text("- 1\n")
    broken.write_text("a: [1\n")
    assert read_yaml(good) == {"a": {"b": 1}}
    assert read_yaml(empty) == {}
    for path in (listy, broken, tmp_path / "missing.yaml"):
        with pytest.raises(UsageError, match=path.name):
            read_yaml(path)


def test_yaml_that_multiplies_nests_or_names_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    lists = "a0: &a0 [1, 1]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    merges = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
    )
    canary = tmp_path / "canary"
    objects = (
        f"x: !!python/object/apply:pathlib.Path.write_text [!!python/object/apply:pathlib.Path [{canary}], y]"
    )
    for content, reason in (
        (lists, "aliases expand to more than"),
        (merges, "aliases expand to more than"),
        ("a: &a [*a]\n", "aliases expand to more than"),
        ("a: " + "[" * 100_000, "nested too deep"),
        (objects, "python/object"),
        ("a: \0", "special characters"),
    ):
        path.write_text(content)
        with pytest.raises(UsageError, match=f"bomb.yaml.*{reason}") as caught:
            read_yaml(path)
        assert "\n" not in str(caught.value)
    path.write_bytes("a: 1".encode("utf-16"))
    with pytest.raises(UsageError, match=r"bomb\.yaml"):
        read_yaml(path)
    assert not canary.exists()
    path.write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}, (
        "aliases as people use them"
    )
