"""Minimal pairs: how often the model gives the better sequence of a pair the higher probability."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from seqmlm.data.counts import People
from seqmlm.data.files import expand
from seqmlm.data.pairs import Pair, read_pairs
from seqmlm.data.problems import Problems
from seqmlm.engine.units import Mode
from seqmlm.errors import UsageError, number_of
from seqmlm.evaluation.pairs import Metric
from seqmlm.inference.pairs import PairScorer
from seqmlm.inference.session import ExpertUse, Session
from seqmlm.reports.page import Cell
from seqmlm.reports.summary import Figures, Table
from seqmlm.rows.file import Row
from seqmlm.tasks.task import Conclusion, Output, ReadRows, Task, TaskConfig


@dataclass(frozen=True, kw_only=True)
class PairsConfig(TaskConfig):
    """Settings of `seqmlm pairs`.

    Args:
        paths: files of pairs: .jsonl, .csv, .tsv or .parquet.
        good: column of the better sequence; without FILE, a text file with one sequence per line.
        bad: column, or text file, of the worse sequence.
        group: column to group results by. Default: UID, bias_type or group, if present.
        metric: what to compare: sum (of log-probabilities), mean (per unit) or shared (sum over the tokens
            that both sequences share).
        mode: how log-probabilities are computed: exact, partition:K or one-pass (see `seqmlm score --help`).
        language: programming language of source code without a column `language`, such as python.
        expert: whether to mix n-gram counts into the model's probabilities: auto (if that was better on
            validation records), counts (if the model has counts) or none.
    """

    option_fields = ("good", "bad", "group", "metric", "out", "resume", "report", "shard", "on_error")
    metavar: ClassVar[str] = "FILE"

    good: str | None = None
    bad: str | None = None
    group: str | None = None
    metric: Metric = "sum"
    mode: str = "exact"
    language: str = ""
    expert: ExpertUse = "auto"

    @property
    def sources(self) -> tuple[str, ...]:
        return self.paths or tuple(filter(None, (self.good, self.bad)))

    def check(self) -> None:
        if not self.paths and (self.good is None or self.bad is None):
            raise UsageError("nothing to compare: give a file of pairs, or two files with --good and --bad")
        self.check_files()


class Pairs(Task[PairsConfig, Pair]):
    """Compare minimal pairs: how often the better sequence has the higher pseudo-log-likelihood.

    The result is a share of pairs. Ties count as wrong. The published files of BLiMP and CrowS-Pairs can be
    read directly, and so can tables with columns `original` and `mutated`. `--metric shared` is the
    CrowS-Pairs metric: the share of pairs in which the more stereotypical sentence is more probable. 50 % is
    ideal.

    Example: seqmlm pairs english blimp.jsonl.gz --group linguistics_term --json
    """

    Config = PairsConfig

    def __init__(self, config: PairsConfig, session: Session) -> None:
        super().__init__(config, session)
        self.output = Output(unit="pair", stdout="figures")
        self.scorer = PairScorer(session, mode=Mode.parse(config.mode), metric=config.metric)

    def records(self, problems: Problems) -> Iterator[Pair]:
        config = self.config
        options = {**config.options, **({"language": config.language} if config.language else {})}
        return pairs_of(config, self.session, problems, group=config.group, options=options)

    def input_files(self) -> list[str]:
        return [] if "-" in self.config.sources else expand(self.config.sources)

    def cost(self, item: Pair) -> float:
        return self.scorer.cost(item)

    def rows(self, items: Sequence[Pair]) -> Iterator[list[Row]]:
        """A row for each pair."""
        return ([row] for row in self.scorer.pair_rows(items))

    def figures(self, rows: Iterable[Row]) -> Figures:
        return self.scorer.figures(list(rows))

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        groups, unknown = len(figures["groups"]), figures["unknown_tokens"]
        parts = [
            f"the better sequence is more probable in {share(figures)}",
            *([f"mean over {groups} groups: {figures['macro']:.1%}"] if groups else []),
            *([f"{number_of(unknown, 'unknown token')} not scored"] if unknown else []),
            *(["with n-gram counts (--set expert=none: without)"] if figures["counts"] else []),
        ]
        return Conclusion("; ".join(parts))

    def tables(self, figures: Figures) -> Iterator[Table]:
        yield pairs_table("", figures)


def pairs_of(
    config: Any, session: Session, problems: Problems, *, group: str | None, options: Mapping[str, Any]
) -> Iterator[Pair]:
    """The pairs in the files of a config, in the raw form of the model's field.

    Args:
        config: config with `paths`, `good` and `bad`, as for `read_pairs`.
        group: column to group pairs by.
        options: options of the field. Values in a row take precedence.
    """

    def raw(text: str, fields: Mapping[str, Any]) -> Any:
        row_options = {name: value for name, value in fields.items() if value}
        return session.domain.text.of_text(text, {**options, **row_options})

    return read_pairs(config.paths, good=config.good, bad=config.bad, group=group, raw=raw, problems=problems)


def share(figures: Figures) -> str:
    """The share of pairs in which the first sequence is more probable, with its interval."""
    bounds = f"{figures['low']:.1%} to {figures['high']:.1%}"
    return f"{figures['accuracy']:.1%} of {number_of(figures['pairs'], 'pair')} ({bounds})"


def pairs_table(title: str, figures: Figures) -> Table:
    """The results of all pairs by every metric, and of each group."""
    parts = [("all", figures["metric"], figures)]
    parts += [("all", name, part) for name, part in figures["beside"].items() if name != "length"]
    parts += [("all, baseline", "shorter is better", figures["beside"]["length"])]
    parts += [(name or "-", figures["metric"], part) for name, part in figures["groups"].items()]
    columns = ("group", "metric", "pairs", "accuracy", "95 %", "ties", "mean margin")
    return Table(title, columns, [(group, metric, *pair_cells(part)) for group, metric, part in parts])


def pair_cells(figures: Figures) -> tuple[Cell, ...]:
    """The results of some pairs: their number, accuracy, its interval, ties and mean margin."""
    rate, bounds = f"{figures['accuracy']:.1%}", f"{figures['low']:.1%} to {figures['high']:.1%}"
    return figures["pairs"], rate, bounds, figures["ties"], figures["margin"]
