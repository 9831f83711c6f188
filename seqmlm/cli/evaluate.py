"""`seqmlm evaluate`: compare scores and alarms with labels."""

from __future__ import annotations

import math
from typing import Any, TextIO

from seqmlm.cli.command import Answer
from seqmlm.cli.output import number
from seqmlm.errors import UsageError, number_of
from seqmlm.finetuning.evaluate_predictions import are_predictions, evaluate_predictions
from seqmlm.scoring.evaluate import (
    EvaluateConfig,
    alarm_table,
    evaluate_scores,
    notes,
    ranking_table,
    sentence,
    write_report,
)


class Evaluate:
    """Evaluate scores against labels, and compare them with two trivial baselines.

    The baselines are the sequence length, and an alarm for every row.
    It reports AUROC, AUPRC, and recall at false positive rates of 1e-2 and 1e-3. For the alarm column, whose
    threshold was set without labels, it reports precision, recall and F1. Oracle F1 uses the best threshold,
    which is chosen with the labels.

    For predictions it reports the same figures as seqmlm finetune. The truth is in the column --label-field,
    by default "truth". Intervals are over the groups in the column --group, by default "group", or else over
    records. seqmlm predict --truth writes both columns.

    Example: seqmlm evaluate predictions.csv --label-field sentiment

    Example: seqmlm evaluate scores.jsonl --labels anomaly_label.csv --label-id BlockId --label-field Label
    --positive Anomaly --prevalence 0.029
    """

    Config = EvaluateConfig
    trains = False

    @classmethod
    def launch(
        cls, name: str, config: EvaluateConfig, *, stdout: TextIO, progress: Any, as_json: bool
    ) -> Answer:
        """Evaluate scores, or predictions if the files contain predictions."""
        if not config.paths:
            raise UsageError("nothing to evaluate: name files of scores or predictions")
        if are_predictions(config):
            return _of_predictions(evaluate_predictions(config))
        evaluated = evaluate_scores(config)
        result = evaluated.result
        if config.report is not None:
            write_report(evaluated, config.report)
        if not as_json:
            progress.message(notes(result))
        tables: list[Any] = [("", *ranking_table(result)), ("", *alarm_table(result))]
        if result.differences:
            columns = (f"{result.rankings[0].name} minus {result.rankings[1].name}", "difference", "95 %")
            rows = [
                (
                    measure,
                    number(interval.value),
                    "-" if math.isnan(interval.low) else f"{number(interval.low)} to {number(interval.high)}",
                )
                for measure, interval in result.differences.items()
            ]
            tables.append(("", columns, rows))
        return Answer(figures=result, answer=sentence(result), tables=tables)


def _of_predictions(figures: dict[str, Any]) -> Answer:
    rows = [(name, figures[name], *of) for name, of in figures["intervals"].items()]
    return Answer(
        figures=figures,
        answer=f"{number_of(figures['items'], 'prediction')}, {number_of(figures['groups'], 'group')}",
        tables=[("", ("measure", "value", "95 % low", "95 % high"), rows)],
    )
