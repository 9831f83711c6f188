"""What can be wrong with an input, kind by kind: each writes an input and says what must come of it.

A kind is given a format in pieces (hostile_formats.py) and a folder. Most kinds put one bad record between
the clean ones; then every clean record must give the row it gives alone, and rows and records left out must
be as many as there are records. Others damage the file as a whole, or are not a file at all.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import socket
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard
from hostile_formats import COUNT, Hostile, place

MIDDLE = COUNT // 2
EVERY = tuple(range(COUNT))
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Case:
    """An input, and what must come of it.

    Args:
        path: what the command line names.
        untouched: clean records that must give the rows they give alone, in order.
        total: records there are; None where it is a matter of view.
        most: so many of them can be read: what has bytes that are no text is left out.
        nothing: no record can be read, so that the command must fail with exit code 3.
        refusable: the whole input may be refused instead, with exit code 3.
        lines: of bad records; where any is left out a message must name one of them.
        memory: bytes that the process may take beyond what it has at its start.
        scored: whether scoring it is tried, too.
        vanishes: a file that is deleted during the command, and how often it has been opened by then.
        packed: too much for a forward pass of each masked copy, so that rows are equal to rounding.
    """

    path: Path | str
    untouched: tuple[int, ...] = EVERY
    total: int | None = None
    most: int | None = None
    nothing: bool = False
    refusable: bool = False
    lines: tuple[int, ...] = ()
    memory: int = 256 * MIB
    scored: bool = True
    vanishes: tuple[Path, int] | None = None
    packed: bool = False


Kind = Callable[[Hostile, Path, random.Random], Case | None]


# One more record among the clean ones


def inserted(one: Hostile, folder: Path, extra: Extra) -> Case:
    """The clean records, and one more in their middle."""
    if one.files:
        path = place(one, folder, [*one.records, extra.content])
    else:
        path = place(one, folder, one.file([*one.records[:MIDDLE], extra.content, *one.records[MIDDLE:]]))
    line = (one.head + b"".join(one.records[:MIDDLE])).count(b"\n") + 1
    uncounted = one.apart or extra.spreads
    return Case(
        path=path,
        untouched=EVERY[one.apart : MIDDLE if extra.spreads and not one.files else COUNT],
        total=None if uncounted else COUNT + 1,
        most=None if uncounted else COUNT + (not extra.refused),
        refusable=one.whole,
        lines=() if one.files or uncounted or one.whole else _lines(line, extra.content),
    )


def _lines(first: int, content: bytes) -> tuple[int, ...]:
    return tuple(range(first, first + max(1, content.count(b"\n"))))


VALUES: Mapping[str, bytes] = {
    "latin_1": "café naïve".encode("latin-1"),
    "shift_jis": "日本語の文".encode("shift_jis"),
    "overlong_utf_8": b"\xc0\xaf\xe0\x80\xaf",
    "surrogates_as_utf_8": b"\xed\xa0\xbd\xed\xb8\x80",
    "continuation_byte": b"a\x80b",
    "torn_character": b"caf\xe2\x82",
    "beyond_unicode": b"\xf7\xbf\xbf\xbf",
    "utf_16_inside": "cat".encode("utf-16-le"),
    "nul_at_start": b"\0cat",
    "nul_in_middle": b"ca\0t",
    "nul_at_end": b"cat\0",
    "byte_order_mark_inside": b"\xef\xbb\xbfcat",
    "terminal_escapes": b"\x1b[2J\x1b[31mred\x1b]0;title\x07",
    "c1_controls": "\x9b31mred\x9d0;title\x9c".encode(),
    "backspaces": b"safe\x08\x08\x08\x08evil\r",
    "right_to_left": "\u202eevil\u2066safe\u2069".encode(),
    "zero_width": "a\u200bb\u200d\u2060c\ufeff".encode(),
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈".encode(),
    "combining_marks": ("a" + "\u0301" * 3000).encode(),
    "other_line_ends": "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg".encode(),
    "noncharacters": "\ufffe\uffff\U0010ffff".encode(),
    "formula": b"=cmd|' /C calc'!A0",
    "formula_at": b"@SUM(1+1)*cmd",
    "markup": b"<script>alert(1)</script><img src=x onerror=alert(1)>",
    "templates": b"%s%n{0}{x}${HOME}`id`$(id)",
    "path": b"../../../../etc/passwd",
    "option": b"--out",
    "not_a_number": b"NaN",
    "infinity": b"-Infinity",
    "huge_number": b"9" * 5000,
    "tiny_number": b"-1e-99999",
    "nothing": b"",
    "spaces": b"   ",
    "quotes": b'a"b\'c""d',
    "backslashes": b"a\\b\\",
}
DATES: Mapping[str, bytes] = {
    "zero": b"0000-00-00",
    "far": b"9999-99-99T99:99:99",
    "year_1": b"0001-01-01T00:00:00",
    "year_10000": b"10000-01-01",
    "huge": b"9" * 400,
    "negative": b"-1e308",
    "not_a_number": b"NaN",
    "no_day": b"2023-02-29",
    "beyond_9999": b"9999-12-31T23:59:59-23:59",
    "leap_second": b"2016-12-31T23:59:60Z",
    "zone": b"2024-01-01T00:00:00+99:99",
    "nothing": b"",
}


@dataclass(frozen=True)
class Extra:
    """One more record: its bytes, and whether what comes after it may be lost with it, or it is no record."""

    content: bytes
    spreads: bool = False
    name: bool = False

    @property
    def refused(self) -> bool:
        """Whether it has bytes that are no text; names of sequences are read in any encoding."""
        no_utf_8 = self.content.decode(errors="replace").encode() != self.content
        return b"\0" in self.content or (no_utf_8 and not self.name)


JSON_LINES: Mapping[str, bytes] = {
    "deep_list": b"[" * 100_000 + b"]" * 100_000,
    "deep_object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep_unclosed": b'{"text": ' + b"[" * 100_000,
    "number": b"5",
    "text": b'"words"',
    "null": b"null",
    "list": b"[1, 2]",
    "empty_object": b"{}",
    "other_field": b'{"other": "words"}',
    "torn": b'{"text": "wor',
    "trailing_comma": b'{"text": "words",}',
    "single_quotes": b"{'text': 'words'}",
    "two_objects": b'{"text": "a"} {"text": "b"}',
    "nan": b'{"text": NaN, "code": NaN, "message": NaN, "cells": NaN}',
    "infinity": b'{"text": 1e999, "code": -Infinity, "message": Infinity, "cells": 1e999}',
    "integer_of_10000_digits": b'{"text": %s, "id": %s}' % (b"9" * 10_000, b"9" * 10_000),
    "cells_number": b'{"cells": 5}',
    "cells_of_numbers": b'{"cells": [5, null, {"cell_type": 7, "source": {"a": 1}}]}',
    "fields_of_objects": b'{"text": {}, "code": [[]], "message": {"a": []}, "log": {}, "id": [], "time": {}}',
    "resource_of_numbers": b'{"resourceType": 5, "id": {}, "subject": [], "code": 7}',
    "reference_of_numbers": b'{"resourceType": "Condition", "subject": {"reference": 5}, "code": 7}',
    "bundle_of_nothing": b'{"resourceType": "Bundle", "entry": {"a": 5}}',
    "bundle_of_a_number": b'{"resourceType": "Bundle", "entry": {"resource": 5}}',
    "bundle_of_numbers": b'{"resourceType": "Bundle", "entry": [5, {"resource": 5}]}',
    "resource_of_a_list": b'{"resourceType": ["Patient"]}',
    "patient_of_numbers": b'{"resourceType": "Patient", "id": {"a": 1}, "extension": 5, "birthDate": 5}',
    "encounter_of_numbers": b'{"resourceType": "Encounter", "subject": 5, "period": [], "class": 7}',
    "observation_of_numbers": b'{"resourceType": "Observation", "subject": {"reference": "Patient/1"}, '
    b'"component": 5, "code": []}',
    "observation_of_400_digits": b'{"resourceType": "Observation", "subject": {"reference": "Patient/1"}, '
    b'"code": {"coding": [{"code": "x"}]}, "effectiveDateTime": "2024-05-01", '
    b'"valueQuantity": {"value": 1%s}}' % (b"0" * 400),
    "cells_object": b'{"cells": {"a": 1}}',
    "cells_of_mixed_lines": b'{"cells": [{"cell_type": "code", "source": ["a", {"b": 1}]}]}',
    "worksheets_number": b'{"worksheets": 5}',
    "worksheets_of_numbers": b'{"worksheets": [5]}',
    "worksheets_of_text": b'{"worksheets": [{"cells": "text"}]}',
}
JSON_ESCAPES: Mapping[str, bytes] = {
    "lone_surrogate": b"\\ud800",
    "nul": b"\\u0000",
    "escape": b"\\u001b[2J",
    "c1": b"\\u009b31m",
    "right_to_left": b"\\u202e",
    "half_escape": b"\\u00",
    "line_ends": b"\\r\\n\\u2028",
}
TABLE_ROWS: Mapping[str, Extra] = {
    "too_few": Extra(b"x"),
    "too_many": Extra(b"x,2024-01-01,I10,7,8,9,10,11,12,13"),
    "only_delimiters": Extra(b",,,,", True),
    "unclosed_quote": Extra(b'x,"2024,I10', True),
    "quote_inside": Extra(b'x,20"24,I10', True),
    "line_end_inside": Extra(b'"x\ny","2024\n",z', True),
}
FASTA: Mapping[str, Extra] = {
    "no_sequence": Extra(b">x\n"),
    "no_name": Extra(b">\nMKV\n"),
    "nothing_at_all": Extra(b">\n"),
    "digits": Extra(b">x\nMK1V\n"),
    "gaps": Extra(b">x\n----\n", True),
    "headers_in_a_row": Extra(b">x\n>y\n>z\nACG\n", True),
}
FASTQ: Mapping[str, Extra] = {
    "short_quality": Extra(b"@x\nACGT\n+\nII\n"),
    "odd_quality": Extra(b"@x\nACGT\n+\nII \x7f\n"),
    "empty": Extra(b"@x\n\n+\n\n"),
    "no_plus": Extra(b"@x\nACGT\nIIII\n", True),
    "no_at": Extra(b"x\nACGT\n+\nIIII\n", True),
    "torn": Extra(b"@x\nACGT\n", True),
    "bad_byte_in_quality": Extra(b"@x\nACGT\n+\nII\xffI\n"),
    "bad_byte_beside_plus": Extra(b"@x\nACGT\n+\xff\nIIII\n"),
}


def extras(one: Hostile) -> dict[str, Extra]:
    """Every bad record of a format, by the name of its kind."""
    found: dict[str, Extra] = {}
    for place_, spell, given in (
        ("value", one.value, VALUES),
        ("label", one.label, VALUES),
        ("time", one.time, DATES),
    ):
        if spell is None:
            continue
        quoting = b"{" not in spell(b"")  # in a table, a quotation mark may take in what follows
        for name, text in given.items():
            content = spell(text)
            blank = not content.strip()  # separates lines, and is no record
            escaping = one.json and text.endswith(b"\\")  # takes in what follows: a line end, for one
            shifting = one.format == "pdb" and len(text) > 3  # a chain's letter moves: two chains
            spreads = blank or escaping or shifting or (quoting and b'"' in text)
            named = place_ == "label" and one.format in ("fasta", "a3m")
            found[f"{place_}:{name}"] = Extra(content, spreads, named)
    if one.json:
        end = b"" if one.files else b"\n"
        several = "two_objects" if one.prefix == "hf:" else ""  # two rows of a line, to `datasets`
        found |= {f"json:{name}": Extra(line + end, name == several) for name, line in JSON_LINES.items()}
        found |= {
            f"{place_}:{name}_escaped": Extra(spell(b"a" + text + b"b"))
            for place_, spell in (("value", one.value), ("label", one.label))
            if spell is not None
            for name, text in JSON_ESCAPES.items()
        }
    if one.name.endswith((".csv", ".tsv", ".bed")):
        mark = b"," if one.name.endswith(".csv") else b"\t"
        for name, row in TABLE_ROWS.items():
            found[f"table:{name}"] = Extra(row.content.replace(b",", mark) + b"\n", row.spreads)
    if one.format in ("fasta", "a3m"):
        found |= {f"fasta:{name}": extra for name, extra in FASTA.items()}
    if one.format == "fastq":
        found |= {f"fastq:{name}": extra for name, extra in FASTQ.items()}
    return found


def alone(extra: Extra) -> Kind:
    """One bad record among the clean ones."""

    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        return inserted(one, folder, extra)

    return kind


def together(one: Hostile, *, refused: bool) -> tuple[Kind, list[str]] | None:
    """All bad records that cost only themselves in one input, those of no text apart; and their names."""
    found = {name: e for name, e in extras(one).items() if not e.spreads and e.refused == refused}
    if one.whole or not found:
        return None

    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        share = -(-len(found) // COUNT)
        contents = [extra.content for extra in found.values()]
        mixed: list[bytes] = []
        lines: list[int] = []
        at = one.head.count(b"\n") + 1
        for number, record in enumerate(one.records):
            for content in (record, *contents[number * share : (number + 1) * share]):
                if content is not record:
                    lines += range(at, at + content.count(b"\n"))
                mixed.append(content)
                at += content.count(b"\n")
        path = place(one, folder, mixed if one.files else one.file(mixed))
        if one.files:  # named by their number
            clean = {n for n, content in enumerate(mixed) if content in one.records}
            assert len(clean) == COUNT
        uncounted = one.apart or one.domain == "ehr"
        return Case(
            path=path,
            untouched=EVERY[1:] if one.apart else EVERY,
            total=None if uncounted else COUNT + len(found),
            most=None if uncounted else COUNT + (0 if refused else len(found)),
            lines=() if one.files or one.apart else tuple(lines),
        )

    return kind, list(found)


# The file as a whole


def damaged(one: Hostile, folder: Path, transform: Callable[[bytes], bytes], **expected: object) -> Case:
    """The file after `transform`; where each record is a file, one more that is damaged so."""
    if one.files:
        path = place(one, folder, [*one.records, transform(one.records[0])])
        return Case(path=path, total=COUNT + 1)
    path = place(one, folder, transform(one.file()))
    if one.folder:  # other files of the folder may still give something
        expected |= {"refusable": True, "nothing": False}
        if expected.get("untouched") is None:
            expected["untouched"] = ()
    return Case(path=path, **{"untouched": (), "total": None, "refusable": True, **expected})  # type: ignore[arg-type]


def _damage(
    transform: Callable[[bytes], bytes], expect: Callable[[Hostile], dict[str, object]], *, text: bool = False
) -> Kind:
    """The file after `transform`; `expect` says what must come of it. Only of text, where that is asked."""

    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        return None if text and one.binary else damaged(one, folder, transform, **expect(one))

    return kind


def _kept(records: Sequence[int]) -> dict[str, object]:
    return {"untouched": tuple(records), "refusable": not records}


def _nothing(transform: Callable[[bytes], bytes]) -> Kind:
    """Nothing can be read of what is left."""
    return _damage(transform, lambda one: {"nothing": True})


def _any(transform: Callable[[bytes, random.Random], bytes]) -> Kind:
    """No telling what can be read of what is left."""
    return lambda one, folder, chance: damaged(one, folder, lambda clean: transform(clean, chance))


def _same(transform: Callable[[bytes], bytes], *, text: bool = True) -> Kind:
    """All records can be read as if nothing had been done."""

    def expect(one: Hostile) -> dict[str, object]:
        return {"untouched": EVERY, "total": None if one.apart else COUNT, "refusable": one.binary}

    return _damage(transform, expect, text=text)


def _faulty_at_end(transform: Callable[[bytes], bytes]) -> Kind:
    """Only the last record may be lost: nobody knows whether it is whole."""
    return _damage(transform, lambda one: _kept(() if one.whole or one.binary or one.tail else EVERY[:-1]))


def _after(extra: bytes) -> Kind:
    """Something after the last record costs no record."""
    return _damage(
        lambda clean: clean + extra, lambda one: _kept(() if one.whole or one.tail else EVERY[:-1]), text=True
    )


def _but_the_first(transform: Callable[[bytes], bytes]) -> Kind:
    return _damage(
        transform, lambda one: {"untouched": () if one.head or one.whole else EVERY[1:]}, text=True
    )


def _flip(clean: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(clean))
    return clean[:place] + bytes([clean[place] ^ 1 << chance.randrange(8)]) + clean[place + 1 :]


def _cut(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
    """The file ends in the middle of its middle record."""
    if one.files or one.binary or one.whole:
        return damaged(one, folder, lambda clean: clean[: chance.randrange(1, len(clean))])
    before = one.file(one.records[:MIDDLE]).removesuffix(one.tail)
    torn = one.records[MIDDLE]
    return damaged(
        one,
        folder,
        lambda clean: before + torn[: chance.randrange(1, len(torn) - 1)],
        untouched=EVERY[: MIDDLE - 1] if one.apart else EVERY[:MIDDLE],
        refusable=False,
    )


def _stored(clean: bytes) -> bytes:
    """gzip without compression, so that what stands before a fault can be read."""
    return gzip.compress(clean, 0, mtime=0)


def _crc(clean: bytes) -> bytes:
    packed = gzip.compress(clean, mtime=0)
    return packed[:-8] + bytes([packed[-8] ^ 255]) + packed[-7:]


def _size(clean: bytes) -> bytes:
    packed = gzip.compress(clean, mtime=0)
    return packed[:-1] + b"\x7f"


def _members(clean: bytes) -> bytes:
    half = len(clean) // 2
    return gzip.compress(clean[:half]) + gzip.compress(b"") + gzip.compress(clean[half:])


def _packed_part(pack: Callable[[bytes], bytes], spoil: Callable[[bytes], bytes]) -> Kind:
    """Packed, and damaged behind the middle: of what is only stored the first third must be there."""

    def expect(one: Hostile) -> dict[str, object]:
        lost = one.whole or one.binary or one.folder or pack is not _stored
        return {"untouched": () if lost else EVERY[: COUNT // 3]}

    return _damage(lambda clean: spoil(pack(clean)), expect)


def _spoil_late(packed: bytes) -> bytes:
    place = 2 * len(packed) // 3
    return packed[:place] + bytes([packed[place] ^ 64]) + packed[place + 1 :]


def _zip(clean: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", clean)
    return out.getvalue()


def _png(clean: bytes) -> bytes:
    data = zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0" + b"\0\0\0\x10IDAT" + data


def _parquet(clean: bytes) -> bytes:
    return b"PAR1" + b"\x15\x04\x15\x00" * 50 + b"\xff\xff\xff\x7fPAR1"


def _nul_block(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
    """Where a machine lost power: a block of NULs between two records."""
    if one.binary:
        return None
    case = inserted(one, folder, Extra(b"\0" * 4096 + b"\n", spreads=True))
    if one.apart:
        return case
    untouched = (
        EVERY if one.files else (*EVERY[: MIDDLE - 1], *EVERY[MIDDLE + 1 :])
    )  # its neighbours may suffer
    return Case(path=case.path, untouched=untouched, refusable=one.whole)


def _twice(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
    """Every record twice, with the same id."""
    if one.binary or one.files or one.apart:
        return None
    doubled = [record for record in one.records for _ in range(2)]
    people = one.domain == "ehr"  # rows of one patient belong together
    path = place(one, folder, one.file(doubled))
    return Case(path=path, untouched=() if people else EVERY, total=None, refusable=one.whole)


# What is no file, or has an odd name


def _node(make: Callable[[Path, Path], None], *, nothing: bool = True) -> Kind:
    """Something else where a file is named; where a folder is named, something beside its files.

    Args:
        make: given the place, and a clean file elsewhere.
        nothing: a file could not be read there.
    """

    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        clean = place(one, folder / "clean")
        if one.folder:
            name = one.name.format("zzz") if one.files else one.name
            (folder / "clean" / name).unlink(missing_ok=True)
            source = folder / "elsewhere"
            source.write_bytes(one.records[0] if one.files else one.file())
            make(clean / name, source)
            whole = one.files or not nothing
            return Case(path=clean, untouched=EVERY if whole else (), refusable=not whole)
        node = folder / "clean" / f"node{Path(one.name).suffix}"
        make(node, clean)
        if nothing:
            return Case(path=node, untouched=(), nothing=True)
        return Case(path=node, total=None if one.apart or one.binary else COUNT)

    return kind


def _loop(node: Path, clean: Path) -> None:
    other = node.with_name("other")
    node.symlink_to(other)
    other.symlink_to(node)


def _socket(node: Path, clean: Path) -> None:
    here = os.getcwd()
    os.chdir(node.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(node.name)
    finally:
        os.chdir(here)


def _unreadable(node: Path, clean: Path) -> None:
    node.write_bytes(clean.read_bytes())
    node.chmod(0)


def _missing(node: Path, clean: Path) -> None: ...


def _named(name: str | bytes) -> Kind:
    """A clean file of an odd name."""

    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        clean = place(one, folder / "clean")
        text = name if isinstance(name, str) else os.fsdecode(name)
        suffix = "" if one.folder else Path(one.name).suffix
        renamed = clean.rename(clean.parent / (text + suffix))
        options = [word for word in one.options if "{}" in word]
        if options and one.folder:
            return None
        return Case(path=renamed, total=None if one.apart or one.binary else COUNT)

    return kind


def _vanishing(after: int) -> Kind:
    """A file that is gone between its listing and its reading."""

    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        path = place(one, folder, [*one.records, one.records[0]] if one.files else None)
        victim = folder / (one.name.format(f"{COUNT:03}") if one.files else one.name)
        if one.files:  # before anything is read, its absence ends the command
            return Case(path=path, total=COUNT + 1, refusable=True, vanishes=(victim, after))
        uncounted = one.apart or one.domain == "ehr" or one.folder
        total = None if uncounted else COUNT
        return Case(path=path, untouched=(), total=total, refusable=True, vanishes=(victim, after))

    return kind


# Too much of it


def _giant(units: int, *, over: bool) -> Kind:
    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        if one.giant is None:
            return None
        case = inserted(one, folder, Extra(b"".join(one.giant(units))))
        contig = one.domain == "dna"  # of any length, a record for each of its pieces
        scored = (over and not contig) or units < 10**6  # else it takes minutes
        memory = (700 if over else 1000) * MIB
        counted = {"total": None, "most": None} if contig else {}
        return Case(**{**vars(case), "memory": memory, "packed": True, "scored": scored, **counted})

    return kind


def _word(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
    if one.value is None:
        return None
    case = inserted(one, folder, Extra(one.value(b"MKV" * (2 * MIB // 3))))
    return Case(**{**vars(case), "memory": 800 * MIB, "packed": True})


def _bomb(pack: str) -> Kind:
    """A gigabyte of one valid record, packed into about a megabyte (gzip) or less (Zstandard)."""

    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        if one.giant is None or one.files:
            return None
        path = place(one, folder)
        packed = folder / f"bomb{Path(one.name).suffix}.{'gz' if pack == 'gzip' else 'zst'}"
        with packed.open("wb") as file:
            sink = (
                gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0)
                if pack == "gzip"
                else zstandard.ZstdCompressor(level=1).stream_writer(file, closefd=False)
            )
            with sink:
                sink.write(one.head + b"".join(one.records[:MIDDLE]))
                for part in one.giant((1 << 30) // 4):
                    sink.write(part)
                sink.write(b"".join(one.records[MIDDLE:]) + one.tail)
        path.unlink()
        contig = one.domain == "dna"
        total = None if one.apart or contig else COUNT + 1
        return Case(path=packed, total=total, memory=700 * MIB, packed=True, scored=not contig)

    return kind


def _many(count: int) -> Kind:
    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        if one.giant is None or one.files or one.domain == "ehr":
            return None
        tiny = b"".join(one.giant(1))
        path = place(one, folder, one.file([*one.records, tiny * count]))
        return Case(path=path, total=COUNT + count, memory=500 * MIB)

    return kind


def kinds() -> dict[str, Kind]:
    """What can be wrong with a file as a whole, by name."""
    found: dict[str, Kind] = {}
    found |= {
        "file:empty": _nothing(lambda clean: b""),
        "file:a_line_end": _nothing(lambda clean: b"\n"),
        "file:blank_lines": _nothing(lambda clean: b"\n \r\n\t\n" * 500),
        "file:only_a_mark": _nothing(lambda clean: b"\xef\xbb\xbf"),
        "file:only_nuls": _nothing(lambda clean: b"\0" * 9000),
        "file:utf_16_le": _nothing(lambda clean: _text(clean).encode("utf-16-le")),
        "file:utf_16_be": _nothing(lambda clean: _text(clean).encode("utf-16-be")),
        "file:utf_16_le_marked": _same(lambda clean: b"\xff\xfe" + clean.decode().encode("utf-16-le")),
        "file:utf_16_be_marked": _same(lambda clean: b"\xfe\xff" + clean.decode().encode("utf-16-be")),
        "file:utf_32": _same(lambda clean: clean.decode().encode("utf-32")),
        "file:zip": _nothing(_zip),
        "file:xz": _nothing(lzma.compress),
        "file:bzip2": _nothing(bz2.compress),
        "file:png": _nothing(_png),
        "file:parquet": _nothing(_parquet),
        "file:lfs": _any(
            lambda clean, chance: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
        ),
        "file:elf": _any(lambda clean, chance: b"\x7fELF\2\1\1" + chance.randbytes(3000)),
        "file:sqlite": _any(lambda clean, chance: b"SQLite format 3\0" + b"\0" * 4000),
        "file:pickle": _any(lambda clean, chance: b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR."),
        "file:html": _any(lambda clean, chance: b"<!DOCTYPE html>\n<html><script>x</script></html>\n"),
        "file:pdf": _any(lambda clean, chance: b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n"),
        "file:only_the_head": _head_alone,
        "file:byte_order_mark": _same(lambda clean: b"\xef\xbb\xbf" + clean),
        "file:two_byte_order_marks": _but_the_first(lambda clean: b"\xef\xbb\xbf" * 2 + clean),
        "file:crlf": _same(lambda clean: clean.replace(b"\n", b"\r\n")),
        "file:cr_alone": _any(lambda clean, chance: clean.replace(b"\n", b"\r")),
        "file:mixed_line_ends": _same(_mixed),
        "file:no_last_line_end": _same(lambda clean: clean.removesuffix(b"\n")),
        "file:blank_lines_after": _same(lambda clean: clean + b"\n\n\n\n"),
        "file:nul_at_start": _but_the_first(lambda clean: b"\0" + clean),
        "file:nuls_before": _but_the_first(lambda clean: b"\0" * 300_000 + clean),
        "file:nuls_at_end": _after(b"\0" * 4096),
        "file:nuls_between": _nul_block,
        "file:cut": _cut,
        "file:every_record_twice": _twice,
        "file:lines_in_any_order": _any(_shuffled),
        "file:control_z": _after(b"\x1a"),
    }
    for number in range(3):
        found[f"file:noise_{number}"] = _any(lambda clean, chance: chance.randbytes(5000))
        found[f"file:flip_{number}"] = _any(_flip)
        found[f"file:printable_noise_{number}"] = _any(_printable)
    found |= {
        "gzip:whole": _same(lambda clean: gzip.compress(clean, mtime=0), text=False),
        "gzip:members": _same(_members, text=False),
        "gzip:zeros_after": _same(lambda clean: gzip.compress(clean, mtime=0) + b"\0" * 512, text=False),
        "gzip:garbage_after": _faulty_at_end(lambda clean: gzip.compress(clean) + b"garbage"),
        "gzip:wrong_checksum": _faulty_at_end(_crc),
        "gzip:wrong_size": _faulty_at_end(_size),
        "gzip:cut": _packed_part(_stored, lambda packed: packed[: 2 * len(packed) // 3]),
        "gzip:cut_packed": _packed_part(gzip.compress, lambda packed: packed[: len(packed) // 2]),
        "gzip:flip": _packed_part(_stored, _spoil_late),
        "gzip:head_alone": _nothing(lambda clean: gzip.compress(clean)[:10]),
        "gzip:magic_alone": _nothing(lambda clean: b"\x1f\x8b"),
        "gzip:of_nothing": _nothing(lambda clean: gzip.compress(b"")),
        "gzip:of_gzip": _nothing(lambda clean: gzip.compress(gzip.compress(clean))),
        "zstandard:whole": _same(zstandard.ZstdCompressor().compress, text=False),
        "zstandard:cut": _packed_part(zstandard.ZstdCompressor().compress, lambda p: p[: len(p) // 2]),
        "zstandard:flip": _packed_part(zstandard.ZstdCompressor().compress, _spoil_late),
        "zstandard:checksum": _packed_part(
            zstandard.ZstdCompressor(write_checksum=True).compress, lambda p: p[:-1] + bytes([p[-1] ^ 1])
        ),
        "zstandard:window_of_2_tb": _nothing(lambda clean: b"\x28\xb5\x2f\xfd\x00\xf8" + b"\0" * 20),
        "node:link": _node(lambda node, clean: node.symlink_to(clean), nothing=False),
        "node:hard_link": _node(lambda node, clean: os.link(clean, node), nothing=False),
        "node:dangling_link": _node(lambda node, clean: node.symlink_to("nowhere")),
        "node:link_to_itself": _node(lambda node, clean: node.symlink_to(node)),
        "node:links_in_a_circle": _node(_loop),
        "node:directory": _node(lambda node, clean: node.mkdir()),
        "node:fifo": _node(lambda node, clean: os.mkfifo(node)),
        "node:link_to_fifo": _node(_link_to_fifo),
        "node:socket": _node(_socket),
        "node:null_device": _node(lambda node, clean: node.symlink_to("/dev/null")),
        "node:missing": _node(_missing),
        "name:spaces": _named(" a  b "),
        "name:line_end": _named("a\nerror: b"),
        "name:terminal_escapes": _named("a\x1b[31m\x1b]0;t\x07b"),
        "name:c1": _named("a\x9b31mb"),
        "name:right_to_left": _named("a\u202eb"),
        "name:dash": _named("-rf --out"),
        "name:no_utf_8": _named(b"a\xff\xfeb"),
        "name:quotes": _named("a'b\"c`id`$(id)%s{0}"),
        "name:long": _named("a" * 240),
        "name:markup": _named("<b>bold[red]x[bold]"),
    }
    for after in range(6):
        found[f"node:vanishes_{after}"] = _vanishing(after)
    if os.geteuid():
        found["node:unreadable"] = _node(_unreadable)
    return found


def large_kinds() -> dict[str, Kind]:
    """Kinds that take seconds or hundreds of megabytes."""
    return {
        "large:line_of_70_mib": _giant(70 * MIB, over=True),
        "large:word_of_2_mb": _word,
        "large:10^5_units": _giant(10**5, over=False),
        "large:10^7_units": _giant(10**7, over=False),
        "large:gzip_bomb": _bomb("gzip"),
        "large:zstandard_bomb": _bomb("zstandard"),
        "large:100000_records": _many(100_000),
    }


def _head_alone(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
    return damaged(one, folder, lambda clean: one.head, nothing=True) if one.head and not one.tail else None


def _text(clean: bytes) -> str:
    return clean.decode("latin-1")


def _mixed(clean: bytes) -> bytes:
    lines = clean.split(b"\n")
    return b"".join(line + (b"\r\n" if n % 2 else b"\n") for n, line in enumerate(lines[:-1])) + lines[-1]


def _shuffled(clean: bytes, chance: random.Random) -> bytes:
    lines = clean.splitlines(keepends=True)
    chance.shuffle(lines)
    return b"".join(lines)


def _printable(clean: bytes, chance: random.Random) -> bytes:
    return bytes(chance.choices(range(32, 127), k=2000)).replace(b"~", b"\n")


def _link_to_fifo(node: Path, clean: Path) -> None:
    pipe = node.with_name("pipe")
    os.mkfifo(pipe)
    node.symlink_to(pipe)
