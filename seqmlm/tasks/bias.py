"""Measure bias with pairs of sentences and with templates.

For pairs, only the tokens that both sentences share are compared. The frequency of the differing words
therefore does not count (Nangia et al. 2020).

For templates, the measure is the increased log probability (Kurita et al. 2019). It tells how much more
probable a group's word becomes with an attribute than without one. The frequencies of the words cancel.

Neither measure predicts how a model behaves in an application. Published sets of pairs are known to be noisy
(Blodgett et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product, starmap
from typing import Any, ClassVar, NamedTuple

import numpy as np

from seqmlm.data.counts import People
from seqmlm.data.files import expand
from seqmlm.data.pairs import Pair
from seqmlm.data.problems import Problems
from seqmlm.domains.holes import Prompt, fields_in
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.intervals import Doubles, bootstrap_weights, bounds_text, percentile_interval
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.pairs import PairScorer
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures, Table
from seqmlm.rows.file import Row
from seqmlm.tasks.pairs import pair_cells, pairs_of, share
from seqmlm.tasks.task import Conclusion, Output, ReadRows, Task, TaskConfig, place

DRAWS = 1000  # of the bootstrap


def words(texts: Iterable[str]) -> tuple[str, ...]:
    """The words of some texts, each with one word or several separated by commas."""
    return tuple(word.strip() for text in texts for word in text.split(",") if word.strip())


@dataclass(frozen=True, kw_only=True)
class BiasConfig(TaskConfig):
    """Settings of `seqmlm bias`.

    Args:
        paths: files of pairs: .jsonl, .csv, .tsv or .parquet.
        templates: text with {group} and {attribute}; several templates are averaged.
        groups: WORD,WORD: words to compare, such as he,she.
        attributes: WORD,...: words whose association with the groups is measured.
        by: column to group pairs by. Default: bias_type or group; occupations for Winogender.
        good: column of the first sentence of a pair.
        bad: column of the second sentence of a pair.
        seed: seed of the bootstrap over attributes.
    """

    option_fields = (
        *("templates", "groups", "attributes", "by", "out", "resume", "report", "shard"),
        "on_error",
    )
    metavar: ClassVar[str] = "FILE"

    templates: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    by: str | None = None
    good: str | None = None
    bad: str | None = None
    seed: int = 0

    def check(self) -> None:
        options = (self.templates, words(self.groups), words(self.attributes))
        if any(options) and not all(options):
            raise UsageError(
                "associations need --template, at least two --group words, and --attribute words"
            )
        if self.templates and len(set(words(self.groups))) < 2:
            raise UsageError("--group names at least two different words, such as --group he,she")
        for template in self.templates:
            if fields_in(template) != {"group", "attribute"}:
                raise UsageError(
                    f"the template {template!r} must contain {{group}} and {{attribute}}, and no other field"
                )
        if not self.templates and not self.paths:
            raise UsageError("nothing to compare: name a file of pairs, or templates, groups and attributes")
        self.check_files()


class Association(NamedTuple):
    """A template with the word of one group and one attribute. It is not read from a file."""

    template: str
    group: str
    attribute: str
    source: None = None
    line: None = None

    @property
    def id(self) -> str:
        """The sentence."""
        return self.template.replace("{group}", self.group).replace("{attribute}", self.attribute)


class Bias(Task[BiasConfig, Pair | Association]):
    """Measure bias: how often a model prefers one of two sentences, and which words it links to a group.

    Pairs of sentences come from CrowS-Pairs, from Winogender or from your own file. In CrowS-Pairs the first
    sentence is the more stereotypical one. Winogender sentences are paired by `sentid`, with the male form
    first. Only the tokens that both sentences share are compared. 50 % is ideal. Templates give a gap per
    attribute, in nats: how much more the attribute raises the probability of the first group.

    Example: seqmlm bias english crows_pairs_anonymized.csv --report bias.html

    Example: seqmlm bias english --template '{group} works as a {attribute}.' --group he,she
    --attribute nurse,engineer,teacher
    """

    Config = BiasConfig

    def __init__(self, config: BiasConfig, session: Session) -> None:
        super().__init__(config, session)
        self.output = Output(unit="comparison", stdout="figures")
        self.pairs, self.cloze = PairScorer(session, metric="shared"), Cloze(session)
        self.groups, self.attributes = words(config.groups), words(config.attributes)

    def records(self, problems: Problems) -> Iterator[Pair]:
        config = self.config
        pairs = pairs_of(config, self.session, problems, group=config.by, options=config.options)
        return pairs if config.paths else iter(())

    def input_files(self) -> list[str]:
        return [] if "-" in self.config.paths else expand(self.config.paths)

    def items(self, records: Iterable[Pair], problems: Problems) -> Iterator[Pair | Association]:
        """The pairs, then every group with every attribute in every template."""
        yield from records
        yield from starmap(Association, product(self.config.templates, self.groups, self.attributes))

    def cost(self, item: Pair | Association) -> float:
        """Forward tokens of an item.

        For a template, the group's word is hidden token by token, once with a visible and once with a hidden
        attribute.
        """
        if isinstance(item, Pair):
            return self.pairs.cost(item)
        return 2.0 * self.session.tokens(item.group) * self.session.tokens(item.id)

    def rows(self, items: Sequence[Pair | Association]) -> Iterator[Sequence[Row]]:
        """A row for each pair, as `seqmlm pairs` gives it, and for each association."""
        yield from ([row] for row in self.pairs.pair_rows([pair for pair in items if isinstance(pair, Pair)]))
        cells = (cell for cell in items if isinstance(cell, Association))
        for template, group in groupby(cells, lambda cell: cell.template):
            yield from self._gain_rows(template, [*group])

    def _gain_rows(self, template: str, cells: Sequence[Association]) -> Iterator[list[Row]]:
        """A row for each cell: the gain in the group's log-probability by the attribute, nats per token."""
        cloze, form = self.cloze, self.cloze.domain.gaps.forms[0]
        gapped = template.replace("{group}", form).replace("{attribute}", form)
        prompt = cloze.domain.gaps.prompt(gapped, cloze.forms)
        step = 1 if template.index("{group}") < template.index("{attribute}") else -1
        hole = int(step < 0)
        try:
            priors = cloze.encode_filled(
                [prompt] * len(cells), [(cell.group, cell.attribute)[::step] for cell in cells]
            )
            filled = [cloze.domain.gaps.filled(prompt, (form, cell.attribute)[::step]) for cell in cells]
            group_only = [Prompt(raw=sentence.raw, holes=(sentence.holes[hole],)) for sentence in filled]
            posteriors = cloze.encode_filled(group_only, [(cell.group,) for cell in cells])
        except (UsageError, DataError) as error:
            raise UsageError(f"a word does not fit into the template {template!r}: {error}") from None
        for cell, prior, posterior in zip(
            cells, cloze.fits(priors, hole), cloze.fits(posteriors), strict=True
        ):
            gain = (posterior.log_prob - prior.log_prob) / prior.units
            columns = {"template": template, "word": cell.group, "attribute": cell.attribute, "gain": gain}
            yield [{**place(cell), **columns}]

    def figures(self, rows: Iterable[Row]) -> Figures:
        """The accuracy on the pairs, and the gaps between neighbouring groups in nats, with their means."""
        row_list, figures = list(rows), dict[str, Any]()
        associations, means = list[dict[str, Any]](), dict[str, dict[str, float]]()
        if pairs := [row for row in row_list if "margin" in row]:
            figures["pairs"] = self.pairs.figures(pairs)
        if len(pairs) < len(row_list):
            shape = len(self.config.templates), len(self.groups), len(self.attributes)
            gains = np.array([row["gain"] for row in row_list if "gain" in row]).reshape(shape).mean(axis=0)
            for at, (first, second) in enumerate(pairwise(self.groups)):
                gaps = gains[at] - gains[at + 1]
                means[f"{first} - {second}"] = _mean(gaps, self.config.seed)
                associations += [
                    {"attribute": word, "first": first, "second": second, "gap": float(gap)}
                    for word, gap in zip(self.attributes, gaps, strict=True)
                ]
            figures |= {"associations": associations, "means": means}
        return figures

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        pairs = figures.get("pairs")
        sentences = [f"the first sentence is more probable in {share(pairs)}"] if pairs else []
        for name, mean in figures.get("means", {}).items():
            bounds = bounds_text(mean["low"], mean["high"], ".4g").replace(")", " over attributes)")
            sentences.append(f"{name}: mean gap {mean['gap']:.4g} nats{bounds}")
        return Conclusion("; ".join(sentences))

    def tables(self, figures: Figures) -> Iterator[Table]:
        if "pairs" in figures:
            parts = {"all": figures["pairs"], **figures["pairs"]["groups"]}
            columns = ("group", "pairs", "first more probable", "95 %", "ties", "mean margin")
            rows = [(name or "-", *pair_cells(part)) for name, part in parts.items()]
            yield Table("Pairs: 50 % is ideal, ties count for the second", columns, rows)
        if "associations" in figures:
            ranked = sorted(figures["associations"], key=lambda row: float(row["gap"]))
            gaps = [(row["attribute"], f"{row['first']} - {row['second']}", row["gap"]) for row in ranked]
            yield Table("Associations (nats)", ("attribute", "groups", "gap"), gaps)


def _mean(gaps: Doubles, seed: int) -> dict[str, float]:
    """The mean over attributes, with its bootstrap interval."""
    weights = bootstrap_weights(np.arange(len(gaps)), DRAWS, seed)
    samples = [np.average(gaps, weights=weights(draw)) for draw in range(DRAWS)]
    estimate = percentile_interval(float(gaps.mean()), np.array(samples))
    return {"gap": estimate.value, "low": estimate.low, "high": estimate.high}
