"""Pretraining, end to end: plan, read, assemble, train, conclude; one tracked run."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from seqmlm import plugins
from seqmlm.config import from_dict, to_dict
from seqmlm.engine import checkpoint
from seqmlm.engine.backbones import parameter_count
from seqmlm.engine.distributed import Processes
from seqmlm.engine.durable import replace_file
from seqmlm.engine.loop import Loop, LoopResult, NullObserver, Observer, StepReport
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.optimizer import restore_module
from seqmlm.errors import UsageError
from seqmlm.tasks.assemble import Parts, assemble, new_model
from seqmlm.tasks.conclude import conclude
from seqmlm.tasks.config import PretrainConfig
from seqmlm.tasks.corpus import QUARANTINE, Corpus, CorpusReader, build_corpus
from seqmlm.tasks.launch import FINISHED, RUN_CONFIG, Plan, TrainRequest, plan
from seqmlm.tasks.observers import METRICS, Console, MetricsFile, Recorder
from seqmlm.tasks.privacy import tellable
from seqmlm.tasks.result import PretrainResult, finished_result, keep_result, make_result
from seqmlm.tracking import TrackedRun, Tracker
from seqmlm.tracking.ledger import LEDGER
from seqmlm.workspace import Workspace


def pretrain(request: TrainRequest, console: Console) -> PretrainResult:
    """Train as asked: a new run, or one continued.

    Args:
        request: what was asked.
        console: told how it goes.

    Raises:
        UsageError: settings that make no sense; DataError: input that cannot be read.
        StateError: the name is taken, a checkpoint or the disk is at fault.
        TrainingError: the numbers went wrong too often in a row.
    """
    began = time.monotonic()
    workspace = Workspace.locate()
    processes = Processes()
    agreed = agreed_plan(request, workspace, processes)
    done = finished_result(agreed)
    if done is not None:
        if processes.is_main:
            console.message(f"run {agreed.name} is finished; raise its limit to go on with it")
        return replace(done, is_main=processes.is_main)
    domain = plugins.domain(agreed.config.domain)
    say = console.message if processes.is_main else _silent
    corpus = build_corpus(CorpusReader(agreed.config, domain, workspace), say)
    parts = assemble(agreed.config, corpus)
    _check_rows(parts, processes)
    with ExitStack() as stack:
        if not processes.is_main:
            outcome = _run_loop(agreed, parts, NullObserver())
            return make_result(agreed, outcome, seconds=time.monotonic() - began, is_main=False)
        run = stack.enter_context(_tracked(agreed, workspace, parts, console))
        metrics = stack.enter_context(MetricsFile(agreed.directory / METRICS))
        recorder = Recorder(metrics, run, console, partial(_expected_steps, parts))
        outcome = _run_loop(agreed, parts, recorder)
        if outcome.status == "killed":
            run.end("KILLED")
            say(f"stopped at step {outcome.steps} and saved; go on with --resume {agreed.name}")
            return make_result(agreed, outcome, seconds=time.monotonic() - began, run_id=run.run_id)
        if agreed.config.train.sharding != "none" and processes.world > 1:
            parts = replace(parts, rows=_whole_model(agreed.config, parts, outcome))
        version, values = conclude(agreed, domain, workspace, parts, outcome, run, say)
        say(
            f"finished at step {outcome.steps}: {values['eval/bits_per_unit']:.3f} bits per {domain.unit} "
            f"(unigram {values['eval/unigram_bits_per_unit']:.3f}); model {agreed.name}:{version}"
        )
        if values["eval/bits_per_unit"] >= values["eval/unigram_bits_per_unit"]:
            say(f"no better than how often each {domain.unit} occurs: train longer, or on more data")
        result = make_result(
            agreed,
            outcome,
            seconds=time.monotonic() - began,
            run_id=run.run_id,
            version=version,
            values=values,
        )
        keep_result(agreed, result)
        return result


def agreed_plan(request: TrainRequest, workspace: Workspace, processes: Processes) -> Plan:
    """The plan of the main process, known to all of them."""
    text = ""
    if processes.is_main:
        decided = plan(request, workspace)
        config = to_dict(decided.config)
        text = json.dumps({"name": decided.name, "resume": decided.resume, "config": config})
    values = json.loads(processes.text_from_main(text))
    return Plan(
        config=from_dict(PretrainConfig, values["config"]),
        name=values["name"],
        directory=workspace.run_dir(values["name"]),
        resume=values["resume"],
    )


def _check_rows(parts: Parts, processes: Processes) -> None:
    """Refuse to let processes idle: each needs a row of the batch."""
    rows = parts.loop.rows_per_batch
    if rows < processes.world:
        tokens = rows * parts.planner.tokens_per_row
        raise UsageError(
            f"a batch of {tokens} tokens is {rows} row(s) for {processes.world} processes: raise "
            f"--tokens-per-batch, or --set train.tokens_per_row={max(1, tokens // processes.world)}"
        )


def _expected_steps(parts: Parts, report: StepReport) -> float:
    """Optimizer steps until the first limit, as far as it can be told by now."""
    limits: list[float] = []
    if parts.loop.max_steps is not None:
        limits.append(parts.loop.max_steps)
    if parts.loop.max_seconds is not None:
        limits.append(report.step * parts.loop.max_seconds / report.seconds)
    if parts.loop.epochs is not None:
        limits.append(report.step * parts.loop.epochs * parts.planner.tokens_per_epoch / report.tokens)
    return max(float(report.step), min(limits))


def _tracked(agreed: Plan, workspace: Workspace, parts: Parts, console: Console) -> TrackedRun:
    """Make the run's folder, and open its MLflow run."""
    config, corpus, directory = agreed.config, parts.corpus, agreed.directory
    directory.mkdir(parents=True, exist_ok=True)
    # The settings come first: with them in place, a run killed at any moment can be resumed.
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
        told = tellable(corpus.statistics[name], config.data.sensitive)
        run.dataset(name, paths[0], corpus.fingerprint, told)
    return run


def _keep_quarantined(corpus: Corpus, path: Path) -> None:
    """Put the bad records of all corpora into the run's folder, for its owner's eyes."""
    if corpus.quarantined:
        path.touch(mode=0o600)
        path.chmod(0o600)  # also when the file was there before
        path.write_bytes(b"".join(aside.read_bytes() for aside in corpus.quarantined))


def _params(config: PretrainConfig, parts: Parts) -> dict[str, Any]:
    """What people compare runs by."""
    train, model, masking = config.train, config.model, config.masking
    return {
        "domain": config.domain,
        "size": model.size if model.init is None else "as loaded",
        "architecture": parts.rows.model.config.model_type,
        "init": model.init,
        "parameters": parameter_count(parts.rows.model),
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
        "data": ", ".join(parts.corpus.sources),
        "data_fingerprint": parts.corpus.fingerprint,
        "training_sequences": len(parts.corpus.train),
    }


def _run_loop(agreed: Plan, parts: Parts, observer: Observer) -> LoopResult:
    loop = Loop(
        parts.rows,
        parts.dataset,
        parts.planner,
        parts.loop,
        directory=agreed.directory / "checkpoints",
        observer=observer,
        evaluate=parts.evaluator,
    )
    return loop.run(resume=agreed.resume)


def _whole_model(config: PretrainConfig, parts: Parts, outcome: LoopResult) -> MaskedRows:
    """The trained model in one piece: this process holds a shard of it, the last checkpoint the whole."""
    assert outcome.checkpoint is not None
    rows = new_model(config, parts.corpus.tokenizer)
    restore_module(rows, checkpoint.read(outcome.checkpoint).tensors("model"))
    return rows


def _silent(text: str) -> None:
    """Only the main process speaks."""
