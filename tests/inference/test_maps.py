"""Maps of records: windows of long ones, equal ones once, families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from structures import Equal, value
from tiny_models import dna_model, protein_model, random_model, residues

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna.tokenizer import reverse_complement
from seqmlm.errors import DataError, UsageError
from seqmlm.inference.maps import Family, MapInput, Maps, Member, families, family_map, row_options
from seqmlm.inference.session import Session
from seqmlm.structure.base import StructureSettings
from seqmlm.structure.estimators import estimator
from seqmlm.structure.maps import DependenceMap, apc
from seqmlm.tokenizers.subword import WordPieceTokenizer


@pytest.fixture(autouse=True)
def equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqmlm.inference.maps.estimator", Equal)


def _maps(longest: int, **settings: Any) -> Maps:
    return Maps(Session(protein_model(longest)), StructureSettings(**settings))


def test_pairs_of_a_long_sequence_come_from_the_window_in_which_they_are_most_central() -> None:
    maps = _maps(22)
    text = residues(70)
    encoding = maps.session.tokenizer.encode(text)
    [found] = maps.of([MapInput([encoding])])
    assert len(found) == 70
    ids = encoding.ids[1:-1].tolist()
    asked: list[Any] = maps._estimator.asked  # type: ignore[attr-defined]
    assert all(len(one) <= 22 for one in asked)
    assert found.passes == sum(len(one) - 2 for one in asked) == maps.passes(encoding)
    for i in range(70):
        for j in range(i + 1, 70):
            held = [one.groups[1:-1] for one in asked if {i, j} <= set(one.groups.tolist())]
            if not held:
                assert np.isnan(found.values[i, j])
                continue
            # The value depends on places only by their distance, so that any window that holds both has it.
            assert found.values[i, j] == found.values[j, i] == value(ids[i], ids[j], i, j)
        assert np.isfinite(found.values[i, max(0, i - 5) : i]).all(), "near ones are all asked about"
    assert found.details["mass"] == pytest.approx(np.mean([1 / (len(one) - 2) for one in asked]))


def test_a_window_nearer_to_the_middle_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = _maps(22)
    encoding = maps.session.tokenizer.encode(residues(40))
    windows = maps._windows(encoding)
    made = [
        DependenceMap(values=np.full((len(one) - 2,) * 2, float(number)), method="x", error=None)
        for number, one in enumerate(windows)
    ]
    values = maps._merge_windows(encoding, windows, made).values
    firsts = [(int(one.groups[1]), int(one.groups[-2])) for one in windows]
    for i in range(40):
        for j in range(i + 1, 40):
            depth = [min(i - a, b - j) for a, b in firsts]
            if max(depth) < 0:
                assert np.isnan(values[i, j])
            else:
                assert depth[int(values[i, j])] == max(depth)


def test_equal_sequences_are_asked_about_once() -> None:
    maps = _maps(22)
    tokenizer = maps.session.tokenizer
    found = maps.of([MapInput([one]) for one in tokenizer.encode_batch(["MKTAY", "AYMKT", "MKTAY"])])
    assert len(maps._estimator.asked) == 2  # type: ignore[attr-defined]
    assert found[0].values is found[2].values
    assert not np.array_equal(found[0].values, found[1].values, equal_nan=True)


def test_what_is_too_large_for_a_map_is_refused() -> None:
    maps, near = _maps(22), _maps(22, distance=100)
    encode = maps.session.tokenizer.encode
    assert maps.refusal(encode("M" * 1400)) is None
    assert "1,500 units" in str(maps.refusal(encode("M" * 1500)))
    assert near.refusal(encode("M" * 1500)) is None
    assert near.refusal(encode("M" * 5000)) is not None


def _row(name: str, text: str, source: str = "a.fasta") -> Record:
    return Record(id=name, raw=text, source=source, line=1)


def test_rows_of_an_alignment_are_spread_evenly_and_files_are_families() -> None:
    session = Session(protein_model(22))
    rows = [_row(str(n), f"M{'-' * (n % 2)}{'K' * (2 - n % 2)}") for n in range(9)]
    found = list(families(session, 3)([*rows, _row("b", "MK", "b.fasta")], Problems()))
    assert [one.id for one in found] == ["0", "b"]
    assert [one.raw for one in found[0].raw.members] == ["MKK"] * 3
    with pytest.raises(DataError, match=r"a.fasta:1.*differ in length"):
        list(families(session, 3)([_row("a", "MK"), _row("b", "M")], Problems()))


def test_a_mean_map_has_the_columns_of_the_first_row_and_what_rows_differ_by() -> None:
    one = np.array([[np.nan, 1.0, 2.0], [1.0, np.nan, 3.0], [2.0, 3.0, np.nan]])
    other = np.array([[np.nan, 5.0], [5.0, np.nan]])
    made = [
        DependenceMap(values=x, method="x", passes=3, details={"mass": m})
        for x, m in ((one, 0.5), (other, 1.0))
    ]
    family = Family((Member("abc", np.array([0, 1, 3])), Member("de", np.array([1, 3]))))
    found = family_map(family, made)
    assert found.values[1, 2] == 4.0
    assert found.values[0, 1] == 1.0
    assert found.error[1, 2] == pytest.approx(np.std([3, 5], ddof=1) / np.sqrt(2))
    assert np.isnan(found.error[0, 1])
    assert (found.passes, found.details) == (6, {"mass": 0.75})
    with pytest.raises(DataError, match="units are not its letters"):
        family.check([3, 3])


def test_null_models_give_z_and_p_and_take_their_passes() -> None:
    session = Session(protein_model(22))
    maps = Maps(session, StructureSettings(), null=30)
    encoding = session.tokenizer.encode("MKTAYIAKQRQISM")
    [found] = maps.of([MapInput([encoding])])
    assert found.passes == maps.passes(encoding) == 31 * 14
    assert found.p[1, 7] < 0.2, "both are K"
    assert found.z[1, 7] > 1
    assert (found.p[np.isfinite(found.p)] >= 1 / 31 / 14).all()
    [mirrored] = Maps(session, StructureSettings(), null=5, kind="mirrored").of([MapInput([encoding])])
    assert mirrored.passes == 2 * 14


@pytest.mark.parametrize(
    "text", ["ACGTTGCAAGGCTA", "ACGTNTGCAAGGCTAACCGTTTAGACCATG"], ids=["whole", "in windows"]
)
def test_the_map_of_both_strands_is_the_mean_of_the_maps_of_each(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("seqmlm.inference.maps.estimator", estimator)
    model, settings = dna_model(), StructureSettings(method="dependency")
    with torch.no_grad():
        for one in model.rows.parameters():
            one.mul_(8)  # so that what it says depends on what it sees
    session = Session(model)
    encode = session.tokenizer.encode
    [own] = Maps(session, settings).of([MapInput([encode(text)])])
    [other] = Maps(session, settings).of([MapInput([encode(reverse_complement(text))])])
    maps = Maps(session, settings, both_strands=True)
    found, turned = maps.of([MapInput([encode(text)]), MapInput([encode(reverse_complement(text))])])
    mean = (own.values + other.values[::-1, ::-1]) / 2
    assert np.nanmax(np.abs(own.values - mean)) > 0.01, "a random model reads the strands differently"
    np.testing.assert_allclose(found.values, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(turned.values, mean[::-1, ::-1], rtol=1e-4, atol=1e-5)
    assert found.passes == own.passes + other.passes == maps.passes(encode(text))
    assert found.method == f"{own.method}, both strands"


def test_null_models_are_mapped_on_both_strands_too() -> None:
    session = Session(dna_model())
    encoding = session.tokenizer.encode("ACGTTGCAAGGCTA")
    maps = Maps(session, StructureSettings(), null=3, both_strands=True)
    [found] = maps.of([MapInput([encoding])])
    assert found.passes == 2 * 4 * 14 == maps.passes(encoding)
    asked: list[Any] = maps._estimator.asked  # type: ignore[attr-defined]
    texts = ["".join(session.tokenizer.spelling.surface(int(one)) for one in own.ids[1:-1]) for own in asked]
    assert set(texts) == {reverse_complement(one) for one in texts}


@pytest.mark.parametrize(
    ("model", "method", "told"),
    [
        (protein_model, "cmi", "protein sequences have one"),
        (dna_model, "pmi", "--method pmi does not use the model"),
    ],
)
def test_both_strands_are_refused_where_there_is_one_or_nothing_is_asked(model: Any, method: Any, told: str):
    with pytest.raises(UsageError, match=told):
        Maps(Session(model()), StructureSettings(method=method), both_strands=True)


def test_the_average_product_is_corrected_on_the_whole_map() -> None:
    session = Session(protein_model(22))
    encoding = session.tokenizer.encode(residues(40))
    [plain] = Maps(session, StructureSettings()).of([MapInput([encoding])])
    [corrected] = Maps(session, StructureSettings(apc=True)).of([MapInput([encoding])])
    assert np.array_equal(corrected.values, apc(plain.values), equal_nan=True)


def test_a_field_without_alignments_says_so() -> None:
    assert row_options(Session(protein_model(22)), None) == {"gaps": "keep"}
    with pytest.raises(UsageError, match="text reads no alignments"):
        row_options(Session(random_model("text", WordPieceTokenizer.train(["a b"] * 9))), None)
