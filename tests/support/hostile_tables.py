"""What can be wrong with a table of Arrow, kind by kind, in Parquet or as `datasets` saves it.

A kind changes the clean table and packs it again (types, nulls, row groups), or damages the packed bytes.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from hostile_formats import COUNT, Hostile, hostile_formats, parquet, place, stream
from hostile_kinds import EVERY, MIB, Case, Kind, alone, extras, kinds

Change = Callable[[Any, str], Any]


def _is_parquet(one: Hostile) -> bool:
    return one.name.endswith(".parquet")


def _packed(one: Hostile, table: Any) -> bytes:
    return parquet(table) if _is_parquet(one) else stream(table)


def _made(
    make: Callable[[Hostile, random.Random], bytes | None], expect: Callable[[Hostile], dict[str, Any]]
) -> Kind:
    """The file as `make` packs it, where it applies; `expect` says what must come of it."""

    def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
        packed = None if one.table is None else make(one, chance)
        return None if packed is None else Case(path=place(one, folder, packed), **expect(one))

    return kind


def _changed(change: Change, *, same: bool = False, nothing: bool = False) -> Kind:
    """The table after a change.

    Args:
        change: (table, name of the column that is scored) -> table.
        same: all rows can be read as if nothing had been done.
        nothing: none can.
    """
    import pyarrow as pa

    def make(one: Hostile, chance: random.Random) -> bytes | None:
        try:
            return _packed(one, change(one.table(), one.column))
        except pa.ArrowInvalid:  # a time that Parquet cannot hold
            return None

    def expect(one: Hostile) -> dict[str, Any]:
        # Arrow's files say their types twice, and `datasets` holds both against each other.
        kept = same and _is_parquet(one)
        total = COUNT if kept and one.domain != "ehr" else None
        return {"untouched": EVERY if kept else (), "total": total, "refusable": not kept, "nothing": nothing}

    return _made(make, expect)


def _with_row(value: Any) -> Kind:
    """One more row in the middle, which holds this."""
    import pyarrow as pa

    def make(one: Hostile, chance: random.Random) -> bytes | None:
        if one.domain == "ehr":
            return None
        table = one.table()
        half = len(table) // 2
        row = pa.table({name: [value] for name in table.column_names}, schema=table.schema)
        return _packed(one, pa.concat_tables([table[:half], row, table[half:]]))

    return _made(make, lambda one: {"total": COUNT + 1})


def _written(**options: Any) -> Kind:
    """The clean table as Parquet in another spelling."""
    return _made(
        lambda one, chance: parquet(one.table(), **options) if _is_parquet(one) else None,
        lambda one: {"total": None if one.domain == "ehr" else COUNT},
    )


def _bytes(spoil: Callable[[bytes, random.Random], bytes]) -> Kind:
    """The packed bytes after a fault."""
    return _made(
        lambda one, chance: spoil(one.file(), chance), lambda one: {"untouched": (), "refusable": True}
    )


def _column(make: Callable[[list[Any]], Any]) -> Change:
    """The scored column replaced by what `make` makes of its values."""

    def change(table: Any, name: str) -> Any:
        at = table.column_names.index(name)
        return table.set_column(at, name, [make(table.column(name).to_pylist())])

    return change


def _typed(kind: Callable[[], Any]) -> Change:
    import pyarrow as pa

    return _column(lambda values: pa.array(values, pa.string()).cast(kind()))


def _filled(value: Any, kind: Callable[[], Any] | None = None) -> Change:
    import pyarrow as pa

    return _column(lambda values: pa.array([value] * len(values), kind and kind()))


def _beside(value: Any, kind: Callable[[], Any] | None = None) -> Change:
    """A further column."""

    def change(table: Any, name: str) -> Any:
        import pyarrow as pa

        return table.append_column("more", [pa.array([value] * len(table), kind and kind())])

    return change


def _times(kind: Callable[[], Any], value: int) -> Change:
    """The column of times replaced, or where there is none the scored one."""

    def change(table: Any, name: str) -> Any:
        import pyarrow as pa

        name = "time" if "time" in table.column_names else name
        at = table.column_names.index(name)
        made = pa.array([value] * len(table), pa.int64()).cast(kind())
        return table.set_column(at, name, [made])

    return change


def _no_utf_8(table: Any, name: str) -> Any:
    import pyarrow as pa

    values = [b"caf\xe9 \xff"] * len(table)
    raw = pa.array(values, pa.binary())
    torn = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    return table.set_column(table.column_names.index(name), name, [torn])


def _two_of_a_name(table: Any, name: str) -> Any:
    return table.append_column(name, table.column(name))


def _footer(size: bytes) -> Callable[[bytes, random.Random], bytes]:
    return lambda clean, chance: clean[:-8] + size + clean[-4:]


def _cut(share: float, clean: bytes, chance: random.Random) -> bytes:
    return clean[: int(len(clean) * share)]


def _flip(share: float, clean: bytes, chance: random.Random) -> bytes:
    at = int(len(clean) * share)
    return clean[:at] + bytes([clean[at] ^ (1 << chance.randrange(8))]) + clean[at + 1 :]


def _overwritten(share: float, filling: bytes, clean: bytes, chance: random.Random) -> bytes:
    at = int(len(clean) * share)
    return clean[:at] + filling + clean[at + len(filling) :]


def table_kinds() -> dict[str, Kind]:
    """All of them, by name; each tells whether it applies to a format."""
    import pyarrow as pa

    found: dict[str, Kind] = {
        "type:large_string": _changed(_typed(pa.large_string), same=True),
        "type:dictionary": _changed(_typed(lambda: pa.dictionary(pa.int32(), pa.string())), same=True),
        "type:binary": _changed(_typed(pa.binary)),
        "type:whole_numbers": _changed(_filled(7)),
        "type:nan": _changed(_filled(float("nan"))),
        "type:infinity": _changed(_filled(float("inf"))),
        "type:booleans": _changed(_filled(True)),
        "type:nulls": _changed(_filled(None, pa.null), nothing=True),
        "type:null_texts": _changed(_filled(None, pa.string), nothing=True),
        "type:empty_texts": _changed(_filled("", pa.string), nothing=True),
        "type:lists": _changed(_column(lambda values: pa.array([[v] for v in values]))),
        "type:structs": _changed(_column(lambda values: pa.array([{"a": v} for v in values]))),
        "type:maps": _changed(_filled([("a", "b")], lambda: pa.map_(pa.string(), pa.string()))),
        "type:decimals": _changed(
            _column(lambda values: pa.array([1] * len(values)).cast(pa.decimal128(38, 10)))
        ),
        "type:durations": _changed(_filled(5, lambda: pa.duration("s"))),
        "type:no_utf_8": _changed(_no_utf_8),
        "columns:none_of_this_name": _changed(
            lambda table, name: table.rename_columns(
                [f"x{n}" for n in range(table.num_columns)]
            ).append_column("y", [pa.nulls(len(table))]),
            nothing=True,
        ),
        "columns:two_of_a_name": _changed(_two_of_a_name),
        "columns:no_rows": _changed(lambda table, name: table[:0], nothing=True),
        "columns:none": _changed(lambda table, name: table.select([]), nothing=True),
        "columns:a_hostile_name": _changed(
            lambda table, name: table.append_column("a\x1b[31m\n\u202e", [pa.nulls(len(table))])
        ),
        "columns:nested": _changed(_beside([{"a": [{"b": [1]}]}])),
        "columns:a_thousand": _changed(
            lambda table, name: pa.table(
                {
                    **{n: table.column(n) for n in table.column_names},
                    **{f"c{n}": table.column(0) for n in range(1000)},
                }
            )
        ),
        "row:null": _with_row(None),
        "row:empty": _with_row(""),
        "row:spaces": _with_row("  \t "),
        "row:nul": _with_row("a\0b"),
        "row:terminal_escapes": _with_row("\x1b[31mred\x1b]0;t\x07"),
        "row:right_to_left": _with_row("\u202eevil\u2066"),
        "row:formula": _with_row("=cmd|' /C calc'!A0"),
        "row:long": _with_row("cat " * 20_000),
        "row:one_word": _with_row("x" * 50_000),
        "parquet:row_groups_of_one": _written(row_group_size=1),
        "parquet:version_1": _written(version="1.0"),
        "parquet:pages_of_version_2": _written(data_page_version="2.0"),
        "parquet:tiny_pages": _written(data_page_size=1),
        "parquet:no_statistics": _written(write_statistics=False),
        "parquet:no_schema_of_arrow": _written(store_schema=False),
        "parquet:checksums": _written(write_page_checksum=True),
        "bytes:footer_of_2_gib": _bytes(_footer(b"\xff\xff\xff\x7f")),
        "bytes:footer_of_4_gib": _bytes(_footer(b"\xff\xff\xff\xff")),
        "bytes:footer_of_nothing": _bytes(_footer(b"\0\0\0\0")),
        "bytes:magic_at_the_end": _bytes(lambda clean, chance: clean[:-4] + b"PAR2"),
        "bytes:magic_at_the_beginning": _bytes(lambda clean, chance: b"PAR2" + clean[4:]),
        "bytes:encrypted": _bytes(lambda clean, chance: b"PARE" + clean[4:-4] + b"PARE"),
        "bytes:twice": _bytes(lambda clean, chance: clean + clean),
        "bytes:garbage_after": _bytes(lambda clean, chance: clean + b"garbage"),
        "bytes:garbage_before": _bytes(lambda clean, chance: b"garbage" + clean),
        "bytes:footer_of_lists": _bytes(
            lambda clean, chance: b"PAR1" + b"\x15\x04\x19\xfc\xff\xff\xff\xff\x07" + b"\x09\0\0\0PAR1"
        ),
        "bytes:footer_of_noise": _bytes(
            lambda clean, chance: b"PAR1" + chance.randbytes(500) + (500).to_bytes(4, "little") + b"PAR1"
        ),
    }
    for codec in ("none", "gzip", "brotli", "lz4", "zstd"):
        found[f"parquet:{codec}"] = _written(compression=codec)
    for unit in ("s", "ms", "us", "ns"):
        kind = partial(pa.timestamp, unit)
        for name, value in (("least", -(1 << 63) + 1), ("greatest", (1 << 63) - 1), ("zero", 0)):
            found[f"time:{unit}_{name}"] = _changed(_times(kind, value))
    found["time:zone"] = _changed(_times(lambda: pa.timestamp("us", "Europe/Berlin"), 0))
    found["time:no_zone"] = _changed(_times(lambda: pa.timestamp("us", "No/Where"), 0))
    found["time:numbers"] = _changed(_times(pa.int64, 1 << 60))
    for tenth in range(10):
        found[f"bytes:cut_{tenth}"] = _bytes(partial(_cut, tenth / 10 + 0.05))
        found[f"bytes:flip_{tenth}"] = _bytes(partial(_flip, tenth / 10 + 0.07))
        found[f"bytes:zeros_{tenth}"] = _bytes(partial(_overwritten, tenth / 10 + 0.03, b"\0" * 16))
        found[f"bytes:ones_{tenth}"] = _bytes(partial(_overwritten, tenth / 10 + 0.05, b"\xff" * 16))
    return found


def _row_group(count: int) -> Kind:
    """So many rows in one group, which a dictionary packs into nothing."""
    import pyarrow as pa

    def make(one: Hostile, chance: random.Random) -> bytes | None:
        if one.domain == "ehr":
            return None
        many = pa.concat_tables([one.table()] * (count // COUNT))
        return parquet(many, row_group_size=count) if _is_parquet(one) else stream(many)

    return _made(make, lambda one: {"total": count // COUNT * COUNT, "memory": 500 * MIB, "packed": True})


def _one_cell(size: int) -> Kind:
    """One text of so many bytes, packed into nothing."""
    import pyarrow as pa

    def make(one: Hostile, chance: random.Random) -> bytes | None:
        if one.domain == "ehr" or not _is_parquet(one):
            return None
        table = one.table()
        giant = pa.table({name: ["cat " * (size // 4)] for name in table.column_names}, schema=table.schema)
        return parquet(pa.concat_tables([table, giant]), compression="zstd")

    expected = {"untouched": (), "refusable": True, "memory": 1000 * MIB, "packed": True}
    return _made(make, lambda one: expected)


def large_table_kinds() -> dict[str, Kind]:
    """Kinds of tables that take seconds or hundreds of megabytes."""
    return {"large:row_group_of_100000": _row_group(100_000), "large:cell_of_70_mib": _one_cell(70 * MIB)}


DESCRIPTIONS = {
    "nothing": b"",
    "number": b"5",
    "list": b"[]",
    "null": b"null",
    "no_keys": b"{}",
    "torn": b'{"_data_files": [{"filena',
    "deep": b"[" * 100_000,
    "no_utf_8": b'{"a": "\xff"}',
    "many_digits": b'{"_data_files": %s}' % (b"9" * 5000),
    "numbers_for_names": b'{"_data_files": [{"filename": 5}], "splits": 7, "features": 3}',
    "a_name_elsewhere": b'{"_data_files": [{"filename": "../../x"}], "splits": ["../x"]}',
    "an_absolute_name": b'{"_data_files": [{"filename": "/etc/passwd"}]}',
    "no_such_file": b'{"_data_files": [{"filename": "nothing.arrow"}], "_fingerprint": "a"}',
    "itself": b'{"_data_files": [{"filename": "state.json"}], "_fingerprint": "a"}',
    "odd_features": b'{"features": {"text": {"_type": "Evil", "dtype": "object"}}}',
    "escapes": b'{"splits": ["\\u001b[31m"], "_split": "\\u202e", "_format_type": "\\u009b"}',
    "aliases": b"---\nconfigs:\n- &a0 [x, x]\n"
    + b"".join(b"- &a%d [%s]\n" % (n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12))
    + b"---\n",
    "tags": b"---\nconfigs: !!python/object/apply:os.system ['touch pwned']\n---\n",
    "files_elsewhere": b"---\nconfigs:\n- config_name: a\n  data_files: ../../*.parquet\n---\n",
    "files_on_the_network": b"---\nconfigs:\n- config_name: a\n  data_files: https://127.0.0.1:9/a.parquet\n---\n",
    "numbers_for_files": b"---\nconfigs: 5\ndata_files: [7, {a: b}]\ndataset_info: [1]\n---\n",
    "deep_yaml": b"---\nconfigs: " + b"[" * 5000 + b"\n---\n",
}


def description_kinds(one: Hostile) -> dict[str, Kind]:
    """What describes a data set, damaged: each file beside its data, with each of `DESCRIPTIONS`."""

    def damaged(name: str, content: bytes) -> Kind:
        def kind(one: Hostile, folder: Path, chance: random.Random) -> Case | None:
            path = place(one, folder)
            (folder / name).write_bytes(content)
            return Case(path=path, untouched=(), refusable=True)

        return kind

    if not one.prefix:
        return {}
    names = list(one.beside) or ["README.md", ".huggingface.yaml"]
    return {
        f"{name}:{how}": damaged(name, content) for name in names for how, content in DESCRIPTIONS.items()
    }


def every_kind(one: Hostile) -> dict[str, Kind]:
    """What can be wrong with an input of a format, each kind alone."""
    tables = table_kinds() if one.table is not None else {}
    records = {name: alone(extra) for name, extra in extras(one).items()}
    return kinds() | tables | description_kinds(one) | records


def shared_out(share: int, seed: int = 0) -> dict[str, set[str]]:
    """Kinds by format: each on one in `share` of the formats that have it, and on one at least."""
    having = defaultdict[str, list[str]](list)
    for key, one in hostile_formats().items():
        for name in every_kind(one):
            having[name].append(key)
    found = defaultdict[str, set[str]](set)
    for name, keys in having.items():
        for key in keys[crc32(f"{seed} {name}".encode()) % min(share, len(keys)) :: share]:
            found[key].add(name)
    return found
