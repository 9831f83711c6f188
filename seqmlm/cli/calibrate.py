"""`seqmlm calibrate`: what is usual, from normal data, so that scores become p-values and alarms."""

from __future__ import annotations

from typing import Annotated

import typer

from seqmlm.cli.words import PRECISION


def calibrate(
    model: Annotated[str, typer.Argument(help="A model: name, name@alias, name:version or folder.")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NORMAL|-]...", help="Files or folders of normal data; - is standard input."),
    ] = None,
    data: Annotated[list[str] | None, typer.Option("--data", help="The same as NORMAL.")] = None,
    level: Annotated[str | None, typer.Option(help="What is judged; the domain's default if absent.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="exact, one-pass, cascade, ...; all the model allows if absent.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="A rate of false alarms: say what it would rest on.")
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Normal records to look at, drawn evenly.")] = 2_000,
    domain: Annotated[
        str | None, typer.Option("--domain", "-d", help="Only for a model that does not know its own.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Input format; guessed from the name if absent.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Reader option, as column=text.")
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="Bad records, and those the model was trained on: raise or skip.")
    ] = "raise",
    tokens_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one forward pass; halved when memory runs out.")
    ] = None,
    precision: Annotated[str, typer.Option(help=PRECISION)] = "fp32",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Learn from normal data what is usual, in place of what training set aside; no labels are used.

    `score` then gives p-values: the share of normal rows at least as unusual, among those of similar length.

    Example: seqmlm calibrate web-logs last-week.log --alpha 1e-4
    """
    import sys

    from seqmlm.cli.output import number, print_json, print_table
    from seqmlm.config import from_dict, parse_options
    from seqmlm.tasks.calibrate import CalibrateConfig, calibrate_files

    config = from_dict(
        CalibrateConfig,
        {
            "model": model,
            "paths": [*(paths or []), *(data or [])],
            "level": level,
            "mode": mode,
            "alpha": alpha,
            "records": records,
            "domain": domain,
            "format": format,
            "options": parse_options(option or []),
            "on_error": on_error,
            "tokens_per_batch": tokens_per_batch,
            "precision": precision,
        },
    )
    result = calibrate_files(config, lambda text: print(text, file=sys.stderr))
    if json_output:
        print_json(result.to_dict())
        return
    for reason, count in result.problems.items():
        print(f"{count} x {reason}", file=sys.stderr)
    if result.left_out:
        print(f"left out: {result.left_out} records the model was trained on", file=sys.stderr)
    print_table(
        ["level", "mode", "rows", "smallest rate", "below it", "rows a day"],
        [
            [
                result.level,
                name,
                str(facts["rows"]),
                f"{facts['smallest_rate']:.3g}",
                "extrapolated" if facts["tail"] else "no alarms",
                number(facts["rows_per_day"]),
            ]
            for name, facts in result.modes.items()
        ],
    )
    for name, facts in result.modes.items():
        if facts.get("correction") == "fitted":
            print(
                f"mode {name} is an approximation: its correction is fitted to normal data", file=sys.stderr
            )
        if "alpha" in facts:
            rests = {
                "ranks": "guaranteed by ranks",
                "tail": "extrapolated by the tail",
                "nothing": "too small",
            }
            print(f"a rate of {alpha:g} in mode {name}: {rests[facts['alpha']['rests_on']]}", file=sys.stderr)
