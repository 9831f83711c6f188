"""The modes of scoring against plain calls of the model: what is hidden, and what is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seqmlm.engine.backbones import build
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import Document, pack
from seqmlm.engine.reductions import Entropy, Rank, top
from seqmlm.engine.scoring import Scorer
from seqmlm.engine.shapes import ModelConfig
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import Mode, partition, unit_numbers
from seqmlm.errors import UsageError

SPACE = TokenSpace(size=20, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))
MODES = ["exact", "partition:1", "partition:3", "partition:50", "one-pass"]


@pytest.fixture(scope="module")
def rows() -> MaskedRows:
    torch.manual_seed(0)
    overrides = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = build(ModelConfig(overrides=overrides), SPACE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return MaskedRows(model, SPACE).eval()


def sequences() -> list[Encoding]:
    rng = np.random.default_rng(1)
    made = []
    for length, words in ((1, 1), (2, 3), (9, 1), (14, 3), (30, 2)):
        sizes = rng.integers(1, words + 1, size=length)
        inner = rng.integers(2, SPACE.size, size=int(sizes.sum()))  # unknown tokens too
        groups = np.concatenate([[-1], np.repeat(np.arange(length), sizes), [-1]]).astype(np.int32)
        made.append(Encoding(ids=np.array([3, *inner, 4], dtype=np.int32), groups=groups))
    return made


def naive(rows: MaskedRows, encoding: Encoding, hidden: list[int], asked: int) -> torch.Tensor:
    """(V,) log-probabilities at one position, by one call."""
    ids = encoding.ids.copy()
    ids[hidden] = SPACE.mask
    with torch.no_grad():
        logits = rows(pack([Document(ids=ids, asked=np.array([asked]))]), output="logits")
    return torch.log_softmax(logits[0].double(), -1)


def hidden_with(encoding: Encoding, position: int, mode: Mode) -> list[int]:
    numbers = unit_numbers(encoding)
    own = numbers[position]
    ordinary = ~SPACE.is_special[encoding.ids]
    if mode.kind == "one-pass":
        return []
    if mode.kind == "partition":
        passes = partition(int(numbers.max()) + 1, mode.parts)
        together = (numbers >= 0) & (passes[numbers] == passes[own])
        return np.flatnonzero(together & ordinary).tolist()
    unit = np.flatnonzero((numbers == own) & ordinary)
    return [p for p in unit.tolist() if p >= position]


@pytest.mark.parametrize("text", MODES)
def test_a_mode_is_what_a_loop_over_positions_computes(rows: MaskedRows, text: str) -> None:
    mode = Mode.parse(text)
    want = (Entropy(), Rank(), *top(3))
    scorer = Scorer(Conditionals(rows), mode=mode, want=want)
    for encoding, score in zip(sequences(), scorer.windows((e, None) for e in sequences()), strict=True):
        scored = np.flatnonzero((encoding.groups >= 0) & ~SPACE.is_special[encoding.ids])
        assert score.positions.tolist() == scored.tolist()
        assert score.groups.tolist() == encoding.groups[scored].tolist()
        assert score.values.keys() == {"entropy", "rank", "top_ids", "top_log_probs"}
        for i, position in enumerate(scored.tolist()):
            truth = naive(rows, encoding, hidden_with(encoding, position, mode), position)
            target = truth[encoding.ids[position]]
            assert score.log_probs[i] == pytest.approx(float(target), abs=1e-4)
            own = {name: value[i] for name, value in score.values.items()}
            assert own["entropy"] == pytest.approx(float(torch.special.entr(truth.exp()).sum()), abs=1e-4)
            assert abs(int((truth > target + 1e-5).sum()) - own["rank"]) <= 1
            assert own["top_ids"][0] == int(truth.argmax())
            assert own["top_log_probs"][0] == pytest.approx(float(truth.max()), abs=1e-4)


@pytest.mark.parametrize("text", MODES)
def test_asking_a_part_gives_the_same_answers(rows: MaskedRows, text: str) -> None:
    encoding = sequences()[4]
    scorer = Scorer(Conditionals(rows), mode=Mode.parse(text))
    owned = np.arange(len(encoding)) % 3 == 0
    [whole] = scorer.windows([(encoding, None)])
    [part] = scorer.windows([(encoding, owned)])
    kept = owned[whole.positions]
    assert part.positions.tolist() == whole.positions[kept].tolist()
    assert part.log_probs == pytest.approx(whole.log_probs[kept], abs=1e-4)


@pytest.mark.parametrize(("count", "parts"), [(0, 3), (1, 3), (7, 3), (100, 7), (5, 1), (6, 6)])
def test_a_partition_hides_each_unit_once_and_evenly(count: int, parts: int) -> None:
    passes = partition(count, parts)
    assert passes.shape == (count,)
    for block in range(0, count - parts + 1, parts):
        assert sorted(passes[block : block + parts].tolist()) == list(range(parts))


@pytest.mark.parametrize("text", ["", "fast", "token", "partition", "partition:0", "partition:x", "exact:3"])
def test_unknown_modes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="unknown mode"):
        Mode.parse(text)
