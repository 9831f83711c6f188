"""Read JSON and YAML that may be damaged or malicious, in bounded memory; parse durations and shares.

The formats of data have their own readers (`seqmlm.data.readers`), which continue after a bad record.
"""

from __future__ import annotations

import errno
import json
import math
import re
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

LARGEST_JSON = 256 << 20
"""Largest size in bytes of a JSON file of a model, run or workspace.

For comparison, a vocabulary of a million words has about 50 MiB.
"""
DEEPEST_JSON = 64
_LONGEST_NUMBER = 300  # number of digits; the largest float has 309
_MOST_VALUES = 2_000_000  # values in a YAML document
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)", re.ASCII)


def read_bounded(path: Path, largest: int) -> bytes:
    """All bytes of a regular file.

    Raises:
        ValueError: the file has more than `largest` bytes.
        OSError: the file cannot be read, or is not a regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with open(path, "rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it has more than {largest} bytes")
    return data


def read_json(path: Path, *, largest: int = LARGEST_JSON, finite: bool = False) -> Any:
    """Read a JSON file that may be damaged or malicious, in bounded memory.

    Args:
        path: the file.
        largest: size limit in bytes. A larger file is not read.
        finite: refuse NaN and infinity, which Python accepts but JSON does not have.

    Raises:
        ValueError: the file is not UTF-8, not JSON, too large, nested more than `DEEPEST_JSON` deep, or
            contains a number that is not finite or too long. The message names the reason.
        OSError: the file cannot be read, or is not a regular file.
    """
    return parse_json(read_bounded(path, largest), finite=finite)


def parse_json(data: bytes | str, *, finite: bool = False) -> Any:
    """Parse JSON with the limits of `read_json`.

    Raises:
        ValueError: as for `read_json`.
    """

    def constant(name: str) -> float:
        if finite:
            raise ValueError(f"it contains {name}, which is not a number")
        return float(name)

    def real(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else constant(text[:20])

    def integer(text: str) -> int:
        if len(text) > _LONGEST_NUMBER:
            raise ValueError(f"it contains a number with {len(text)} digits")
        return int(text)

    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = json.loads(text, parse_constant=constant, parse_float=real, parse_int=integer)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST_JSON} deep") from None
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST_JSON + 1):
        if not level:
            return value
        inner = (child for outer in level for child in (outer.values() if isinstance(outer, dict) else outer))
        level = [child for child in inner if isinstance(child, (dict, list))]
    raise ValueError(f"it is nested more than {DEEPEST_JSON} deep")


def plain(value: Any) -> Any:
    """Convert numbers of other libraries to JSON numbers, and anything else to text.

    For `json.dumps(default=plain)`.
    """
    return value.item() if hasattr(value, "item") else str(value)


def parse_yaml(text: str) -> Any:
    """Parse YAML, and refuse aliases that multiply: ten lines of them can expand to a billion values.

    Raises:
        ValueError: the text is nested too deep, or expands to more than `_MOST_VALUES` values.
        yaml.YAMLError: the text is not YAML, or names Python objects.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _values_of(node, {}) > _MOST_VALUES:
            raise ValueError(f"its aliases expand to more than {_MOST_VALUES} values")
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    finally:
        loader.dispose()


def _values_of(node: Any, counts: dict[int, int]) -> int:
    """How many values a YAML node expands to if its aliases are spelled out. Each node is visited once.

    Args:
        counts: expanded values of each node so far, by the id of the node. This node is added. A node that
            contains itself counts as too many.
    """
    if id(node) not in counts:
        counts[id(node)] = _MOST_VALUES + 1
        parts = node.value if isinstance(node.value, list) else ()
        inner = (child for part in parts for child in (part if isinstance(part, tuple) else (part,)))
        counts[id(node)] = 1 + sum(_values_of(child, counts) for child in inner)
    return counts[id(node)]


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text, for long tables of names in the code.

    >>> word_list("ed er emer")
    ('ed', 'er', 'emer')
    """
    return tuple(text.split())


def duration(text: str) -> float | None:
    """Seconds of a duration such as "90s", "5m", "1.5h", "2d" or "500ms". None if the text is not a duration.

    >>> duration("5m")
    300.0
    """
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _SECONDS[match[2]]


Share = Annotated[float, "share"]
"""Type of a setting that is a share of 1. The value may be written as a percentage: "5%" is 0.05."""


def share(value: object) -> float:
    """The value of a share written as 0.05, "0.05" or "5%". Its range is not checked.

    Raises:
        ValueError: the value is not a number.

    >>> share("5%"), share("0.1 %"), share("1e-3"), share(0.2)
    (0.05, 0.001, 0.001, 0.2)
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a number")
    if isinstance(value, str) and value.rstrip().endswith("%"):
        with suppress(InvalidOperation):
            return float(Decimal(value.rstrip().removesuffix("%").strip()) / 100)
    return float(value)


def magnitude(seconds: float) -> str:
    """The unit in which a duration is best shown: the largest unit that it contains at least twice.

    >>> magnitude(20.2), magnitude(900), magnitude(86_400 * 3)
    ('seconds', 'minutes', 'days')
    """
    units = {"days": 86_400, "hours": 3_600, "minutes": 60}
    return next((unit for unit, size in units.items() if seconds >= 2 * size), "seconds")
