"""After the last step: final evaluation, the model folder, registry and tracker, what people look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from seqmlm.config import to_dict
from seqmlm.domains.base import Domain
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.durable import move_into_place
from seqmlm.engine.loop import LoopResult
from seqmlm.errors import StateError
from seqmlm.registry import DatasetEntry, Registry, TokenizerEntry
from seqmlm.tasks import bundle
from seqmlm.tasks.assemble import Parts
from seqmlm.tasks.calibrate import calibrate_trained, register_calibrations
from seqmlm.tasks.corpus import sequence_indices
from seqmlm.tasks.launch import Plan
from seqmlm.tasks.models import register_model
from seqmlm.tasks.observers import METRICS, MetricsFile, read_metrics
from seqmlm.tasks.privacy import tellable
from seqmlm.tasks.reporting import loss_plot, sample_predictions
from seqmlm.tracking import TrackedRun
from seqmlm.workspace import Workspace

SHOWN_PREDICTIONS = 8
MODEL_FOLDER = "model"


def conclude(
    plan: Plan,
    domain: Domain,
    workspace: Workspace,
    parts: Parts,
    outcome: LoopResult,
    run: TrackedRun,
    say: Callable[[str], None],
) -> tuple[int, Mapping[str, float]]:
    """Evaluate the trained model, calibrate it, write its folder and register it.

    Returns:
        The model's version and the final evaluation.

    Raises:
        StateError: the disk is full, or the registry cannot be reached; the checkpoints are untouched.
    """
    directory = plan.directory
    values = parts.evaluator.final(parts.rows)
    with MetricsFile(directory / METRICS) as metrics:
        metrics.write(outcome.steps, values)
    run.log_metrics(outcome.steps, values)
    with _disk_errors(plan):
        folder = _model_folder(directory, outcome.steps)
        building = directory / "model.tmp"
        shutil.rmtree(building, ignore_errors=True)
        card = _card(plan, domain, parts, outcome, run, values)
        bundle.write(building, parts.rows, parts.corpus.tokenizer, card)
        _calibrate(plan, domain, parts, outcome, building, card, say)
        shutil.rmtree(folder, ignore_errors=True)
        move_into_place(building, folder)
    version = _register(plan, workspace, parts, folder, run, values)
    with _disk_errors(plan):
        _artifacts(plan, domain, parts, run)
    return version, values


def _model_folder(directory: Path, steps: int) -> Path:
    """Where the model goes: a run that was extended leaves the version it registered before as it is."""
    first = directory / MODEL_FOLDER
    card = bundle.read_card(first)
    return first if card is None or card.steps == steps else directory / f"{MODEL_FOLDER}-{steps}"


@contextmanager
def _disk_errors(plan: Plan) -> Iterator[None]:
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
) -> bundle.Card:
    config, tokenizer = plan.config, parts.corpus.tokenizer
    return bundle.Card(
        domain=domain.name,
        unit=domain.unit,
        tokenizer=tokenizer.name,
        max_length=config.model.max_length,
        probability=parts.rows.probability,
        sensitive=config.data.sensitive,
        channels=parts.rows.channels.described() if parts.rows.channels is not None else {},
        masking=to_dict(config.masking),
        seed=config.seed,
        parent=config.model.init,
        dataset=parts.corpus.fingerprint,
        run_name=plan.name,
        run_id=run.run_id,
        steps=outcome.steps,
        metrics=values,
    )


def _calibrate(
    plan: Plan,
    domain: Domain,
    parts: Parts,
    outcome: LoopResult,
    folder: Path,
    card: bundle.Card,
    say: Callable[[str], None],
) -> None:
    corpus = parts.corpus
    model = bundle.LoadedModel(
        rows=parts.rows, tokenizer=corpus.tokenizer, domain=domain, card=card, path=str(folder)
    )
    calibrate_trained(
        model,
        calibrating=corpus.calibrating,
        of=sum(facts["calibration"]["records"] for facts in corpus.statistics.values()),
        train=corpus.train,
        trained_on=corpus.trained_on,
        tokens=outcome.tokens,
        source=corpus.fingerprint,
        seed=plan.config.seed,
        say=say,
    )


def _register(
    plan: Plan,
    workspace: Workspace,
    parts: Parts,
    folder: Path,
    run: TrackedRun,
    values: Mapping[str, float],
) -> int:
    """Make the folder a version of the model called like the run; returns the version."""
    config, corpus, tokenizer = plan.config, parts.corpus, parts.corpus.tokenizer
    sources = tuple(path for paths in corpus.sources.values() for path in paths)
    version = register_model(
        run,
        folder,
        name=plan.name,
        domain=config.domain,
        dataset=DatasetEntry(
            fingerprint=corpus.fingerprint,
            domain=config.domain,
            sources=sources,
            counts=tellable(corpus.statistics, config.data.sensitive),
        ),
        tokenizer=TokenizerEntry(
            hash=tokenizer.fingerprint(),
            name=tokenizer.name,
            options=tokenizer.options,
            vocabulary_size=tokenizer.space.size,
        ),
        masking=to_dict(config.masking),
        metrics=values,
        init=config.model.init,
        tracked_dataset=next(iter(corpus.sources)),
        workspace=workspace,
    )
    with Registry(workspace) as registry:
        register_calibrations(registry, registry.get(plan.name, version=version))
    return version


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
