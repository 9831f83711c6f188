"""What a scoring shows beside its rows: a report, a genome track, and the MLflow run that keeps them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType

from seqmlm.errors import UsageError
from seqmlm.reports.genome_track import GenomeTrack
from seqmlm.reports.report import ScoreReport
from seqmlm.tasks.judging import JudgedRow
from seqmlm.tasks.privacy import tellable
from seqmlm.tasks.score_config import ScoreConfig
from seqmlm.tasks.score_findings import Findings
from seqmlm.tasks.score_judge import Chosen
from seqmlm.tasks.score_summary import ScoreSummary
from seqmlm.tracking import TrackedRun, Tracker
from seqmlm.workspace import Workspace


class Shown:
    """Nothing, where nothing is asked for; else the pictures, and a tracked run around the scoring.

    Args:
        config: says what is wanted.
        chosen: level, mode and model.
        workspace: where runs are.
        say: told about a tracking server that does not answer.

    Raises:
        UsageError: a track along a genome of rows that have no place in one.
    """

    def __init__(
        self, config: ScoreConfig, chosen: Chosen, workspace: Workspace, say: Callable[[str], None]
    ) -> None:
        if config.track is not None and not chosen.level.placed:
            raise UsageError(
                f"--track shows scores along a genome, and rows of level {chosen.level.name} of a "
                f"{chosen.model.card.domain} model have no place in one; --report draws them"
            )
        self._config, self._chosen, self._workspace, self._say = config, chosen, workspace, say
        self._run: TrackedRun | None = None
        self._private = private = chosen.model.card.sensitive
        self._findings = Findings(chosen.level.name, config.baseline, config.sarif, private=private)
        self._report: ScoreReport | None = None
        self._track: GenomeTrack | None = None

    @property
    def run_name(self) -> str | None:
        """Name of the tracked run, or None."""
        return None if self._run is None else self._run.name

    def __enter__(self) -> Shown:
        config, model = self._config, self._chosen.model
        if config.track is not None:
            self._track = GenomeTrack(config.track, name=config.model, private=self._private)
        if config.report is not None:
            self._report = ScoreReport(
                f"Scores of {config.model}",
                f"{self._chosen.level.name}, {self._chosen.mode_name}",
                pictures=self._chosen.level.pictures,
                unit=model.tokenizer.unit,
                surface=model.tokenizer.surface,
            )
        if config.report is not None or config.track is not None:
            self._run = self._tracked().__enter__()
        return self

    def _tracked(self) -> TrackedRun:
        config, chosen = self._config, self._chosen
        card = chosen.model.card
        name = card.run_name or Path(chosen.model.path).name
        moment = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        params = {
            "domain": card.domain,
            "model": config.model,
            "level": chosen.level.name,
            "mode": chosen.mode_name,
            "precision": chosen.precision,
            "alpha": chosen.alpha,
            "inputs": len(config.paths),
        }
        tags = {"domain": card.domain, "task": "score"}
        return Tracker(self._workspace, warn=self._say).start(
            f"score-{name}-{moment}"[:100], experiment=f"seqmlm-{card.domain}", params=params, tags=tags
        )

    def add(self, judged: JudgedRow) -> bool:
        """Take a row; whether it is to be written: with a baseline, only what is new."""
        if self._report is not None:
            self._report.add(judged)
        if self._track is not None:
            self._track.add(judged.row, judged.scored)
        return self._findings.is_new(judged)

    def _threshold(self) -> dict[str, str]:
        """What an alarm rests on, for the report's head."""
        chosen = self._chosen
        if chosen.alpha is None or chosen.stored is None:
            return {}
        rows = tellable({"rows": chosen.stored.rows}, self._private)["rows"]
        return {"alarm p at most": f"{chosen.alpha:.3g}", "calibration rows": str(rows)}

    def finish(self, summary: ScoreSummary) -> None:
        """Write what is shown, and keep it with the run; of sensitive data counts alone, and no small ones.

        Raises:
            StateError: it cannot be written.
        """
        config = self._config
        self._findings.finish()
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
        numbers = tellable(counts, self._private)
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
