"""What follows the last step of a training: evaluate, write the model's folder, register it, calibrate it.

A model is registered before it is calibrated: a kill in between leaves one that can be used, and `--resume`
does the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from seqmlm.anomaly.levels import WHOLE, Level
from seqmlm.config import to_dict
from seqmlm.data.privacy import redact_small_counts
from seqmlm.domains.base import Domain
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.durable import move_into_place
from seqmlm.engine.linear import LinearRows
from seqmlm.engine.loop import LoopResult
from seqmlm.errors import StateError
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import store_trained_on
from seqmlm.inference.expert import fit_expert
from seqmlm.registry import (
    DatasetEntry,
    ModelEntry,
    Registry,
    UnreachableError,
    patiently,
)
from seqmlm.tasks.assemble import Parts
from seqmlm.tasks.calibrate import calibrate_trained
from seqmlm.tasks.config import PretrainConfig
from seqmlm.tasks.corpus import UNNAMED, sequence_indices, shown_name
from seqmlm.tasks.launch import Plan
from seqmlm.tasks.models import register_calibrations, register_model, tokenizer_entry, track_model
from seqmlm.tasks.observers import Console, loss_plot, sample_predictions
from seqmlm.tasks.sizing import afterwards
from seqmlm.tracking import METRICS, TrackedRun, read_metrics
from seqmlm.workspace import Workspace

SHOWN_PREDICTIONS = 8
MODEL_FOLDER = "model"


def shown_corpus(config: PretrainConfig, name: str, paths: Sequence[str]) -> str:
    """What MLflow calls a corpus: as the user does, else by its files, but for sensitive ones."""
    return name if name != UNNAMED or config.data.sensitive else shown_name(paths)


def finalize(
    plan: Plan,
    domain: Domain,
    workspace: Workspace,
    parts: Parts,
    outcome: LoopResult,
    run: TrackedRun,
    console: Console,
) -> tuple[int, Mapping[str, float]]:
    """Evaluate the trained model, write its folder, register it and calibrate it.

    Returns:
        The model's version and the final evaluation.

    Raises:
        StateError: the disk is full, or the registry cannot be reached; the checkpoints are untouched.
    """
    directory, after = plan.directory, afterwards(plan.config, outcome)
    values = parts.evaluator.final(parts.rows, after.evaluation)
    with disk_errors(plan):
        folder = _model_folder(directory, outcome.steps)
        building = directory / "model.tmp"
        shutil.rmtree(building, ignore_errors=True)
        card = _card(plan, domain, parts, outcome, run, values)
        model_folder.write(building, parts.rows, parts.corpus.tokenizer, card)
        model = model_folder.LoadedModel(
            rows=parts.rows, tokenizer=parts.corpus.tokenizer, domain=domain, card=card, path=str(building)
        )
        store_trained_on(building, parts.corpus.trained_on, private=card.sensitive)
        values = {**values, **_counts(plan, model, parts, outcome, after.counts, console.message)}
        shutil.rmtree(folder, ignore_errors=True)
        move_into_place(building, folder)
    try:
        # Registered before it is calibrated: a kill in between leaves a model that can be used.
        entry = _registered(plan, workspace, parts, folder, run)
        with disk_errors(plan):
            model = replace(model, path=str(folder))
            values = {**values, **_calibrate(plan, model, parts, after.calibration, console)}
        run.log_metrics(outcome.steps, values)
        patiently(partial(_register_calibrations, workspace, entry))
    except UnreachableError as error:
        raise StateError(
            f"{error}; the model is in {folder}: then `seqmlm train --resume {plan.name}`"
        ) from None
    sources = parts.corpus.sources
    track_model(run, entry, values, dataset=shown_corpus(plan.config, *next(iter(sources.items()))))
    with disk_errors(plan):
        _artifacts(plan, domain, parts, run)
    return entry.version, values


def _model_folder(directory: Path, steps: int) -> Path:
    """The folder of the model; a run that was extended keeps the folder of its earlier version."""
    first = directory / MODEL_FOLDER
    card = model_folder.read_card(first)
    return first if card is None or card.steps == steps else directory / f"{MODEL_FOLDER}-{steps}"


@contextmanager
def disk_errors(plan: Plan) -> Iterator[None]:
    """Raise errors of the disk as StateError, with the command that continues."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StateError(
            f"cannot write {plan.directory}: {error}; free space, then --resume {plan.name}"
        ) from None


def _card(
    plan: Plan,
    domain: Domain,
    parts: Parts,
    outcome: LoopResult,
    run: TrackedRun,
    values: Mapping[str, float],
) -> model_folder.Card:
    config, tokenizer, rows = plan.config, parts.corpus.tokenizer, parts.rows
    linear = isinstance(rows, LinearRows)
    return model_folder.Card(
        domain=domain.name,
        unit=domain.unit,
        tokenizer=tokenizer.name,
        max_length=rows.model.config.length if linear else config.model.max_length,
        probability=parts.rows.probability,
        sensitive=config.data.sensitive,
        channels=parts.rows.channels.described() if parts.rows.channels is not None else {},
        masking={} if linear else to_dict(config.masking),
        reading=dict(config.data.options) if linear else {},
        seed=config.seed,
        parent=config.model.init,
        dataset=parts.corpus.fingerprint,
        run_name=plan.name,
        run_id=run.run_id,
        steps=outcome.steps,
        metrics=values,
    )


def _counts(
    plan: Plan,
    model: model_folder.LoadedModel,
    parts: Parts,
    outcome: LoopResult,
    budget: int | None,
    say: Callable[[str], None],
) -> dict[str, float]:
    """Put counts beside the model; what they are worth, as metrics."""
    expert = fit_expert(
        model,
        parts.corpus.train,
        parts.corpus.validation,
        unigram=parts.evaluator.unigram,
        tokens=outcome.tokens,
        budget=budget,
        seed=plan.config.seed,
        notify=say,
    )
    if expert is None:
        return {}
    bits = {name: float(expert.facts[f"{name}_bits"]) for name in ("mixture", "model", "counts")}
    verdict = counts_verdict(model.domain.levels, better=bool(expert.facts["better"]))
    say(
        f"asked one {model.domain.unit} at a time: {bits['model']:.3f} bits by the model, "
        f"{bits['counts']:.3f} by counts, {bits['mixture']:.3f} by both; {verdict} (expert)"
    )
    if expert.facts["gain_over_counts"]["low"] <= 0:
        say("the model adds nothing to counts so far: train longer, or on more data")
    return {f"eval/exact_{name}_bits_per_unit": value for name, value in bits.items()}


def counts_verdict(levels: Sequence[Level], *, better: bool) -> str:
    """Whether scores of some levels will mix counts in: those that show the model a part alone never do."""
    if not better:
        return "scores use the model alone"
    alone = ", ".join(level.name for level in levels if level.view != WHOLE)
    return "scores mix both" + (f", those of {alone} excepted: they use the model alone" if alone else "")


def _calibrate(
    plan: Plan,
    model: model_folder.LoadedModel,
    parts: Parts,
    budget: int,
    console: Console,
) -> dict[str, float]:
    corpus = parts.corpus
    return calibrate_trained(
        model,
        calibrating=corpus.calibrating,
        of=corpus.held_out,
        train=corpus.train,
        budget=budget,
        source=corpus.fingerprint,
        seed=plan.config.seed,
        console=console,
    )


def _registered(plan: Plan, workspace: Workspace, parts: Parts, folder: Path, run: TrackedRun) -> ModelEntry:
    """Register the folder as a version of the model named after the run."""
    config, corpus, tokenizer = plan.config, parts.corpus, parts.corpus.tokenizer
    sources = tuple(path for paths in corpus.sources.values() for path in paths)
    return register_model(
        folder,
        name=plan.name,
        domain=config.domain,
        dataset=DatasetEntry(
            fingerprint=corpus.fingerprint,
            domain=config.domain,
            sources=sources,
            counts=redact_small_counts(corpus.statistics, config.data.sensitive),
        ),
        tokenizer=tokenizer_entry(tokenizer),
        masking={} if config.model.is_linear else to_dict(config.masking),
        init=config.model.init,
        run_id=run.run_id,
    )


def _register_calibrations(workspace: Workspace, entry: ModelEntry) -> None:
    with Registry(workspace) as registry:
        register_calibrations(registry, entry)


def _artifacts(plan: Plan, domain: Domain, parts: Parts, run: TrackedRun) -> None:
    directory = plan.directory
    loss_plot(read_metrics(directory / METRICS), directory / "loss.png", plan.name)
    run.artifact(directory / "loss.png")
    if plan.config.data.sensitive:
        return
    ask = Conditionals(parts.rows, tokens_per_batch=parts.evaluator.tokens_per_batch)
    validation = parts.corpus.validation
    shown = sequence_indices(validation, SHOWN_PREDICTIONS)
    text = sample_predictions(ask, domain, parts.corpus.tokenizer, validation, shown, plan.config.seed)
    (directory / "predictions.txt").write_text(text, encoding="utf-8")
    run.artifact(directory / "predictions.txt")
