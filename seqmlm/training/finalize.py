"""The work after the last training step: evaluate the model, write its folder, register it and calibrate it.

A model is registered before it is calibrated. If the process is killed in between, the model can be used, and
`--resume` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from seqmlm.anomaly.levels import WHOLE
from seqmlm.data.counts import released
from seqmlm.data.splits import evenly
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import store_trained_on
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.privacy import sensitive_data
from seqmlm.registry.database import patiently
from seqmlm.registry.entries import ModelEntry
from seqmlm.registry.store import Registry
from seqmlm.reports.verdict import HeldOutBits, counts_sentences, training_sentences
from seqmlm.tasks.deadline import TimeAfterTraining
from seqmlm.tasks.register import register_calibrations
from seqmlm.tracking import METRICS, TrackedRun, read_metrics
from seqmlm.training.assemble import Evaluator
from seqmlm.training.calibration import calibrate_trained
from seqmlm.training.corpus import Corpus
from seqmlm.training.counts import fit_expert
from seqmlm.training.job import TrainingJob
from seqmlm.training.observers import sample_predictions
from seqmlm.training.page import training_page
from seqmlm.training.run import track_version
from seqmlm.workspace import Workspace

SHOWN_PREDICTIONS = 8


class Finished(NamedTuple):
    """The end of a training: the version of the model, the final evaluation, and both in sentences."""

    version: int
    values: Mapping[str, float]
    sentences: list[str]


def finalize(
    job: TrainingJob,
    model: LoadedModel,
    corpus: Corpus,
    evaluator: Evaluator,
    time_left: TimeAfterTraining,
    tracked: TrackedRun,
) -> Finished:
    """Evaluate the trained model, write its folder, register it and calibrate it.

    Args:
        job: the training. Its run has the name of the model.
        model: the model, with the path of the folder to create, and a card without metrics.
        corpus: the training data.
        evaluator: measures the model.
        time_left: the time that is left after the last step.
        tracked: receives metrics, the model and pictures.

    Raises:
        StateError: the disk is full, or the registry cannot be reached. The checkpoints remain as they are.
    """
    run, console = job.run, job.console
    console.message("training done; evaluating the model and an n-gram baseline on held-out records")
    values = evaluator.final(model.rows, time_left)
    model, folder = replace(model, card=replace(model.card, metrics=values)), Path(model.path)
    card = model.card
    with run.writing(), run.building(folder) as building:
        model_folder.write(building, model.rows, model.tokenizer, card)
        store_trained_on(building, corpus.trained_on)
        draft = replace(model, path=str(building))
        facts, held_out = _fit_counts(draft, corpus, time_left, console.message)
    with run.registering(folder):
        # Registered before it is calibrated, so that a kill in between leaves a usable model.
        sources = [path for paths in corpus.sources.values() for path in paths]
        entry = run.register(model, sources=sources, counts=corpus.statistics)
        with run.writing():
            facts |= calibrate_trained(model, corpus, time_left, console)
        patiently(partial(_register_calibrations, run.workspace, entry))
    track_version(tracked, entry, card.steps, values, facts, data=next(iter(corpus.shown.values())))
    values = {**values, **facts}
    held_out = held_out or HeldOutBits.of_evaluation(card.unit, values)
    finished = Finished(entry.version, values, training_sentences(held_out, card.steps))
    with run.writing():
        _publish(job, model, finished, corpus, evaluator, tracked)
    return finished


def _fit_counts(
    model: LoadedModel, corpus: Corpus, time_left: TimeAfterTraining, say: Callable[[str], None]
) -> tuple[dict[str, float], HeldOutBits | None]:
    """Store counts with the model, and return metrics of their benefit by name.

    The second result has the same values for sentences about the scores of the default level.
    """
    expert = fit_expert(
        model,
        corpus.train,
        corpus.validation,
        unigram=corpus.unigram,
        tokens=time_left.outcome.tokens,
        seed=model.card.seed,
        notify=say,
        time_left=time_left,
    )
    if expert is None:
        return {}, None
    held_out = HeldOutBits.of_counts(model.domain.unit, expert.facts)
    model_levels = [level.name for level in model.domain.levels if level.view != WHOLE]
    for sentence in counts_sentences(held_out, model_levels):
        say(sentence)
    facts = {f"eval/exact_{name}_bits_per_unit": bits for name, bits in held_out.bits.items()}
    gain = expert.facts["gains"]["mixture"]["model"]
    facts |= {f"eval/exact_gain_of_counts/{name}": bound for name, bound in gain.items()}
    mixed = held_out.mixed and model.domain.level(None).name not in model_levels
    return facts, replace(held_out, mixed=mixed)


def _publish(
    job: TrainingJob,
    model: LoadedModel,
    finished: Finished,
    corpus: Corpus,
    evaluator: Evaluator,
    tracked: TrackedRun,
) -> None:
    """Publish the page of the training, and its example predictions as text."""
    run = job.run
    file, examples = run.directory / "predictions.txt", ""
    if not sensitive_data():
        ask, indices = evaluator.ask(model.rows), evenly(len(corpus.validation), SHOWN_PREDICTIONS)
        examples = sample_predictions(ask, model, corpus.validation, indices)
        file.write_text(examples, encoding="utf-8")
        tracked.artifact(file)
    facts = {"data": ", ".join(corpus.shown.values()), "sequences": len(corpus.train)}
    facts = released(facts)
    metrics = read_metrics(run.directory / METRICS)
    version = f"{run.name}:{finished.version}"
    page = training_page(version, model.card, facts, finished.values, finished.sentences, metrics, examples)
    job.publish(tracked, page, finished.sentences)


def _register_calibrations(workspace: Workspace, entry: ModelEntry) -> None:
    with Registry(workspace) as registry:
        register_calibrations(registry, entry)
