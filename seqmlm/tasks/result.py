"""How a training ended: what is printed, and what tells a finished run from an unfinished one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from seqmlm.config import to_dict
from seqmlm.engine.durable import replace_file
from seqmlm.engine.loop import LoopResult
from seqmlm.tasks.config import LIMITS
from seqmlm.tasks.launch import FINISHED, Plan


@dataclass(frozen=True, kw_only=True)
class PretrainResult:
    """How a training ended; the JSON object of `train --json`."""

    run_id: str | None
    run_name: str
    model: str | None
    version: int | None
    domain: str
    steps: int
    resumed_from: int | None
    tokens: int
    train_loss: float | None
    eval_loss: float | None
    eval_bits_per_unit: float | None
    unigram_bits_per_unit: float | None
    tokens_per_second: float
    wall_seconds: float
    checkpoint: str | None
    signal: int | None = None
    is_main: bool = True

    def to_dict(self) -> dict[str, Any]:
        """What machines read: everything but which process this was."""
        return {key: value for key, value in asdict(self).items() if key not in ("signal", "is_main")}


def finished_result(plan: Plan) -> PretrainResult | None:
    """The result of a run that is done and is not asked for more."""
    path = plan.directory / FINISHED
    if not plan.resume or not path.exists():
        return None
    saved = json.loads(path.read_text(encoding="utf-8"))
    return PretrainResult(**saved["result"]) if saved["limits"] == _limits(plan) else None


def keep_result(plan: Plan, result: PretrainResult) -> None:
    """Mark the run as finished."""
    saved = {"limits": _limits(plan), "result": asdict(result)}
    replace_file(plan.directory / FINISHED, (json.dumps(saved, indent=2) + "\n").encode())


def _limits(plan: Plan) -> dict[str, Any]:
    return {limit: to_dict(plan.config.train)[limit] for limit in LIMITS}


def make_result(
    plan: Plan,
    outcome: LoopResult,
    *,
    seconds: float,
    run_id: str | None = None,
    version: int | None = None,
    values: Mapping[str, float] | None = None,
    is_main: bool = True,
) -> PretrainResult:
    """Put a result together; `values` are the final evaluation's, none for a training that was stopped."""
    values = values or {}
    return PretrainResult(
        run_id=run_id,
        run_name=plan.name,
        model=plan.name if version is not None else None,
        version=version,
        domain=plan.config.domain,
        steps=outcome.steps,
        resumed_from=outcome.resumed_from,
        tokens=outcome.tokens,
        train_loss=outcome.loss,
        eval_loss=values.get("eval/loss"),
        eval_bits_per_unit=values.get("eval/bits_per_unit"),
        unigram_bits_per_unit=values.get("eval/unigram_bits_per_unit"),
        tokens_per_second=outcome.tokens / outcome.seconds if outcome.seconds else 0.0,
        wall_seconds=seconds,
        checkpoint=str(outcome.checkpoint) if outcome.checkpoint else None,
        signal=outcome.signal,
        is_main=is_main,
    )
