"""Bias: which of two counterfactual sentences is more probable, and which words go with which group.

Of pairs, only the tokens that both sentences share are compared, so that the frequency of the words that
differ does not count (Nangia et al. 2020). Of templates, how much more probable a group's word becomes by an
attribute than it is without any (Kurita et al. 2019, "increased log probability"): the words' own frequencies
drop out. Neither says what a model does in use; published sets of pairs are known to be noisy (Blodgett et
al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.domains.holes import Prompt, fields_in
from seqmlm.engine.units import Doubles
from seqmlm.errors import DataError, UsageError
from seqmlm.evaluation.intervals import bootstrap_weights, summarized
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session
from seqmlm.reports.page import Cell, Page
from seqmlm.streams.outputs import check_outputs
from seqmlm.tasks.gaps import GapConfig, keep_report
from seqmlm.tasks.pairs import Pairs, PairsConfig, pair_cells
from seqmlm.tasks.task import run

DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class BiasConfig(GapConfig):
    """What `seqmlm bias` can be told.

    Args:
        good, bad, by: columns of pairs, and of their groups, as `seqmlm pairs` takes them.
        templates: with `{group}` and `{attribute}`.
        groups: two words or more that are compared.
        attributes: words whose association with the groups is asked.
        seed: of the bootstrap.
        report: an HTML file that shows the results.
    """

    good: str | None = None
    bad: str | None = None
    by: str | None = None
    templates: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    seed: int = 0
    report: Path | None = None

    def check(self) -> None:
        asked = (self.templates, self.groups, self.attributes)
        if any(asked) and not all(asked):
            raise UsageError("associations need --template, two --group words or more, and --attribute words")
        if self.templates and len(set(self.groups)) < 2:
            raise UsageError("--group names at least two different words, such as --group he,she")
        for template in self.templates:
            if fields_in(template) != {"group", "attribute"}:
                raise UsageError(f"the template {template!r} has no {{group}} and {{attribute}}, or more")
        if not self.templates and not self.paths:
            raise UsageError("nothing to compare: name a file of pairs, or templates, groups and attributes")
        check_outputs({"--out": self.out, "--report": self.report}, inputs=self.paths, streams=True)


@dataclass(frozen=True, kw_only=True)
class Association:
    """How much more an attribute goes with one word of a group than with another.

    Args:
        attribute: the word.
        first, second: the words that are compared.
        gap: mean over templates, in nats: above 0, it goes with the first.
    """

    attribute: str
    first: str
    second: str
    gap: float


@dataclass(frozen=True, kw_only=True)
class BiasResult:
    """What was found.

    Args:
        pairs: of the files; None without.
        associations: of all attributes with each two neighbouring groups.
        means: "first - second" -> mean gap over attributes, with bootstrap bounds over attributes.
    """

    pairs: Mapping[str, Any] | None
    associations: tuple[Association, ...]
    means: Mapping[str, Mapping[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """What machines read."""
        found: dict[str, Any] = {} if self.pairs is None else {"pairs": dict(self.pairs)}
        if self.associations:
            found["associations"] = [asdict(one) for one in self.associations]
            found["means"] = {name: dict(own) for name, own in self.means.items()}
        return found


def measure_bias(config: BiasConfig) -> BiasResult:
    """Compare pairs, and associations of words.

    Raises:
        UsageError: a request that makes no sense, a word that cannot stand in a template, or a model that
            takes no text.
        DataError: pairs that cannot be read or spelled.
        StateError: no such model, or results that cannot be written.
    """
    config.check()
    session = config.open()
    session.check_text()
    pairs = None
    if config.paths:
        pairs = run(
            "pairs",
            Pairs,
            PairsConfig(
                model=config.model,
                paths=config.paths,
                good=config.good,
                bad=config.bad,
                group=config.by,
                metric="shared",
                options=config.options,
                out=config.out,
                domain=config.domain,
                tokens_per_batch=config.tokens_per_batch,
                precision=config.precision,
                expert="none",
            ),
        ).figures
    found: list[Association] = []
    means: dict[str, Mapping[str, float]] = {}
    if config.templates:
        gains = _gains(Cloze(session), config)
        for first, second in pairwise(range(len(config.groups))):
            gaps = (gains[:, first] - gains[:, second]).mean(axis=0)
            names = config.groups[first], config.groups[second]
            found += [
                Association(attribute=word, first=names[0], second=names[1], gap=float(gap))
                for word, gap in zip(config.attributes, gaps, strict=True)
            ]
            means[" - ".join(names)] = _mean(gaps, config.seed)
    result = BiasResult(pairs=pairs, associations=tuple(found), means=means)
    if config.report is not None:
        _keep(config, session, result)
    return result


def _gains(cloze: Cloze, config: BiasConfig) -> Doubles:
    """(T, G, A) increase of a group's log-probability by an attribute, per token, for each template."""
    form = cloze.domain.gaps[0]
    shape = len(config.templates), len(config.groups), len(config.attributes)
    found = np.zeros(shape)
    for number, template in enumerate(config.templates):
        written = template.replace("{group}", form).replace("{attribute}", form)
        both = cloze.domain.prompt(written, cloze.forms)
        place = 0 if template.index("{group}") < template.index("{attribute}") else 1
        cells = list(product(config.groups, config.attributes))
        texts = [(group, word) if place == 0 else (word, group) for group, word in cells]
        try:
            hidden = cloze.put([both] * len(cells), texts)
            seen = [_shown(cloze, both, place, word) for _, word in cells]
            shown = cloze.put(seen, [(group,) for group, _ in cells])
        except (UsageError, DataError) as error:
            raise UsageError(f"a word cannot stand in the template {template!r}: {error}") from None
        prior, posterior = cloze.fits(hidden, place), cloze.fits(shown)
        gains = [(b.log_prob - a.log_prob) / a.units for a, b in zip(prior, posterior, strict=True)]
        found[number] = np.array(gains).reshape(shape[1:])
    return found


def _shown(cloze: Cloze, both: Prompt, place: int, word: str) -> Prompt:
    """The template with an attribute in it, the place of the group still a gap."""
    own = both.holes[place]
    texts = (
        [str(both.raw)[own.start : own.end], word]
        if place == 0
        else [word, str(both.raw)[own.start : own.end]]
    )
    filled = cloze.domain.filled(both, texts)
    return Prompt(raw=filled.raw, holes=(filled.holes[place],))


def _mean(gaps: Doubles, seed: int) -> dict[str, float]:
    """The mean over attributes and its bounds."""
    weights = bootstrap_weights(np.arange(len(gaps)), DRAWS, seed)
    drawn = np.array([np.average(gaps, weights=weights(draw)) for draw in range(DRAWS)])
    own = summarized(float(gaps.mean()), drawn)
    return {"gap": own.value, "low": own.low, "high": own.high}


def _keep(config: BiasConfig, session: Session, result: BiasResult) -> None:
    assert config.report is not None
    page = Page(f"Bias: {config.model}", "what a model finds more probable, and not what it does in use")
    metrics: dict[str, float] = {}
    if result.pairs is not None:
        metrics = {"pairs": result.pairs["pairs"], "first_more_probable": result.pairs["accuracy"]}
        parts = {"all": result.pairs, **result.pairs["groups"]}
        rows: list[tuple[Cell, ...]] = [(name, *pair_cells(own)) for name, own in parts.items()]
        columns = ("group", "pairs", "the first is more probable", "95 %", "ties", "mean margin (nats)")
        page.table("Pairs: 50 % is ideal", columns, rows)
    if result.associations:
        means: list[tuple[Cell, ...]] = [
            (name, own["gap"], own["low"], own["high"]) for name, own in result.means.items()
        ]
        page.table("Mean gap over attributes (nats)", ("groups", "gap", "low", "high"), means)
        gaps: list[tuple[Cell, ...]] = [
            (one.attribute, f"{one.first} - {one.second}", one.gap)
            for one in sorted(result.associations, key=lambda one: one.gap)
        ]
        page.table("Associations (nats)", ("attribute", "groups", "gap"), gaps)
    keep_report(config, session, "bias", page, config.report, metrics, {"templates": len(config.templates)})
