"""Training of a linear masked model by pseudolikelihood (Besag 1975), on all data at once, to its optimum.

The loss is convex and has one optimum. Under an L2 penalty, L-BFGS finds it. Under an L1 penalty, which
selects neighbours as in Meinshausen and Buhlmann (2006), FISTA finds it. An interrupted training continues
from its parameters.

    N  sequences    L  columns    A  states
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqmlm.engine import checkpoint
from seqmlm.engine.checkpoint import Progress
from seqmlm.engine.distributed import Processes
from seqmlm.engine.linear import Doubles, LinearRows, Penalty, Potts, Shape, check_length, spread
from seqmlm.engine.loop import LoopResult, Observer, StepReport
from seqmlm.engine.optimizer import module_tensors, restore_module
from seqmlm.engine.schedule import LoopConfig
from seqmlm.engine.signals import StopSignals
from seqmlm.engine.types import Sequences, TokenSpace
from seqmlm.errors import TrainingError, UsageError

_CHUNK = 1 << 22  # number of elements that are processed together
_ROUND = 10  # number of iterations between two checks of limits, signals and clocks
_WORTH, _PATIENCE = 1e-3, 2  # smallest gain that counts, and number of evaluations without it
_HISTORY = 5  # pairs of steps and gradients that L-BFGS remembers, each twice as large as the model
_SMALL = 1 << 20  # up to this number of couplings, all is in double precision, which takes twice as long
_FLAT = {torch.float64: 1e-6, torch.float32: 1e-5}  # largest gradient per sequence that counts as zero


def prepare(sequences: Sequences, space: TokenSpace, penalty: Penalty) -> tuple[LinearRows, AlignedSequences]:
    """A linear model without couplings for training sequences, and the sequences in its form.

    Args:
        sequences: the training sequences.
        space: the vocabulary.
        penalty: `penalty.identity` determines the weights of sequences.

    Raises:
        UsageError: there is no sequence, sequences have different lengths, or there are too many couplings.
    """
    lengths = np.unique(np.asarray(sequences.lengths))
    if not len(lengths):
        raise UsageError("a linear model needs at least one training sequence")
    check_length(lengths.tolist(), int(lengths[0]))
    ids = np.stack([np.asarray(sequences[number].ids) for number in range(len(sequences))])
    lead, trail = (
        int(token is not None and bool((ids[:, at] == token).all()))
        for token, at in ((space.start, 0), (space.end, -1))
    )
    inner = ids[:, lead : ids.shape[1] - trail]
    symbols = tuple(np.intersect1d(np.unique(inner), space.ordinary).tolist())
    if not symbols:
        raise UsageError("the training sequences have no symbol that can be predicted")
    weights = sequence_weights(inner, penalty.identity)
    shape = Shape(
        columns=inner.shape[1], lead=lead, trail=trail, symbols=symbols, sequences=float(weights.sum())
    )
    rows = LinearRows(Potts(shape), space)
    data = AlignedSequences(shape.states(inner, space.size), torch.from_numpy(weights))
    with torch.no_grad():
        rows.model.fields.copy_(data.fields(len(symbols)))
    return rows, data


def sequence_weights(ids: NDArray[np.integer], identity: float) -> Doubles:
    """(N,) 1 / the number of sequences that agree with a sequence in at least this fraction of columns.

    The sequence itself is counted. Gaps count as a symbol, as in plmDCA.

    Args:
        ids: (N, L) token ids.
        identity: fraction in (0, 1]; with 1, every sequence has weight 1.
    """
    number, length = ids.shape
    if identity >= 1:
        return np.ones(number)
    symbols, codes = np.unique(ids, return_inverse=True)
    codes = torch.from_numpy(codes.reshape(ids.shape).astype(np.int64))

    def one_hot(part: Tensor) -> Tensor:
        return nn.functional.one_hot(part, len(symbols)).flatten(1).float()

    min_alike = math.ceil(identity * length - 1e-9)
    step = max(1, _CHUNK // (length * len(symbols)))
    parts = torch.split(codes, step)
    like = torch.zeros(number)
    for a, first_part in enumerate(parts):
        rows = one_hot(first_part)
        for b, second_part in enumerate(parts[a:], start=a):
            alike = rows @ one_hot(second_part).T >= min_alike - 0.5
            like[a * step : a * step + len(first_part)] += alike.sum(1)
            if b > a:
                like[b * step : b * step + len(second_part)] += alike.sum(0)
    return np.asarray(1 / like.double().numpy())


@dataclass(frozen=True, eq=False)
class AlignedSequences:
    """Training sequences in the form that a linear model uses.

    Args:
        states: (N, L) state of each token, A for tokens that are not states.
        weights: (N,) float64 weight of each sequence.
    """

    states: Tensor
    weights: Tensor

    def fields(self, number: int) -> Tensor:
        """(L, A) log(count + 1) of each state, with sum 0 in each column: the initial h of the solver."""
        hot = nn.functional.one_hot(self.states, number + 1)[..., :number]
        logs = torch.einsum("n,nla->la", self.weights, hot.double()).add(1).log()
        return logs - logs.mean(1, keepdim=True)


class Objective:
    """The loss of a linear model and its gradient over all sequences, computed in pieces.

    Sums are in double precision. For small models everything is. The loss is the sum over sequences of
    weight x sum over columns of -ln p(x_i | rest), plus the penalty. Columns without a state are left out.
    The total is divided by the sum of the weights, which does not change the optimum.

    Args:
        data: the training sequences.
        shape: columns and states of the model.
        penalty: penalty on the parameters.
        device: device to compute on.
    """

    def __init__(self, data: AlignedSequences, shape: Shape, penalty: Penalty, device: torch.device) -> None:
        self.shape, self.penalty = shape, penalty
        pairs = shape.columns * (shape.columns - 1) // 2
        small = pairs * len(shape.symbols) ** 2 <= _SMALL
        self._sums = torch.float32 if device.type == "mps" else torch.float64
        self.dtype = self._sums if small else torch.float32
        self._states, self._weights = data.states.to(device), data.weights.to(device, self.dtype)
        self._total = float(data.weights.sum())
        self._couplings = penalty.coupling_weight(shape)
        has_state = data.states < len(shape.symbols)
        self.predicted = max(float((data.weights[:, None] * has_state).sum()), 1e-300)

    @property
    def shrinkage(self) -> float:
        """Factor of the absolute values of J; 0 under l2."""
        return self._couplings / self._total if self.penalty.penalty == "l1" else 0.0

    def smooth(self, field: Tensor, couplings: Tensor) -> tuple[float, float, Tensor, Tensor]:
        """The objective without an L1 penalty, the loss in nats per symbol, and the gradients of h and J."""
        length, states = self.shape.columns, len(self.shape.symbols)
        weight = spread(couplings, length).reshape(length * states, length * states)
        nll = 0.0
        g_field, g_weight = torch.zeros_like(field), torch.zeros_like(weight)
        step = max(1, _CHUNK // (length * (states + 1)))
        for chunk_states, counts in zip(
            torch.split(self._states, step), torch.split(self._weights, step), strict=True
        ):
            hot = nn.functional.one_hot(chunk_states, states + 1)[..., :states].to(self.dtype)
            state_weights = ((chunk_states < states) * counts[:, None])[..., None]
            flat = hot.flatten(1)
            log_p = torch.log_softmax(field + (flat @ weight).view(-1, length, states), -1)
            nll -= float((log_p * hot * state_weights).sum(dtype=self._sums))
            error = (log_p.exp() - hot) * state_weights
            g_field += error.sum(0)
            g_weight += flat.T @ error.flatten(1)
        g_full = g_weight.view(length, states, length, states).permute(0, 2, 1, 3)
        i, j = torch.triu_indices(length, length, 1, device=field.device)
        # J_ij is at (i, j) and, transposed, at (j, i).
        g_couplings = g_full[i, j] + g_full[j, i].transpose(1, 2)
        value = nll + self.penalty.fields * float((field**2).sum(dtype=self._sums))
        g_field += 2 * self.penalty.fields * field
        if self.penalty.penalty == "l2":
            value += self._couplings * float((couplings**2).sum(dtype=self._sums))
            g_couplings = g_couplings + 2 * self._couplings * couplings
        total = self._total
        return value / total, nll / self.predicted, g_field / total, g_couplings / total


class _Lbfgs:
    """L-BFGS with a strong Wolfe line search (Nocedal and Wright 2006)."""

    def __init__(self, objective: Objective, parameters: list[Tensor]) -> None:
        self._objective, self._parameters = objective, parameters
        for parameter in parameters:
            parameter.requires_grad_()
        self._optimizer = torch.optim.LBFGS(
            parameters,
            history_size=_HISTORY,
            line_search_fn="strong_wolfe",
            tolerance_grad=_FLAT[objective.dtype],
            tolerance_change=1e-12,
        )
        self.loss = self.norm = math.nan

    def advance(self, iterations: int) -> tuple[int, bool]:
        """Run at most `iterations` iterations.

        Returns:
            The number of iterations, and whether the optimum is reached.
        """
        group = self._optimizer.param_groups[0]
        group["max_iter"], group["max_eval"] = iterations, 25 * iterations
        state = self._optimizer.state[self._parameters[0]]
        iterations_before = state.get("n_iter", 0)

        def closure() -> Tensor:
            with torch.no_grad():
                value, self.loss, *gradients = self._objective.smooth(*self._parameters)
            for tensor, gradient in zip(self._parameters, gradients, strict=True):
                tensor.grad = gradient
            self.norm = max(float(tensor.abs().max()) if tensor.numel() else 0.0 for tensor in gradients)
            return torch.tensor(value, dtype=torch.float64)

        self._optimizer.step(closure)  # type: ignore[no-untyped-call]
        done = self._optimizer.state[self._parameters[0]]["n_iter"] - iterations_before
        return done, done < iterations


class _Fista:
    """Proximal gradient steps with momentum, a step length found by halving, and restarts.

    Sources: FISTA, Beck and Teboulle 2009; restarts, O'Donoghue and Candes 2015.
    """

    def __init__(self, objective: Objective, parameters: list[Tensor]) -> None:
        self._objective, self._now = objective, parameters
        self._previous = [parameter.clone() for parameter in parameters]
        self._length, self._momentum = 1.0, 1.0
        self.loss = self.norm = math.nan

    def advance(self, iterations: int) -> tuple[int, bool]:
        """Run at most `iterations` iterations; see `_Lbfgs.advance`."""
        for number in range(iterations):
            momentum = (1 + math.sqrt(1 + 4 * self._momentum**2)) / 2
            share = (self._momentum - 1) / momentum
            pairs = zip(self._now, self._previous, strict=True)
            point = [x + share * (x - previous) for x, previous in pairs]
            value, self.loss, *slopes = self._objective.smooth(*point)
            if not math.isfinite(value):
                return number + 1, False
            proposed = self._proximal_step(value, point, slopes)
            moves = [(a - b) / self._length for a, b in zip(point, proposed, strict=True)]
            self.norm = max(float(move.abs().max()) if move.numel() else 0.0 for move in moves)
            triples = zip(moves, proposed, self._now, strict=True)
            against = sum(float((move * (new_value - x)).sum()) for move, new_value, x in triples)
            self._momentum = 1.0 if against > 0 else momentum
            for x, previous, new_value in zip(self._now, self._previous, proposed, strict=True):
                previous.copy_(x)
                x.copy_(new_value)
            if self.norm <= _FLAT[self._objective.dtype]:
                return number + 1, True
        return iterations, False

    def _proximal_step(self, value: float, point: list[Tensor], slopes: list[Tensor]) -> list[Tensor]:
        """The parameters after a step from `point` against the gradients, with couplings shrunk towards 0.

        The step is halved until the loss after it is within its bound (Beck and Teboulle 2009).
        """
        while True:
            field, couplings = (x - self._length * g for x, g in zip(point, slopes, strict=True))
            threshold = self._length * self._objective.shrinkage
            proposed = [field, torch.sign(couplings) * (couplings.abs() - threshold).clamp_min(0)]
            steps = [n - x for n, x in zip(proposed, point, strict=True)]
            linear = sum(float((g * step).sum()) for g, step in zip(slopes, steps, strict=True))
            square = sum(float((step**2).sum()) for step in steps)
            reached = self._objective.smooth(*proposed)[0]
            if not math.isfinite(reached) or reached <= value + linear + square / (2 * self._length) + 1e-12:
                return proposed
            self._length /= 2


class LinearLoop:
    """Trains a linear model on all data at once; it can stop and resume between rounds of ten iterations.

    A step, in limits and reports, is one iteration. After a stop, L-BFGS has forgotten its last steps. A
    resumed training therefore reaches the same optimum on a different path.

    Args:
        rows: the model, trained in place.
        data: the training sequences.
        penalty: penalty on the parameters.
        config: limits, evaluation and checkpoints; settings for batches and learning rates are not used.
        directory: folder for the checkpoints.
        observer: receives reports and events.
        evaluate: function from `rows` to metrics.
        falls: name of a metric, such as held-out bits. Training ends when it no longer falls. This happens
            long before the optimum, because later gains apply only to the training data.
    """

    def __init__(
        self,
        rows: LinearRows,
        data: AlignedSequences,
        penalty: Penalty,
        config: LoopConfig,
        *,
        directory: Path,
        observer: Observer | None = None,
        evaluate: Callable[[Any], Mapping[str, float]] | None = None,
        falls: str | None = None,
    ) -> None:
        self.rows, self.config, self.directory = rows, config, directory
        self.observer, self.evaluate, self._falls = observer or Observer(), evaluate, falls
        self._least, self._idle = math.inf, 0
        self.processes = Processes(config.device)
        self.objective = Objective(data, rows.model.config, penalty, self.processes.device)
        self.tokens = data.states.numel()
        self.progress = Progress()
        self._resumed_from: int | None = None

    def run(self, resume: bool = False) -> LoopResult:
        """Train until the optimum, a limit or a stop signal; the last state is always saved.

        Args:
            resume: continue from the newest valid checkpoint of `directory`, if there is one.

        Raises:
            StateError: see `checkpoint.find_checkpoint`, `checkpoint.save`.
            TrainingError: the loss is not a finite number.
        """
        parameters = self._start(resume)
        solver = (_Fista if self.objective.penalty.penalty == "l1" else _Lbfgs)(self.objective, parameters)
        began, seconds_before = time.perf_counter(), self.progress.seconds
        path, over, evaluated = None, False, self.progress.step
        with StopSignals() as signals:
            while not over and signals.received is None and (iterations_left := self._iterations_left()) > 0:
                started = time.perf_counter()
                done, over = solver.advance(min(_ROUND, iterations_left))
                if not (math.isfinite(solver.loss) and math.isfinite(solver.norm)):
                    self._fail(solver.loss, path)
                self.progress.seconds = seconds_before + time.perf_counter() - began
                self._store_parameters(parameters, max(done, 1), solver.loss)
                self._report(solver, max(done, 1), time.perf_counter() - started)
                interval = self.config.evaluate_every
                if self.evaluate is not None and interval and self.progress.step - evaluated >= interval:
                    evaluated = self.progress.step
                    metrics = self.evaluate(self.rows)
                    self.observer.on_evaluation(self.progress.step, metrics)
                    over = over or self._has_settled(metrics)
                path = self._save()
            if signals.received is not None and not over:
                self.observer.on_event("stopping", {"step": self.progress.step, "signal": signals.received})
            stopped_by = None if over or self._iterations_left() <= 0 else signals.received
            path = path or self._save()
        return LoopResult.from_progress(self.progress, stopped_by, self._resumed_from, path)

    def _start(self, resume: bool) -> list[Tensor]:
        """Restore the state of an earlier run; returns (h, J), which the solver changes."""
        self.rows.to(self.processes.device)
        saved = checkpoint.find_checkpoint(self.directory, resume, self.processes, self.observer.on_event)
        if saved is not None:
            restore_module(self.rows, saved.tensors("model"))
            self.progress = saved.progress()
            self._resumed_from = self.progress.step
            self.observer.on_event("resumed", {"step": self.progress.step, "path": str(saved.path)})
        model = self.rows.model
        return [
            parameter.detach().to(self.objective.dtype).clone()
            for parameter in (model.fields, model.couplings)
        ]

    def _iterations_left(self) -> int:
        """Number of iterations until the first limit."""
        config, progress = self.config, self.progress
        limits = [config.max_steps or _ROUND * 10**9]
        limits += [math.ceil(config.epochs)] if config.epochs is not None else []
        late = config.training_seconds is not None and progress.seconds >= config.training_seconds
        return 0 if late else min(limits) - progress.step

    def _has_settled(self, metrics: Mapping[str, float]) -> bool:
        """Whether the metric `falls` has not fallen enough in the last two evaluations."""
        value = math.nan if self._falls is None else metrics.get(self._falls, math.nan)
        if value > self._least - _WORTH:
            self._idle += 1
        else:
            self._least, self._idle = value, 0
        return self._idle == _PATIENCE

    def _store_parameters(self, parameters: list[Tensor], done: int, loss: float) -> None:
        """Copy (h, J) of the solver into the model, and count the iterations."""
        model, progress = self.rows.model, self.progress
        with torch.no_grad():
            for parameter, solution in zip((model.fields, model.couplings), parameters, strict=True):
                parameter.copy_(solution.detach())
        progress.step += done
        progress.tokens += done * self.tokens
        progress.loss = loss

    def _report(self, solver: _Lbfgs | _Fista, done: int, seconds: float) -> None:
        self.observer.on_step(
            StepReport(
                step=self.progress.step,
                loss=solver.loss,
                grad_norm=solver.norm,
                learning_rate=0.0,
                tokens=self.progress.tokens,
                masked=int(self.objective.predicted),
                fill=1.0,
                tokens_per_second=done * self.tokens / max(seconds, 1e-9),
                seconds=self.progress.seconds,
                epoch=self.progress.step - 1,
                skipped=False,
                bad_steps=0,
            )
        )

    def _fail(self, loss: float, path: Path | None) -> None:
        last_good = f"the last good checkpoint is {path}" if path else "there is no checkpoint"
        raise TrainingError(
            f"the loss is {loss} after step {self.progress.step}; {last_good}. Raise "
            "model.overrides.couplings or model.overrides.fields, which keep parameters small"
        )

    def _save(self) -> Path:
        path = checkpoint.save(
            self.directory,
            self.progress.step,
            {"model": module_tensors(self.rows)},
            asdict(self.progress),
            keep_last=self.config.keep_last,
            keep_every=self.config.keep_every,
        )
        self.observer.on_checkpoint(self.progress.step, path)
        return path
