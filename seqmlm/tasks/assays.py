"""Score every assay of a variant benchmark, write tables in its layout, and average the figures."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.counts import People
from seqmlm.data.problems import Problems
from seqmlm.domains.refusals import missing_capability
from seqmlm.domains.variants import Assay, Variant
from seqmlm.engine.durable import replace_file
from seqmlm.errors import UsageError, number_of
from seqmlm.evaluation.effects import DRAWS, METRICS
from seqmlm.evaluation.intervals import Estimate, bootstrap_weights, percentile_interval
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures, Table
from seqmlm.rows.file import Row
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.ownership import refuse_foreign, remember
from seqmlm.streams.sinks import write_error
from seqmlm.tasks.measurements import TITLES, Measurements, agreement_table, effects_of, intervals
from seqmlm.tasks.task import Conclusion, Output, ReadRows, Requirements, Task, TaskConfig
from seqmlm.tasks.variants import KINDS, Convention, scorer_of, variant_rows

SUMMARY = "summary"


@dataclass(frozen=True, kw_only=True)
class AssaysConfig(TaskConfig):
    """Settings of `seqmlm assays`.

    Args:
        paths: folder of the benchmark, or its reference file.
        convention: log-ratio to use as the effect: masked, wt, mask_fill, mutant, match_fill, pll_delta or
            pll_excess. Deletions and insertions always use pll_excess or pll_delta.
        scores: FOLDER: write one table per assay to this folder, in the layout of the benchmark. The effects
            are in a column with the name of the model. summary.csv has the figures of all assays.
    """

    option_fields = ("scores", "convention", "out", "resume", "report", "shard", "domain", "on_error")
    metavar = "FOLDER"
    later = ("scores",)

    convention: Convention = "masked"
    scores: Path | None = None

    def check(self) -> None:
        if len(self.paths) != 1:
            raise UsageError("give exactly one path: the folder of a benchmark, or its reference file")
        super().check()


class Assays(Task[AssaysConfig, Variant]):
    """Score every assay of a variant benchmark, such as ProteinGym, and compare with simple baselines.

    The folder contains a reference file and the tables that it lists, in any subfolder. Assays without a
    table are left out. Overall figures are means of means, as in the benchmark. They average the assays of a
    protein and selection type, then the proteins of a type, then the types.

    Example: seqmlm assays esm2 ProteinGym/ --scores scores/
    """

    Config = AssaysConfig
    requires = Requirements(capabilities=("variants",))

    def __init__(self, config: AssaysConfig, session: Session) -> None:
        super().__init__(config, session)
        self.output = Output(unit="variant", columns=KINDS, stdout="figures")
        if session.domain.variants is None:
            raise missing_capability(session.domain, "variants")
        self.field = session.domain.variants()
        self.scorer = scorer_of(session, self.field, config.convention)
        self.assays = {assay.table.path: assay for assay in self.field.assays(Path(config.paths[0]))}
        self.model = session.card.run_name or Path(session.model.path).name
        if config.scores is not None:
            names = [*(assay.name for assay in self.assays.values()), SUMMARY]
            tables = {f"--scores, {name}:": config.scores / f"{name}.csv" for name in names}
            check_outputs(tables, inputs=self.input_files(), folder=session.model.path)

    def input_files(self) -> list[str]:
        path = self.config.paths[0]
        return [*([path] if Path(path).is_file() else []), *self.assays]

    def records(self, problems: Problems) -> Iterator[Variant]:
        """The variants of all assays.

        Raises:
            DataError: an assay has no measurements.
            UsageError: a table already has a column with the model's name.
        """
        for assay in self.assays.values():
            variants = list(self.field.table_variants(assay.table, problems))
            if not variants:
                continue
            if (name := self.model) in variants[0].fields:
                raise UsageError(f"the tables already have a column {name!r}: rename the model's folder")
            self._measurements(assay, variants)
            self.scorer.expect(variants)
            yield from variants

    def _measurements(self, assay: Assay, variants: Sequence[Variant]) -> Measurements:
        """The measurements of an assay, with the predictions of the baselines without a model."""
        return Measurements.of(assay.measured, self.field, self.session, variants)

    def cost(self, item: Variant) -> float:
        return self.scorer.cost(item)

    def rows(self, items: Sequence[Variant]) -> Iterator[list[Row]]:
        """A row for each variant: its assay, its effect, and every convention."""
        row_lists = variant_rows(self.scorer, self.field, items, self.config.convention)
        for variant, its_rows in zip(items, row_lists, strict=True):
            yield [{"assay": self.assays[variant.source].name, **row} for row in its_rows]

    def _results(self, rows: Iterable[Row]) -> Iterator[tuple[Assay, list[Variant], list[Row], Figures]]:
        """Every assay with its variants, rows, and the metrics of each prediction."""
        for source, assay_rows in groupby(rows, key=itemgetter("source")):
            assay, effects = self.assays[source], list(assay_rows)
            variants = list(self.field.table_variants(assay.table, Problems("skip")))
            agreement = self._measurements(assay, variants).agreement_with(effects, draws=0)["agreement"]
            metrics = {
                name: {key: figure["value"] for key, figure in part.items()}
                for name, part in agreement.items()
            }
            yield assay, variants, effects, metrics

    def figures(self, rows: Iterable[Row]) -> Figures:
        """The metrics of each assay, and their means."""
        assays, scores, variants = list[Assay](), dict[str, Any](), 0
        for assay, _, effects, metrics in self._results(rows):
            assays.append(assay)
            scores[assay.name], variants = metrics, variants + len(effects)
        return {"variants": variants, "overall": intervals(benchmark_means(assays, scores)), "assays": scores}

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        assays = number_of(len(figures["assays"]), "assay")
        return Conclusion(f"scored {number_of(items, self.output.unit)} of {assays}")

    def tables(self, figures: Figures) -> Iterator[Table]:
        yield Table("All assays", *agreement_table(figures["overall"]))
        rows = [
            (name, *(predictions["model"].get(metric, "-") for metric in METRICS))
            for name, predictions in figures["assays"].items()
        ]
        yield Table("Each assay: the model", ["assay", *TITLES.values()], rows)

    def extra_files(self, rows: ReadRows) -> Sequence[Path]:
        folder = self.config.scores
        if folder is None:
            return ()
        written = list[Path]()
        summary = [["DMS_id", "UniProt_ID", "coarse_selection_type", "prediction", *METRICS]]
        for assay, variants, effects, metrics in self._results(rows()):
            columns = list(variants[0].fields)
            pairs = zip(variants, effects_of(variants, effects), strict=True)
            cells = [[*(variant.fields[name] for name in columns), effect] for variant, effect in pairs]
            written.append(_write(folder, assay.name, [[*columns, self.model], *cells]))
            facts = assay.name, assay.subject, assay.kind
            summary += [
                [*facts, name, *(part.get(metric, "") for metric in METRICS)]
                for name, part in metrics.items()
            ]
        return [*written, _write(folder, SUMMARY, summary)]


def _write(folder: Path, name: str, rows: Sequence[Sequence[Any]]) -> Path:
    """Write a table atomically.

    Raises:
        StateError: the table cannot be written.
    """
    text, path = io.StringIO(), folder / f"{name}.csv"
    csv.writer(text, lineterminator="\n").writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_foreign(path, "--scores")
        replace_file(path, text.getvalue().encode())
        remember(path)
    except OSError as error:
        raise write_error(path, error) from None
    return path


def benchmark_means(
    assays: Sequence[Assay], metrics: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> dict[str, dict[str, Estimate]]:
    """Means of each prediction and metric, as the benchmark computes them.

    Assays are averaged within a subject and kind, then subjects within a kind, then kinds.

    Args:
        assays: the assays of the benchmark.
        metrics: assay -> prediction -> metric -> value. Undefined values are missing.
    """
    subjects = sorted({assay.subject for assay in assays})
    weights = bootstrap_weights(subjects, DRAWS, 0)
    draws = [dict(zip(subjects, weights(draw), strict=True)) for draw in range(DRAWS)]
    names = [name for name in metrics[assays[0].name] if all(name in part for part in metrics.values())]

    def mean(name: str, metric: str, times: Mapping[str, float]) -> float:
        parts: dict[str, dict[str, list[float]]] = {}
        for assay in assays:
            value = metrics[assay.name][name].get(metric, math.nan)
            if times[assay.subject] and math.isfinite(value):
                parts.setdefault(assay.kind, {}).setdefault(assay.subject, []).append(value)
        kinds = [
            np.average(
                [np.mean(values) for values in kind.values()], weights=[times[subject] for subject in kind]
            )
            for kind in parts.values()
        ]
        return float(np.mean(kinds)) if kinds else math.nan

    once = dict.fromkeys(subjects, 1.0)
    return {
        name: {
            metric: percentile_interval(
                mean(name, metric, once), np.array([mean(name, metric, times) for times in draws])
            )
            for metric in METRICS
        }
        for name in names
    }
