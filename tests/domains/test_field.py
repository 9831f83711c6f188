"""The door: files chosen by name, options checked, letters outside an alphabet reported, samples shown."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.field import Defaults, Field
from seqmlm.domains.files import Format
from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.domains.refusals import past_reader
from seqmlm.domains.text import TEXT
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.record_batches import check


def read_words(path, problems, *, upper: bool = False) -> Iterator[Record]:
    text = sys.stdin.read() if str(path) == "-" else Path(path).read_text()
    for line, word in enumerate(text.split(), start=1):
        yield Record(id=word, raw=word.upper() if upper else word, source=str(path), line=line)


def read_pairs(path, problems, *, limit: int = 9, share: float | None = None) -> Iterator[Record]:
    yield Record(id="pairs", raw=f"limit {limit}", source=str(path), line=1)


VISITS = Field(
    name="visits",
    title="Visits",
    unit="visit",
    sensitive=True,
    formats={
        "words": Format(read=read_words, suffixes=(".words",)),
        "pairs": Format(read=read_pairs, suffixes=(".pairs",)),
    },
    defaults=Defaults(tokenizer="residue.v1", model={"layers": "everywhere.v1"}),
)
"""A field as a plugin would bring it: nothing but declarations."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "b.words").write_text("bee")
    (tmp_path / "inner" / "a.pairs").write_text("1")
    (tmp_path / "truth.json").write_text("{}")
    (tmp_path / "notes").write_text("plain words")
    return tmp_path


def raws(domain: Field, paths, **options) -> list[str]:
    return [record.raw for record in domain.read(paths, Problems(), **options)]


def test_folders_give_the_files_of_the_domain_and_named_files_are_always_read(folder: Path):
    assert raws(VISITS, [folder]) == ["bee", "limit 9"]
    assert raws(VISITS, [folder / "notes", folder / "inner"]) == ["plain", "words", "limit 9"]
    assert raws(VISITS, [folder / "b.words", folder / "notes"], format="pairs") == ["limit 9"] * 2


def test_standard_input_is_the_first_format(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b"))
    assert raws(VISITS, ["-"], upper=True) == ["A", "B"]


def test_each_reader_gets_the_options_it_knows(folder: Path):
    assert raws(VISITS, [folder], upper=True, limit=3) == ["BEE", "limit 3"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"limit": "x"}, "limit takes a whole number, not 'x'"),
        ({"limit": "-1"}, "limit takes a whole number"),
        ({"limit": True}, "limit takes a whole number"),
        ({"share": "half"}, "share takes a number"),
        ({"upper": "yes"}, "upper takes true or false"),
    ],
)
def test_an_option_of_another_type_is_refused_before_anything_is_read(option, said, folder: Path):
    with pytest.raises(UsageError, match=said):
        VISITS.read([folder / "missing"], Problems(), **option)
    assert raws(VISITS, [folder / "inner" / "a.pairs"], limit="12", share="0.5") == ["limit 12"]


def test_a_reader_is_looked_at_once():
    words = VISITS.formats["words"]
    assert words.options is words.options


def test_mistakes_are_named_before_anything_is_read(folder: Path):
    with pytest.raises(UsageError, match="did you mean 'upper'"):
        VISITS.read([folder], Problems(), uper=True)
    with pytest.raises(UsageError, match="format 'pairs' takes"):
        VISITS.read([folder], Problems(), format="pairs", upper=True)
    with pytest.raises(UsageError, match="did you mean 'pairs'"):
        VISITS.read([folder], Problems(), format="pair")
    with pytest.raises(UsageError, match="did you mean 'pairs'"):
        VISITS.files.inputs([folder], format="pair", options={})


def test_a_folder_without_files_of_the_domain_is_an_error(folder: Path):
    (folder / "b.words").unlink()
    (folder / "inner" / "a.pairs").unlink()
    with pytest.raises(DataError, match=r"no visits file in this folder.*\.pairs, \.words"):
        raws(VISITS, [folder])
    with pytest.raises(DataError, match="no such file"):
        raws(VISITS, [folder / "missing.words"])
    with pytest.raises(DataError, match=r"no logs file in this folder.*\.txt, \.0 to \.99, also with") as met:
        raws(plugins.domain("logs"), [folder])
    assert ".10" not in str(met.value)


def read_tables(path, problems) -> Iterator[Record]:
    inside = sorted(file.name for file in Path(path).iterdir())
    yield Record(id="tables", raw=" ".join(inside), source=str(path), line=1)


_TABLES = Format(read=read_tables, folder=lambda path: (path / "patients.table").exists())
TABLES = replace(VISITS, formats={**VISITS.formats, "tables": _TABLES})  # a format that is a whole folder


def test_a_folder_may_be_one_format_as_a_whole(folder: Path):
    tables = folder / "tables"
    tables.mkdir()
    (tables / "patients.table").write_text("")
    (tables / "visits.words").write_text("no")
    assert raws(TABLES, [tables]) == ["patients.table visits.words"]
    assert raws(TABLES, [folder]) == ["bee", "limit 9", "no"], "only where the folder itself is named"
    assert raws(TABLES, [folder / "inner"], format="tables") == ["a.pairs"]
    assert raws(TABLES, [tables], format="words") == ["no"], "the files of a folder, where a format is asked"


def test_files_are_those_that_decide_what_is_read(folder: Path):
    names = [
        Path(name).name for name in VISITS.files.inputs([folder], options={"table": str(folder / "notes")})
    ]
    assert {"b.words", "a.pairs", "notes"} <= set(names)
    assert names.count("notes") == 2, "a file that an option names counts too"
    assert VISITS.files.inputs(["-"], options={}) == ["-"]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.fasta", "fasta"),
        ("b.FA.gz", "fasta"),
        ("c.faa.zst", "fasta"),
        ("d.a3m.gz", "a3m"),
        ("e.a2m", "a3m"),
        ("x.gz", None),
        ("y.json", None),
    ],
)
def test_formats_are_known_by_ending(name, format):
    expected = PROTEIN.formats[format] if format else None
    assert PROTEIN.files.format_of(Path("some.fasta.d") / name) is expected


def test_letters_outside_the_alphabet_go_to_problems_with_place():
    record = Record(id="r", raw="MK1V1", source="a.fasta", line=4)
    with pytest.raises(DataError) as caught:
        check(PROTEIN, record, ResidueTokenizer(), Problems())
    assert str(caught.value).startswith("a.fasta:4: '1' is not in the protein alphabet")
    assert "position 3 of the sequence and 1 more" in str(caught.value)
    skipping = Problems("skip")
    assert not check(PROTEIN, record, ResidueTokenizer(), skipping)
    assert skipping.bad_count == 1
    assert check(PROTEIN, Record(id="r", raw="MKV", source="a", line=1), ResidueTokenizer(), Problems())


def test_a_sensitive_domain_never_shows_a_value(tmp_path: Path):
    record = Record(id="r", raw="MK1", source="a.words", line=4)
    with Problems("quarantine", tmp_path / "dead.jsonl", sensitive=True) as problems:
        assert not check(VISITS, record, ResidueTokenizer(), problems)
    dead = (tmp_path / "dead.jsonl").read_text()
    assert "MK1" not in dead
    assert "'1'" not in dead
    assert '"line": 4' in dead


def test_open_vocabularies_refuse_nothing():
    open_ended = SimpleNamespace(
        traits=SimpleNamespace(closed=False), unknown=lambda raw: pytest.fail("asked for nothing")
    )
    assert check(TEXT, Record(id="r", raw="Ж", source="a", line=1), open_ended, Problems())


def test_siblings_share_a_split_key():
    def record(raw: str, document: str | None) -> Record:
        return Record(id="x", raw=raw, source="s", line=1, document=document)

    assert TEXT.keys.split(record("one", "article")) == TEXT.keys.split(record("two", "article"))
    assert TEXT.keys.split(record("one", None)) != TEXT.keys.split(record("two", None))
    # The rows of an alignment are one document, but not one side of a split.
    assert PROTEIN.keys.split(record("MK", "family")) != PROTEIN.keys.split(record("MV", "family"))
    assert TEXT.keys.order(record("one", None)) is None


def test_show_gives_the_sequence_masked_guessed_and_true():
    tokenizer = ResidueTokenizer()
    encoding = tokenizer.encode("MKVAY")
    guessed = tokenizer.encode("LW").ids[1:3]
    shown = PROTEIN.text.show(tokenizer, "MKVAY", encoding, np.array([5, 2], np.int32), guessed)
    assert shown == "masked    M_VA_\npredicted MWVAL\ntrue      MKVAY"


def test_records_of_people_are_not_followed():
    """What a follower tells a terminal and a webhook is made of what stands in the lines."""
    followed = [name for name in plugins.names("domains") if plugins.domain(name).reading.followed]
    assert followed
    assert not [name for name in followed if plugins.domain(name).sensitive]


def test_the_interface_of_a_field_stays_small() -> None:
    assert len([name for name in dir(VISITS) if not name.startswith("_")]) <= 20


def test_what_a_field_does_not_declare_is_refused_in_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="have no times, so they cannot be cut at a time"):
        past_reader(VISITS)("raw", 0.0)
    with pytest.raises(UsageError, match="no built-in sample"):
        VISITS.sample.draw(tmp_path)
    for level in VISITS.levels:
        with pytest.raises(UsageError, match=f"rows of level {level.name} have no place"):
            level.track(tmp_path / "t.bedgraph", name="t")


def test_pictures_are_new_for_every_report() -> None:
    for name in plugins.names("domains"):
        domain = plugins.domain(name)
        for level in domain.levels:
            first, again = domain.pictures(level), domain.pictures(level)
            assert first
            assert not {id(one) for one in first} & {id(one) for one in again}


def test_texts_of_a_table_get_the_form_of_their_field() -> None:
    assert TEXT.text.of_text("a b", {"language": "python"}) == "a b"
    found = plugins.domain("code").text.of_text("x = 1", {"language": "go"})
    assert (found, found.language) == ("x = 1", "go")
    assert type(plugins.domain("code").text.of_text("x = 1", {"other": 1})) is str
    assert plugins.domain("protein").text.of_text("mk v-*", {}) == "MKV"
    assert plugins.domain("dna").text.of_text("ac gu\n", {}) == "acgt"
    assert plugins.domain("dna").text.of_text("pqr", {}) == "pqr"


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [(0, 10, True), ("8.0", "12.0", True), (9, 12, False), (12, 30, False), (None, None, False)],
)
def test_a_part_shows_an_anomaly_if_half_of_the_shorter_one_is_shared(
    start: object, end: object, shown: bool
) -> None:
    row = {"start": start, "end": end}
    assert VISITS.sample.shows(row, {"start": 4, "end": 10}) is shown
