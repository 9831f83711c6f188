"""visit.v1 hides codes, whole visits or families in the shares asked for, and touches nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.masking.base import Corruptor, MaskingConfig, eligible_tokens
from seqmlm.engine.masking.visit import Visit
from seqmlm.engine.types import Encoding
from seqmlm.errors import UsageError

POOLS = [list(range(5, 20)), list(range(20, 35))]  # 35..39 in none: time, background


def sick(visits: int = 12, codes: int = 4, seed: int = 0) -> Encoding:
    """A patient whose visits repeat codes of both pools; each visit begins with a time token."""
    rng = np.random.default_rng(seed)
    ids, groups, positions, symbols = [2], [-1], [0], [-1]
    unit = 0
    for visit in range(visits):
        ids += [35, 1]
        groups += [-1, -1]
        symbols += [-1, -1]
        positions += [4 * visit + 1, 4 * visit + 2]
        for code in rng.choice(np.arange(5, 35), codes, replace=False):
            ids.append(int(code))
            groups.append(unit)
            symbols.append(int(code) // 3)
            positions.append(4 * visit + 3)
            unit += 1
    columns = {"ids": [*ids, 3], "groups": [*groups, -1], "symbols": [*symbols, -1]}
    columns["positions"] = [*positions, 4 * visits + 3]
    return Encoding(**{name: np.array(own, np.int32) for name, own in columns.items()})


def corruptor(space, *, rate=0.15, visits=0.2, families=0.1, seed=0, pools=POOLS, parents=None, **config):
    masker = Visit(rate=rate, space=space, visits=visits, families=families, pools=pools, parents=parents)
    return Corruptor(MaskingConfig(rate=rate, **config), masker, space, None, seed)


@given(data=st.data(), rate=st.floats(0, 1), seed=st.integers(0, 2**40), way=st.sampled_from([0, 1, 2]))
def test_labels_are_the_selected_positions_and_nothing_else_changes(encodings, space, data, rate, seed, way):
    """CEHR-BERT altered tokens it did not ask for, BEHRT inserted special ones: neither may happen."""
    encoding = data.draw(encodings)
    symbols = encoding.ids % 5
    positions = np.sort(encoding.ids % 7) if data.draw(st.booleans()) else None
    encoding = Encoding(
        ids=encoding.ids,
        groups=encoding.groups,
        weights=encoding.weights,
        symbols=symbols,
        positions=positions,
    )
    before = copy.deepcopy(encoding)
    shares = {"visits": float(way == 1), "families": float(way == 2)}
    masked = corruptor(space, rate=rate, seed=seed, **shares)(encoding, 0, 0)
    assert (encoding.ids == before.ids).all()
    eligible = eligible_tokens(encoding, space)
    assert eligible[masked.positions].all()
    assert len(masked.positions) > 0 or not eligible.any()
    assert (masked.targets == before.ids[masked.positions]).all()
    elsewhere = np.ones(len(encoding), bool)
    elsewhere[masked.positions] = False
    assert (masked.ids[elsewhere] == before.ids[elsewhere]).all()
    assert not space.is_special[masked.ids[masked.positions]][
        masked.ids[masked.positions] != space.mask
    ].any()


def test_whole_visits_become_masks_up_to_the_limit(space):
    corrupt = corruptor(space, visits=1.0, families=0.0, mask=0.0, random=0.5, keep=0.5)
    encoding = sick()
    for sample in range(50):
        masked = corrupt(encoding, 0, sample)
        assert (masked.ids[masked.positions] == space.mask).all()
        hit = np.isin(encoding.positions, encoding.positions[masked.positions]) & (encoding.groups >= 0)
        assert hit.nonzero()[0].tolist() == masked.positions.tolist()
        share = len(masked.positions) / 48
        assert 0.15 <= share <= 0.25


def test_every_occurrence_of_a_family_is_asked(space):
    corrupt = corruptor(space, visits=0.0, families=1.0)
    encoding = sick(visits=30)
    for sample in range(50):
        masked = corrupt(encoding, 0, sample)
        chosen = np.isin(encoding.symbols, encoding.symbols[masked.positions])
        assert chosen.nonzero()[0].tolist() == masked.positions.tolist()
        assert 0.05 <= len(masked.positions) / 120 <= 0.25


def test_shares_of_the_three_ways_and_of_the_units(space):
    corrupt, encoding = corruptor(space), sick(visits=20)
    codes = encoding.groups >= 0
    visits = families = total = 0
    for sample in range(1500):
        selected, hidden = corrupt.masker.select_and_hide(encoding, codes, np.random.default_rng(sample))
        total += int(selected.sum())
        visits += bool(hidden.any())
        whole = np.isin(encoding.symbols, encoding.symbols[selected]) & codes
        families += not hidden.any() and bool((whole == selected).all())
    assert abs(visits / 1500 - 0.2) < 0.04
    assert abs(families / 1500 - 0.1) < 0.03
    assert 0.15 < total / 1500 / codes.sum() < 0.17


def test_random_codes_come_from_the_same_vocabulary(space):
    corrupt = corruptor(space, rate=0.5, visits=0.0, families=0.0, mask=0.0, random=1.0, keep=0.0)
    encoding = sick()
    seen = set()
    for sample in range(200):
        masked = corrupt(encoding, 0, sample)
        now = masked.ids[masked.positions]
        assert ((now < 20) == (masked.targets < 20)).all()
        assert ((now >= 5) & (now < 35)).all()
        seen |= set(now.tolist())
    assert seen == set(range(5, 35))


def test_a_code_and_its_family_are_replaced_together(space):
    pools = [list(range(10, 30)), list(range(5, 10))]
    parents = {token: 5 + token % 5 for token in range(10, 30)}
    codes = np.random.default_rng(0).integers(10, 30, 40)
    ids = np.stack([5 + codes % 5, codes], axis=1).reshape(-1).astype(np.int32)
    encoding = Encoding(ids=ids, groups=np.repeat(np.arange(40), 2).astype(np.int32))
    corrupt = corruptor(space, rate=1.0, pools=pools, parents=parents, mask=0.0, random=1.0, keep=0.0)
    changed = 0
    for sample in range(20):
        now = corrupt(encoding, 0, sample).ids.reshape(-1, 2)
        assert (now[:, 0] == 5 + now[:, 1] % 5).all()
        changed += int((now[:, 1] != codes).sum())
    assert changed > 20 * 40 * 0.9


@pytest.mark.parametrize("given_columns", [{}, {"positions": np.zeros(6, np.int32)}])
def test_where_no_visit_fits_codes_are_asked(space, given_columns):
    ids, groups = np.array([2, 7, 8, 9, 10, 3], np.int32), np.array([-1, 0, 1, 2, 3, -1], np.int32)
    encoding = Encoding(ids=ids, groups=groups, **given_columns)
    for sample in range(20):
        masked = corruptor(space, visits=1.0, families=0.0)(encoding, 0, sample)
        assert 1 <= len(masked.positions) <= 3


def test_wrong_options(space):
    with pytest.raises(UsageError, match="'visits' \\+ 'families' must be at most 1"):
        Visit(rate=0.1, space=space, visits=0.7, families=0.6)
    with pytest.raises(UsageError, match="'pools' contains a special token"):
        Visit(rate=0.1, space=space, pools=[[2, 7]])
    with pytest.raises(UsageError, match="'families' must lie in"):
        Visit(rate=0.1, space=space, families=2.0)
