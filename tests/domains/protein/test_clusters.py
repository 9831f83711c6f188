"""Identity clusters: mutated copies meet, unrelated proteins do not."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from seqmlm.data.record import Record
from seqmlm.data.splits import VALIDATION, ByKey
from seqmlm.domains.protein.clusters import SKETCH, IdentityClusters, K, sketch
from seqmlm.errors import UsageError

LETTERS = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
RULER = (0, 1, 4, 9, 11)


def protein(rng: np.random.Generator, length: int) -> str:
    return "".join(LETTERS[rng.integers(0, 20, length)])


def mutated(rng: np.random.Generator, sequence: str, share: float) -> str:
    """Substitute exactly that share of the residues."""
    codes = np.searchsorted(LETTERS, list(sequence))
    places = rng.permutation(len(codes))[: round(share * len(codes))]
    codes[places] = (codes[places] + rng.integers(1, 20, len(places))) % 20
    return "".join(LETTERS[codes])


@pytest.mark.parametrize("length", [80, 300, 1500])
def test_mutated_copies_meet_and_unrelated_proteins_do_not(length: int) -> None:
    rng = np.random.default_rng(length)
    families = [protein(rng, length) for _ in range(40)]
    clusters = IdentityClusters(0.5)
    leaders = [clusters.assign(sequence) for sequence in families]
    assert leaders == list(range(40))
    shares = (0.05, 0.1, 0.2) if length == 80 else (0.05, 0.2, 0.35)
    for share in shares:
        assert [clusters.assign(mutated(rng, sequence, share)) for sequence in families] == leaders
    assert len(clusters) == 40


def test_a_fragment_and_an_insertion_meet_their_protein() -> None:
    rng = np.random.default_rng(0)
    whole = protein(rng, 400)
    clusters = IdentityClusters(0.5)
    assert clusters.assign(whole) == clusters.assign(whole[100:300]) == 0
    assert clusters.assign(whole[:200] + protein(rng, 30) + whole[200:]) == 0


def test_a_stricter_identity_parts_what_a_lax_one_joins() -> None:
    rng = np.random.default_rng(1)
    whole = protein(rng, 300)
    copy = mutated(rng, whole, 0.3)
    strict, lax = IdentityClusters(0.95), IdentityClusters(0.5)
    assert strict.assign(whole) != strict.assign(copy)
    assert lax.assign(whole) == lax.assign(copy)
    assert strict.assign(mutated(rng, whole, 0.01)) == 0


def test_the_sketch_against_a_plain_loop() -> None:
    rng = np.random.default_rng(2)
    for length in (0, 5, 11, 12, 40, 500):
        sequence = protein(rng, length).replace("C", "X")
        wanted = set()
        for start in range(length - RULER[-1]):
            letters = [sequence[start + offset] for offset in RULER]
            if "X" not in letters:
                number = 0
                for letter in letters:
                    number = number * 20 + int(np.searchsorted(LETTERS, letter))
                wanted.add(number)
        found = sketch(sequence)
        assert len(set(found.tolist())) == len(found) == min(SKETCH, len(wanted))
        assert set(found.tolist()) <= wanted
        assert len(RULER) == K


def test_very_short_sequences_meet_only_their_equals() -> None:
    clusters = IdentityClusters()
    assert clusters.assign("MKV") == clusters.assign("MKV") != clusters.assign("MKL")
    assert clusters.assign("") < 0
    assert clusters.assign("XXXXXXXXXXXXXXXXXXXX") < 0
    assert len(clusters) == 0


def test_as_a_split_key_families_stay_whole() -> None:
    rng = np.random.default_rng(5)
    families = [protein(rng, 200) for _ in range(30)]
    rows = [(i, mutated(rng, s, 0.2)) for i, s in enumerate(families) for _ in range(4)]
    rng.shuffle(rows)
    split = ByKey(key=IdentityClusters().key, share=0.3)
    records = [Record(id=str(f), raw=s, source="x", line=1) for f, s in rows]
    validates = split.parts(np.array([split.mark(r) for r in records])) == VALIDATION
    held = {r.id for r, v in zip(records, validates, strict=True) if v}
    trained = {r.id for r, v in zip(records, validates, strict=True) if not v}
    assert held
    assert not held & trained


def test_memory_does_not_grow_with_the_clusters() -> None:
    rng = np.random.default_rng(6)
    clusters = IdentityClusters()
    clusters.assign(protein(rng, 300))
    tracemalloc.start()
    try:
        for _ in range(300):
            clusters.assign(protein(rng, 300))
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(clusters) > 290
    assert grown < 20_000


def test_identity_out_of_range_is_named() -> None:
    with pytest.raises(UsageError, match=r"between 0\.3 and 1"):
        IdentityClusters(0.1)
