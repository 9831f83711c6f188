"""How much is done at a time: batches of seconds, legs of half a minute, by the size of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from seqmlm.engine.units import EXACT, Mode
from seqmlm.tasks.bundle import LoadedModel
from seqmlm.tasks.calibration import ESCALATE
from seqmlm.tasks.encoding import Size

BATCH_SECONDS, LEG_SECONDS = 2, 30

# Multiplications and additions a second: of two cores, and of a GPU that a small model does not fill.
_RATES = {False: 5e10, True: 1e13}
_LEAST = {False: 4096, True: 1 << 17}  # forward tokens of a batch: less would leave forwards half empty


@dataclass(frozen=True, kw_only=True)
class Work:
    """Forward tokens of a batch and of a leg; the same for the same model and kind of device.

    A clock must not decide them: a scoring that goes on after a kill has to cut the input where one that was
    not disturbed does.
    """

    batch: int
    leg: int

    @classmethod
    def of(cls, model: LoadedModel) -> Work:
        """What about `BATCH_SECONDS` and `LEG_SECONDS` are spent on."""
        fast = torch.accelerator.is_available()
        inputs = model.rows.model.get_input_embeddings().weight.numel()
        weights = max(1, sum(one.numel() for one in model.rows.parameters()) - inputs)
        each_second = _RATES[fast] / (2 * weights)
        batch = max(_LEAST[fast], int(BATCH_SECONDS * each_second))
        return cls(batch=batch, leg=max(batch, int(LEG_SECONDS * each_second)))


def batch_size(model: LoadedModel, mode: Mode, work: Work, *, cascade: bool) -> Size:
    """Batches of so much work.

    Args:
        mode: of the scoring; of a cascade, of its first stage.
        cascade: some of what is scored is asked exactly afterwards.
    """
    cost = _cost(mode, model.card.max_length)
    if cascade:
        first, second = cost, _cost(EXACT, model.card.max_length)
        cost = lambda tokens: first(tokens) + ESCALATE * second(tokens)  # noqa: E731
    return Size(work=work.batch, of=cost)


def _cost(mode: Mode, longest: int) -> Callable[[int], float]:
    """Forward tokens of a record by its tokens; windows of a long one overlap by half."""
    copies = {"one-pass": 1, "partition": mode.parts}.get(mode.kind)

    def of(tokens: int) -> float:
        window = min(tokens, longest)
        shown = tokens if tokens <= longest else 2 * tokens
        return float(shown * copies if copies is not None else tokens * window)

    return of
