"""What follows the last step of a training: evaluate, write the model's folder, register it, calibrate it.

A model is registered before it is calibrated: a kill in between leaves one that can be used, and `--resume`
does the rest.
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
from seqmlm.errors import StateError
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import store_trained_on
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.privacy import sensitive_data
from seqmlm.registry.database import UnreachableError, patiently
from seqmlm.registry.entries import ModelEntry
from seqmlm.registry.store import Registry
from seqmlm.reports.verdict import HeldOutBits, counts_sentences, training_sentences
from seqmlm.tasks.deadline import TimeAfterTraining
from seqmlm.tasks.register import register_calibrations, track_model
from seqmlm.tracking import DESCRIPTION, METRICS, TrackedRun, read_metrics
from seqmlm.training.assemble import Evaluator
from seqmlm.training.calibration import calibrate_trained
from seqmlm.training.corpus import Corpus
from seqmlm.training.counts import fit_expert
from seqmlm.training.observers import Console, sample_predictions
from seqmlm.training.page import PAGE, described, training_page
from seqmlm.training.run import TrainingRun
from seqmlm.workspace import Workspace

SHOWN_PREDICTIONS = 8


class Finished(NamedTuple):
    """What a training came to: the model's version, the final evaluation, and both in sentences."""

    version: int
    values: Mapping[str, float]
    sentences: list[str]


def finalize(
    run: TrainingRun,
    model: LoadedModel,
    corpus: Corpus,
    evaluator: Evaluator,
    after: TimeAfterTraining,
    tracked: TrackedRun,
    console: Console,
) -> Finished:
    """Evaluate the trained model, write its folder, register it and calibrate it.

    Args:
        run: named as the model will be.
        model: with the folder that is to be made, and a card without metrics.
        corpus: what it was trained on.
        evaluator: measures it.
        after: the time that is left for it.
        tracked: gets metrics, model and pictures.
        console: receives progress and messages.

    Raises:
        StateError: the disk is full, or the registry cannot be reached; the checkpoints are untouched.
    """
    console.message("trained; the model is measured on held-out records, and counts of the data beside it")
    values = evaluator.final(model.rows, after)
    model, folder = replace(model, card=replace(model.card, metrics=values)), Path(model.path)
    card = model.card
    with run.writing(), run.building(folder) as building:
        model_folder.write(building, model.rows, model.tokenizer, card)
        store_trained_on(building, corpus.trained_on)
        made = replace(model, path=str(building))
        facts, held_out = _counts(made, corpus, after, console.message)
    try:
        # Registered before it is calibrated: a kill in between leaves a model that can be used.
        sources = [path for paths in corpus.sources.values() for path in paths]
        entry = run.register(model, sources=sources, counts=corpus.statistics)
        with run.writing():
            facts |= calibrate_trained(model, corpus, after, console)
        tracked.log_metrics(card.steps, values, facts)
        tracked.set_numbers(facts)
        patiently(partial(_register_calibrations, run.workspace, entry))
    except UnreachableError as error:
        raise StateError(
            f"{error}; the model is in {folder}: then `seqmlm train --resume {run.name}`"
        ) from None
    track_model(tracked, entry, values, dataset=next(iter(corpus.shown.values())))
    values = {**values, **facts}
    held_out = held_out or HeldOutBits.of_evaluation(card.unit, values)
    finished = Finished(entry.version, values, training_sentences(held_out, card.steps))
    with run.writing():
        _artifacts(run, model, finished, corpus, evaluator, tracked)
    return finished


def _counts(
    model: LoadedModel, corpus: Corpus, after: TimeAfterTraining, say: Callable[[str], None]
) -> tuple[dict[str, float], HeldOutBits | None]:
    """Put counts beside the model; what they are worth, by name, and as sentences about the scores of the
    default level need it."""
    expert = fit_expert(
        model,
        corpus.train,
        corpus.validation,
        unigram=corpus.unigram,
        tokens=after.outcome.tokens,
        seed=model.card.seed,
        notify=say,
        after=after,
    )
    if expert is None:
        return {}, None
    held_out = HeldOutBits.of_counts(model.domain.unit, expert.facts)
    alone = [level.name for level in model.domain.levels if level.view != WHOLE]
    for sentence in counts_sentences(held_out, alone):
        say(sentence)
    facts = {f"eval/exact_{name}_bits_per_unit": bits for name, bits in held_out.bits.items()}
    gain = expert.facts["gains"]["mixture"]["model"]
    facts |= {f"eval/exact_gain_of_counts/{name}": bound for name, bound in gain.items()}
    return facts, replace(held_out, mixed=held_out.mixed and model.domain.level(None).name not in alone)


def _artifacts(
    run: TrainingRun,
    model: LoadedModel,
    finished: Finished,
    corpus: Corpus,
    evaluator: Evaluator,
    tracked: TrackedRun,
) -> None:
    """The page of the training, and the examples in it as a text."""
    shown, file, examples = run.directory / "predictions.txt", run.directory / PAGE, ""
    if not sensitive_data():
        ask, some = evaluator.ask(model.rows), evenly(len(corpus.validation), SHOWN_PREDICTIONS)
        examples = sample_predictions(ask, model, corpus.validation, some)
        shown.write_text(examples, encoding="utf-8")
        tracked.artifact(shown)
    facts = {"data": ", ".join(corpus.shown.values()), "sequences": len(corpus.train)}
    facts = released(facts)
    metrics = read_metrics(run.directory / METRICS)
    named = f"{run.name}:{finished.version}"
    page = training_page(named, model.card, facts, finished.values, finished.sentences, metrics, examples)
    page.write(file)
    tracked.set_tag(DESCRIPTION, described(finished.sentences))
    tracked.artifact(file)


def _register_calibrations(workspace: Workspace, entry: ModelEntry) -> None:
    with Registry(workspace) as registry:
        register_calibrations(registry, entry)
