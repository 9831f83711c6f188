"""`seqmlm calibrate`: learn the distribution of normal scores, so that scores become p-values and alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import tell

if TYPE_CHECKING:
    from seqmlm.tasks.calibrate import CalibrateResult


def calibrate(
    model: opt.Model,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NORMAL|-]...", help="Files or folders of normal data; - is standard input."),
    ] = None,
    data: opt.Data = None,
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
    """
    given = locals()
    from seqmlm.cli.output import print_json
    from seqmlm.tasks.calibrate import CalibrateConfig, calibrate_files

    config = opt.configured(CalibrateConfig, given)
    result = calibrate_files(config, tell)
    if json_output:
        print_json(result)
    else:
        _show(result, alpha)


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
                facts.get("judged_by", "all statistics"),
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
        if "evidence" in facts:
            kinds = ", ".join(
                f"{kind} {one['found']:.0%}" for kind, one in facts["evidence"]["kinds"].items()
            )
            tell(f"planted faults that mode {name} finds at a false positive rate of 0.05: {kinds}")
        if facts.get("correction") == "fitted":
            tell(f"mode {name} is an approximation: its correction is fitted to normal data")
        if "alpha" in facts:
            rests = {
                "ranks": "guaranteed by ranks",
                "tail": "extrapolated by a fitted tail",
                "nothing": "too small for this number of rows",
            }
            tell(f"false positive rate {alpha:g} in mode {name}: {rests[facts['alpha']['rests_on']]}")
