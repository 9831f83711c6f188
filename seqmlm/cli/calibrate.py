"""`seqmlm calibrate`: learn the distribution of normal scores, so that scores become p-values and alarms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TextIO

from seqmlm.cli.command import Answer
from seqmlm.cli.output import number
from seqmlm.errors import UsageError, number_of
from seqmlm.scoring.calibrate import CalibrateConfig, CalibrateResult, calibrate_files
from seqmlm.watch.calibration import CalibrateStreamResult, calibrate_stream

_OF_STREAMS = ("model", "since", "fpr", "expert", "seed")


@dataclass(frozen=True, kw_only=True)
class CalibrateRequest(CalibrateConfig):
    """What `seqmlm calibrate` can be told: normal data, or rows that a scoring judged.

    Args:
        from_stream: OUT: calibrate from the newest rows of the scoring that follows files and writes this
            file, in place of NORMAL: without rows of incidents acknowledged as faults, with those of false
            alarms. A fault among them that nobody noticed hides later ones like it.
        since: DURATION: with --from-stream: only rows that were judged within this time, such as 7d or 24h.
    """

    shown: ClassVar[tuple[str, ...]] = ("from_stream", "since", *CalibrateConfig.shown)

    from_stream: Path | None = None
    since: str | None = None


class Calibrate:
    """Calibrate a model on normal data, so that `score` gives p-values and alarms; no labels are used.

    A p-value is the share of normal rows of similar length that are at least as unusual. The new calibration
    replaces the one that training made from its held-out data.

    Example: seqmlm calibrate web-logs last-week.log --fpr 1e-4

    Example: seqmlm calibrate web-logs --from-stream alarms.jsonl
    """

    Config = CalibrateRequest
    trains = False

    @classmethod
    def launch(
        cls, name: str, config: CalibrateRequest, *, stdout: TextIO, progress: Any, as_json: bool
    ) -> Answer:
        """Calibrate; what a person should know of it is told beside."""
        result: CalibrateResult
        told: Iterator[str] = iter(())
        if config.from_stream is not None:
            _check(config)
            result = streamed = calibrate_stream(config, config.from_stream, config.since)
            of, told = f"{number_of(streamed.rows, 'row')} of {streamed.output}", _costs(streamed)
        elif config.since is not None:
            raise UsageError("--since goes with --from-stream: of files all records are taken")
        else:
            result = calibrate_files(config, progress.message)
            of = f"{result.records} records"
        for text in () if as_json else (*_remarks(result, config.fpr), *told):
            progress.message(text)
        return Answer(
            figures=result,
            answer=f"calibrated level {result.level} with {of}",
            tables=[("", _COLUMNS, [_row(result.level, name, of) for name, of in result.modes.items()])],
            hint=f"next: seqmlm score {config.model} NEW --fpr 0.05",
        )


def _check(config: CalibrateRequest) -> None:
    """Refuse what is of files, where rows of a stream are taken."""
    usual, own = CalibrateRequest(model=config.model), ("from_stream", *_OF_STREAMS)
    for name in (one.name for one in fields(config) if one.name not in own):
        if getattr(config, name) != getattr(usual, name):
            raise UsageError(
                "--from-stream takes the rows of a stream as they were judged: "
                f"{'files' if name == 'paths' else name} cannot be given with it"
            )


def _costs(result: CalibrateStreamResult) -> Iterator[str]:
    """What rows of a stream are, and what that costs."""
    if result.faults:
        yield f"{number_of(result.faults, 'row')} of incidents acknowledged as faults left out"
    if result.false_alarms:
        yield f"with the rows of {number_of(result.false_alarms, 'incident')} marked as normal"
    if result.unjudged:
        yield (
            f"with the rows of {number_of(result.unjudged, 'incident')} that nobody has judged: acknowledge "
            f"what was a fault (seqmlm incidents list --stream {result.output}), and calibrate again"
        )
    yield (
        "nobody has labelled these rows: a fault among them that nobody noticed is normal from now on, and "
        "hides later ones like it"
    )
    yield (
        "a scoring that runs goes on with the calibration it began with; to judge by this one start it "
        "again, with another --out where the model is not named by an alias"
    )


_COLUMNS = ("level", "mode", "rows", "smallest rate", "below it", "rows a day", "judged by")


def _row(level: str, mode: str, facts: Any) -> tuple[str, ...]:
    below = "extrapolated" if facts["tail"] else "no alarms"
    rate = f"{facts['smallest_rate']:.3g}"
    return level, mode, str(facts["rows"]), rate, below, number(facts["rows_per_day"]), facts["judged_by"]


_RESTS = {
    "ranks": "guaranteed by ranks",
    "tail": "extrapolated by a fitted tail",
    "nothing": "too small for this number of rows",
}


def _remarks(result: CalibrateResult, alpha: float | None) -> Iterator[str]:
    yield from (f"{reason}: {count}" for reason, count in result.problems.items())
    if result.left_out:
        yield f"left out: {result.left_out} records the model was trained on"
    for name, facts in result.modes.items():
        if facts["few_records"]:
            yield (
                f"mode {name}: the rows are of {facts['records']} records only, and rows of one record are "
                "alike: rates are less sure than so many rows say; give more records"
            )
        if "alpha" in facts:
            yield f"false positive rate {alpha:g} in mode {name}: {_RESTS[facts['alpha']['rests_on']]}"
