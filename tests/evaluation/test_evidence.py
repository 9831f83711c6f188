"""A choice of statistics by planted faults: never worse than its best part, and none where rows are few."""

import json

import numpy as np
import pytest

from seqmlm.evaluation.conformal import Choice
from seqmlm.evaluation.evidence import FEWEST, RATE, Evidence, choose

LENGTHS = np.ones(1000, dtype=np.int64)


def noise(rng, names, rows=1000, **moved):
    """Statistics of rows, normal but for those that are moved by so many standard deviations."""
    return {name: rng.normal(size=rows) + moved.get(name, 0.0) for name in names}


def chosen(declared, names, **kinds):
    rng = np.random.default_rng(3)
    normal = noise(rng, names)
    faulty = {kind: (noise(rng, names, 200, **moved), LENGTHS[:200]) for kind, moved in kinds.items()}
    return choose(declared, normal, LENGTHS, faulty, seed=1)


def test_statistics_that_say_nothing_are_left_out():
    names = ["good", *(f"noise{i}" for i in range(8))]
    found = chosen(Choice(), names, fault={"good": 2.0})
    assert found.choice.used == ("good",)
    assert found.kinds["fault"]["auroc"] == pytest.approx(found.parts["good"])
    assert found.parts["good"] > 0.9 > 0.6 > max(found.parts[name] for name in names[1:])


def test_what_finds_different_faults_is_fused():
    names = ["one", "two", "noise"]
    found = chosen(Choice(used=("noise",)), names, a={"one": 3.0}, b={"two": 3.0})
    assert set(found.choice.used or names) >= {"one", "two"}
    both = np.mean([kind["auroc"] for kind in found.kinds.values()])
    assert both > max(found.parts.values()) + 0.1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("declared", [Choice(), Choice(fusion="harmonic")])
def test_a_choice_is_never_worse_than_its_parts_or_what_was_declared(seed, declared):
    rng = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(5)]
    kinds = {
        kind: (noise(rng, names, 100, **dict(zip(names, rng.uniform(0, 2, 5), strict=True))), LENGTHS[:100])
        for kind in "ab"
    }
    found = choose(declared, noise(rng, names), LENGTHS, kinds, seed=seed)

    def worth(one):
        return np.mean([(kind["auroc"] + kind["found"]) / 2 for kind in one.kinds.values()])

    for part in names:
        single = choose(Choice(used=(part,)), noise(rng, names), LENGTHS, kinds, seed=seed)
        assert worth(found) > worth(single) - 0.06  # other normal rows were drawn
    assert found.normal == 500


def test_what_was_declared_stays_where_others_are_hardly_better():
    declared = Choice(fusion="harmonic")
    assert chosen(declared, ["one", "two"], fault={}).choice == declared  # nothing finds anything


def test_a_statistic_that_costs_little_stays_for_faults_that_were_not_planted():
    declared = Choice(fusion="harmonic")
    assert chosen(declared, ["one", "two"], fault={"one": 4.0}).choice == declared
    found = chosen(declared, ["one", "two"], fault={"one": 1.5})  # there, it costs much
    assert found.choice.used == ("one",)


def test_a_part_judges_alone_where_fusing_finds_less():
    declared = Choice()
    found = chosen(declared, ["one", "two"], fault={"one": 1.0, "two": 0.2})
    assert found.choice.used == ("one",)
    assert found.kinds["fault"]["auroc"] == pytest.approx(max(found.parts.values()))


def test_found_is_the_share_above_the_rate_among_normal_rows():
    found = chosen(Choice(), ["one", "two"], all={"one": 100.0, "two": 100.0}, none={})
    assert found.kinds["all"] == {"rows": 200, "auroc": 1.0, "found": 1.0}
    assert abs(found.kinds["none"]["found"] - RATE) < 0.05


def test_few_rows_tell_nothing():
    rng = np.random.default_rng(0)
    names = ["one", "two"]
    faulty = {"a": (noise(rng, names, 19), LENGTHS[:19])}
    assert choose(Choice(), noise(rng, names), LENGTHS, faulty, seed=0) is None
    many = {"a": (noise(rng, names, 50), LENGTHS[:50])}
    few = noise(rng, names, FEWEST - 1)
    assert choose(Choice(), few, LENGTHS[: FEWEST - 1], many, seed=0) is None


def test_evidence_survives_json():
    found = chosen(Choice(), ["one", "two"], fault={"one": 2.0})
    assert Evidence.from_state(json.loads(json.dumps(found.to_state()))) == found


def test_what_always_judges_is_part_of_every_choice():
    rng = np.random.default_rng(3)
    names = ["one", "rare", "noise"]
    normal = noise(rng, names) | {"rare": np.zeros(1000)}
    faulty = {"fault": (noise(rng, names, 200, one=2.0) | {"rare": np.zeros(200)}, LENGTHS[:200])}
    found = choose(Choice(), normal, LENGTHS, faulty, always=("rare",), seed=1)
    assert found.choice.used == ("one", "rare")
    assert (found.judges, found.found) == ("one, rare", found.kinds["fault"]["found"])
    alone = choose(Choice(), normal, LENGTHS, faulty, seed=1)
    assert alone.kinds["fault"]["auroc"] == pytest.approx(found.kinds["fault"]["auroc"], abs=1e-9)
