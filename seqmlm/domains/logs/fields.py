"""Log lines that are fields: requests of access logs, key=value pairs, JSON objects.

    "GET /users/17 HTTP/1.1" 502 166     status=502 method=GET path=/users/<*> size=100

A field with few values in training stands in the template of a line with its value; one with many values
does not stand there. Of a path its shape is kept, of sizes and durations the power of ten. A value that a
kept field never had in training makes a line unknown, whatever else it says. What is kept is decided by
counts of the training lines alone, in bounded memory, and frozen with the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import Any

from seqmlm.domains.logs.drain import Tallies, TemplateCounts, Templates, Words, hardly_new, summed
from seqmlm.parsing import word_list

Pairs = tuple[tuple[str, str], ...]

MOST = 64
"""Values of a field that stands in templates."""

_SHAPES, _SHARE, _DEPTH = 40, 200, 3  # path shapes kept; one line in so many has each; segments looked at
_NAMES, _KNOWN, _TABLE, _LONGEST, _ASKED = 256, 1 << 16, 1 << 16, 64, 4096
_LEAST = 4  # lines of a combination with a path, size or duration; else these are left out of the template
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
    """The fields of a line and the message among them ("" where there is none); None for a line of words.

    >>> fields_of('"GET /a?b=1 HTTP/1.1" 200 12')
    ((('status', '200'), ('method', 'GET'), ('path', '/a'), ('size', '12')), '')
    >>> fields_of('level=warn msg="disk is full" used=93')
    ((('level', 'warn'), ('used', '93')), 'disk is full')
    """
    start = line[:1]
    if start == '"':
        found = _REQUEST.match(line)
        return None if found is None else (_request(*found.groups()), "")
    if start == "{":
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return _divided(_flat(row)) if isinstance(row, dict) else None
    if "=" in line and _PAIRS.fullmatch(line) is not None:
        return _divided((name, quoted or bare) for name, quoted, bare in _ONE.findall(line))
    return None


def _request(request: str, status: str, size: str) -> Pairs:
    words = request.split()
    usual = len(words) in (2, 3) and words[0].isalpha() and len(words[0]) <= 24
    method, path = (words[0], _plain(words[1])) if usual else ("malformed", ANY)
    return ("status", status), ("method", method), ("path", path), ("size", ZERO if size == "-" else size)


def _plain(path: str) -> str:
    path = path.partition("?")[0]
    return "/" + path.split("/", 3)[-1] if "://" in path and path.count("/") > 2 else path


def _flat(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, str]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.", depth + 1) if depth < 3 else ()
        elif isinstance(value, (str, int, float)):
            yield prefix + str(name), str(value)


def _divided(pairs: Iterable[tuple[str, str]]) -> tuple[Pairs, str]:
    kept: dict[str, str] = {}
    message = ""
    for name, value in pairs:
        low = name.lower()
        if low in _MESSAGES and not message:
            message = value
        elif not _TIMES.fullmatch(low):
            kept[name] = _plain(value) if _PATH.fullmatch(low) else value
    return tuple(kept.items()), message


def _is_path(name: str) -> bool:
    return _PATH.fullmatch(name.lower()) is not None


def _decade(name: str, value: str) -> str | None:
    """The power of ten of a size or duration; None where the field is none."""
    found = _NUMBER.fullmatch(value) if _MEASURE.fullmatch(name) else None
    if found is None:
        return None
    number = float(found[1]) * _UNITS.get(found[2] or "", 1.0)
    return ZERO if not 0 < number < 1e300 else f"{10.0 ** floor(log10(number)):g}"


def shape_of(path: str) -> tuple[str, ...]:
    """The first segments of a path, `ANY` for numbers, ids and hashes.

    >>> shape_of("/users/17/orders/9f86d081884c7d65")
    ('users', '<*>', 'orders')
    """
    return tuple(ANY if _ID.fullmatch(one) else one for one in path.strip("/").split("/")[:_DEPTH])


def _spelled(shape: Sequence[str], whole: bool) -> str:
    return "/" + "/".join(shape if whole else (*shape, ANY))


def lasted(message: str) -> str | None:
    """The power of ten of the seconds that a message says something took; None unless it names one time.

    >>> lasted("Built the image in 19.5 seconds")
    '10'
    """
    found = _LASTED.findall(message)
    if len(found) != 1:
        return None
    number, unit = found[0]
    return _decade("duration", number + _SPELLED.get(unit, unit))


_FEW = 100  # messages of a template whose times are too few to say what is long


def longest(counts: Tallies, templates: Templates, min_sources: int) -> dict[int, str]:
    """Numbers of templates whose messages say how long something took to the longest power of ten, where
    longer ones are hardly to be expected; `counts` are of (message, power of ten)."""
    told: dict[int, dict[str, TemplateCounts]] = {}
    every = summed(((templates.match(message), power), one) for (message, power), one in counts.items())
    for (number, power), one in every.items():
        told.setdefault(number, {})[power] = one
    found = dict[int, str]()
    for number, own in told.items():
        enough = [power for power, one in own.items() if one.sources >= min_sources]
        lines = sum(one.lines for one in own.values())
        if number >= 0 and enough and lines >= _FEW and hardly_new(own.values(), min_sources):
            found[number] = max(enough, key=float)
    return found


class FieldCounts:
    """What the fields of training lines have been, in bounded memory: of a value so many sources are counted;
    fields to `keep` stand in templates with up to 4,096 values, those to `mask` never do."""

    def __init__(self, enough: int, keep: Sequence[str] = (), mask: Sequence[str] = ()) -> None:
        self._enough, self._keep, self._mask = enough, frozenset(keep), frozenset(mask)
        self._values: dict[str, Tallies] = {}
        self._long: set[str] = set()
        self._distinct: dict[str, set[int]] = {}
        self._paths, self._table = Tallies(enough, _TABLE), Tallies(enough, _TABLE)
        self.lines = 0

    def add(self, pairs: Pairs, message: Words, source: int) -> None:
        """Count a line: its fields, and what its message is at present."""
        self.lines += 1
        seen = []
        for name, value in pairs:
            if name in self._mask:
                self._distinct.setdefault(name, set())
                continue
            if name not in self._values and len(self._values) >= _NAMES:
                continue
            values = self._values.setdefault(name, Tallies(self._enough, _ASKED))
            known = self._distinct.setdefault(name, set())
            normal = _decade(name, value)
            if normal is None and _is_path(name):
                shape = shape_of(value)
                normal = "/".join(shape)
                for size in range(1, len(shape) + 1):
                    self._paths[name, shape[:size]].add(source)
            elif normal is None:
                normal = value
                if len(value) > _LONGEST:
                    self._long.add(name)  # left out for good: its short values alone are not all it has
                if name in self._long or len(known) > (_ASKED if name in self._keep else MOST):
                    values.clear()
                    if len(known) < _KNOWN:
                        known.add(hash(value))
                    continue
            known.add(hash(normal)) if len(known) < _KNOWN else None
            values[normal].add(source)
            seen.append((name, normal))
        self._table[message, tuple(seen)].add(source)

    def knows(self, name: str) -> bool:
        """Whether a line had this field."""
        return name in self._distinct

    def freeze(self, templates: Templates, most: int, min_lines: int, min_sources: int) -> Fields:
        """What is kept, and the templates of lines."""
        found = Fields(
            facts=dict.fromkeys(sorted(self._mask & self._distinct.keys()), "left out (asked for)")
        )
        for name, values in self._values.items():
            # A name may be a person's too: {"ann": 3}.
            if min_sources == 1 or any(one.sources >= min_sources for one in values.values()):
                self._choose(found, name, values, min_sources)
        found.place(())
        order = {name: at for at, name in enumerate(_FIRST)}
        names = sorted(found.kept, key=lambda one: (order.get(one, len(order)), len(found.kept[one]), one))
        found.names = []
        for name in names:  # of fields that together are always new, the later ones are told apart alone
            found.names.append(name)
            if name not in self._keep and not hardly_new(self._told(found, templates, 0).values()):
                found.names.pop()
                found.facts[name] += ", apart"
        ends = len(found.paths) + len(found.sizes)
        counts: dict[str, TemplateCounts] = {}
        for cut in range(ends + 1):
            told = self._told(found, templates, ends - cut, counts)
            least = min_lines if cut == ends else max(_LEAST, min_lines)
            counts |= {
                text: one for text, one in told.items() if one.lines >= least and one.sources >= min_sources
            }
        ranked = sorted(counts, key=lambda text: -counts[text].lines)[:most]
        found.place(text for text in counts if text in set(ranked))
        return found

    def _choose(
        self, found: Fields, name: str, values: Mapping[str, TemplateCounts], min_sources: int
    ) -> None:
        enough = sorted(value for value, one in values.items() if one.sources >= min_sources)
        number = len(self._distinct[name])
        if values and _is_path(name):
            shapes = {shape: one for (owner, shape), one in self._paths.items() if owner == name}
            common = sorted(shapes, key=lambda shape: -shapes[shape].lines)
            kept = [
                shape
                for shape in common
                if shapes[shape].lines * _SHARE >= self.lines and shapes[shape].sources >= min_sources
            ][:_SHAPES]
            first = {shape[0]: one for shape, one in shapes.items() if len(shape) == 1}
            closed = len(first) <= MOST and hardly_new(first.values(), min_sources)
            found.paths[name] = [list(shape) for shape in kept]
            found.firsts[name] = (
                sorted(n for n, one in first.items() if one.sources >= min_sources) if closed else []
            )
            found.facts[name] = f"{number:,} shapes, the {len(kept)} commonest kept"
        elif values and all(_decade(name, value) == value for value in values):
            found.sizes[name] = sorted(enough, key=float)
            found.facts[name] = f"{len(enough)} powers of ten, kept"
        elif name in self._keep and enough:
            found.kept[name] = enough
            found.facts[name] = f"{number:,} values, kept (asked for)"
        elif not values or number > MOST:
            more = " or more" if number >= _KNOWN else ""
            found.facts[name] = f"{number:,}{more} values, left out"
        elif not enough or not (name in _FIRST or hardly_new(values.values(), min_sources)):
            found.facts[name] = f"{number:,} values, left out: new ones are common"
        else:
            found.kept[name] = enough
            found.facts[name] = f"{number:,} values, kept"

    def _told(
        self, found: Fields, templates: Templates, ends: int, without: Iterable[str] = ()
    ) -> dict[str, TemplateCounts]:
        """Lines of each template with so many paths and sizes; those that have a longer one left out."""
        told = list[tuple[str, TemplateCounts]]()
        known = set(without)
        for (message, pairs), one in self._table.items():
            head = templates.match(message) if message else None
            if head is not None and head < 0:
                continue
            texts = found.texts(pairs, " ".join(templates[head]) if head is not None else "")
            if texts is None or known & set(texts[: len(texts) - 1 - ends]):
                continue
            told.append((texts[max(0, len(texts) - 1 - ends)], one))
        return summed(told)


@dataclass(kw_only=True)
class Fields:
    """Which fields stand in templates, and these templates.

    Args:
        kept: names to their known values.
        names: those of them that stand in templates; the others' values are only looked at.
        paths: names to the shapes that are kept.
        firsts: names to the first segments that are known; none where new ones are common.
        sizes: names of sizes and durations to their powers of ten, ascending.
        templates: in the order of their ids.
        facts: what was decided of each field, in words, for people.
    """

    kept: dict[str, list[str]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    paths: dict[str, list[list[str]]] = field(default_factory=dict)
    firsts: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, list[str]] = field(default_factory=dict)
    templates: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place(self.templates)

    def place(self, templates: Iterable[str]) -> None:
        """Take these for the templates."""
        self.templates = list(templates)
        self._ids = {text: number for number, text in enumerate(self.templates)}
        self._shapes = {name: {tuple(one) for one in shapes} for name, shapes in self.paths.items()}

    def unseen(self, pairs: Pairs) -> list[str]:
        """The values that kept fields never had: status=502."""
        return [value for value, known, _ in self.judged(pairs) if not known]

    def judged(self, pairs: Pairs) -> Iterator[tuple[str, bool, bool]]:
        """The values that make a line unknown where training did not have them, as status=502, whether it had
        them, and whether they are sizes, of which these are the largest."""
        for name, value in pairs:
            if name in self.kept:
                yield f"{name}={value}", value in self.kept[name], False
            elif name in self.paths and self.firsts[name] and value != ANY:
                first = shape_of(value)[:1]
                yield f"{name}={_spelled(first, False)}", first[0] in self.firsts[name], False
            elif name in self.sizes:
                size, largest = _decade(name, value), self.sizes[name][-1]
                if size is None or float(size) >= float(largest):
                    yield f"{name}={size or value}", size == largest, size is not None

    def find(self, pairs: Pairs, message: str) -> int:
        """Number of the template of a line's fields and of its message's template ("" without one), -1 for
        none."""
        if self.unseen(pairs):
            return -1
        texts = self.texts(pairs, message)
        return next((self._ids[text] for text in texts or () if text in self._ids), -1)

    def texts(self, pairs: Pairs, message: str) -> list[str] | None:
        """The templates a line may have, the one that says most first; None where a value is not known."""
        values = dict(pairs)
        if any(name in values and values[name] not in self.kept[name] for name in self.names):
            return None
        start, ends = self._parts(values, message)
        return [" ".join([*start, *ends[:size]]) or ANY for size in range(len(ends), -1, -1)]

    def shape(self, pairs: Pairs, message: str) -> str:
        """What the template of a line would be, also where a value is not known."""
        values = dict(pairs)
        start, ends = self._parts(values, message)
        sizes = [f"{name}={_decade(name, values[name]) or ANY}" for name in self.sizes if name in values]
        return " ".join([*start, *ends[: len(ends) - len(sizes)], *sizes]) or ANY

    def _parts(self, values: Mapping[str, str], message: str) -> tuple[list[str], list[str]]:
        """Message and kept values, and what templates of rare combinations do without."""
        start = [message] if message else []
        start += [f"{name}={values[name]}" for name in self.names if name in values]
        ends = [f"{name}={self._shape(name, values[name])}" for name in self.paths if name in values]
        ends += [f"{name}={self._size(name, values[name])}" for name in self.sizes if name in values]
        return start, ends

    def _shape(self, name: str, path: str) -> str:
        if path == ANY:
            return ANY
        shape = shape_of(path)
        for size in range(len(shape), 0, -1):
            if shape[:size] in self._shapes[name]:
                return _spelled(shape[:size], size == len(shape))
        return ANY

    def _size(self, name: str, value: str) -> str:
        size = _decade(name, value)
        known = self.sizes[name]
        if size is None or not known:
            return ANY
        return min(known, key=lambda one: abs(_power(one) - _power(size)))


def _power(size: str) -> float:
    return log10(float(size)) if float(size) else -20.0
