"""`seqmlm evaluate`: how well scores and alarms agree with labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqmlm.cli import options as opt
from seqmlm.cli.output import say, tell

if TYPE_CHECKING:
    from seqmlm.tasks.evaluate import Evaluation


def evaluate(
    scores: Annotated[
        list[str],
        typer.Argument(
            metavar="SCORES...",
            help="Files written by seqmlm score or seqmlm predict (.jsonl, .csv, .parquet), or the "
            "predictions.parquet of a fine-tuning.",
        ),
    ],
    labels: Annotated[
        str | None,
        typer.Option(
            help="File of ids and labels, or the truth.json of a sample. Default: a column of the scores."
        ),
    ] = None,
    label_field: Annotated[str, typer.Option(help="Column of the labels.")] = "label",
    label_id: Annotated[str, typer.Option(help="Column of the ids in the file of labels.")] = "id",
    positive: Annotated[
        str | None, typer.Option(help="Value that marks a positive (anomalous) row. Default: 1 or true.")
    ] = None,
    negative: Annotated[
        str | None,
        typer.Option(help="Value that marks a negative (normal) row; every other value is positive."),
    ] = None,
    score: Annotated[
        str,
        typer.Option(
            help="Column of the score; p_value and channels.NAME have their sign flipped (low is unusual)."
        ),
    ] = "score",
    baseline: Annotated[
        str | None, typer.Option(help="Compare with this column, or with this other file of scores.")
    ] = None,
    prevalence: Annotated[
        float | None,
        typer.Option(help="Re-weight precision and F1 of the alarms to this share of positives, in (0, 1)."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Column of the unit to resample in the bootstrap, such as a patient. Default: each row."
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Allow labels without a score, and count them.")
    ] = False,
    sensitive: Annotated[
        bool,
        typer.Option(
            "--sensitive",
            help="Withhold small counts, also if the scores are not marked sensitive.",
        ),
    ] = False,
    draws: Annotated[int, typer.Option(min=1, help="Number of bootstrap resamples.")] = 1000,
    seed: opt.Seed = 0,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report with curves to this file.")
    ] = None,
    json_output: opt.Json = False,
) -> None:
    """Evaluate scores against labels, next to two trivial baselines: length, and flagging everything.

    Reports AUROC, AUPRC, recall at false positive rates of 1e-2 and 1e-3; precision, recall and F1 of the
    alarm column (a threshold set without labels); and oracle F1 (the best threshold, chosen with the labels).

    Of predictions it reports the figures of seqmlm finetune, with intervals over --group, else "group", else
    records; the truth is the column --label-field, else "truth". seqmlm predict --truth writes both.

    Example: seqmlm evaluate predictions.csv --label-field sentiment

    Example: seqmlm evaluate scores.jsonl --labels anomaly_label.csv --label-id BlockId --label-field Label
    --positive Anomaly --prevalence 0.029
    """
    given = locals()
    from seqmlm.cli.output import number, print_json, print_table
    from seqmlm.tasks.evaluate import EvaluateConfig, evaluate_scores, write_report
    from seqmlm.tasks.evaluate_predictions import are_predictions, evaluate_predictions

    options = {"label": "label_field", "id": "label_id"}
    options |= {name: name for name in ("score", "positive", "negative", "group")}
    columns = {name: given.pop(option) for name, option in options.items()}
    config = opt.configured(EvaluateConfig, given, paths=given.pop("scores"), columns=columns)
    if are_predictions(config):
        figures = evaluate_predictions(config)
        if json_output:
            print_json(figures)
        else:
            rows = [
                (name, number(figures[name]), *map(number, of)) for name, of in figures["intervals"].items()
            ]
            title = f"{figures['items']} predictions, {figures['groups']} groups"
            print_table(("measure", "value", "95 % low", "95 % high"), rows, title=title)
        return
    evaluated = evaluate_scores(config)
    result = evaluated.result
    if config.report is not None:
        write_report(evaluated, config.report)
    if json_output:
        print_json(result)
    else:
        _show(result)


def _show(result: Evaluation) -> None:
    from seqmlm.cli.output import escape, number, print_table
    from seqmlm.tasks.evaluate import alarm_table, notes, ranking_table

    columns, rows = ranking_table(result)
    print_table(
        columns,
        [[escape(cell) for cell in row] for row in rows],
        title=f"{result.rows} rows, {result.positives} positive",
    )
    say()
    print_table(*alarm_table(result))
    if result.differences:
        say()
        print_table(
            [f"{result.rankings[0].name} minus {result.rankings[1].name}", "difference", "95 %"],
            [
                [measure, number(one.value), f"{number(one.low)} to {number(one.high)}"]
                for measure, one in result.differences.items()
            ],
        )
    tell(notes(result))
