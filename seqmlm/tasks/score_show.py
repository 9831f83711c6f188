"""What a scoring shows beside its rows: a report, a genome track, and the MLflow run that keeps them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType

from seqmlm.tasks.judging import JudgedRow
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
    """

    def __init__(
        self, config: ScoreConfig, chosen: Chosen, workspace: Workspace, say: Callable[[str], None]
    ) -> None:
        self._config, self._chosen, self._workspace, self._say = config, chosen, workspace, say
        self._run: TrackedRun | None = None
        private = chosen.model.card.sensitive
        self._findings = Findings(chosen.level.name, config.baseline, config.sarif, private=private)

    @property
    def run_name(self) -> str | None:
        """Name of the tracked run, or None."""
        return None if self._run is None else self._run.name

    def __enter__(self) -> Shown:
        if self._config.report is not None or self._config.track is not None:
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
            "alpha": chosen.alpha,
            "inputs": len(config.paths),
        }
        tags = {"domain": card.domain, "task": "score"}
        return Tracker(self._workspace, warn=self._say).start(
            f"score-{name}-{moment}"[:100], experiment=f"seqmlm-{card.domain}", params=params, tags=tags
        )

    def add(self, judged: JudgedRow) -> bool:
        """Take a row; whether it is to be written: with a baseline, only what is new."""
        return self._findings.is_new(judged)

    def finish(self, summary: ScoreSummary) -> None:
        """Write what is shown, and keep it with the run; of sensitive data nothing leaves the workspace."""
        self._findings.finish()
        if self._run is None:
            return
        counts = {"records": summary.records, "rows": summary.rows, "units": summary.units}
        self._run.log_metrics(0, {name: float(value) for name, value in counts.items()})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            self._run.__exit__(kind, error, trace)
