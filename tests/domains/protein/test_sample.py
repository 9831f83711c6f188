"""The protein sample holds what its truth says: families, contacts, entropies."""

from __future__ import annotations

import json

import numpy as np
import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.protein.sample import LETTERS


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("protein")
    truth = json.loads(PROTEIN.sample.draw(out, seed=11).truth.read_text())
    return truth, list(PROTEIN.read([out], Problems()))


def members(sample, name: str) -> np.ndarray:
    """(N, L) letters of a family as numbers."""
    rows = [record.raw for record in sample[1] if record.id.startswith(name + "-")]
    return np.array([[LETTERS.index(letter) for letter in row] for row in rows])


def entropies(x: np.ndarray, size: int) -> np.ndarray:
    counts = np.stack([np.bincount(column, minlength=size) for column in x.T], axis=1) / len(x)
    return -np.where(counts > 0, counts * np.log2(np.where(counts > 0, counts, 1)), 0).sum(axis=0)


def test_records_belong_to_families_in_their_shares(sample):
    truth, records = sample
    names = [record.id.rpartition("-")[0] for record in records]
    assert len(records) == truth["n"]
    assert [int(record.id.rpartition("-")[2]) for record in records] == list(range(1, len(records) + 1))
    for family in truth["families"]:
        expected, n = family["share"] * len(records), names.count(family["name"])
        assert abs(n - expected) < 5 * np.sqrt(expected)
        lengths = {len(record.raw) for record in records if record.id.startswith(family["name"] + "-")}
        assert lengths == {family["length"]}


def test_contacts_share_information_and_other_pairs_hardly_any(sample):
    for family in sample[0]["families"]:
        x = members(sample, family["name"])
        single = entropies(x, 20)
        contacts = {
            tuple(pair): bits
            for pair, bits in zip(family["contacts"], family["contact_information_bits"], strict=True)
        }
        found, others = [], []
        for i in range(x.shape[1] - 1):
            pairs = entropies(x[:, [i]] * 20 + x[:, i + 1 :], 400)
            for offset, bits in enumerate(single[i] + single[i + 1 :] - pairs):
                (found if (i, i + 1 + offset) in contacts else others).append(float(bits))
        # An estimate from N sequences is too high by (20 - 1)^2 / (2 N ln 2).
        bias = 361 / (2 * len(x) * np.log(2))
        assert len(found) == len(contacts) > 20
        assert np.mean(found) == pytest.approx(np.mean(family["contact_information_bits"]), abs=1.5 * bias)
        assert np.quantile(found, 0.05) > np.quantile(others, 0.95) + 0.1
        assert np.mean(found) > 4 * np.mean(others)


def test_site_entropies_and_consensus_are_those_of_the_draws(sample):
    for family in sample[0]["families"]:
        x = members(sample, family["name"])
        assert np.allclose(entropies(x, 20), family["site_entropy_bits"], atol=0.25)
        conditional, site = (
            np.array(family["conditional_entropy_bits"]),
            np.array(family["site_entropy_bits"]),
        )
        touched = sorted({position for pair in family["contacts"] for position in pair})
        alone = np.setdiff1d(np.arange(family["length"]), touched)
        assert np.all(conditional[touched] < site[touched] - 0.3)
        assert np.array_equal(conditional[alone], site[alone])
        top = [LETTERS[np.bincount(column).argmax()] for column in x.T]
        assert np.mean([a == b for a, b in zip(top, family["consensus"], strict=True)]) > 0.9


def test_there_is_much_to_learn(sample):
    """A model can win more than one bit a residue over the letters' frequencies."""
    letters = np.concatenate([members(sample, family["name"]).ravel() for family in sample[0]["families"]])
    unigram = float(entropies(letters[:, None], 20)[0])
    floor = np.average(
        [np.mean(family["conditional_entropy_bits"]) for family in sample[0]["families"]],
        weights=[family["share"] * family["length"] for family in sample[0]["families"]],
    )
    assert unigram - floor > 1.2
