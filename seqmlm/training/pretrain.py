"""`seqmlm train`, end to end: plan, read, assemble, train, evaluate, calibrate, register; one tracked run.

The run's folder is complete without MLflow, and every step up to the registered model can be repeated: after
a crash at any moment, `--resume` reaches the same model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from seqmlm import plugins
from seqmlm.config import to_dict
from seqmlm.data.counts import released
from seqmlm.engine.backbones import parameter_count
from seqmlm.engine.distributed import Processes
from seqmlm.engine.loop import LoopResult, Observer
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.privacy import handling_sensitive_data
from seqmlm.scoring.calibrate import few_held_out
from seqmlm.tasks.deadline import CUTS, Cuts, Deadline, Start, TimeAfterTraining, seconds
from seqmlm.tracking import TrackedRun
from seqmlm.training.assemble import Training
from seqmlm.training.config import LIMITS
from seqmlm.training.corpus import CorpusReader, few_trained_on
from seqmlm.training.finalize import finalize
from seqmlm.training.launch import Plan, TrainRequest, agreed_plan, longer
from seqmlm.training.observers import Console, Recorder, complete_console
from seqmlm.training.page import PAGE, score_command
from seqmlm.training.resume import FINISHED
from seqmlm.training.run import QUARANTINE, TrainingRun
from seqmlm.training.sizing import sized
from seqmlm.workspace import Workspace


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
    next: str | None = None
    signal: int | None = None
    is_main: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; without what concerns this process, or a person, only."""
        return {key: value for key, value in asdict(self).items() if key not in ("signal", "is_main", "next")}


def pretrain(request: TrainRequest, console: Console) -> PretrainResult:
    """Train a new run, or resume one; `console` receives progress and messages.

    Raises:
        UsageError: invalid settings; DataError: input that cannot be read.
        StateError: the name is taken, a checkpoint is corrupt, the disk is full, or the registry not ready.
        TrainingError: too many non-finite steps in a row, or out of memory at the smallest batch.
    """
    console = complete_console(console)
    deadline = Deadline(console.began)
    workspace, processes = Workspace.locate(), Processes()
    agreed = agreed_plan(request, workspace, processes)
    if agreed.config.train.max_time is not None:
        deadline.limit = seconds(agreed.config.train.max_time)
    limits = {limit: to_dict(agreed.config.train)[limit] for limit in LIMITS}
    with handling_sensitive_data(agreed.config.data.sensitive):
        done = _run_of(agreed, workspace).result(_same_limits(limits)) if agreed.resume else None
        if done is not None:
            if processes.is_main:
                console.message(f"run {agreed.name} is finished; train it longer by {longer(agreed.name)}")
            return replace(done, is_main=processes.is_main)
        training = Pretraining(agreed, workspace, processes, console, deadline)
        result = training.result()
        # What has its result is not opened again: killed before its run has ended, it would be RUNNING for
        # ever.
        if result.version is not None:
            training.run.finish({"limits": limits, "result": asdict(result)})
    return result


def _run_of(plan: Plan, workspace: Workspace) -> TrainingRun:
    return TrainingRun(
        workspace=workspace,
        name=plan.name,
        task="pretrain",
        domain=plan.config.domain,
        resume=plan.resume,
    )


class Pretraining:
    """A training that is not finished: its data, what trains on them, and its run.

    The size of the `agreed` plan is measured here, if there is a choice.
    """

    def __init__(
        self,
        agreed: Plan,
        workspace: Workspace,
        processes: Processes,
        console: Console,
        deadline: Deadline,
    ) -> None:
        self.processes, self.console, self.deadline = processes, console, deadline
        self.domain, data = plugins.domain(agreed.config.domain), agreed.config.data
        reader = CorpusReader(agreed.config, self.domain, workspace)
        reading = self.deadline.wall()
        self.corpus = corpus = reader.corpus(self.say)
        self.say(self.deadline.extend(self.deadline.wall() - reading))
        level = self.domain.level(None)
        if data.calibration and level.row_per_record:
            counted = bool(level.statistics.counted) and len(corpus.sources) == 1  # as `Corpus.training`
            self.say(few_held_out(corpus.held_out, agreed.name, counted=counted))
        self.few = few_trained_on(corpus)
        self.say(self.few)
        spent = None if deadline.limit is None else deadline.start().spent
        plan = sized(agreed, corpus, processes, self.say, spent=spent)
        self.training = Training(plan.config, corpus)
        self.training.check(processes.world)
        if plan.config.model.is_linear or not plan.resume:
            self.say(self.training.sentence())
        self.run = _run_of(plan, workspace)

    def say(self, text: str) -> None:
        """Report, if there is something to be said; only the main process does."""
        if text and self.processes.is_main:
            self.console.message(text)

    def result(self) -> PretrainResult:
        """Train, finish the model, register it."""
        training, world, run = self.training, self.processes.world, self.run
        if not self.processes.is_main:
            self._begin()
            return self._told(training.train(run, Observer(), world, self.say), is_main=False)
        epoch = None if training.config.model.is_linear else training.planner.tokens_per_epoch
        with self._tracked() as tracked:
            start, cuts = self._begin()
            observer = Recorder(tracked, self.console, training.loop, epoch)
            outcome = training.train(run, observer, world, self.say)
            if outcome.status == "killed":
                self.say(run.stop(tracked, outcome.steps))
                return self._told(outcome, tracked.run_id)
            if training.loop.sharding != "none" and world > 1:
                assert outcome.checkpoint is not None
                training.gather(outcome.checkpoint)
            model = LoadedModel(
                rows=training.rows,
                tokenizer=self.corpus.tokenizer,
                domain=self.domain,
                card=training.card(run.name, tracked.run_id, outcome.steps),
                path=str(run.version_folder(outcome.steps)),
            )
            after = TimeAfterTraining(
                outcome=outcome,
                deadline=self.deadline,
                start=start,
                cuts=cuts,
                progress=self.console.phase,
            )
            made = (run, model, self.corpus, training.evaluator, after)
            version, values, (lead, *warnings) = finalize(*made, tracked, self.console)
            lines = (
                f"model {run.name}:{version}, {lead}",
                *warnings,
                self.few,
                f"page: {run.directory / PAGE}",
            )
            for one in lines:
                self.say(one)
            self.say(self._cut_short(after))
            return self._told(outcome, tracked.run_id, version, values)

    def _begin(self) -> tuple[Start | None, Cuts | None]:
        """Divide the time limit, as the main process measures it, and give the steps their share.

        A resumed run has the division of its first process. The cuts are None without a limit, and in other
        processes.
        """
        limit = self.deadline.limit
        if limit is None:
            return None, None
        cuts, text = None, ""
        if self.processes.is_main:
            cuts = Cuts(self.run.directory / CUTS, {"limit": limit})
            if (recorded := cuts.get("start")) is None:
                recorded = asdict(self.deadline.start())
                cuts.write("start", **recorded)
            else:
                self.deadline.carry(recorded["elapsed"])
            text = json.dumps(recorded)
        start = Start(**json.loads(self.processes.text_from_main(text)))
        self.training.loop = self.training.config.loop(start.spent)
        self.say(
            f"{start.elapsed:.0f} of {limit:g} s are over before the first step; steps may take "
            f"{start.steps:.0f} s"
        )
        return start, cuts

    def _cut_short(self, after: TimeAfterTraining) -> str:
        """What the time limit cut, and the commands that complete it."""
        if not after.reports:
            return ""
        name, cut = self.run.name, ", ".join(after.reports)
        return (
            f"cut short by --max-time {self.deadline.limit:g}s: {cut}. To calibrate fully: "
            f"seqmlm calibrate {name} NORMAL. To evaluate and count more: {longer(name)}"
        )

    def _tracked(self) -> TrackedRun:
        """Make the run's folder, and open its MLflow run."""
        run, corpus = self.run, self.corpus
        settings = run.begin(to_dict(self.training.config))
        (run.directory / FINISHED).unlink(missing_ok=True)
        if corpus.quarantined:  # the bad records of all corpora, readable by the owner only
            path = run.directory / QUARANTINE
            path.touch(mode=0o600)
            path.chmod(0o600)  # touch does not change the mode of an existing file
            path.write_bytes(b"".join(aside.read_bytes() for aside in corpus.quarantined))
        tracked = run.start(_params(self.training), self.console.message)
        tracked.artifact(settings)
        for name, paths in corpus.sources.items():
            counts = released(corpus.statistics[name])
            tracked.dataset(corpus.shown[name], paths[0], corpus.fingerprint, counts)
        return tracked

    def _told(
        self,
        outcome: LoopResult,
        run_id: str | None = None,
        version: int | None = None,
        values: Mapping[str, float] = MappingProxyType({}),
        is_main: bool = True,
    ) -> PretrainResult:
        """The result; `values` are the final evaluation's, none of a training that was stopped."""
        return PretrainResult(
            run_id=run_id,
            run_name=self.run.name,
            model=self.run.name if version is not None else None,
            version=version,
            domain=self.domain.name,
            steps=outcome.steps,
            resumed_from=outcome.resumed_from,
            tokens=outcome.tokens,
            train_loss=outcome.loss,
            eval_loss=values.get("eval/loss"),
            eval_bits_per_unit=values.get("eval/bits_per_unit"),
            unigram_bits_per_unit=values.get("eval/unigram_bits_per_unit"),
            tokens_per_second=outcome.tokens / outcome.seconds if outcome.seconds else 0.0,
            wall_seconds=self.deadline.wall(),
            checkpoint=str(outcome.checkpoint) if outcome.checkpoint else None,
            next=None if version is None else score_command(self.run.name, values),
            signal=outcome.signal,
            is_main=is_main,
        )


def _params(training: Training) -> dict[str, Any]:
    """The parameters that MLflow shows and `runs compare` compares."""
    config, corpus, body = training.config, training.corpus, training.rows.model
    train, model, masking = config.train, config.model, config.masking
    encoder = model.init is None and not model.is_linear
    return {
        "domain": config.domain,
        "size": model.size if model.init is None else "as loaded",
        "architecture": body.config.model_type,
        "init": model.init,
        "parameters": parameter_count(body),
        "layers": model.layers if encoder else "linear" if model.is_linear else "as loaded",
        "initialization": model.initialization if encoder else "zeros" if model.is_linear else "as loaded",
        "max_length": model.max_length,
        "dropout": model.dropout if model.init is None else "as loaded",
        "tokenizer": corpus.tokenizer.name,
        "vocabulary_size": corpus.tokenizer.space.size,
        "masker": masking.masker,
        "mask_rate": masking.rate,
        "mask_random_keep": f"{masking.mask}/{masking.random}/{masking.keep}",
        "replacement": masking.replacement,
        "dynamic_masks": masking.dynamic,
        "learning_rate": training.loop.learning_rate,
        **{name: getattr(train, name) for name in _TRACKED},
        "seed": config.seed,
        "data": ", ".join(corpus.shown.values()),
        "data_fingerprint": corpus.fingerprint,
        "training_sequences": len(corpus.train),
    }


_TRACKED = (
    *("schedule", "warmup", "weight_decay", "tokens_per_batch", "tokens_per_row"),
    *("max_steps", "max_time", "epochs", "precision"),
)


def _same_limits(limits: Mapping[str, Any]) -> Callable[[Any], PretrainResult | None]:
    """Reads a saved result; None where the limits have been raised since."""

    def parse(saved: Any) -> PretrainResult | None:
        result = PretrainResult(**saved["result"])
        return result if saved["limits"] == limits else None

    return parse
