"""Bias: which of two counterfactual sentences is more probable, and which words go with which group.

Of pairs, only the tokens that both sentences share are compared, so that the frequency of the words that
differ does not count (Nangia et al. 2020). Of templates, how much more probable a group's word becomes by an
attribute than it is without any (Kurita et al. 2019, "increased log probability"): the words' own frequencies
drop out. Neither says what a model does in use; published sets of pairs are known to be noisy (Blodgett et
al. 2021).
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


def words(given: Iterable[str]) -> tuple[str, ...]:
    """Words that are named one by one, or with commas between them."""
    return tuple(word.strip() for one in given for word in one.split(",") if word.strip())


@dataclass(frozen=True, kw_only=True)
class BiasConfig(TaskConfig):
    """What `seqmlm bias` can be told.

    Args:
        paths: files of pairs: .jsonl, .csv, .tsv or .parquet.
        templates: text with {group} and {attribute}; several are averaged.
        groups: WORD,WORD: words that are compared, such as he,she.
        attributes: WORD,...: words whose association with the groups is asked.
        by: column to group pairs by; default: bias_type or group; of Winogender, occupations.
        good, bad: column of the first and of the second sentence of a pair.
        seed: of the bootstrap over attributes.
    """

    shown = ("templates", "groups", "attributes", "by", "out", "resume", "report", "shard", "on_error")
    metavar: ClassVar[str] = "[FILE]..."

    templates: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    by: str | None = None
    good: str | None = None
    bad: str | None = None
    seed: int = 0

    def check(self) -> None:
        asked = (self.templates, words(self.groups), words(self.attributes))
        if any(asked) and not all(asked):
            raise UsageError("associations need --template, two --group words or more, and --attribute words")
        if self.templates and len(set(words(self.groups))) < 2:
            raise UsageError("--group names at least two different words, such as --group he,she")
        for template in self.templates:
            if fields_in(template) != {"group", "attribute"}:
                raise UsageError(f"the template {template!r} has no {{group}} and {{attribute}}, or more")
        if not self.templates and not self.paths:
            raise UsageError("nothing to compare: name a file of pairs, or templates, groups and attributes")
        self.check_files()


class Association(NamedTuple):
    """A group's word beside an attribute in a template; it stands in no file."""

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
    """Measure bias: which of two counterfactual sentences is more probable, which words go with which group.

    Files of pairs: CrowS-Pairs (the first sentence is the more stereotyping one), Winogender (paired by
    `sentid`, the male form first), or own ones. Only tokens that both sentences share are compared; 50 % is
    ideal. The gap of an attribute is how much more it raises the first group's probability than the second's,
    in nats.

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
        found = pairs_of(config, self.session, problems, group=config.by, options=config.options)
        return found if config.paths else iter(())

    def input_files(self) -> list[str]:
        return [] if "-" in self.config.paths else expand(self.config.paths)

    def items(self, records: Iterable[Pair], problems: Problems) -> Iterator[Pair | Association]:
        """The pairs, then every group with every attribute in every template."""
        yield from records
        yield from starmap(Association, product(self.config.templates, self.groups, self.attributes))

    def cost(self, item: Pair | Association) -> float:
        """Of an association each word hidden token by token, with the attribute seen and hidden."""
        if isinstance(item, Pair):
            return self.pairs.cost(item)
        return 2.0 * self.session.tokens(item.group) * self.session.tokens(item.id)

    def rows(self, items: Sequence[Pair | Association]) -> Iterator[Sequence[Row]]:
        """A row for each pair, as `seqmlm pairs` gives it, and for each association."""
        yield from ([row] for row in self.pairs.pair_rows([one for one in items if isinstance(one, Pair)]))
        cells = (one for one in items if isinstance(one, Association))
        for template, own in groupby(cells, lambda one: one.template):
            yield from self._associated(template, [*own])

    def _associated(self, template: str, cells: Sequence[Association]) -> Iterator[list[Row]]:
        """How much an attribute increases a group's log-probability, by token."""
        cloze, form = self.cloze, self.cloze.domain.gaps.forms[0]
        written = template.replace("{group}", form).replace("{attribute}", form)
        both = cloze.domain.gaps.prompt(written, cloze.forms)
        step = 1 if template.index("{group}") < template.index("{attribute}") else -1
        at = int(step < 0)
        try:
            hidden = cloze.encode_filled(
                [both] * len(cells), [(one.group, one.attribute)[::step] for one in cells]
            )
            seen = [cloze.domain.gaps.filled(both, (form, one.attribute)[::step]) for one in cells]
            alone = [Prompt(raw=one.raw, holes=(one.holes[at],)) for one in seen]
            shown = cloze.encode_filled(alone, [(one.group,) for one in cells])
        except (UsageError, DataError) as error:
            raise UsageError(f"a word cannot stand in the template {template!r}: {error}") from None
        for one, prior, posterior in zip(cells, cloze.fits(hidden, at), cloze.fits(shown), strict=True):
            gain = (posterior.log_prob - prior.log_prob) / prior.units
            told = {"template": template, "word": one.group, "attribute": one.attribute, "gain": gain}
            yield [{**place(one), **told}]

    def figures(self, rows: Iterable[Row]) -> Figures:
        """How pairs came out, and the gap between each two neighbouring groups."""
        kept, found = list(rows), dict[str, Any]()
        associations, means = list[dict[str, Any]](), dict[str, dict[str, float]]()
        if pairs := [row for row in kept if "margin" in row]:
            found["pairs"] = self.pairs.figures(pairs)
        if len(pairs) < len(kept):
            shape = len(self.config.templates), len(self.groups), len(self.attributes)
            gains = np.array([row["gain"] for row in kept if "gain" in row]).reshape(shape).mean(axis=0)
            for at, (first, second) in enumerate(pairwise(self.groups)):
                gaps = gains[at] - gains[at + 1]
                means[f"{first} - {second}"] = _mean(gaps, self.config.seed)
                associations += [
                    {"attribute": word, "first": first, "second": second, "gap": float(gap)}
                    for word, gap in zip(self.attributes, gaps, strict=True)
                ]
            found |= {"associations": associations, "means": means}
        return found

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        pairs = figures.get("pairs")
        told = [f"the first sentence is the more probable one in {share(pairs)}"] if pairs else []
        for name, own in figures.get("means", {}).items():
            bounds = bounds_text(own["low"], own["high"], ".4g").replace(")", " over attributes)")
            told.append(f"{name}: mean gap {own['gap']:.4g} nats{bounds}")
        return Conclusion("; ".join(told))

    def tables(self, figures: Figures) -> Iterator[Table]:
        if "pairs" in figures:
            parts = {"all": figures["pairs"], **figures["pairs"]["groups"]}
            columns = ("group", "pairs", "first more probable", "95 %", "ties", "mean margin")
            rows = [(name or "-", *pair_cells(own)) for name, own in parts.items()]
            yield Table("Pairs: 50 % is ideal, ties count for the second", columns, rows)
        if "associations" in figures:
            found = sorted(figures["associations"], key=lambda one: float(one["gap"]))
            gaps = [(one["attribute"], f"{one['first']} - {one['second']}", one["gap"]) for one in found]
            yield Table("Associations (nats)", ("attribute", "groups", "gap"), gaps)


def _mean(gaps: Doubles, seed: int) -> dict[str, float]:
    """The mean over attributes and its bounds."""
    weights = bootstrap_weights(np.arange(len(gaps)), DRAWS, seed)
    drawn = [np.average(gaps, weights=weights(draw)) for draw in range(DRAWS)]
    own = percentile_interval(float(gaps.mean()), np.array(drawn))
    return {"gap": own.value, "low": own.low, "high": own.high}
