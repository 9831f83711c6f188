"""What a scoring shows beside its rows: a report, a track, and the run that keeps them.

All of it is written at the end, from what is collected in bounded memory while rows pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType

from seqmlm.anomaly.levels import Track
from seqmlm.data.prepare import combined, file_fingerprint
from seqmlm.data.privacy import redact_small_counts
from seqmlm.errors import DataError
from seqmlm.inference.detector import JudgedRow
from seqmlm.reports.report import ScoreReport
from seqmlm.tasks.corpus import UNNAMED, shown_name
from seqmlm.tasks.score_config import ScoreConfig
from seqmlm.tasks.score_output import ScoreSummary
from seqmlm.tasks.score_plan import ScoringPlan
from seqmlm.tracking import TrackedRun, Tracker
from seqmlm.workspace import Workspace


class ScoreReporter:
    """Nothing, where nothing is asked for; else the pictures, and a tracked run around the scoring.

    Args:
        config: says what is wanted.
        plan: level, mode and model.
        workspace: where runs are.
        notify: told about a tracking server that does not answer.
    """

    def __init__(
        self, config: ScoreConfig, plan: ScoringPlan, workspace: Workspace, notify: Callable[[str], None]
    ) -> None:
        self._config, self._plan, self._workspace, self._notify = config, plan, workspace, notify
        self._run: TrackedRun | None = None
        self._private = plan.sensitive
        self._report: ScoreReport | None = None
        self._track: Track | None = None

    @property
    def run_name(self) -> str | None:
        """Name of the tracked run, or None."""
        return None if self._run is None else self._run.name

    def __enter__(self) -> ScoreReporter:
        config, session = self._config, self._plan.session
        level = self._plan.level
        if config.track is not None:
            self._track = level.track(config.track, name=config.model, private=self._private)
        if config.report is not None:
            self._report = ScoreReport(
                f"Scores of {config.model}",
                f"{level.name}, {self._plan.mode}",
                pictures=session.domain.pictures(level),
                statistics={name: level.statistics[name] for name in level.judges},
                unit=session.tokenizer.unit,
                surface=session.tokenizer.alone,
                meaning=session.tokenizer.meaning,
                first=level.counted_from,
            )
        if config.report is not None:
            self._run = self._tracked().__enter__()
        return self

    def _tracked(self) -> TrackedRun:
        config, plan = self._config, self._plan
        card = plan.session.card
        name = card.run_name or Path(plan.session.model.path).name
        entry = plan.session.entry
        moment = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        params = {
            "domain": card.domain,
            "model": config.model,
            **({} if entry is None else {"model_name": entry.name, "model_version": entry.version}),
            "data": self._data,
            "level": plan.level.name,
            "mode": str(plan.mode),
            "precision": plan.session.precision,
            "alpha": plan.alpha,
            "inputs": len(config.paths),
        }
        tags = {"domain": card.domain, "task": "score"}
        run = Tracker(self._workspace, warn=self._notify).start(
            f"score-{name}-{moment}"[:100], experiment=f"seqmlm-{card.domain}", params=params, tags=tags
        )
        if entry is not None:
            run.uses(entry.name, entry.version)
        self._name_data(run)
        return run

    @property
    def _data(self) -> str:
        """What MLflow calls the data; names of files with sensitive data may be sensitive."""
        return UNNAMED if self._private else shown_name(self._config.sources)

    def _name_data(self, run: TrackedRun) -> None:
        """Tell the run what is scored, by its content, unless that can be read but once."""
        config = self._config
        if "-" in config.measured:
            return
        with suppress(DataError):  # the scoring itself says what cannot be read, or leaves it out
            named = self._plan.session.domain.files(
                config.sources, format=config.format, options=config.options
            )
            digest = combined(files=file_fingerprint(named))
            source = "withheld" if self._private else config.sources[0]
            facts = redact_small_counts({"files": len(named)}, self._private)
            run.dataset(self._data, source, digest, facts, context="scoring")

    def add(self, judged: JudgedRow) -> bool:
        """Take a row; whether it is to be written: every one."""
        if self._report is not None:
            self._report.add(judged)
        if self._track is not None:
            self._track.add(judged.row, judged.scored)
        return True

    def _threshold(self) -> dict[str, str]:
        """What an alarm rests on, for the report's head."""
        plan = self._plan
        if plan.alpha is None or plan.stored is None:
            return {}
        rows = redact_small_counts({"rows": plan.stored.rows}, self._private)["rows"]
        return {"alarm p at most": f"{plan.alpha:.3g}", "calibration rows": str(rows)}

    def finish(self, summary: ScoreSummary) -> None:
        """Write what is shown, and keep it with the run; of sensitive data counts alone, and no small ones.

        Raises:
            StateError: it cannot be written.
        """
        config = self._config
        kept: list[Path] = []
        if self._report is not None and config.report is not None:
            facts = {"records": summary.records, "incidents": summary.incidents, "left out": summary.bad}
            told = {name: value for name, value in facts.items() if value is not None} | self._threshold()
            self._report.write(config.report, told, private=self._private)
            kept.append(config.report)
        if self._track is not None and config.track is not None:
            self._track.close()
            kept.append(config.track)
        if self._run is None:
            return
        counts = {
            "records": summary.records,
            "rows": summary.rows,
            "units": summary.units,
            "alarms": summary.alarms,
            "incidents": summary.incidents,
            "bad_records": summary.bad,
            "records_per_second": summary.rate,
        }
        numbers = redact_small_counts(counts, self._private)
        self._run.log_metrics(0, {k: float(v) for k, v in numbers.items() if isinstance(v, (int, float))})
        for path in () if self._private else kept:
            self._run.artifact(path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._track is not None and kind is not None:
            self._track.__exit__(kind, error, trace)  # leaves no half of a track
        if self._run is not None:
            self._run.__exit__(kind, error, trace)
