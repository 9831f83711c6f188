"""`seqmlm calibrate`: learn the distribution of normal scores, so that scores become p-values and alarms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import tell
from seqmlm.errors import UsageError, number_of

if TYPE_CHECKING:
    from seqmlm.tasks.calibrate import CalibrateResult


def calibrate(
    model: opt.Model,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NORMAL|-]...", help="Files or folders of normal data; - is standard input."),
    ] = None,
    data: opt.Data = None,
    from_stream: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Calibrate from the newest rows of the scoring that follows files and writes this file, in "
            "place of NORMAL: without rows of incidents acknowledged as faults, with those of false alarms. "
            "A fault among them that nobody noticed hides later ones like it.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="With --from-stream: only rows that were judged in the last 7d, 24h, ..."
        ),
    ] = None,
    level: opt.Level = None,
    mode: Annotated[
        str | None,
        typer.Option(help="Calibrate only this mode (see `seqmlm score --help`). Default: all possible."),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="False positive rate: report whether these data can guarantee it."),
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Use this many normal records, spread evenly.")] = 2_000,
    domain: opt.ModelDomain = None,
    format: opt.Format = None,
    option: opt.Option = None,
    on_error: opt.OnErrorSkip = "raise",
    tokens_per_batch: opt.TokensPerBatch = None,
    precision: opt.Precision = "fp32",
    expert: opt.Expert = "auto",
    json_output: opt.Json = False,
) -> None:
    """Calibrate a model on normal data, so that `score` gives p-values and alarms; no labels are used.

    A p-value is the share of normal rows of similar length that are at least as unusual. The new calibration
    replaces the one that training made from its held-out data.

    Example: seqmlm calibrate web-logs last-week.log --alpha 1e-4

    Example: seqmlm calibrate web-logs --from-stream alarms.jsonl
    """
    given = locals()
    if from_stream is not None:
        _from_stream(from_stream, given)
        return
    if since is not None:
        raise UsageError("--since goes with --from-stream: of files all records are taken")
    del given["from_stream"], given["since"]
    from seqmlm.cli.output import print_json
    from seqmlm.tasks.calibrate import CalibrateConfig, calibrate_files

    config = opt.configured(CalibrateConfig, given)
    result = calibrate_files(config, tell)
    if json_output:
        print_json(result)
    else:
        _show(result, alpha)


def _from_stream(stream: Path, given: Mapping[str, Any]) -> None:
    """Calibrate from rows that a scoring judged, and say what they are and what that costs."""
    from seqmlm.cli.output import print_json
    from seqmlm.watch.calibration import CalibrateStreamConfig, calibrate_stream

    if others := [name for name, usual in _OF_FILES.items() if given[name] != usual]:
        what = "files" if others[0] in ("paths", "data") else f"--{others[0].replace('_', '-')}"
        raise UsageError(
            f"--from-stream takes the rows of a stream as they were judged: {what} cannot be given with it"
        )
    names = ("model", "since", "alpha", "expert")
    result = calibrate_stream(CalibrateStreamConfig(stream=stream, **{name: given[name] for name in names}))
    if given["json_output"]:
        print_json(result)
        return
    _show(result, given["alpha"])
    left = f"; {number_of(result.faults, 'row')} of incidents acknowledged as faults left out"
    tell(f"from {number_of(result.rows, 'row')} of {result.output}{left if result.faults else ''}")
    if result.false_alarms:
        tell(f"with the rows of {number_of(result.false_alarms, 'incident')} marked as normal")
    if result.unjudged:
        tell(
            f"with the rows of {number_of(result.unjudged, 'incident')} that nobody has judged: acknowledge "
            f"what was a fault (seqmlm incidents list --stream {stream}), and calibrate again"
        )
    tell(
        "nobody has labelled these rows: a fault among them that nobody noticed is normal from now on, and "
        "hides later ones like it"
    )
    tell(
        "a scoring that runs goes on with the calibration it began with; to judge by this one start it "
        "again, with another --out where the model is not named by an alias"
    )


_OF_FILES: Mapping[str, Any] = {
    "paths": None,
    "data": None,
    "level": None,
    "mode": None,
    "records": 2_000,
    "domain": None,
    "format": None,
    "option": None,
    "on_error": "raise",
    "tokens_per_batch": None,
    "precision": "fp32",
}
"""What says how files are read and scored, and what it is where nobody gives it."""


def _show(result: CalibrateResult, alpha: float | None) -> None:
    from seqmlm.cli.output import number, print_table

    for reason, count in result.problems.items():
        tell(f"{count} x {reason}")
    if result.left_out:
        tell(f"left out: {result.left_out} records the model was trained on")
    print_table(
        ["level", "mode", "rows", "smallest rate", "below it", "rows a day", "judged by"],
        [
            [
                result.level,
                name,
                str(facts["rows"]),
                f"{facts['smallest_rate']:.3g}",
                "extrapolated" if facts["tail"] else "no alarms",
                number(facts["rows_per_day"]),
                facts["judged_by"],
            ]
            for name, facts in result.modes.items()
        ],
    )
    for name, facts in result.modes.items():
        if isinstance(facts["records"], int) and 0 < facts["records"] < min(30, facts["rows"]):
            tell(
                f"mode {name}: the rows are of {facts['records']} records only, and rows of one record are "
                "alike: rates are less sure than so many rows say; give more records"
            )
        if "alpha" in facts:
            rests = {
                "ranks": "guaranteed by ranks",
                "tail": "extrapolated by a fitted tail",
                "nothing": "too small for this number of rows",
            }
            tell(f"false positive rate {alpha:g} in mode {name}: {rests[facts['alpha']['rests_on']]}")
