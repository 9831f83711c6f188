"""The linear masked model against numpy and scipy: its formula, its loss, its optimum, its contacts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from seqmlm.domains.protein.sample import families
from seqmlm.domains.protein.tokenizer import SPACE, ResidueTokenizer
from seqmlm.engine import linear
from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.linear import LinearRows, Penalty, Potts, Shape, coupling_norms, spread, zero_sum
from seqmlm.engine.loop import Observer
from seqmlm.engine.packing import Document, pack
from seqmlm.engine.pseudolikelihood import LinearLoop, Objective, prepare, sequence_weights
from seqmlm.engine.reductions import Rows
from seqmlm.engine.schedule import LoopConfig
from seqmlm.engine.types import Encoding, InMemory
from seqmlm.errors import StateError, TrainingError, UsageError
from seqmlm.structure.estimators import StructureSettings, estimator
from seqmlm.structure.maps import DependenceMap

Doubles = NDArray[np.float64]

TOKENIZER = ResidueTokenizer()
ALIGNED = ("ACDA-", "AC-AC", "DCDAC", "DDDAA", "ACDDC", "CADAC", "C-DDA")
ALPHABET = sorted(TOKENIZER.encode("ACD").ids[1:-1].tolist())


def encoded(rows: tuple[str, ...] = ALIGNED) -> list[Encoding]:
    return TOKENIZER.encode_batch(list(rows))


def random_model(seed: int = 0, columns: int = 5) -> LinearRows:
    shape = Shape(columns=columns, lead=1, trail=1, symbols=tuple(ALPHABET), sequences=6.0)
    model = Potts(shape)
    torch.manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn_like(one))
    return LinearRows(model, SPACE)


def by_hand(rows: LinearRows, ids: NDArray[Any], place: int) -> Doubles:
    """ln p of the states at a position: field and couplings to every other column that shows a state."""
    model = rows.model
    upper = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    logits = model.fields[place - 1].detach().double().numpy().copy()
    for other in range(5):
        if other == place - 1 or ids[other + 1] not in ALPHABET:
            continue
        state = ALPHABET.index(ids[other + 1])
        i, j = min(other, place - 1), max(other, place - 1)
        pair = model.couplings[upper.index((i, j))].detach().double().numpy()
        logits += pair[:, state] if place - 1 == i else pair[state]
    return np.asarray(logits - np.log(np.exp(logits).sum()))


def numpy_cost(values: Doubles, states: NDArray[Any], weights: Doubles, penalty: Penalty) -> float:
    """Penalized negative log-pseudolikelihood, sequence by sequence and column by column."""
    length, number = states.shape[1], len(ALPHABET)
    field = values[: length * number].reshape(length, number)
    pairs = values[length * number :].reshape(-1, number, number)
    full = np.zeros((length, length, number, number))
    for pair, (i, j) in zip(pairs, zip(*np.triu_indices(length, 1), strict=True), strict=True):
        full[i, j], full[j, i] = pair, pair.T
    total = penalty.fields * (field**2).sum()
    weight = penalty.couplings or 0.0
    total += weight * ((pairs**2).sum() if penalty.penalty == "l2" else np.abs(pairs).sum())
    for row, count in zip(states, weights, strict=True):
        for i in range(length):
            if row[i] < number:
                logits = field[i] + sum(full[i, j][:, row[j]] for j in range(length) if row[j] < number)
                total -= count * (logits[row[i]] - np.log(np.exp(logits).sum()))
    return float(total)


def flat(model: Potts) -> Doubles:
    return np.concatenate([one.detach().double().numpy().ravel() for one in (model.fields, model.couplings)])


def coupling_map(rows: LinearRows, encoding: Encoding, *, apc: bool = True) -> DependenceMap:
    settings = StructureSettings(method="couplings", apc=apc)
    return estimator(settings, Conditionals(rows), TOKENIZER.units).maps([encoding])[0]


def fit(out: Path, penalty: Penalty, steps: int = 2000, **options: Any) -> tuple[LinearRows, Any]:
    rows, data = prepare(InMemory(encoded()), SPACE, penalty)
    config = LoopConfig(max_steps=steps, device="cpu")
    result = LinearLoop(rows, data, penalty, config, directory=out, **options).run(resume=True)
    return rows, result


# The formula


def test_conditionals_are_the_formula() -> None:
    rows = random_model()
    ask = Conditionals(rows)
    for encoding in encoded():
        for masked in ((1,), (2, 4)):
            query = Query(
                encoding=encoding, masked=np.array(masked, np.int32), asked=np.array([1, 3], np.int32)
            )
            found = next(ask.ask([query], [Rows()])).values[Rows.name]
            ids = encoding.ids.copy()
            ids[list(masked)] = SPACE.mask
            for row, place in zip(found, (1, 3), strict=True):
                share = np.log(6 / 7)  # one sequence more would have to be of a symbol never seen
                assert row[ALPHABET] == pytest.approx(by_hand(rows, ids, place) + share, abs=1e-5)
                unseen = np.setdiff1d(SPACE.ordinary, ALPHABET)
                assert np.exp(row[unseen]) == pytest.approx(1 / 7 / len(unseen), rel=1e-4)
                assert np.isneginf(row[list(SPACE.special)]).all()


def test_packed_loss_is_the_sum_of_log_probabilities() -> None:
    rows = random_model()
    documents = [
        Document(ids=one.ids, asked=np.array([1, 2], np.int32), targets=one.ids[[1, 2]])
        for one in encoded()[2:5]
    ]
    loss = rows(pack(documents))
    told = sum(
        by_hand(rows, one.ids, place)[ALPHABET.index(one.ids[place])] + math.log(6 / 7)
        for one in encoded()[2:5]
        for place in (1, 2)
    )
    assert float(loss.detach()) == pytest.approx(-told, rel=1e-5)
    loss.backward()
    assert rows.model.couplings.grad.abs().sum() > 0


def test_what_it_cannot_do_is_said() -> None:
    rows = random_model()
    ask = Conditionals(rows)
    none = np.zeros(0, np.int32)
    with pytest.raises(UsageError, match="6 tokens, but this linear model reads only 7"):
        list(ask.ask([Query(encoding=TOKENIZER.encode("ACDA"), masked=none, asked=np.array([1], np.int32))]))
    with pytest.raises(UsageError, match="start or end token has no probability"):
        list(ask.ask([Query(encoding=encoded()[0], masked=none, asked=np.array([0], np.int32))]))
    with pytest.raises(UsageError, match="no hidden states"):
        list(ask.hidden_states(encoded()[:1]))
    with pytest.raises(UsageError, match="but at most"):
        Shape(columns=400, lead=0, trail=0, symbols=tuple(range(100)), sequences=1.0)


# The loss


@pytest.mark.parametrize("penalty", [Penalty(couplings=0.3), Penalty(penalty="l1", couplings=0.3)])
def test_objective_is_the_pseudolikelihood(penalty: Penalty) -> None:
    rows, data = prepare(InMemory(encoded()), SPACE, penalty)
    other = random_model(1)
    weights = data.weights.numpy()
    assert rows.model.config.symbols == tuple(ALPHABET)
    objective = Objective(data, rows.model.config, penalty, torch.device("cpu"))
    parameters = [one.detach().double() for one in (other.model.fields, other.model.couplings)]
    value, loss, *slopes = objective.smooth(*parameters)
    value += objective.shrinkage * float(parameters[1].abs().sum())
    told = numpy_cost(flat(other.model), data.states.numpy(), weights, penalty)
    assert value * weights.sum() == pytest.approx(told, rel=1e-6)
    plain = numpy_cost(flat(other.model), data.states.numpy(), weights, Penalty(fields=0.0, couplings=0.0))
    known = (weights[:, None] * (data.states.numpy() < len(ALPHABET))).sum()
    assert loss == pytest.approx(plain / known, rel=1e-6)
    for number, at in ((0, (2, 1)), (1, (3, 0, 2)), (1, (9, 1, 1))):
        ends = []
        for step in (1e-3, -1e-3):
            moved = [one.clone() for one in parameters]
            moved[number][at] += step
            ends.append(objective.smooth(*moved)[0])
        assert float(slopes[number][at]) == pytest.approx((ends[0] - ends[1]) / 2e-3, abs=2e-4)


def test_sequences_alike_share_a_weight() -> None:
    ids = np.array([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 9, 6], [7, 7, 7, 7, 7]])
    assert sequence_weights(ids, 0.8).tolist() == [1 / 2, 1 / 3, 1 / 2, 1]
    assert sequence_weights(ids, 1.0).tolist() == [1, 1, 1, 1]
    assert sequence_weights(np.repeat(ids, 2, axis=0), 0.999).tolist() == [1 / 2] * 8


# The optimum


def test_training_reaches_the_optimum_of_scipy(tmp_path: Path) -> None:
    penalty = Penalty(couplings=0.05)
    rows, result = fit(tmp_path, penalty)
    _, data = prepare(InMemory(encoded()), SPACE, penalty)
    states, weights = data.states.numpy(), data.weights.numpy()
    start = np.zeros(len(flat(rows.model)))
    told = minimize(numpy_cost, start, args=(states, weights, penalty), options={"gtol": 1e-4}).x
    assert np.abs(flat(rows.model) - told).max() < 1e-3
    assert result.status == "finished"
    assert result.steps < 2000


def test_l1_leaves_only_what_is_needed(tmp_path: Path) -> None:
    penalty = Penalty(penalty="l1", couplings=0.4)
    rows, _ = fit(tmp_path, penalty)
    _, data = prepare(InMemory(encoded()), SPACE, penalty)
    reached = numpy_cost(flat(rows.model), data.states.numpy(), data.weights.numpy(), penalty)
    couplings = rows.model.couplings.detach().numpy()
    assert 0 < (couplings == 0).mean() < 1
    rng = np.random.default_rng(0)
    for _ in range(50):  # no step in any direction is better
        moved = flat(rows.model) + rng.normal(0, 1e-2, len(flat(rows.model)))
        assert numpy_cost(moved, data.states.numpy(), data.weights.numpy(), penalty) > reached


def test_a_stopped_training_goes_on_to_the_same_optimum(tmp_path: Path) -> None:
    penalty = Penalty(couplings=0.1)
    whole, _ = fit(tmp_path / "whole", penalty)
    _, first = fit(tmp_path / "parts", penalty, steps=3)
    assert (first.steps, first.resumed_from) == (3, None)
    parts, second = fit(tmp_path / "parts", penalty)
    assert second.resumed_from == 3
    assert np.abs(flat(whole.model) - flat(parts.model)).max() < 1e-3


def test_what_is_no_number_ends_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Objective, "smooth", lambda self, field, pairs: (math.nan, math.nan, field * math.nan, pairs * 0)
    )
    with pytest.raises(TrainingError, match=r"the loss is nan after step 0; there is no checkpoint"):
        fit(tmp_path, Penalty())


def test_progress_is_told(tmp_path: Path) -> None:
    steps, evaluated = list[int](), list[int]()

    class Told(Observer):
        def on_step(self, report: Any) -> None:
            steps.append(report.step)

        def on_evaluation(self, step: int, metrics: Any) -> None:
            evaluated.append(step)

    penalty, config = Penalty(couplings=0.01), LoopConfig(max_steps=25, evaluate_every=10, device="cpu")
    rows, data = prepare(InMemory(encoded()), SPACE, penalty)
    told: dict[str, Any] = {"observer": Told(), "evaluate": lambda rows: {}}
    assert LinearLoop(rows, data, penalty, config, directory=tmp_path, **told).run().steps == 25
    assert (steps, evaluated) == ([10, 20, 25], [10, 20])


def test_a_training_ends_where_held_out_bits_fall_no_more(tmp_path: Path) -> None:
    penalty, config = Penalty(couplings=1e-4), LoopConfig(max_steps=200, evaluate_every=10, device="cpu")
    rows, data = prepare(InMemory(encoded()), SPACE, penalty)
    bits = iter([2.0, 1.5, 1.4994, 1.4988, 1.4985, 1.4983, 1.0])  # the fourth gains enough with the third
    told: dict[str, Any] = {"evaluate": lambda rows: {"bits": next(bits)}, "falls": "bits"}
    assert LinearLoop(rows, data, penalty, config, directory=tmp_path, **told).run().steps == 60
    assert list(bits) == [1.0]


# Settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"penaltys": "l1"}, "no setting 'penaltys'; did you mean 'penalty'"),
        ({"penalty": "l3"}, "must be l2 or l1"),
        ({"couplings": -1}, "numbers of 0 or more"),
        ({"identity": 0}, "above 0 and at most 1"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Penalty.from_settings(values)


def test_weights_by_default() -> None:
    shape = Shape(columns=50, lead=0, trail=0, symbols=tuple(range(20)), sequences=400.0)
    assert Penalty().coupling_weight(shape) == pytest.approx(9.8)
    assert Penalty(penalty="l1").coupling_weight(shape) == pytest.approx(math.sqrt(400 * math.log(1000)) / 20)


def test_sequences_of_several_lengths() -> None:
    with pytest.raises(UsageError, match="align all to one length"):
        prepare(InMemory([*encoded(), TOKENIZER.encode("ACD")]), SPACE, Penalty())


# The folder


def test_a_folder_gives_the_same_model_back(tmp_path: Path) -> None:
    rows = random_model()
    rows.model.save_pretrained(tmp_path)
    again = linear.load(tmp_path, SPACE)
    assert again.model.config == rows.model.config
    assert (flat(again.model) == flat(rows.model)).all()
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"columns": 5', '"columns": 6'))
    with pytest.raises(StateError, match="not a usable linear model"):
        linear.load(tmp_path, SPACE)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert linear.load(tmp_path, SPACE) is None


# The map


def test_the_gauge_keeps_the_probabilities_and_sums_to_zero() -> None:
    rows = random_model()
    found = zero_sum(rows.model)
    assert np.abs(found.sum(axis=1)).max() < 1e-5
    assert np.abs(found - found.transpose(2, 3, 0, 1)).max() < 1e-12
    assert np.abs(np.einsum("iaib->iab", found)).max() == 0
    full = spread(rows.model.couplings.detach(), 5).double().numpy()
    difference = (full - found)[0, :, 1, :]  # a gauge adds what depends on one of the two states alone
    mixed = difference[:-1, :-1] - difference[1:, :-1] - difference[:-1, 1:] + difference[1:, 1:]
    assert np.abs(mixed).max() < 1e-6
    assert coupling_norms(rows.model)[1, 3] == pytest.approx(np.linalg.norm(found[1, :, 3]))


def test_the_map_of_a_sequence_leaves_its_gaps_out() -> None:
    rows = random_model()
    whole, gapped = (coupling_map(rows, encoded()[number], apc=False) for number in (2, 1))
    assert (whole.method, whole.nats, len(whole), len(gapped)) == ("couplings", False, 5, 4)
    kept = [0, 1, 3, 4]
    assert gapped.values[np.triu_indices(4, 1)] == pytest.approx(
        whole.values[np.ix_(kept, kept)][np.triu_indices(4, 1)]
    )
    assert np.isnan(np.diag(whole.values)).all()
    norms = coupling_norms(rows.model)
    assert whole.values[1, 3] == pytest.approx(norms[1, 3])
    with pytest.raises(UsageError, match="align all to one length"):
        coupling_map(rows, TOKENIZER.encode("ACD"))


def test_planted_contacts_are_found(tmp_path: Path) -> None:
    family = families()[0]
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", dtype=np.uint8)
    drawn = letters[family.model.draw(1000, np.random.default_rng(5))]
    encodings = TOKENIZER.encode_batch([row.tobytes().decode() for row in drawn])
    rows, data = prepare(InMemory(encodings), SPACE, Penalty())
    config = LoopConfig(max_steps=20, device="cpu")
    LinearLoop(rows, data, Penalty(), config, directory=tmp_path).run()
    values = coupling_map(rows, encodings[0]).values
    upper = np.triu_indices(len(values), 1)
    contacts = set(family.model.contacts)
    planted = np.array([pair in contacts for pair in zip(*map(np.ndarray.tolist, upper), strict=True)])
    assert planted.sum() == 21
    assert roc_auc_score(planted, values[upper]) > 0.95
