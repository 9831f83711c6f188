"""`seqmlm train`, end to end: plan, read, assemble, train, evaluate, calibrate, register; one tracked run.

The run's folder is complete without MLflow, and every step up to the registered model can be repeated: after
a crash at any moment, `--resume` reaches the same model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from seqmlm import plugins
from seqmlm.config import from_dict, to_dict
from seqmlm.data.privacy import redact_small_counts
from seqmlm.engine import checkpoint
from seqmlm.engine.backbones import parameter_count
from seqmlm.engine.distributed import Processes
from seqmlm.engine.durable import owner_only, replace_file
from seqmlm.engine.linear import LinearRows, Penalty
from seqmlm.engine.loop import Loop, LoopResult, NullObserver, Observer, StepReport
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.optimizer import restore_module
from seqmlm.engine.pseudolikelihood import LinearLoop
from seqmlm.engine.shapes import LAYERS, PATTERN_KEYS
from seqmlm.errors import StateError, UsageError
from seqmlm.parsing import read_json
from seqmlm.registry import Registry
from seqmlm.tasks.assemble import FEWEST_BITS, Best, Evaluator, Parts, assemble, linear_told, new_model
from seqmlm.tasks.calibrate import few_held_out
from seqmlm.tasks.config import LIMITS, PretrainConfig
from seqmlm.tasks.corpus import (
    QUARANTINE,
    Corpus,
    CorpusReader,
    build_corpus,
)
from seqmlm.tasks.finalize import disk_errors, finalize, shown_corpus
from seqmlm.tasks.launch import FINISHED, RUN_CONFIG, Plan, TrainRequest, plan
from seqmlm.tasks.observers import (
    Console,
    Recorder,
)
from seqmlm.tasks.sizing import reading_seconds, sized
from seqmlm.tracking import LEDGER, TrackedRun, Tracker
from seqmlm.workspace import Workspace

BEST = "best.safetensors"


def pretrain(request: TrainRequest, console: Console) -> PretrainResult:
    """Train a new run, or resume one.

    Args:
        request: the user's settings.
        console: receives progress and messages.

    Raises:
        UsageError: invalid settings; DataError: input that cannot be read.
        StateError: the name is taken, a checkpoint is corrupt, the disk is full, or the registry not ready.
        TrainingError: too many non-finite steps in a row, or out of memory at the smallest batch.
    """
    workspace = Workspace.locate()
    processes = Processes()
    agreed = agreed_plan(request, workspace, processes)
    with owner_only(agreed.config.data.sensitive):
        return _pretrain(agreed, workspace, processes, console)


def _pretrain(agreed: Plan, workspace: Workspace, processes: Processes, console: Console) -> PretrainResult:
    began = time.monotonic()
    done = finished_result(agreed)
    if done is not None:
        if processes.is_main:
            console.message(f"run {agreed.name} is finished; raise its limit to train longer")
        return replace(done, is_main=processes.is_main)
    domain = plugins.domain(agreed.config.domain)
    say = console.message if processes.is_main else _silent
    corpus = build_corpus(CorpusReader(agreed.config, domain, workspace), say)
    if few := few_held_out(domain.level(None), corpus.held_out, agreed):
        say(few)
    spent = float(processes.text_from_main(repr(time.monotonic() - began)))
    agreed = sized(agreed, corpus, processes, say, spent=spent)
    parts = assemble(agreed.config, corpus)
    parts = replace(parts, loop=replace(parts.loop, spent=reading_seconds(agreed.config, spent)))
    model = agreed.config.model
    if model.is_linear:
        say(linear_told(parts, processes.world))
    elif model.init is None and not agreed.resume and not PATTERN_KEYS & set(model.overrides):
        say(f"layers: {model.layers} ({LAYERS[model.layers]}; --set model.layers names others)")
    _check_rows(parts, processes)
    if not processes.is_main:
        outcome = _run_loop(agreed, parts, NullObserver(), parts.evaluator)
        return make_result(agreed, outcome, seconds=time.monotonic() - began, is_main=False)
    with _tracked(agreed, workspace, parts, console) as run:
        recorder = Recorder(run, console, partial(_expected_steps, parts))
        # Several processes would have to agree on it.
        best = (
            Best(parts.evaluator, agreed.directory / BEST, FEWEST_BITS, worth=0.01, resume=agreed.resume)
            if processes.world == 1 and not model.is_linear
            else None
        )
        outcome = _run_loop(agreed, parts, recorder, best or parts.evaluator)
        if outcome.status == "killed":
            run.end("KILLED")
            say(f"stopped at step {outcome.steps} and saved; continue with --resume {agreed.name}")
            return make_result(agreed, outcome, seconds=time.monotonic() - began, run_id=run.run_id)
        if agreed.config.train.sharding != "none" and processes.world > 1:
            parts = replace(parts, rows=_whole_model(agreed.config, parts, outcome))
        if best is not None:
            with disk_errors(agreed):
                last = best.restore(parts.rows)
            if last is not None:
                say(
                    f"kept the weights of an earlier evaluation: {best.value:.3f} bits per {domain.unit}, "
                    f"{last:.3f} by the last ones, which had begun to memorize; train a shorter time, or on "
                    "more data"
                )
        version, values = finalize(agreed, domain, workspace, parts, outcome, run, console)
        bits, unigram = values["eval/bits_per_unit"], values["eval/unigram_bits_per_unit"]
        say(
            f"finished at step {outcome.steps}: {bits:.3f} bits per {domain.unit} (unigram {unigram:.3f}); "
            f"model {agreed.name}:{version}"
        )
        if bits >= unigram:
            say("no better than the unigram baseline: train longer or on more data")
        result = make_result(
            agreed,
            outcome,
            seconds=time.monotonic() - began,
            run_id=run.run_id,
            version=version,
            values=values,
        )
    # What has its result is not opened again: killed before its run has ended, it would be RUNNING for ever.
    keep_result(agreed, result)
    return result


def agreed_plan(request: TrainRequest, workspace: Workspace, processes: Processes) -> Plan:
    """The plan of the main process, sent to all processes."""
    text = ""
    if processes.is_main:
        decided = plan(request, workspace, processes.world)
        Registry(workspace).close()  # refused now, not when the training has ended
        plans = (decided, *decided.candidates)
        text = json.dumps([{"name": p.name, "resume": p.resume, "config": to_dict(p.config)} for p in plans])
    first, *candidates = (
        Plan(
            config=from_dict(PretrainConfig, values["config"]),
            name=values["name"],
            directory=workspace.run_dir(values["name"]),
            resume=values["resume"],
        )
        for values in json.loads(processes.text_from_main(text))
    )
    return replace(first, candidates=tuple(candidates))


def _check_rows(parts: Parts, processes: Processes) -> None:
    """Refuse a batch with fewer rows than processes, which would leave some idle."""
    rows = parts.loop.rows_per_batch
    if rows < processes.world:
        tokens = rows * parts.planner.tokens_per_row
        raise UsageError(
            f"a batch of {tokens} tokens is {rows} row(s) for {processes.world} processes: raise "
            f"train.tokens_per_batch, or --set train.tokens_per_row={max(1, tokens // processes.world)}"
        )


def _expected_steps(parts: Parts, report: StepReport) -> float:
    """Estimate of the optimizer steps until the first limit."""
    limits: list[float] = []
    if parts.loop.max_steps is not None:
        limits.append(parts.loop.max_steps)
    if parts.loop.training_seconds is not None:
        limits.append(report.step * parts.loop.training_seconds / report.seconds)
    if parts.loop.epochs is not None and parts.aligned is not None:
        limits.append(parts.loop.epochs)
    elif parts.loop.epochs is not None:
        limits.append(report.step * parts.loop.epochs * parts.planner.tokens_per_epoch / report.tokens)
    return max(float(report.step), min(limits))


def _tracked(agreed: Plan, workspace: Workspace, parts: Parts, console: Console) -> TrackedRun:
    """Make the run's folder, and open its MLflow run."""
    config, corpus, directory = agreed.config, parts.corpus, agreed.directory
    directory.mkdir(parents=True, exist_ok=True)
    # The settings are written first: with them a run that is killed at any later moment can be resumed.
    settings = directory / RUN_CONFIG
    replace_file(settings, yaml.safe_dump(to_dict(config), sort_keys=False).encode())
    (directory / FINISHED).unlink(missing_ok=True)
    _keep_quarantined(corpus, directory / QUARANTINE)
    run = Tracker(workspace, warn=console.message).start(
        agreed.name,
        experiment=f"seqmlm-{config.domain}",
        params=_params(config, parts),
        tags={"domain": config.domain, "task": "pretrain"},
        resume=agreed.resume and (directory / LEDGER).exists(),
    )
    run.artifact(settings)
    for name, paths in corpus.sources.items():
        counts = redact_small_counts(corpus.statistics[name], config.data.sensitive)
        run.dataset(shown_corpus(config, name, paths), paths[0], corpus.fingerprint, counts)
    return run


def _keep_quarantined(corpus: Corpus, path: Path) -> None:
    """Collect the bad records of all corpora in the run's folder, readable by the owner only."""
    if corpus.quarantined:
        path.touch(mode=0o600)
        path.chmod(0o600)  # touch does not change the mode of an existing file
        path.write_bytes(b"".join(aside.read_bytes() for aside in corpus.quarantined))


def _params(config: PretrainConfig, parts: Parts) -> dict[str, Any]:
    """The parameters that MLflow shows and `runs compare` compares."""
    train, model, masking = config.train, config.model, config.masking
    encoder = model.init is None and not model.is_linear
    return {
        "domain": config.domain,
        "size": model.size if model.init is None else "as loaded",
        "architecture": parts.rows.model.config.model_type,
        "init": model.init,
        "parameters": parameter_count(parts.rows.model),
        "layers": model.layers if encoder else "linear" if model.is_linear else "as loaded",
        "initialization": model.initialization if encoder else "zeros" if model.is_linear else "as loaded",
        "max_length": model.max_length,
        "dropout": model.dropout if model.init is None else "as loaded",
        "tokenizer": parts.corpus.tokenizer.name,
        "vocabulary_size": parts.corpus.tokenizer.space.size,
        "masker": masking.masker,
        "mask_rate": masking.rate,
        "mask_random_keep": f"{masking.mask}/{masking.random}/{masking.keep}",
        "replacement": masking.replacement,
        "dynamic_masks": masking.dynamic,
        "learning_rate": parts.loop.learning_rate,
        "schedule": train.schedule,
        "warmup": train.warmup,
        "weight_decay": train.weight_decay,
        "tokens_per_batch": train.tokens_per_batch,
        "tokens_per_row": train.tokens_per_row,
        "max_steps": train.max_steps,
        "max_time": train.max_time,
        "epochs": train.epochs,
        "precision": train.precision,
        "seed": config.seed,
        "data": ", ".join(shown_corpus(config, name, paths) for name, paths in parts.corpus.sources.items()),
        "data_fingerprint": parts.corpus.fingerprint,
        "training_sequences": len(parts.corpus.train),
    }


def _run_loop(agreed: Plan, parts: Parts, observer: Observer, evaluate: Evaluator | Best) -> LoopResult:
    if parts.aligned is not None:
        assert isinstance(parts.rows, LinearRows)
        return LinearLoop(
            parts.rows,
            parts.aligned,
            Penalty.of(agreed.config.model.overrides),
            parts.loop,
            directory=agreed.directory / "checkpoints",
            observer=observer,
            evaluate=evaluate,
        ).run(resume=agreed.resume)
    loop = Loop(
        parts.rows,
        parts.dataset,
        parts.planner,
        parts.loop,
        directory=agreed.directory / "checkpoints",
        observer=observer,
        evaluate=evaluate,
    )
    return loop.run(resume=agreed.resume)


def _whole_model(config: PretrainConfig, parts: Parts, outcome: LoopResult) -> MaskedRows:
    """The whole trained model, from the last checkpoint: this process has only a shard of it."""
    assert outcome.checkpoint is not None
    rows = new_model(config, parts.corpus)
    restore_module(rows, checkpoint.read(outcome.checkpoint).tensors("model"))
    return rows


def _silent(text: str) -> None:
    """Print nothing: only the main process reports."""


@dataclass(frozen=True, kw_only=True)
class PretrainResult:
    """The result of a training; the JSON object of `train --json`."""

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
        """Plain values, for JSON; without what concerns this process only."""
        return {key: value for key, value in asdict(self).items() if key not in ("signal", "is_main")}


def finished_result(plan: Plan) -> PretrainResult | None:
    """The saved result of a finished run, unless its limits have been raised."""
    path = plan.directory / FINISHED
    if not plan.resume or not path.exists():
        return None
    try:
        saved = read_json(path)
        result = PretrainResult(**saved["result"])
        return result if saved["limits"] == _limits(plan) else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} is not the result of a training ({error}); remove it, then --resume {plan.name} writes "
            "it again from the last checkpoint"
        ) from None


def keep_result(plan: Plan, result: PretrainResult) -> None:
    """Save the result, which marks the run as finished."""
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
    """Assemble the result; `values` are the final evaluation's, None for a training that was stopped."""
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
