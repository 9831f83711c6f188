"""Read log lines that are fields: requests in access logs, key=value pairs, JSON objects.

    "GET /users/17 HTTP/1.1" 502 166     status=502 method=GET path=/users/<*> size=100

A field with few values in training is in the template of a line with its value. A field with many values is
not. Templates have only the shape of a path, and the power of ten of a size or duration. If a kept field has
a value that does not occur in the training data, the line is unknown. Only counts of the training lines
decide which fields are kept. They need bounded memory and are frozen with the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import Any

from seqmlm.domains.logs.drain import (
    Tallies,
    TemplateCounts,
    Templates,
    Words,
    new_values_are_rare,
    sum_by_key,
)
from seqmlm.parsing import word_list

Pairs = tuple[tuple[str, str], ...]

MOST = 64
"""Most values of a field in templates."""

_SHAPES, _SHARE, _DEPTH = 40, 200, 3  # most path shapes; each is in one of 200 lines; segments of a shape
_NAMES, _KNOWN, _TABLE, _LONGEST, _ASKED = 256, 1 << 16, 1 << 16, 64, 4096
_LEAST = 4  # least lines of a template with a path, size or duration; with fewer, these are left out
ANY, ZERO = "<*>", "0"

_REQUEST = re.compile(r'"((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)(?: |$)')
_PAIR = r'[A-Za-z_@][\w.@/-]*=(?:"(?:[^"\\]|\\.)*"|[^\s"]*)'
_PAIRS = re.compile(rf"\s*{_PAIR}(?:,?\s+{_PAIR})+\s*")
_ONE = re.compile(r'([A-Za-z_@][\w.@/-]*)=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*))')
_MESSAGES = ("message", "msg", "event", "@message", "body", "text")
_TIMES = re.compile(r"(?:@?timestamp|ts|time|date|datetime|asctime|time_(?:local|iso8601)|@version)")
_FIRST = word_list("status status_code code method request_method level severity component service")
_PATH = re.compile(r"(?:.*[._])?(?:path|uri|url|request_uri|route|endpoint)")
_MEASURE = re.compile(
    r"(?:.*[._])?(?:size|bytes|bytes_sent|body_bytes_sent|length|(?:duration|latency|elapsed|took)\w*|rt|urt|ms"
    r"|\w+time|\w+_(?:ms|us|ns|s|seconds|bytes))",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s?(ns|us|µs|ms|s|m|h|[kKMG]?i?B)?")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "m": 60.0, "h": 3600.0, "kB": 1e3, "KB": 1e3}
_UNITS |= {"MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3}
_SPELLED = {"msec": "ms", "millisecond": "ms", "sec": "s", "second": "s", "min": "m", "minute": "m"}
_SPELLED |= {"hr": "h", "hour": "h"}
_LASTED = re.compile(
    rf"(?<![\w.:/-])([0-9]+(?:\.[0-9]+)?)\s?(ns|us|µs|ms|s|h|{'|'.join(_SPELLED)})s?(?![\w/])", re.ASCII
)
_ID = re.compile(r"(?=.*\d)[0-9A-Fa-f-]{6,}|[\d.,:_-]*\d[\d.,:_-]*|(?=(?:\D*\d){4})[\w~.%-]{12,}|.{48,}")


def fields_of(line: str) -> tuple[Pairs, str] | None:
    """The fields of a line and its message ("" if there is none); None for a line of words.

    >>> fields_of('"GET /a?b=1 HTTP/1.1" 200 12')
    ((('status', '200'), ('method', 'GET'), ('path', '/a'), ('size', '12')), '')
    >>> fields_of('level=warn msg="disk is full" used=93')
    ((('level', 'warn'), ('used', '93')), 'disk is full')
    """
    start = line[:1]
    if start == '"':
        match = _REQUEST.match(line)
        return None if match is None else (_request(*match.groups()), "")
    if start == "{":
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return _fields_and_message(_flat_pairs(row)) if isinstance(row, dict) else None
    if "=" in line and _PAIRS.fullmatch(line) is not None:
        return _fields_and_message((name, quoted or bare) for name, quoted, bare in _ONE.findall(line))
    return None


def _request(request: str, status: str, size: str) -> Pairs:
    """The fields of a request in an access log: status, method, path and size."""
    words = request.split()
    usual = len(words) in (2, 3) and words[0].isalpha() and len(words[0]) <= 24
    method, path = (words[0], _bare_path(words[1])) if usual else ("malformed", ANY)
    return ("status", status), ("method", method), ("path", path), ("size", ZERO if size == "-" else size)


def _bare_path(path: str) -> str:
    """A path without its query, its scheme and its host."""
    path = path.partition("?")[0]
    return "/" + path.split("/", 3)[-1] if "://" in path and path.count("/") > 2 else path


def _flat_pairs(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, str]]:
    """Names and values of an object; nested names are joined by points."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat_pairs(value, f"{prefix}{name}.", depth + 1) if depth < 3 else ()
        elif isinstance(value, (str, int, float)):
            yield prefix + str(name), str(value)


def _fields_and_message(pairs: Iterable[tuple[str, str]]) -> tuple[Pairs, str]:
    """The fields of a line without its times, and the first field that is a message ("" if there is none)."""
    fields: dict[str, str] = {}
    message = ""
    for name, value in pairs:
        low = name.lower()
        if low in _MESSAGES and not message:
            message = value
        elif not _TIMES.fullmatch(low):
            fields[name] = _bare_path(value) if _PATH.fullmatch(low) else value
    return tuple(fields.items()), message


def _is_path(name: str) -> bool:
    """Whether a field with this name contains paths."""
    return _PATH.fullmatch(name.lower()) is not None


def _decade(name: str, value: str) -> str | None:
    """The power of ten of a size or duration; None if the field is neither."""
    match = _NUMBER.fullmatch(value) if _MEASURE.fullmatch(name) else None
    if match is None:
        return None
    number = float(match[1]) * _UNITS.get(match[2] or "", 1.0)
    return ZERO if not 0 < number < 1e300 else f"{10.0 ** floor(log10(number)):g}"


def shape_of(path: str) -> tuple[str, ...]:
    """The first segments of a path, with `ANY` for numbers, ids and hashes.

    >>> shape_of("/users/17/orders/9f86d081884c7d65")
    ('users', '<*>', 'orders')
    """
    return tuple(
        ANY if _ID.fullmatch(segment) else segment for segment in path.strip("/").split("/")[:_DEPTH]
    )


def _path_text(shape: Sequence[str], complete: bool) -> str:
    """A shape as a path: /users/<*>. A shape that is not `complete` ends with `ANY`."""
    return "/" + "/".join(shape if complete else (*shape, ANY))


def duration_power(message: str) -> str | None:
    """The power of ten of the duration in seconds in a message; None unless the message has exactly one.

    >>> duration_power("Built the image in 19.5 seconds")
    '10'
    """
    times = _LASTED.findall(message)
    if len(times) != 1:
        return None
    number, unit = times[0]
    return _decade("duration", number + _SPELLED.get(unit, unit))


_FEW = 100  # fewer messages of a template do not show which duration is long


def longest_durations(counts: Tallies, templates: Templates, min_sources: int) -> dict[int, str]:
    """The longest power of ten of the durations in the messages of each template, by template number.

    Only templates for which longer durations are unlikely are included.

    Args:
        counts: counts by (message, power of ten).
    """
    by_template: dict[int, dict[str, TemplateCounts]] = {}
    tallies = sum_by_key(
        ((templates.match(message), power), tally) for (message, power), tally in counts.items()
    )
    for (number, power), tally in tallies.items():
        by_template.setdefault(number, {})[power] = tally
    durations = dict[int, str]()
    for number, powers in by_template.items():
        enough = [power for power, tally in powers.items() if tally.sources >= min_sources]
        lines = sum(tally.lines for tally in powers.values())
        if number >= 0 and enough and lines >= _FEW and new_values_are_rare(powers.values(), min_sources):
            durations[number] = max(enough, key=float)
    return durations


class FieldCounts:
    """Count the fields of training lines, in bounded memory.

    Args:
        max_sources: sources of a value are counted up to this number.
        keep: fields that are in templates with up to 4,096 values.
        mask: fields that are never in templates.
    """

    def __init__(self, max_sources: int, keep: Sequence[str] = (), mask: Sequence[str] = ()) -> None:
        self._max_sources, self._keep, self._mask = max_sources, frozenset(keep), frozenset(mask)
        self._values: dict[str, Tallies] = {}
        self._long: set[str] = set()
        self._distinct: dict[str, set[int]] = {}
        self._paths, self._table = Tallies(max_sources, _TABLE), Tallies(max_sources, _TABLE)
        self.lines = 0

    def add(self, pairs: Pairs, message: Words, source: int) -> None:
        """Count a line: its fields, and the present template of its message."""
        self.lines += 1
        normal_pairs = []
        for name, value in pairs:
            if name in self._mask:
                self._distinct.setdefault(name, set())
                continue
            if name not in self._values and len(self._values) >= _NAMES:
                continue
            values = self._values.setdefault(name, Tallies(self._max_sources, _ASKED))
            distinct = self._distinct.setdefault(name, set())
            normal = _decade(name, value)
            if normal is None and _is_path(name):
                shape = shape_of(value)
                normal = "/".join(shape)
                for size in range(1, len(shape) + 1):
                    self._paths[name, shape[:size]].add(source)
            elif normal is None:
                normal = value
                if len(value) > _LONGEST:
                    self._long.add(name)  # left out for good, because short values are only a part of it
                if name in self._long or len(distinct) > (_ASKED if name in self._keep else MOST):
                    values.clear()
                    if len(distinct) < _KNOWN:
                        distinct.add(hash(value))
                    continue
            distinct.add(hash(normal)) if len(distinct) < _KNOWN else None
            values[normal].add(source)
            normal_pairs.append((name, normal))
        self._table[message, tuple(normal_pairs)].add(source)

    def knows(self, name: str) -> bool:
        """Whether a line had this field."""
        return name in self._distinct

    def freeze(self, templates: Templates, max_templates: int, min_lines: int, min_sources: int) -> Fields:
        """The fields whose values are kept, and the most common templates, at most `max_templates`."""
        fields = Fields(
            facts=dict.fromkeys(sorted(self._mask & self._distinct.keys()), "left out (asked for)")
        )
        for name, values in self._values.items():
            # A field's name may identify a person too: {"ann": 3}.
            if min_sources == 1 or any(tally.sources >= min_sources for tally in values.values()):
                self._choose(fields, name, values, min_sources)
        fields.set_templates(())
        order = {name: at for at, name in enumerate(_FIRST)}
        names = sorted(
            fields.kept, key=lambda name: (order.get(name, len(order)), len(fields.kept[name]), name)
        )
        fields.names = []
        for name in names:  # if combinations of fields are always new, later fields stay out of templates
            fields.names.append(name)
            if name not in self._keep and not new_values_are_rare(
                self._template_counts(fields, templates, 0).values()
            ):
                fields.names.pop()
                fields.facts[name] += ", apart"
        ends = len(fields.paths) + len(fields.sizes)
        counts: dict[str, TemplateCounts] = {}
        for cut in range(ends + 1):
            tallies = self._template_counts(fields, templates, ends - cut, counts)
            required_lines = min_lines if cut == ends else max(_LEAST, min_lines)
            counts |= {
                text: tally
                for text, tally in tallies.items()
                if tally.lines >= required_lines and tally.sources >= min_sources
            }
        ranked = sorted(counts, key=lambda text: -counts[text].lines)[:max_templates]
        fields.set_templates(text for text in counts if text in set(ranked))
        return fields

    def _choose(
        self, fields: Fields, name: str, values: Mapping[str, TemplateCounts], min_sources: int
    ) -> None:
        """Decide which values of a field are in templates, and put them and the reason into `fields`."""
        enough = sorted(value for value, tally in values.items() if tally.sources >= min_sources)
        number = len(self._distinct[name])
        if values and _is_path(name):
            shapes = {shape: tally for (owner, shape), tally in self._paths.items() if owner == name}
            common = sorted(shapes, key=lambda shape: -shapes[shape].lines)
            kept_shapes = [
                shape
                for shape in common
                if shapes[shape].lines * _SHARE >= self.lines and shapes[shape].sources >= min_sources
            ][:_SHAPES]
            first = {shape[0]: tally for shape, tally in shapes.items() if len(shape) == 1}
            closed = len(first) <= MOST and new_values_are_rare(first.values(), min_sources)
            fields.paths[name] = [list(shape) for shape in kept_shapes]
            fields.firsts[name] = (
                sorted(n for n, tally in first.items() if tally.sources >= min_sources) if closed else []
            )
            fields.facts[name] = f"{number:,} shapes, the {len(kept_shapes)} commonest kept"
        elif values and all(_decade(name, value) == value for value in values):
            fields.sizes[name] = sorted(enough, key=float)
            fields.facts[name] = f"{len(enough)} powers of ten, kept"
        elif name in self._keep and enough:
            fields.kept[name] = enough
            fields.facts[name] = f"{number:,} values, kept (asked for)"
        elif not values or number > MOST:
            suffix = " or more" if number >= _KNOWN else ""
            fields.facts[name] = f"{number:,}{suffix} values, left out"
        elif not enough or not (name in _FIRST or new_values_are_rare(values.values(), min_sources)):
            fields.facts[name] = f"{number:,} values, left out: new ones are common"
        else:
            fields.kept[name] = enough
            fields.facts[name] = f"{number:,} values, kept"

    def _template_counts(
        self, fields: Fields, templates: Templates, ends: int, without: Iterable[str] = ()
    ) -> dict[str, TemplateCounts]:
        """Count the lines of each template with `ends` paths and sizes.

        Lines with a longer template that is in `without` are left out.
        """
        tallies = list[tuple[str, TemplateCounts]]()
        excluded = set(without)
        for (message, pairs), tally in self._table.items():
            head = templates.match(message) if message else None
            if head is not None and head < 0:
                continue
            texts = fields.texts(pairs, " ".join(templates[head]) if head is not None else "")
            if texts is None or excluded & set(texts[: len(texts) - 1 - ends]):
                continue
            tallies.append((texts[max(0, len(texts) - 1 - ends)], tally))
        return sum_by_key(tallies)


@dataclass(kw_only=True)
class Fields:
    """The fields that are in templates, and these templates.

    Args:
        kept: names to their known values.
        names: the subset of `kept` that is in templates; the values of the others are only checked.
        paths: names to the shapes that are kept.
        firsts: names to the known first segments; empty if new ones are common.
        sizes: names of sizes and durations to their powers of ten, ascending.
        templates: the templates in the order of their ids.
        facts: the decision about each field in words, for people.
    """

    kept: dict[str, list[str]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    paths: dict[str, list[list[str]]] = field(default_factory=dict)
    firsts: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, list[str]] = field(default_factory=dict)
    templates: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.set_templates(self.templates)

    def set_templates(self, templates: Iterable[str]) -> None:
        """Use these templates; the index of a template is its id."""
        self.templates = list(templates)
        self._ids = {text: number for number, text in enumerate(self.templates)}
        self._shapes = {name: {tuple(shape) for shape in shapes} for name, shapes in self.paths.items()}

    def unknown_values(self, pairs: Pairs) -> list[str]:
        """The values of kept fields that do not occur in the training data: status=502."""
        return [value for value, is_known, _ in self.decisive_values(pairs) if not is_known]

    def decisive_values(self, pairs: Pairs) -> Iterator[tuple[str, bool, bool]]:
        """Yield the values that make a line unknown if they do not occur in the training data.

        Yields:
            The value, such as status=502; whether training had it; whether it is a size. Sizes are included
                if they
            reach the largest known one.
        """
        for name, value in pairs:
            if name in self.kept:
                yield f"{name}={value}", value in self.kept[name], False
            elif name in self.paths and self.firsts[name] and value != ANY:
                first = shape_of(value)[:1]
                yield f"{name}={_path_text(first, False)}", first[0] in self.firsts[name], False
            elif name in self.sizes:
                size, largest = _decade(name, value), self.sizes[name][-1]
                if size is None or float(size) >= float(largest):
                    yield f"{name}={size or value}", size == largest, size is not None

    def find(self, pairs: Pairs, message: str) -> int:
        """Number of the template for a line, -1 if there is none.

        Args:
            pairs: the fields of the line.
            message: the template of its message, "" without one.
        """
        if self.unknown_values(pairs):
            return -1
        texts = self.texts(pairs, message)
        return next((self._ids[text] for text in texts or () if text in self._ids), -1)

    def texts(self, pairs: Pairs, message: str) -> list[str] | None:
        """The templates that a line may have, the most detailed first; None if a value is unknown."""
        values = dict(pairs)
        if any(name in values and values[name] not in self.kept[name] for name in self.names):
            return None
        start, ends = self._parts(values, message)
        return [" ".join([*start, *ends[:size]]) or ANY for size in range(len(ends), -1, -1)]

    def shape(self, pairs: Pairs, message: str) -> str:
        """The template that a line would have, even if a value is unknown."""
        values = dict(pairs)
        start, ends = self._parts(values, message)
        sizes = [f"{name}={_decade(name, values[name]) or ANY}" for name in self.sizes if name in values]
        return " ".join([*start, *ends[: len(ends) - len(sizes)], *sizes]) or ANY

    def _parts(self, values: Mapping[str, str], message: str) -> tuple[list[str], list[str]]:
        """Message and kept values, and the paths and sizes that templates of rare combinations leave out."""
        start = [message] if message else []
        start += [f"{name}={values[name]}" for name in self.names if name in values]
        ends = [f"{name}={self._shape(name, values[name])}" for name in self.paths if name in values]
        ends += [f"{name}={self._size(name, values[name])}" for name in self.sizes if name in values]
        return start, ends

    def _shape(self, name: str, path: str) -> str:
        """The longest kept shape of a path, as a path."""
        if path == ANY:
            return ANY
        shape = shape_of(path)
        for size in range(len(shape), 0, -1):
            if shape[:size] in self._shapes[name]:
                return _path_text(shape[:size], size == len(shape))
        return ANY

    def _size(self, name: str, value: str) -> str:
        """The kept power of ten nearest to a size."""
        size = _decade(name, value)
        powers = self.sizes[name]
        if size is None or not powers:
            return ANY
        return min(powers, key=lambda power: abs(_log10(power) - _log10(size)))


def _log10(size: str) -> float:
    """The exponent of a power of ten; -20 for 0."""
    return log10(float(size)) if float(size) else -20.0
