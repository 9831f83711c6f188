"""Counts beside a model: when they are there, and that scores are the mixture they say they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from time_limits import unlimited
from tiny_models import dna_model, protein_model, residues

from seqmlm.anomaly.levels import View
from seqmlm.anomaly.values import ALONE, COUNTED, SEEN, ScoredRecord
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.expert import CountExpert
from seqmlm.engine.reductions import Rows
from seqmlm.engine.types import InMemory, Longs
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.errors import StateError
from seqmlm.inference.arrays import encode_arrays
from seqmlm.inference.expert import stored_expert
from seqmlm.inference.model_folder import COUNTS, LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.reports.verdict import HeldOutBits, counts_sentences
from seqmlm.training.counts import _Learner, fit_expert


class Whole(InMemory):
    """Sequences that are records."""

    def __init__(self, model: LoadedModel, raws: Sequence[str]) -> None:
        super().__init__([model.tokenizer.encode(raw) for raw in raws])

    def records(self, indices: Sequence[int]) -> Longs:
        return np.asarray(indices, dtype=np.int64)


def _repeating(count: int, seed: int) -> list[str]:
    """Stretches of one long repeating sequence: counts know them at once, a random model never."""
    random = np.random.default_rng(seed)
    text = residues(40) * 3
    return [text[start : start + 15] for start in random.integers(0, 60, size=count).tolist()]


def _fitted(
    folder: Path,
    *,
    model: LoadedModel | None = None,
    train: list[str] | None = None,
    held: list[str] | None = None,
    sensitive: bool = False,
) -> LoadedModel:
    model = model or protein_model()
    model = replace(model, path=str(folder), card=replace(model.card, sensitive=sensitive))
    said: list[str] = []
    fit_expert(
        model,
        Whole(model, train or _repeating(80, seed=0)),
        Whole(model, held or _repeating(40, seed=1)),
        unigram=model.tokenizer.units.frequencies(np.ones(model.tokenizer.space.size)),
        tokens=100,
        seed=0,
        notify=said.append,
        time_left=unlimited(),
    )
    assert not said
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return _fitted(tmp_path_factory.mktemp("model"))


def _scored(
    session: Session, raws: list[str], mode: Mode = EXACT, view: View | None = None
) -> list[ScoredRecord]:
    scorer = RecordScorer(session)
    encoded = scorer.encoded([Record(id=raw, raw=raw, source="x", line=1) for raw in raws], Problems())
    return scorer.unit_scores(encoded, mode) if view is None else scorer.unit_scores(encoded, mode, view=view)


RAWS = [*_repeating(3, seed=2), residues(33), "M"]


def _bases(count: int, seed: int) -> list[str]:
    """Stretches of one sequence of bases, some of them changed."""
    random = np.random.default_rng(seed)
    text = np.random.default_rng(9).choice(list("ACGT"), size=120)
    found = []
    for start in random.integers(0, 80, size=count).tolist():
        own = text[start : start + 30].copy()
        own[random.integers(30, size=3)] = random.choice(list("ACGT"), size=3)
        found.append("".join(own))
    return found


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("bases")
    return _fitted(folder, model=dna_model(), train=_bases(60, seed=0), held=_bases(40, seed=1))


@pytest.mark.parametrize("mode", [EXACT, Mode("partition", 3)])
def test_of_bases_experts_are_multiplied(bases: LoadedModel, mode: Mode) -> None:
    expert = stored_expert(bases)
    assert expert.product
    # A base that is not known, two windows of one sequence, and one base alone.
    raws = [*_bases(3, seed=2), "".join(_bases(2, seed=3)), "ACGTNNAC" + _bases(1, seed=4)[0], "G"]
    alone = _scored(Session(bases, expert="none"), raws, mode)
    both = _scored(Session(bases), raws, mode)
    for own, one in zip(alone, both, strict=True):
        places = own.places
        priced = expert.count_log_probs(expert.hash_units([own.encoding])).take(places)
        logs = np.concatenate([_rows(bases, own, mode)[None], priced.log2])
        shares = np.exp2(np.einsum("m,mnk->nk", expert.weights["exact"][0], logs))
        assert priced.symbol is not None
        expected = shares[np.arange(len(places)), priced.symbol] / shares.sum(axis=1)
        assert np.allclose(np.exp2(-one.surprisal), expected, rtol=1e-4)
        assert np.allclose(one.values[ALONE], own.surprisal, atol=1e-5)
        assert one.values.keys() == {ALONE, COUNTED, SEEN}
    assert both[0].surprisal.mean() < alone[0].surprisal.mean() - 0.5
    _sum_up(bases, both, mode)


def _sum_up(model: LoadedModel, found: Sequence[ScoredRecord], mode: Mode) -> None:
    """Fail where sequences have another pseudo-log-likelihood than their units together."""
    sequences = RecordScorer(Session(model)).sequences([one.encoding for one in found], mode)
    for one, score in zip(found, sequences, strict=True):
        assert score.pll == pytest.approx(-one.surprisal.sum() * np.log(2), rel=1e-5)
        assert len(score.units[0]) == len(one)


def _rows(model: LoadedModel, own: ScoredRecord, mode: Mode) -> NDArray[np.float64]:
    """(U, 4) log2 p of each base, at the units of a record, by the model alone."""
    scorer = RecordScorer(Session(model, expert="none"))
    encoded = scorer.encoded([own.record], Problems())
    [scored] = scorer.unit_scores(encoded, mode, want=[Rows()])
    ordinary = np.flatnonzero(~model.tokenizer.space.is_special)
    return np.asarray(scored.values[Rows.name][:, ordinary] / np.log(2))


@pytest.mark.parametrize("mode", [EXACT, Mode("partition", 3)])
def test_scores_are_the_mixture(model: LoadedModel, mode: Mode) -> None:
    expert = stored_expert(model)
    alone = _scored(Session(model, expert="none"), RAWS, mode)
    both = _scored(Session(model), RAWS, mode)
    for own, one in zip(alone, both, strict=True):
        units = expert.hash_units([own.encoding])
        expected, share = expert.mixture(-own.surprisal, expert.count_log_probs(units), str(mode))
        assert np.allclose(one.surprisal, -expected)
        assert np.allclose(one.values[ALONE], own.surprisal)
        assert np.allclose(one.values[COUNTED], share)
        assert one.values[SEEN].shape == (len(one), 3)
        assert ALONE not in own.values
    assert both[0].surprisal.mean() < alone[0].surprisal.mean() / 2
    _sum_up(model, both, mode)


def test_a_model_that_sees_the_units_is_no_surer_than_counts(model: LoadedModel) -> None:
    expert = stored_expert(model)
    alone = _scored(Session(model, expert="none"), RAWS, ONE_PASS)
    both = _scored(Session(model), RAWS, ONE_PASS)
    for own, one in zip(alone, both, strict=True):
        counts = -expert.count_mixture(expert.count_log_probs(expert.hash_units([own.encoding])))
        assert np.allclose(one.surprisal, np.maximum(own.surprisal, counts))
        assert np.allclose(one.values[COUNTED], counts > own.surprisal)
    _sum_up(model, both, ONE_PASS)


def test_some_units_of_a_sequence_are_mixed_as_in_all_of_it(model: LoadedModel) -> None:
    [whole] = _scored(Session(model), [residues(33)])
    wanted = np.isin(whole.encoding.groups, [4, 30])
    [some] = RecordScorer(Session(model)).sequences([whole.encoding], selected=[wanted])
    assert some.pll == pytest.approx(-whole.surprisal[[4, 30]].sum() * np.log(2), rel=1e-5)


def test_where_the_model_is_shown_a_part_it_speaks_alone(model: LoadedModel) -> None:
    class Part(View):
        """As the whole, but not known to be."""

    [alone] = _scored(Session(model, expert="none"), RAWS[:1])
    [part] = _scored(Session(model), RAWS[:1], view=Part())
    assert np.allclose(part.surprisal, alone.surprisal)
    assert ALONE not in part.values


def test_the_facts_are_of_other_records_than_the_weights(model: LoadedModel) -> None:
    expert = stored_expert(model)
    facts = expert.facts
    assert facts["better"]
    assert facts["groups"] == 20
    assert max(facts["mixture_bits"], facts["counts_bits"]) < facts["model_bits"] / 2
    for first, others in facts["gains"].items():
        for second, gain in others.items():
            assert gain["value"] == pytest.approx(facts[f"{second}_bits"] - facts[f"{first}_bits"])
            assert gain["low"] < gain["value"] < gain["high"]
    assert facts["gains"]["mixture"]["model"]["low"] > 0
    assert facts["frequencies_bits"] == pytest.approx(np.log2(20), abs=0.5)


def test_a_few_records_give_no_interval() -> None:
    """Resamples of one record are all alike: a difference would always be certain."""
    learner = object.__new__(_Learner)
    learner._group, learner.learns = np.arange(60) % 4, np.zeros(60, dtype=np.bool_)
    bits = {
        name: np.full(60, value) for value, name in enumerate(("mixture", "counts", "model", "frequencies"))
    }
    facts = learner._facts(bits)
    assert facts["gains"]["mixture"]["model"] == {"value": 2.0}
    told = counts_sentences(HeldOutBits.of_counts("word", facts))
    assert told[-1] == "model + counts is better than the model, by 2 bits"
    assert not [one for one in told if "clearly" in one]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_mean_of_held_out_records_decides_whether_counts_are_mixed_in(sign: int) -> None:
    """The interval of the gain includes zero, and the mean is above it or below it."""
    learner = object.__new__(_Learner)
    learner._group, learner.learns = np.arange(60), np.zeros(60, dtype=np.bool_)
    model, noise = np.full(60, 2.0), np.random.default_rng(0).normal(size=60)
    mixture = model - sign * (0.05 + noise - noise.mean())
    facts = learner._facts({"model": model, "mixture": mixture, "counts": model, "frequencies": model + 1})
    gain = facts["gains"]["mixture"]["model"]
    assert gain["low"] < 0 < gain["high"]
    assert gain["value"] == pytest.approx(sign * 0.05)
    assert facts["better"] == (sign > 0)


def test_counts_that_do_not_help_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    model = _fitted(tmp_path)
    expert = stored_expert(model)
    described = {**expert.description(), "facts": {**expert.facts, "better": False}}
    (tmp_path / COUNTS).write_bytes(encode_arrays(expert.arrays(), {"seqmlm": json.dumps(described)}))
    assert stored_expert(model, "auto") is None
    assert stored_expert(model, "none") is None
    assert stored_expert(model, "counts") is not None


def test_nothing_that_fewer_than_ten_subjects_have_is_counted(tmp_path: Path) -> None:
    model = _fitted(tmp_path, train=[residues(15)] * 9, sensitive=True)
    expert = stored_expert(model, "counts")
    assert expert.bytes == 0
    assert (tmp_path / COUNTS).stat().st_mode & 0o777 == 0o600


def test_too_few_held_out_units_give_no_counts(tmp_path: Path) -> None:
    model = replace(protein_model(), path=str(tmp_path))
    said: list[str] = []
    records = Whole(model, [residues(10)] * 2)
    unigram = model.tokenizer.units.frequencies(np.ones(model.tokenizer.space.size))
    told = {"notify": said.append, "time_left": unlimited()}
    found = fit_expert(model, records, records, unigram=unigram, tokens=9, seed=0, **told)
    assert found is None
    assert "too few validation units" in said[0]
    with pytest.raises(StateError, match="has no counts"):
        stored_expert(model, "counts")


@pytest.mark.parametrize("damage", ["cut", "header", "other", "facts", "bits", "smoothing", "weights"])
def test_counts_that_cannot_be_read_or_lack_something_are_an_error(
    model: LoadedModel, tmp_path: Path, damage: str
) -> None:
    expert, content = stored_expert(model), (Path(model.path) / COUNTS).read_bytes()
    described, arrays = expert.description(), expert.arrays()
    changed = {
        "facts": {"facts": ["better"]},
        "bits": {"facts": {"better": True}},
        "smoothing": {"smoothing": [one[:-1] for one in expert.smoothing]},
    }.get(damage, {})
    if damage == "weights":
        del arrays["weights/exact"]
    bad = {
        "cut": content[:-100],
        "header": content.replace(b'\\"chains\\"', b'\\"chainz\\"'),
        "other": content.replace(b"1/0/events", b"1/0/eventz"),
    }.get(damage) or encode_arrays(arrays, {"seqmlm": json.dumps({**described, **changed})})
    assert bad != content
    (tmp_path / COUNTS).write_bytes(bad)
    with pytest.raises(StateError, match="expert=none"):
        stored_expert(replace(model, path=str(tmp_path)))


def test_an_expert_of_another_alphabet_is_refused(model: LoadedModel) -> None:
    expert = stored_expert(model)
    arrays = {**expert.arrays(), "unigram": np.zeros(3)}
    with pytest.raises(ValueError, match="symbols"):
        CountExpert.from_arrays(arrays, expert.description(), model.tokenizer.units)
