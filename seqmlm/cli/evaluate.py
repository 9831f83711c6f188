"""`seqmlm evaluate`: how well do scores and alarms find what is labelled?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    scores: Annotated[
        list[str], typer.Argument(metavar="SCORES...", help="Files of seqmlm score: .jsonl, .csv, .parquet.")
    ],
    labels: Annotated[
        str | None,
        typer.Option(
            help="File with an id and a label a row, or a sample's truth.json; absent: in the scores."
        ),
    ] = None,
    label_field: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    label_id: Annotated[str, typer.Option(help="Column of the id in the file of labels.")] = "id",
    positive: Annotated[
        str | None, typer.Option(help="The label that is to be found; default: 1, true.")
    ] = None,
    negative: Annotated[
        str | None, typer.Option(help="The label that is not; every other one is to be found.")
    ] = None,
    score: Annotated[
        str, typer.Option(help="Column of the score; p_value and channels.NAME are turned round.")
    ] = "score",
    baseline: Annotated[
        str | None, typer.Option(help="Another column, or another file of scores, to be compared with.")
    ] = None,
    prevalence: Annotated[
        float | None,
        typer.Option(help="Re-weight precision and F1 of the alarms to this share of positives."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Column of the natural unit that is resampled; default: each row.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Let labels without a score pass; they are counted.")
    ] = False,
    sensitive: Annotated[
        bool, typer.Option("--sensitive", help="Withhold small counts, also if the scores do not say so.")
    ] = False,
    draws: Annotated[int, typer.Option(min=1, help="Resamples of the bootstrap.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML page with curves here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Evaluate scores against labels, beside the trivial floors: length, and flagging everything.

    AUROC, AUPRC, recall at false positive rates of 1e-2 and 1e-3, precision, recall and F1 of the alarm
    column (a threshold set without labels), and the F1 of the best threshold there is, which is an oracle's.

    Example: seqmlm evaluate scores.jsonl --labels anomaly_label.csv --label-id BlockId --label-field Label
    --positive Anomaly --prevalence 0.029
    """
    import sys

    from seqmlm.cli.output import escape, number, print_json, print_table
    from seqmlm.config import from_dict
    from seqmlm.tasks.evaluate import (
        ALARM_COLUMNS,
        EvaluateConfig,
        alarm_cells,
        evaluate_scores,
        notes,
        ranking_cells,
        ranking_columns,
        write_report,
    )

    config = from_dict(
        EvaluateConfig,
        {
            "paths": scores,
            "columns": {
                "score": score,
                "label": label_field,
                "positive": positive,
                "negative": negative,
                "group": group,
                "id": label_id,
            },
            "labels": labels,
            "prevalence": prevalence,
            "baseline": baseline,
            "partial": partial,
            "sensitive": sensitive,
            "draws": draws,
            "seed": seed,
            "report": report,
        },
    )
    evaluated = evaluate_scores(config)
    result = evaluated.result
    if config.report is not None:
        write_report(evaluated, config.report)
    if as_json:
        print_json(result.to_dict())
        return
    print_table(
        ranking_columns(result),
        [[escape(cell) for cell in ranking_cells(one)] for one in result.rankings],
        title=f"{result.rows} rows, {result.positives} to be found",
    )
    print()
    print_table(ALARM_COLUMNS, [list(alarm_cells(one)) for one in result.alarms])
    if result.differences:
        print()
        print_table(
            [f"{result.rankings[0].name} minus {result.rankings[1].name}", "difference", "95 %"],
            [
                [measure, number(one.value), f"{number(one.low)} to {number(one.high)}"]
                for measure, one in result.differences.items()
            ],
        )
    print(notes(result), file=sys.stderr)
