"""Convert YAML files, `--set a.b=c` assignments and mappings to frozen config dataclasses, and back.

Errors name the config key that is wrong.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from seqmlm.errors import UsageError, nearest
from seqmlm.parsing import Share, parse_yaml, read_bounded, share

T = TypeVar("T")

_LARGEST_YAML = 64 << 20


def from_dict(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build the dataclass `cls` from nested mappings.

    Args:
        cls: a dataclass type. Fields may be dataclasses, scalars, Literals, tuples, mappings or optionals.
        values: values by key, as YAML gives them.
        where: dotted path of `values` inside the whole config, for messages.

    Raises:
        UsageError: a key is unknown (the message suggests the nearest key), or a value has the wrong type.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Point:
    ...     x: int = 0
    >>> from_dict(Point, {"x": 3})
    Point(x=3)
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"config key {where or '(top)'!r} must contain keys and values, not {values!r}")
    hints = get_type_hints(cls, include_extras=True)
    names = {f.name for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    arguments = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in names:
            raise UsageError(f"unknown config key {path!r}{_nearest_key(str(key), names, hints)}")
        arguments[key] = _coerce(hints[key], value, path)
    return cls(**arguments)


def _nearest_key(key: str, names: Collection[str], hints: Mapping[str, Any]) -> str:
    """A phrase that suggests the nearest key, or the section that has a key with this name."""
    for name in sorted(names):
        section = hints[name]
        if dataclasses.is_dataclass(section) and key in {part.name for part in dataclasses.fields(section)}:
            return f"; did you mean '{name}.{key}'?"
    return nearest(key, names)


def to_dict(config: Any) -> Any:
    """Convert a config to plain dicts, lists and scalars for YAML or JSON: the reverse of `from_dict`."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config) if f.init}
    if isinstance(config, Mapping):
        return {str(key): to_dict(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_dict(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def merge(base: Mapping[str, Any], *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings key by key. Later mappings win, and lists and scalars are replaced whole."""
    merged = dict(base)
    for override in overrides:
        for key, value in override.items():
            base_part = merged.get(key)
            merged[key] = (
                merge(base_part, value)
                if isinstance(base_part, Mapping) and isinstance(value, Mapping)
                else value
            )
    return merged


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Turn `["a.b=3", "c=[1, 2]"]` into `{"a": {"b": 3}, "c": [1, 2]}`. Values are YAML.

    Raises:
        UsageError: an assignment has no `=` or an empty key, or its value is not YAML.
    """
    import yaml

    merged: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not all(key.split(".")):
            raise UsageError(f"a setting is written key=value, such as seed=1; got {assignment!r}")
        try:
            value = parse_yaml(text)
        except (yaml.YAMLError, ValueError) as error:
            raise UsageError(f"setting {key}: {text!r} is not a YAML value ({_one_line(error)})") from None
        for part in reversed(key.split(".")):
            value = {part: value}
        merged = merge(merged, value)
    return merged


def parse_options(assignments: Sequence[str]) -> dict[str, str]:
    """Reader options from `key=value` texts. Values stay text: the format converts them.

    >>> parse_options(["column=1", "header=false"])
    {'column': '1', 'header': 'false'}

    Raises:
        UsageError: an assignment has no `=`.
    """
    options: dict[str, str] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UsageError(f"an option is written key=value, such as column=text; got {assignment!r}")
        options[key] = text
    return options


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a config file. An empty file is an empty config.

    Raises:
        UsageError: the file is missing, is not YAML, or does not contain keys and values at its top level.
    """
    import yaml

    try:
        values = parse_yaml(read_bounded(path, _LARGEST_YAML).decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"config file {path} does not exist") from None
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise UsageError(f"config file {path} is not readable YAML: {_one_line(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"config file {path} must contain keys and values at its top")
    return values


def arguments_of(function: Callable[..., Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Convert config values to keyword arguments of the types that a function's annotations name.

    Values for parameters of other than plain types are returned unchanged.

    Args:
        function: the function that takes the arguments.
        values: arguments by name, from a config. YAML reads 1e-3 as a string, for example.
        where: dotted path of `values` inside the whole config, for messages.

    Raises:
        UsageError: a value is not of the annotated type: number, text, truth value, or a word from a list.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    # for example a plug-in whose annotations are imported only for type checkers, or an object that is not a
    # function
    except (NameError, TypeError):
        hints = {}
    plain = {key: hints[key] for key in values if key in hints and _is_plain(hints[key])}
    arguments = {key: _coerce(hint, values[key], f"{where}.{key}") for key, hint in plain.items()}
    # Values that are not text stay as they are. Stored results are found by a hash of the config, which must
    # not change.
    return {**values, **{key: arguments[key] for key in arguments if isinstance(values[key], str)}}


def meanings(text: str) -> dict[str, str]:
    """Name -> meaning of arguments or fields, from the section "Args:" of a docstring.

    An entry may describe several names. Its continuation lines are indented by 8 spaces.
    """
    section = inspect.cleandoc(text).partition("Args:")[2]
    entries = re.findall(r"^ {4}([\w, ]+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {
        name.strip(): " ".join(meaning.split()) for names, meaning in entries for name in names.split(",")
    }


def _is_plain(hint: Any) -> bool:
    """Whether a type hint consists of types that YAML can express."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType, tuple, list, Sequence, Mapping):
        return all(_is_plain(argument) for argument in get_args(hint) if argument is not Ellipsis)
    return hint in (bool, int, float, str, type(None), Share) or origin is Literal


def _coerce(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if hint == Share:
        return _coerce_share(value, path)
    if origin is Annotated:
        return _coerce(get_args(hint)[0], value, path)
    if origin in (Union, types.UnionType):
        return _coerce_union(get_args(hint), value, path)
    if origin is Literal:
        if value not in get_args(hint):
            choices = ", ".join(map(str, get_args(hint)))
            raise UsageError(f"config key {path!r} must be one of {choices}; got {value!r}")
        return value
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_dict(hint, value, path)  # type: ignore[arg-type]
    if origin in (tuple, list, Sequence):
        return _coerce_sequence(hint, value, path)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise UsageError(f"config key {path!r} must contain keys and values; got {value!r}")
        return dict(value)
    return _coerce_scalar(hint, value, path)


def _coerce_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _coerce(option, value, path)
        except UsageError as error:
            errors.append(error)
    raise errors[0]


def _coerce_sequence(hint: Any, value: Any, path: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UsageError(f"config key {path!r} must be a list; got {value!r}")
    arguments = get_args(hint)
    if Ellipsis in arguments or get_origin(hint) is not tuple:
        kind = tuple if get_origin(hint) is tuple else list
        return kind(_coerce(arguments[0], item, path) for item in value)
    if len(arguments) != len(value):
        raise UsageError(f"config key {path!r} takes {len(arguments)} values; got {len(value)}")
    return tuple(_coerce(argument, item, path) for argument, item in zip(arguments, value, strict=True))


def _coerce_share(value: Any, path: str) -> float:
    try:
        return share(value)
    except ValueError:
        message = f"config key {path!r} must be a share such as 0.05 or 5%; got {value!r}"
        raise UsageError(message) from None


def _coerce_scalar(hint: Any, value: Any, path: str) -> Any:
    # YAML 1.1 reads 1e-3 as a string. Therefore text that spells a number is accepted as a number.
    if hint is float and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    elif hint is int and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        try:
            if float(value).is_integer():
                return int(float(value))
        except (TypeError, ValueError):
            pass
    elif hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    elif hint in (bool, str) and isinstance(value, hint):
        return value
    name = getattr(hint, "__name__", str(hint))
    raise UsageError(f"config key {path!r} must be {name}; got {value!r}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
