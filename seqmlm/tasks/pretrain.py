"""Pretraining, end to end: data, tokenizer, model, loop, evaluation, model folder, registry, tracking."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from seqmlm import plugins
from seqmlm.config import to_dict
from seqmlm.domains.base import Domain
from seqmlm.engine import distributed
from seqmlm.engine.backbones import build, parameter_count
from seqmlm.engine.backbones import load as load_backbone
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.loop import Loop, LoopConfig, LoopResult, NullObserver
from seqmlm.engine.masking.corrupt import Corruptor
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.packing import RowDataset, RowPlanner
from seqmlm.errors import UsageError
from seqmlm.evaluation.bits import unigram
from seqmlm.registry import Registry
from seqmlm.tasks import bundle
from seqmlm.tasks.config import LEARNING_RATES, SECOND_STAGE_LEARNING_RATE, PretrainConfig, seconds
from seqmlm.tasks.corpus import QUARANTINE, Corpus, CorpusReader, build_corpus, sequence_indices
from seqmlm.tasks.evaluate import Evaluator
from seqmlm.tasks.launch import FINISHED, RUN_CONFIG, Plan, TrainRequest, plan
from seqmlm.tasks.maskers import make_masker
from seqmlm.tasks.observers import METRICS, Console, MetricsFile, Recorder, read_metrics
from seqmlm.tasks.reporting import loss_plot, sample_predictions
from seqmlm.tracking import TrackedRun, Tracker
from seqmlm.workspace import Workspace

SHOWN_PREDICTIONS = 8


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
    train_loss: float
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """A training put together and not yet started."""

    rows: MaskedRows
    corpus: Corpus
    corruptor: Corruptor
    planner: RowPlanner
    dataset: RowDataset
    loop: LoopConfig
    evaluator: Evaluator


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
    with distributed.process_group() as group:
        decided = group.broadcast(resolved_plan(request, workspace) if group.is_main else None)
        done = _finished_result(decided)
        if done is not None:
            console.message(f"run {decided.name} is finished; raise its limit to go on with it")
            return done
        domain = plugins.domain(decided.config.domain)
        reader = CorpusReader(decided.config, domain, workspace, decided.directory)
        with group.main_first():
            corpus = build_corpus(reader, console.message if group.is_main else _silent)
        parts = assemble(decided.config, domain, corpus)
        with ExitStack() as stack:
            run = None
            if group.is_main:
                run = stack.enter_context(_tracked(decided, workspace, parts, console))
            outcome = _run_loop(decided, parts, run, console)
            if not group.is_main or run is None:
                return _result(decided, outcome, began, is_main=False)
            if outcome.status == "killed":
                run.end("KILLED")
                console.message(f"stopped at step {outcome.steps} and saved; go on with --resume {decided.name}")
                return _result(decided, outcome, began, run=run)
            return _conclude(decided, domain, workspace, parts, outcome, run, console, began)


def resolved_plan(request: TrainRequest, workspace: Workspace) -> Plan:
    """The plan with its initial model found and its row length decided, as it is saved with the run."""
    decided = plan(request, workspace)
    config = decided.config
    if config.model.init is not None and not decided.resume:
        where = Registry.open(workspace).resolve(config.model.init)
        config = replace(config, model=replace(config.model, init=str(where)))
    if config.train.tokens_per_row is None:
        config = replace(config, train=replace(config.train, tokens_per_row=_tokens_per_row(config)))
    return replace(decided, config=config)


def _tokens_per_row(config: PretrainConfig) -> int:
    """Rows fill the caches of a processor, or keep an accelerator busy; at least one window long."""
    comfortable = 65536 if torch.cuda.is_available() else 4096
    return max(config.model.max_length, min(config.train.tokens_per_batch, comfortable))


def assemble(config: PretrainConfig, domain: Domain, corpus: Corpus) -> Parts:
    """Build model, masker, planner and evaluation for the data; trains nothing."""
    space = corpus.tokenizer.space
    torch.manual_seed(config.seed)
    if config.model.init is not None:
        model = load_backbone(config.model.init, space)
    else:
        model = build(config.model, space)
    initial = bundle.read_card(Path(config.model.init)) if config.model.init else None
    imported = config.model.init is not None and initial is None
    probability = "full" if imported else initial.probability if initial else "ordinary"
    rows = MaskedRows(model, space, probability=probability)
    frequencies = unigram(corpus.token_counts, space)
    masker = make_masker(config.masking, corpus.tokenizer)
    corruptor = Corruptor(config.masking, masker, space, frequencies, config.seed)
    tokens_per_row = config.train.tokens_per_row or _tokens_per_row(config)
    evaluator = Evaluator(
        corpus.validation,
        corpus.train,
        frequencies,
        records=config.train.evaluation_records,
        corruptor=corruptor,
        seed=config.seed,
        tokens_per_batch=tokens_per_row,
    )
    return Parts(
        rows=rows,
        corpus=corpus,
        corruptor=corruptor,
        planner=RowPlanner(corpus.train.lengths, tokens_per_row=tokens_per_row, seed=config.seed),
        dataset=RowDataset(corpus.train, corruptor),
        loop=loop_config(config, tokens_per_row),
        evaluator=evaluator,
    )


def loop_config(config: PretrainConfig, tokens_per_row: int) -> LoopConfig:
    """The loop's own settings from the user's."""
    train = config.train
    rate = train.learning_rate
    if rate is None:
        rate = SECOND_STAGE_LEARNING_RATE if config.model.init else LEARNING_RATES[config.model.size]
    every = train.evaluate_every
    if every is None:
        every = max(1, train.max_steps // 10) if train.max_steps else 100
    return LoopConfig(
        max_steps=train.max_steps,
        max_seconds=seconds(train.max_time) if train.max_time else None,
        epochs=train.epochs,
        learning_rate=rate,
        weight_decay=train.weight_decay,
        betas=train.betas,
        warmup=train.warmup,
        schedule=train.schedule,
        clip=train.clip,
        rows_per_batch=max(1, round(train.tokens_per_batch / tokens_per_row)),
        loader_workers=train.loader_workers,
        compile=train.compile,
        precision=train.precision,
        sharding=train.sharding,
        evaluate_every=every,
        checkpoint_every_steps=train.checkpoint_every_steps,
        checkpoint_every_seconds=train.checkpoint_every_seconds,
        keep_last=train.keep_last,
        keep_every=train.keep_every,
        max_bad_steps=train.max_bad_steps,
        seed=config.seed,
    )


def _finished_result(decided: Plan) -> PretrainResult | None:
    """The result of a run that is done and is not asked for more."""
    path = decided.directory / FINISHED
    if not decided.resume or not path.exists():
        return None
    saved = json.loads(path.read_text(encoding="utf-8"))
    limits = ("max_steps", "max_time", "epochs")
    asked = to_dict(decided.config.train)
    if any(saved["limits"][limit] != asked[limit] for limit in limits):
        return None
    return PretrainResult(**saved["result"])


def _tracked(decided: Plan, workspace: Workspace, parts: Parts, console: Console) -> TrackedRun:
    """Make the run's folder, and open its MLflow run."""
    config, corpus = decided.config, parts.corpus
    decided.directory.mkdir(parents=True, exist_ok=True)
    tracker = Tracker(workspace, warn=console.message)
    run = tracker.start(
        decided.name,
        experiment=f"seqmlm-{config.domain}",
        params=_params(config, parts),
        tags={"domain": config.domain, "task": "pretrain"},
        resume=decided.resume and (decided.directory / "tracking.json").exists(),
    )
    settings = decided.directory / RUN_CONFIG
    temporary = settings.with_suffix(".tmp")
    temporary.write_text(yaml.safe_dump(to_dict(config), sort_keys=False), encoding="utf-8")
    temporary.replace(settings)
    run.artifact(settings)
    for name, files in corpus.sources.items():
        run.dataset(name, files[0], corpus.fingerprint, corpus.statistics[name])
    return run


def _params(config: PretrainConfig, parts: Parts) -> dict[str, Any]:
    """What people compare runs by."""
    train, model = config.train, config.model
    return {
        "domain": config.domain,
        "size": model.size if model.init is None else "as loaded",
        "init": model.init,
        "parameters": parameter_count(parts.rows.model),
        "max_length": model.max_length,
        "dropout": model.dropout,
        "tokenizer": config.tokenizer.name,
        "vocabulary_size": parts.corpus.tokenizer.space.size,
        "masker": config.masking.masker,
        "mask_rate": config.masking.rate,
        "mask_random_keep": f"{config.masking.mask}/{config.masking.random}/{config.masking.keep}",
        "replacement": config.masking.replacement,
        "dynamic_masks": config.masking.dynamic,
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


def _run_loop(decided: Plan, parts: Parts, run: TrackedRun | None, console: Console) -> LoopResult:
    checkpoints = decided.directory / "checkpoints"
    metrics = None
    try:
        if run is None:
            observer: Any = NullObserver()
        else:
            metrics = MetricsFile(decided.directory / METRICS)
            observer = Recorder(metrics, run, console, parts.loop.max_steps)
        loop = Loop(
            parts.rows,
            parts.dataset,
            parts.planner,
            parts.loop,
            directory=checkpoints,
            observer=observer,
            evaluate=parts.evaluator,
        )
        return loop.run(resume=decided.resume)
    finally:
        if metrics is not None:
            metrics.close()


def _conclude(
    decided: Plan,
    domain: Domain,
    workspace: Workspace,
    parts: Parts,
    outcome: LoopResult,
    run: TrackedRun,
    console: Console,
    began: float,
) -> PretrainResult:
    """Evaluate, write the model folder, register it, and keep what people look at."""
    directory = decided.directory
    values = parts.evaluator.final(parts.rows)
    metrics = MetricsFile(directory / METRICS)
    metrics.write({"step": outcome.steps, **values})
    metrics.close()
    run.log_metrics(outcome.steps, values)
    bits, floor = values["eval/bits_per_unit"], values["eval/unigram_bits_per_unit"]
    model_folder = directory / "model"
    card = _card(decided, domain, parts, outcome, run, values)
    bundle.write(model_folder, parts.rows, parts.corpus.tokenizer, card)
    version = _register(decided, workspace, parts, model_folder, card, run)
    _artifacts(decided, domain, parts, run)
    console.message(
        f"finished at step {outcome.steps}: {bits:.3f} bits per {domain.unit} (unigram {floor:.3f}); "
        f"model {decided.name} version {version} in {model_folder}"
    )
    result = _result(decided, outcome, began, run=run, version=version, values=values)
    limits = {key: getattr(decided.config.train, key) for key in ("max_steps", "max_time", "epochs")}
    saved = {"limits": limits, "result": asdict(result)}
    (directory / FINISHED).write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
    return result


def _card(
    decided: Plan,
    domain: Domain,
    parts: Parts,
    outcome: LoopResult,
    run: TrackedRun,
    values: Mapping[str, float],
) -> bundle.Card:
    config = decided.config
    return bundle.Card(
        domain=domain.name,
        unit=parts.corpus.tokenizer.unit,
        tokenizer=parts.corpus.tokenizer.name,
        max_length=config.model.max_length,
        probability=parts.rows.probability,
        masking=to_dict(config.masking),
        seed=config.seed,
        parent=config.model.init,
        dataset=parts.corpus.fingerprint,
        run_name=decided.name,
        run_id=run.run_id,
        steps=outcome.steps,
        metrics=values,
    )


def _artifacts(decided: Plan, domain: Domain, parts: Parts, run: TrackedRun) -> None:
    directory = decided.directory
    loss_plot(read_metrics(directory / METRICS), directory / "loss.png", decided.name)
    run.artifact(directory / "loss.png")
    if domain.sensitive:
        return
    ask = Conditionals(parts.rows, tokens_per_batch=parts.evaluator.tokens_per_batch)
    validation = parts.corpus.validation
    shown = sequence_indices(validation, SHOWN_PREDICTIONS)
    text = sample_predictions(
        ask, domain, parts.corpus.tokenizer, validation, shown, decided.config.seed
    )
    (directory / "predictions.txt").write_text(text, encoding="utf-8")
    run.artifact(directory / "predictions.txt")


def _result(
    decided: Plan,
    outcome: LoopResult,
    began: float,
    *,
    run: TrackedRun | None = None,
    version: int | None = None,
    values: Mapping[str, float] | None = None,
    is_main: bool = True,
) -> PretrainResult:
    values = values or {}
    return PretrainResult(
        run_id=run.run_id if run else None,
        run_name=decided.name,
        model=decided.name if version is not None else None,
        version=version,
        domain=decided.config.domain,
        steps=outcome.steps,
        resumed_from=outcome.resumed_from,
        tokens=outcome.tokens,
        train_loss=outcome.loss,
        eval_loss=values.get("eval/loss"),
        eval_bits_per_unit=values.get("eval/bits_per_unit"),
        unigram_bits_per_unit=values.get("eval/unigram_bits_per_unit"),
        tokens_per_second=outcome.tokens / outcome.seconds if outcome.seconds else 0.0,
        wall_seconds=time.monotonic() - began,
        checkpoint=str(outcome.checkpoint) if outcome.checkpoint else None,
        signal=outcome.signal,
        is_main=is_main,
    )


def _silent(text: str) -> None:
    """Only the main process speaks."""
