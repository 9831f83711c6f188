"""The whole of `seqmlm train`: plan, read, assemble, train, evaluate, register and calibrate in one run.
The folder of the run is complete without MLflow. Every step up to the registered model can be repeated. After
a crash at any moment, `--resume` reaches the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from seqmlm import plugins
from seqmlm.config import to_dict
from seqmlm.data.counts import released
from seqmlm.engine.backbones import parameter_count
from seqmlm.engine.loop import LoopResult
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.privacy import handling_sensitive_data
from seqmlm.scoring.calibrate import few_held_out
from seqmlm.tasks.deadline import Start, TimeAfterTraining
from seqmlm.tracking import TrackedRun
from seqmlm.training.assemble import Training
from seqmlm.training.config import LIMITS
from seqmlm.training.corpus import CorpusReader, few_records_warning
from seqmlm.training.finalize import Finished, finalize
from seqmlm.training.job import TrainingJob
from seqmlm.training.launch import TrainRequest, agreed_plan, longer_command
from seqmlm.training.observers import Console
from seqmlm.training.page import PAGE, score_command
from seqmlm.training.resume import FINISHED
from seqmlm.training.run import QUARANTINE, TrainingRun
from seqmlm.training.sizing import sized_plan


@dataclass(frozen=True, kw_only=True)
class PretrainResult:
    """The result of a training, and the JSON object of `train --json`."""

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
        """The fields as JSON values. Fields that are only for this process or for people are left out."""
        return {key: value for key, value in asdict(self).items() if key not in ("signal", "is_main", "next")}


def pretrain(request: TrainRequest, console: Console) -> PretrainResult:
    """Train a new run, or resume a run. `console` receives progress and messages.

    Raises:
        UsageError: the settings are invalid.
        DataError: an input cannot be read.
        StateError: the name is taken, a checkpoint is corrupt, the disk is full, or the registry is not
            ready.
        TrainingError: too many non-finite steps in a row, or out of memory at the smallest batch.
    """
    return Pretraining(request, console).result()


class Pretraining(TrainingJob):
    """The training of a masked language model: its data, its objective and its run."""

    def __init__(self, request: TrainRequest, console: Console) -> None:
        super().__init__(console)
        self.plan = agreed_plan(request, self.workspace, self.processes)
        config = self.plan.config
        self.limit(config.train.max_time)
        self.domain = plugins.domain(config.domain)
        self.run = TrainingRun(
            workspace=self.workspace,
            name=self.plan.name,
            task="pretrain",
            domain=config.domain,
            resume=self.plan.resume,
        )

    def result(self) -> PretrainResult:
        """The result of a finished run. If the run is not finished, it is trained first."""
        limits = {limit: to_dict(self.plan.config.train)[limit] for limit in LIMITS}
        with handling_sensitive_data(self.plan.config.data.sensitive):
            finished = self.run.result(_finished_parser(limits)) if self.run.resume else None
            if finished is not None:
                how = longer_command(self.run.name)
                self.say(f"run {self.run.name} is finished; to train it longer: {how}")
                return replace(finished, is_main=self.processes.is_main)
            self._prepare()
            result = self._train()
            # A run with a result is not opened again: if it were killed, MLflow would show it as RUNNING for
            # ever.
            if result.version is not None:
                self.run.finish({"limits": limits, "result": asdict(result)})
        return result

    def _prepare(self) -> None:
        """Read the data and create the objective. If there is a choice, the size is measured."""
        plan, data = self.plan, self.plan.config.data
        reader = CorpusReader(plan.config, self.domain, self.workspace)
        self.corpus = corpus = self.load_data(lambda: reader.corpus(self.say))
        level = self.domain.level(None)
        if data.calibration and level.row_per_record:
            counted = bool(level.statistics.counted) and len(corpus.sources) == 1  # as `Corpus.training`
            self.say(few_held_out(corpus.held_out, plan.name, counted=counted))
        self.few = few_records_warning(corpus)
        self.say(self.few)
        spent = None if self.deadline.limit is None else self.deadline.start().spent
        plan = sized_plan(plan, corpus, self.processes, self.say, spent=spent)
        self.training = Training(plan.config, corpus)
        self.training.check(self.processes.world)
        if plan.config.model.is_linear or not plan.resume:
            self.say(self.training.sentence())
        self.run = replace(self.run, name=plan.name)

    def _train(self) -> PretrainResult:
        """Train, complete the model and register it."""
        training, processes, run = self.training, self.processes, self.run
        if not processes.is_main:
            self._divide_time()
            return self._outcome(training.train(run, processes, None, self.console))
        with self._open_run() as tracked:
            start = self._divide_time()
            outcome = training.train(run, processes, tracked, self.console)
            if outcome.status == "killed":
                self.say(run.stop(tracked, outcome.steps))
                return self._outcome(outcome, tracked.run_id)
            if training.loop.sharding != "none" and processes.world > 1:
                assert outcome.checkpoint is not None
                training.gather(outcome.checkpoint)
            model = LoadedModel(
                rows=training.trained_model,
                tokenizer=self.corpus.tokenizer,
                domain=self.domain,
                card=training.card(run.name, tracked.run_id, outcome.steps),
                path=str(run.version_folder(outcome.steps)),
            )
            time_left = TimeAfterTraining(
                outcome=outcome,
                deadline=self.deadline,
                start=start,
                cuts=self.cuts,
                progress=self.console.phase,
            )
            finished = finalize(self, model, self.corpus, training.evaluator, time_left, tracked)
            lead, *warnings = finished.sentences
            lead, page = f"model {run.name}:{finished.version}, {lead}", f"page: {run.directory / PAGE}"
            for line in (lead, *warnings, self.few, page, self._cut_sentence(time_left)):
                self.say(line)
            return self._outcome(outcome, tracked.run_id, finished)

    def _divide_time(self) -> Start | None:
        """Divide the time limit, and set the share of the steps."""
        start = self.start("start")
        if start is not None:
            self.training.loop = self.training.config.loop(start.spent)
            self.say(
                f"{start.elapsed:.0f} of {start.limit:g} s passed before the first step; the training "
                f"steps get {start.steps:.0f} s"
            )
        return start

    def _cut_sentence(self, time_left: TimeAfterTraining) -> str:
        """A sentence with the parts that the time limit cut, and the commands that complete them."""
        if not time_left.reports:
            return ""
        name, cut = self.run.name, ", ".join(time_left.reports)
        return (
            f"--max-time {self.deadline.limit:g}s cut the work short. Completed: {cut}. Full calibration: "
            f"seqmlm calibrate {name} NORMAL. Full evaluation and counts: {longer_command(name)}"
        )

    def _open_run(self) -> TrackedRun:
        """Create the folder of the run, and open its MLflow run."""
        run, corpus = self.run, self.corpus
        settings = run.begin(to_dict(self.training.config))
        (run.directory / FINISHED).unlink(missing_ok=True)
        if corpus.quarantined:  # the bad records of all corpora, in a file that only the owner can read
            path = run.directory / QUARANTINE
            path.touch(mode=0o600)
            path.chmod(0o600)  # touch does not change the mode of an existing file
            path.write_bytes(b"".join(bad_records.read_bytes() for bad_records in corpus.quarantined))
        tracked = run.start(_tracked_params(self.training), self.console.message)
        tracked.artifact(settings)
        for name, paths in corpus.sources.items():
            counts = released(corpus.statistics[name])
            tracked.dataset(corpus.shown[name], paths[0], corpus.fingerprint, counts)
        return tracked

    def _outcome(
        self, outcome: LoopResult, run_id: str | None = None, finished: Finished | None = None
    ) -> PretrainResult:
        """The result of a training that has finished or was stopped."""
        values: Mapping[str, float] = {} if finished is None else finished.values
        return PretrainResult(
            run_id=run_id,
            run_name=self.run.name,
            model=None if finished is None else self.run.name,
            version=None if finished is None else finished.version,
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
            next=None if finished is None else score_command(self.run.name, values),
            signal=outcome.signal,
            is_main=self.processes.is_main,
        )


def _tracked_params(training: Training) -> dict[str, Any]:
    """The parameters that MLflow shows and `runs compare` compares."""
    config, corpus, body = training.config, training.corpus, training.trained_model.model
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


def _finished_parser(limits: Mapping[str, Any]) -> Callable[[Any], PretrainResult | None]:
    """A function that reads a saved result. It returns None if the limits have changed since."""

    def parse(saved: Any) -> PretrainResult | None:
        result = PretrainResult(**saved["result"])
        return result if saved["limits"] == limits else None

    return parse
