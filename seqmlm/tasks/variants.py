"""Variants: how a model judges each, how that agrees with measurements, and what should be tested next."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.files import expand
from seqmlm.data.problems import Problems
from seqmlm.domains.variants import Variant, Variants, VariantTable
from seqmlm.errors import UsageError, nearest
from seqmlm.evaluation.effects import METRICS, Agreement
from seqmlm.evaluation.intervals import Difference
from seqmlm.inference.runner import Counts, NoProgress, Progress
from seqmlm.inference.session import Session
from seqmlm.inference.variants import CONVENTIONS, Effects, VariantScorer
from seqmlm.reports.page import Page
from seqmlm.streams.cursor import file_facts
from seqmlm.streams.outputs import check_outputs
from seqmlm.streams.sinks import Fields, Schema
from seqmlm.tasks.corpus import shown_name
from seqmlm.tasks.gaps import GapConfig, keep_report, writing
from seqmlm.tasks.measurements import Measurements

Doubles = NDArray[np.float64]

EFFECTS = (*CONVENTIONS, "pll_delta_per_unit")
COLUMNS = Schema(
    columns={
        "id": "text",
        "source": "text",
        "line": "integer",
        "effect": "number",
        "convention": "text",
        **dict.fromkeys(EFFECTS, "number"),
    }
)
SCALE = 8.0
"""Bits lost, from which on a substitution has the strongest colour in a report."""

LISTED = 20  # variants of a report that are the fittest, and the least fit


@dataclass(frozen=True, kw_only=True)
class VariantsConfig(GapConfig):
    """What `seqmlm variants` can be told; `paths` is one table of variants.

    Args:
        wildtype, column, first: as of `VariantTable`.
        convention: which of `CONVENTIONS` is the effect; deletions and insertions have "pll_delta".
        measured: the column of measurements, higher = fitter.
        prediction: columns of other predictions, higher = fitter.
        cutoff: measurements from which on a variant counts as fit; None: what the file says, else the median.
        alignment: a family of the wild type, for the site-independent rival.
        next: how many variants to name that should be tested next.
        report: an HTML file.
    """

    wildtype: str | None = None
    column: str | None = None
    first: int | None = None
    convention: str = "masked"
    measured: str | None = None
    prediction: tuple[str, ...] = ()
    cutoff: float | None = None
    alignment: str | None = None
    next: int = 0
    report: Path | None = None

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise UsageError(f"no convention {self.convention!r}{nearest(self.convention, CONVENTIONS)}")
        if self.measured is None and (self.prediction or self.alignment or self.cutoff is not None):
            raise UsageError("name the column of measurements to compare predictions with (--measured)")
        if len(self.paths) != 1 or self.next < 0:
            raise UsageError("name one file of variants, and with --next how many to test")

    def request(self, session: Session) -> dict[str, Any]:
        """What decides the rows: what is made of all of them can be asked otherwise in a resumed run."""
        made = ("measured", "prediction", "cutoff", "alignment", "next", "report")
        told = {name: value for name, value in super().request(session).items() if name not in made}
        files = [path for path in (*self.paths, self.wildtype) if path is not None]
        return {**told, "input": file_facts(files), "model file": file_facts(session.model.files)}

    @property
    def table(self) -> VariantTable:
        """The table."""
        return VariantTable(path=self.paths[0], wildtype=self.wildtype, column=self.column, first=self.first)


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A variant that should be tested: its name, and the effect that the model expects."""

    variant: str
    effect: float


@dataclass(frozen=True, kw_only=True)
class VariantsResult:
    """How all variants came out.

    Args:
        variants: read. scored: of them, with an effect. bad: left out.
        convention: of the effect.
        wildtype_bits: mean surprisal of the wild type at the places asked while masked; None if none was.
        agreement: with the measurements; None without.
        suggestions: what to test next.
        passes: of the model, masked copies that were computed.
        seconds: that it took.
        stopped: the signal that ended it early, or None; then nothing was compared.
    """

    variants: int
    scored: int
    bad: int
    convention: str
    wildtype_bits: float | None
    agreement: Agreement | None
    suggestions: tuple[Suggestion, ...]
    passes: int
    seconds: float
    stopped: int | None = None

    @property
    def doubt(self) -> str | None:
        """Why what is suggested is worth little, where another prediction ranks the measurements better."""
        if self.agreement is None or not self.suggestions:
            return None
        own = {name: np.nan_to_num(one["spearman"].value) for name, one in self.agreement.metrics.items()}
        better = max(own, key=own.__getitem__)
        if better == "model":
            return None
        return f"{better} ranks what was measured better than this model: do not choose by what it suggests"

    def to_dict(self) -> dict[str, Any]:
        """What machines read."""
        told = {name: getattr(self, name) for name in ("variants", "scored", "bad", "convention", "passes")}
        told |= {"wildtype_bits": self.wildtype_bits, "seconds": self.seconds}
        if self.agreement is not None:
            own = self.agreement
            told |= {"measured": own.n, "fit": own.positive, "agreement": intervals(own.metrics)}
            told["gain"] = None if own.gain is None else {"against": own.against, **_interval(own.gain)}
        if self.suggestions:
            told["next"] = [{"variant": one.variant, "effect": one.effect} for one in self.suggestions]
        return told


def intervals(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Figures with their intervals, as JSON has them."""
    return {name: {key: _interval(value) for key, value in own.items()} for name, own in metrics.items()}


def _interval(value: Any) -> dict[str, float]:
    return {"value": value.value, "low": value.low, "high": value.high}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A variant, its log-ratios, and which of them is its effect."""

    variant: Variant
    effects: Effects
    convention: str

    @classmethod
    def of_row(cls, variant: Variant, row: Fields) -> Judged:
        """What `row` has made, as it was."""
        known = {name: row[name] for name in EFFECTS if row[name] is not None}
        return cls(variant=variant, effects=known, convention=row["convention"] or "")

    @property
    def effect(self) -> float | None:
        """Higher = fitter; None where it has none."""
        return self.effects.get(self.convention)

    def row(self, columns: Iterable[str] = ()) -> Fields:
        """The line of the output.

        Args:
            columns: fields of the variant that it repeats.
        """
        one = self.variant
        told = {"id": one.name, "source": one.source, "line": one.line}
        told |= {name: one.fields.get(name) for name in columns} | {"effect": self.effect}
        known = {name: self.effects.get(name) for name in EFFECTS}
        return {**told, "convention": self.convention if self.effects else None, **known}


def judged(scorer: VariantScorer, variants: Sequence[Variant], convention: str) -> list[Judged]:
    """Score some variants; deletions and insertions have "pll_delta" whatever the convention is."""
    return [
        Judged(variant=one, effects=own, convention=convention if one.substitutions else "pll_delta")
        for one, own in zip(variants, scorer.effects(variants), strict=True)
    ]


def judge_variants(
    config: VariantsConfig, stdout: TextIO | None, progress: Progress | None = None
) -> VariantsResult:
    """Score the variants of a table, a row for each; compare with measurements; report.

    Args:
        config: the model, the table and what is wanted.
        stdout: where rows go when `config.out` is None; None for nowhere.
        progress: told what happens on the way.

    Raises:
        UsageError: a request that makes no sense, or a field without variants.
        DataError: a table that cannot be read; variants that do not fit the wild type, under "raise".
        StateError: no such model, or rows that cannot be written.
    """
    told, began = progress or NoProgress(), time.monotonic()
    config.check()
    beside = [path for path in (*config.paths, config.wildtype, config.alignment) if path is not None]
    outputs = {"--out": config.out, "--report": config.report}
    check_outputs(outputs, inputs=expand(beside))
    session = config.open()
    check_outputs(outputs, folder=session.model.path)
    field = session.domain.variants()
    if config.next and field.windows:
        raise UsageError("--next needs variants of one wild type, and here each has a window of its own")
    run = _Run(config, session, field, told)
    run.over(stdout)
    measured, grid = run.measured, None
    if run.stopped is not None:
        measured = None
    elif run.listed is not None and not field.windows and (config.next or config.report is not None):
        grid = Grid.of(run.listed, run.scorer, field.letters)
    result = VariantsResult(
        variants=run.kinds.total(),
        scored=run.kinds["scored"],
        bad=run.bad,
        convention=config.convention,
        wildtype_bits=_bits(run.scorer, field, told),
        agreement=None if measured is None else measured.compared(one.effect for one in run.found),
        suggestions=() if grid is None else grid.suggestions(config.next, measured),
        passes=session.conditionals().statistics.unique,
        seconds=time.monotonic() - began,
        stopped=run.stopped,
    )
    if config.report is not None and run.stopped is None:
        made = page(config, result, run.found, grid)
        told_of = {"convention": config.convention}
        keep_report(config, session, "variants", made, config.report, _figures(result), told_of)
    return result


def scorer_of(session: Session, field: Variants, convention: str) -> VariantScorer:
    """What scores the variants of a field by a convention.

    Raises:
        UsageError: the model cannot be asked that way.
    """
    pll = convention == "pll_delta"
    scorer = VariantScorer(session, field.letters, pll=pll, mirrored=field.mirrored, windows=field.windows)
    if not scorer.one_letter and convention not in ("masked", "pll_delta"):
        raise UsageError(
            f"--convention {convention} needs a model in which every letter is a token; here one is "
            "several: use masked or pll_delta"
        )
    return scorer


def _table(config: VariantsConfig, session: Session, field: Variants) -> VariantTable:
    """The table, with what the model sees at once where wild types are windows."""
    if not field.windows:
        return config.table
    special = int(np.count_nonzero(session.tokenizer.encode(field.letters).groups < 0))
    return replace(config.table, window=session.card.max_length - special)


def _bits(scorer: VariantScorer, field: Variants, told: Progress) -> float | None:
    """How well the model knows the wild type; says so where that is no better than chance.

    Effects are worth little there (Gordon et al. 2024): the model has seen nothing like it.
    """
    bits, chance = scorer.bits(), math.log2(len(field.letters))
    if bits is not None and bits >= chance:
        what, remedy = (
            ("these windows", "train on what they are cut out of, or on its like")
            if field.windows
            else (
                "this wild type",
                "cut it as the training data are cut, such as to one of its domains, or train on its family",
            )
        )
        told.message(
            f"the model does not know {what}: {bits:.2f} bits at a place, by chance {chance:.2f}; {remedy}"
        )
    return bits


class _Run(Counts):
    """All variants of a table, scored and written batch by batch; counts are continued by a resumed run.

    Args:
        config, session, field: what is scored.
        told: told what happens.

    Attributes:
        scorer: of the model.
        listed: all variants, where something is to be made of all of them; None: they are read as a stream,
            and a file of genomes is never held whole.
        found: effects of those that are listed.
        measured: of them; None without measurements.
        kinds: how many were scored, unscored, and of another convention than asked ("mixed").
        bad: left out.
        stopped: the signal that ended it early, or None.
    """

    def __init__(self, config: VariantsConfig, session: Session, field: Variants, told: Progress) -> None:
        self._config, self._session, self._field, self._told = config, session, field, told
        self.scorer = scorer_of(session, field, config.convention)
        compares = config.measured is not None or config.report is not None
        self.listed: list[Variant] | None = [] if compares or not field.windows else None
        self.found: list[Judged] = []
        self.measured: Measurements | None = None
        self._counted = Counter[str]()
        self.bad = 0
        self.stopped: int | None = None

    @property
    def kinds(self) -> Counter[str]:
        """How many variants were scored, and not."""
        return Counter({name: self._counted[name] for name in ("scored", "unscored")})

    def restore(self, counts: Mapping[str, Any]) -> None:
        super().restore(counts)
        self._counted = Counter(counts.get("kinds", {}))
        self.scorer.surprisal = float(counts.get("surprisal", 0))
        self.scorer.places = int(counts.get("places", 0))

    def snapshot(self) -> dict[str, Any]:
        own = {"surprisal": self.scorer.surprisal, "places": self.scorer.places}
        return {**super().snapshot(), **own, "kinds": dict(self._counted)}

    def over(self, stdout: TextIO | None) -> None:
        """Score and write them.

        A copy of the table is made of its rows, which stand beside it until it is complete.
        """
        config, columns = self._config, self._field.columns
        note = (
            f"log-ratio (nats) of the allele to the reference by {Path(config.model).name}, "
            f"{config.convention}, pll_delta of insertions and deletions, mean of both strands; "
            "higher = fitter"
        )
        copy = None if config.out is None else self._field.annotated(config.table, config.out, note)
        path = config.out
        if copy is not None and path is not None:
            path = path.with_name(f"{path.name}.rows.jsonl")

        def answers(batch: Sequence[Variant], problems: Problems) -> list[Judged]:
            return judged(self.scorer, batch, config.convention)

        def rows(done: list[Judged]) -> list[Fields]:
            for one in done:
                take(one)
                self._counted["unscored" if one.effect is None else "scored"] += 1
                self._counted["mixed"] += one.convention != config.convention and bool(one.effects)
            return [one.row(columns) for one in done]

        def take(one: Judged) -> None:
            if self.listed is not None:
                self.found.append(one)
            if copy is not None:
                copy.write([(one.variant, one.effect)])

        def again(variant: Variant, row: Fields) -> None:
            take(Judged.of_row(variant, row))

        schema = Schema(columns={**dict(islice(COLUMNS.columns.items(), 3)), **columns, **COLUMNS.columns})
        with (
            copy or nullcontext(),
            writing(
                config,
                self._session,
                schema,
                answers,
                rows,
                stdout,
                out=path,
                counts=self,
                progress=self._told,
            ) as runner,
        ):
            then = None if copy is None else copy.finish
            runner.run_items(self._read(runner.problems), again=again, then=then)
            self.bad, self.stopped = runner.problems.bad_count, runner.stopped
        if path is not None and path != config.out and self.stopped is None:
            path.unlink()
        if mixed := self._counted["mixed"]:
            self._told.message(
                f"{mixed:,} of {self.kinds.total():,} variants are deletions or insertions: they have "
                "pll_delta, which others do not compare with; --convention pll_delta gives it for all"
            )

    def _read(self, problems: Problems) -> Iterator[Variant]:
        """The variants, and where all are listed, what is known of them before the first is scored."""
        config = self._config
        variants = self._field.read(_table(config, self._session, self._field), problems, self._told.message)
        if self.listed is None:
            none = True
            for one in variants:
                none = False
                yield one
            if none:
                raise problems.nothing()
            return
        self.listed.extend(variants)
        if not self.listed:
            raise problems.nothing()
        if config.next and len({one.wildtype for one in self.listed}) > 1:
            raise UsageError("--next needs variants of one wild type, and these have several")
        if config.measured is not None:
            self.measured = Measurements.of(
                config.measured,
                self._field,
                self._session,
                self.listed,
                prediction=config.prediction,
                cutoff=config.cutoff,
                alignment=config.alignment,
            )
        yield from self.listed


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Every single substitution of one wild type.

    Args:
        wildtype: L units.
        letters: A of them.
        values: (L, A) the model's log-ratios, by `masked`.
        first: number of the first unit.
    """

    wildtype: str
    letters: str
    values: Doubles
    first: int

    @classmethod
    def of(cls, variants: Sequence[Variant], scorer: VariantScorer, letters: str) -> Grid | None:
        """The map of the variants' wild type; None where they have several."""
        texts = list(dict.fromkeys(one.wildtype for one in variants))
        if len(texts) > 1:
            return None
        return cls(wildtype=texts[0], letters=letters, values=scorer.map(texts[0]), first=variants[0].first)

    def name(self, place: int, letter: int) -> str:
        """As people write it."""
        return f"{self.wildtype[place]}{place + self.first}{self.letters[letter]}"

    def suggestions(self, count: int, measured: Measurements | None) -> tuple[Suggestion, ...]:
        """What to test next: the best expected substitutions that nobody measured, each of another place.

        Greedy: the best of all places first; a place comes again when all others had their turn.
        """
        known = set()
        if measured is not None:
            for one, value in zip(measured.variants, measured.values, strict=True):
                if len(one.edits) == 1 and not math.isnan(value):
                    known.add((one.edits[0].start, one.edits[0].text))
        offered = [
            [
                (float(self.values[place, number]), place, number)
                for number, letter in enumerate(self.letters)
                if letter != old and (place, letter) not in known
            ]
            for place, old in enumerate(self.wildtype)
        ]
        turns = [
            (-turn, *one) for own in offered for turn, one in enumerate(sorted(own, key=lambda x: -x[0]))
        ]
        best = sorted(turns, key=lambda one: (-one[0], -one[1], one[2]))[:count]
        return tuple(Suggestion(variant=self.name(place, n), effect=value) for _, value, place, n in best)


def _figures(result: VariantsResult) -> dict[str, float]:
    """What the run keeps: counts, and the agreement of each prediction."""
    found: dict[str, float] = {
        "variants": result.variants,
        "scored": result.scored,
        "bad_records": result.bad,
    }
    if result.agreement is not None:
        for name, own in result.agreement.metrics.items():
            prefix = "" if name == "model" else f"{_safe(name)}/"
            found |= {f"{prefix}{metric}": value.value for metric, value in own.items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _safe(name: str) -> str:
    """A name as MLflow takes it."""
    return "".join(letter if letter.isalnum() or letter in "_-." else "_" for letter in name)


def page(config: VariantsConfig, result: VariantsResult, judged: Sequence[Judged], grid: Grid | None) -> Page:
    """The report."""
    made = Page(f"Variants by {config.model}", f"{shown_name(config.paths)}, effects by {config.convention}")
    made.cards({"variants": result.variants, "scored": result.scored, "left out": result.bad})
    if result.agreement is not None:
        made.table("Agreement with the measurements", *agreement_table(result.agreement.metrics))
    if result.doubt is not None:
        made.warnings([result.doubt])
    if result.suggestions:
        rows = [(one.variant, one.effect) for one in result.suggestions]
        made.table("To be tested next", ("variant", "effect, nats"), rows)
    if grid is not None:
        bits = np.where(
            np.array(list(grid.letters)) == np.array(list(grid.wildtype))[:, None], np.nan, -grid.values
        )
        bits /= math.log(2)
        cells = [
            f"{grid.name(place, letter)}: {grid.values[place, letter]:+.2f} nats"
            for place in range(len(grid.wildtype))
            for letter in range(len(grid.letters))
        ]
        labels = [f"{letter}{place + grid.first}" for place, letter in enumerate(grid.wildtype)]
        note = (
            "how many bits less probable each letter is than that of the wild type, which is shaded; "
            "without colour: as probable, or more"
        )
        made.grid("Every substitution", bits, grid.letters, labels, cells, scale=SCALE, note=note)
    known = sorted((one for one in judged if one.effect is not None), key=lambda one: one.effect or 0.0)
    for heading, own in (("Fittest", known[::-1][:LISTED]), ("Least fit", known[:LISTED])):
        made.table(
            heading,
            ("variant", "effect, nats", "convention", "line"),
            [(one.variant.name, one.effect, one.convention, one.variant.line) for one in own],
        )
    return made


def agreement_table(
    found: Mapping[str, Mapping[str, Difference]],
) -> tuple[list[str], list[list[str | float]]]:
    """Columns and rows: a prediction a row, its figures with intervals."""
    names = {"spearman": "Spearman", "ndcg": "NDCG@10%", "auc": "AUC", "mcc": "MCC"}
    rows: list[list[str | float]] = [
        [name, *(f"{own[m].value:.4f} ({own[m].low:.3f} to {own[m].high:.3f})" for m in METRICS)]
        for name, own in found.items()
    ]
    return ["prediction", *(names[m] for m in METRICS)], rows
