"""Joint distributions of two gaps: the most probable pairs, and how faithful each method is to the model.

The methods are in `seqmlm.structure.joints`. A row is a sequence with its best pairs. In an evaluation it has
measures of the true units at two places instead. The trade-off: all symbols are tried at both places. That
takes 2 V + 1 copies of a sequence for V symbols, or 2 K + 1 copies for K candidates.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from seqmlm.data.counts import People
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.holes import Prompt
from seqmlm.engine.durable import replace_file
from seqmlm.engine.gap_queries import gap_window
from seqmlm.engine.holes import tokens_at
from seqmlm.engine.randomness import uniform
from seqmlm.engine.types import Encoding, Ids
from seqmlm.engine.units import unit_numbers
from seqmlm.engine.windows import central_windows
from seqmlm.errors import DataError, UsageError, number_of
from seqmlm.evaluation.intervals import Estimate, bootstrap_intervals, bounds_text
from seqmlm.inference.maps import candidates
from seqmlm.inference.record_batches import batches, tokenized
from seqmlm.inference.session import Session
from seqmlm.reports.summary import Figures, Table
from seqmlm.reports.verdict import nearest_sentence
from seqmlm.rows.file import Row
from seqmlm.streams.ownership import remember
from seqmlm.streams.sinks import write_error
from seqmlm.structure import joints
from seqmlm.structure.joints import METHODS, OTHERS, TOLERANCE, Candidates, Pair
from seqmlm.structure.maps import Doubles
from seqmlm.structure.pairs import Conditional
from seqmlm.tasks.fill import Gaps, GapsConfig
from seqmlm.tasks.task import Conclusion, ReadRows, items_text, place, read_records

MOST_SYMBOLS = 32_768
"""Largest vocabulary of which all symbols are tried. Its matrix takes 4 GiB."""

MODEL = "model"
DISTANCES = (1, 2, 4, 8, 16, 32)
"""Lower bounds of the groups of pairs by distance, in tokens."""

NAMES = {"u": "U-PPL", "p": "P-PPL", "a_kl": "A-KL", "g_kl": "G-KL", "jsd": "JSD", "hit": "both right"}
MOVING = "Arnold-Gokhale did not converge: its last step still changed the marginals"


@dataclass(frozen=True, kw_only=True)
class JointConfig(GapsConfig):
    """Settings of `seqmlm joint`.

    Args:
        paths: a sequence with two gaps, or files of sequences with two gaps.
        method: how to build a joint distribution: product, mrf, mrf-logits, hcb, chain, ag or all. `product`
            multiplies the marginals, `mrf` is a Markov random field (`mrf-logits`: from logits). `hcb` is
            Hammersley-Clifford-Besag, `chain` the mean of both orders, `ag` Arnold-Gokhale.
        top: number of pairs to print per method.
        evaluate: FILE: sequences without gaps. Hide two places in each and measure the joint distributions
            there.
        pairs: which places to hide: random or contiguous.
        n: number of sequences to evaluate: the first sequences that have two suitable places.
        seed: seed of the random draws.
        publish: FILE: write the evaluated pairs to this table (.tsv).
        candidates: K: try the K most probable symbols of a place, and treat all others as one. Default: try
            all.
        compat: number of Arnold-Gokhale steps from uniform marginals (40 as published). Default: start from
            the marginals with both places hidden, and run until convergence.
    """

    option_fields = ("method", "evaluate", "pairs", "n", "seed", "out", "resume", "shard", "on_error")

    method: Literal["all", "product", "mrf", "mrf-logits", "hcb", "chain", "ag"] = "all"
    top: int = 5
    evaluate: str | None = None
    pairs: Literal["random", "contiguous"] = "random"
    n: int = 1000
    seed: int = 0
    publish: Path | None = None
    candidates: int | None = None
    compat: int | None = None

    @property
    def input_paths(self) -> tuple[str, ...]:
        return super().input_paths if self.evaluate is None else (self.evaluate,)

    @property
    def sources(self) -> tuple[str, ...]:
        return self.paths if self.evaluate is None else (self.evaluate,)

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {**super().outputs, "publish": self.publish}

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods to compare."""
        return tuple(METHODS) if self.method == "all" else (self.method,)

    def check(self) -> None:
        if min(self.top, self.n, 1 if self.compat is None else self.compat) < 1:
            raise UsageError("top, n and compat must be at least 1")
        if self.candidates is not None and self.candidates < 2:
            raise UsageError(
                f"candidates must be at least 2, or there is nothing to choose; got {self.candidates}"
            )
        if self.evaluate is None:
            if self.publish is not None:
                raise UsageError("publish needs evaluated pairs: add --evaluate FILE")
            super().check()
        elif self.paths:
            raise UsageError("--evaluate already names the input: remove the sequence or the files before it")
        else:
            self.check_files()


NamedJoints = Iterator[tuple[str, Doubles]]
"""Names of methods with their joint distributions: log-probabilities (V, V), one matrix at a time."""


class GapPair(NamedTuple):
    """A pair of places, and the prompt with gaps at these places (None in an evaluation)."""

    pair: Pair
    prompt: Prompt | None = None


class JointTask(Gaps[JointConfig]):
    """Find the most probable pairs of units for two gaps, under joint distributions.

    A masked language model predicts each gap given the other one. The two predictions rarely belong to the
    same joint distribution. Six methods build one from them. `--evaluate` measures the methods on sequences
    without gaps: how probable the true units are, and how close each method is to the model
    (docs/explanation/joints.md). The figures are perplexities and divergences in nats, with intervals over
    sequences.

    Example: seqmlm joint english 'the dog [MASK] the [MASK].' --method ag

    Example: seqmlm joint enzymes --evaluate new.fasta --pairs contiguous --n 100 --set publish=pairs.tsv
    """

    Config = JointConfig

    def __init__(self, config: JointConfig, session: Session) -> None:
        super().__init__(config, session)
        if config.evaluate is not None:
            self.output = replace(self.output, stdout="figures")
        units, ordinary = session.tokenizer.units, candidates(session)
        if not session.model.rows.has_hidden_states:
            raise UsageError(
                "a linear model already has a joint distribution, given by its couplings: read them with "
                "seqmlm structure --method couplings"
            )
        if units.facts.names is not None:
            raise UsageError(
                "a token of this tokenizer covers several units, which have no separate conditionals: use a "
                "model with one unit per token"
            )
        space = session.tokenizer.space
        self.alphabet: Ids = np.unique(space.ordinary if ordinary is None else ordinary).astype(np.int32)
        if len(self.alphabet) > MOST_SYMBOLS and config.candidates is None:
            many = f"{len(self.alphabet):,} symbols are too many to try all of them at two places"
            raise UsageError(f"{many}: use --set candidates=256")
        self.problems = Problems()

    # Pairs

    def records(self, problems: Problems) -> Iterable[Record]:
        if self.config.evaluate is None:
            return super().records(problems)
        return read_records(self.session, self.config, problems, {}, self.config.sources)

    def items(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """The records, each with its pair of places.

        Raises:
            UsageError: the sequence on the command line does not have exactly two gaps.
        """
        self.problems = problems
        if self.config.evaluate is not None:
            return islice(self._sampled_pairs(records, problems), self.config.n)
        return self._gap_pairs(super().items(records, problems), problems)

    def _gap_pairs(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """Yield the records with the places of their two gaps. Other records are bad records."""
        for record in records:
            try:
                pair = self._pair(record.raw)
            except (DataError, UsageError) as error:
                if self._typed is not None:
                    raise
                problems.bad(problems.located(error, record))
            else:
                yield replace(record, raw=GapPair(pair, record.raw))

    def _pair(self, prompt: Prompt) -> Pair:
        """The places of the two gaps of a sequence.

        Raises:
            UsageError: the sequence does not have two usable gaps.
        """
        if len(prompt.holes) != 2 or any(hole.tokens != 1 for hole in prompt.holes):
            gaps, tokens = len(prompt.holes), sum(hole.tokens for hole in prompt.holes)
            raise UsageError(
                f"the sequence has {number_of(gaps, 'gap')} with {number_of(tokens, 'token')} in total: "
                "seqmlm joint needs two gaps of one token each"
            )
        tokenizer, longest = self.session.tokenizer, self.session.card.max_length
        filled = self.session.domain.gaps.filled(prompt, [tokenizer.spelling.stand_in] * 2)
        encoding = tokenizer.encode(filled.raw)
        units = [{*unit_numbers(encoding)[tokens_at(encoding, *span)].tolist()} for span in filled.spans]
        if units[0] & units[1] - {-1}:  # an unknown token is in no unit
            raise UsageError("both gaps are in the same unit: put them in different units")
        rule = tokenizer.units
        window = gap_window(rule, self.cloze.opened([prompt])[0], 0, longest)
        if not len(window.gaps[1]):
            raise UsageError(f"the gaps are too far apart: the model sees {longest} tokens at a time")
        i, j = rule.places(window.encoding)[window.units].tolist()
        return Pair(window.encoding, i, j)

    def _sampled_pairs(self, records: Iterable[Record], problems: Problems) -> Iterator[Record]:
        """Yield records, each with a random pair of places. Sequences without such a pair are skipped."""
        longest, space = self.session.card.max_length, self.session.tokenizer.space
        domain, tokenizer = self.session.domain, self.session.tokenizer
        parts = (tokenized(domain, tokenizer, batch, problems) for batch in batches(records))
        for number, (record, encoding) in enumerate(chain.from_iterable(parts)):
            if len(encoding) > longest:
                encoding = central_windows(encoding, space, longest)[0][0]
            pairs = self._pairs(encoding)
            if len(pairs):
                share = uniform(self.config.seed, np.array([number]), np.zeros(1, dtype=np.int64))[0]
                i, j = pairs[int(share * len(pairs))].tolist()
                yield replace(record, raw=GapPair(Pair(encoding, i, j)))
            else:
                problems.note("a sequence without two places that can be compared, left out")

    def _pairs(self, encoding: Encoding) -> Any:
        """(P, 2) positions of all possible pairs of units whose tokens are in the alphabet."""
        numbers = unit_numbers(encoding)
        at = np.flatnonzero((numbers >= 0) & np.isin(encoding.ids, self.alphabet))
        if self.config.pairs == "contiguous":
            near = at[np.isin(at + 1, at)]
            pairs = np.stack([near, near + 1], axis=1)
        else:
            pairs = at[np.stack(np.triu_indices(len(at), 1), axis=1)]
        return pairs[numbers[pairs[:, 0]] != numbers[pairs[:, 1]]]

    def cost(self, item: Record) -> float:
        """Forward tokens: a copy per symbol at each place, and one copy with both places hidden."""
        copies = 2 * min(self.config.candidates or len(self.alphabet), len(self.alphabet)) + 1
        return float(copies * len(item.raw.pair.encoding))

    # Rows

    def rows(self, items: Sequence[Record]) -> Iterator[list[Row]]:
        """A row for each sequence."""
        pairs, observed = [record.raw.pair for record in items], self.config.evaluate is not None
        model, k = self.session.conditionals(), self.config.candidates
        candidate_sets = joints.top_candidates(model, pairs, self.alphabet, k, observed=observed)
        conditionals = joints.pair_conditionals(model, pairs, self.alphabet, candidate_sets)
        for record, tried, conditional in zip(items, candidate_sets, conditionals, strict=True):
            convergence = dict[str, Any]()
            named_joints = self._joints(conditional, record, convergence)
            make = self._measure_row if observed else self._pair_row
            yield [{**place(record), **make(record, conditional, tried, named_joints), **convergence}]

    def _joints(self, conditional: Conditional, record: Record, convergence: dict[str, Any]) -> NamedJoints:
        """Yield the joint distributions by name, one at a time.

        `convergence` receives the number of steps and the last change of Arnold-Gokhale.
        """
        for name in self.config.methods:
            if name != "ag":
                yield name, METHODS[name](conditional)
                continue
            joint, convergence["steps"], convergence["change"] = joints.arnold_gokhale(
                conditional, self.config.compat
            )
            if convergence["change"] >= TOLERANCE:
                self.problems.note(MOVING, source=record.source, line=record.line)
            yield name, joint

    def _pair_row(
        self, record: Record, conditional: Conditional, tried: Candidates, named_joints: NamedJoints
    ) -> Row:
        """The most probable pairs under each method.

        The sequence is filled with the best pair of the last.
        """
        pairs, domain, best = dict[str, list[Row]](), self.session.domain, ("", "")
        for name, joint in named_joints:
            pairs[name] = [
                {"first": self._text(tried.first[a]), "second": self._text(tried.second[b]), "p": p}
                for a, b, p in best_pairs(joint, tried, self.config.top)
            ]
            best = pairs[name][0]["first"], pairs[name][0]["second"]
            del joint  # a large matrix: free it before the next one is computed
        filled = domain.text.text_of(domain.gaps.filled(record.raw.prompt, list(best)).raw)
        return {"filled": filled, "deviation": joints.deviation(conditional), "joints": pairs}

    def _measure_row(
        self, record: Record, conditional: Conditional, tried: Candidates, named_joints: NamedJoints
    ) -> Row:
        """The measures of each joint distribution for the true symbols at both places."""
        encoding, i, j = record.raw.pair
        a, b = (int(np.flatnonzero(x == encoding.ids[at])[0]) for x, at in zip(tried, (i, j), strict=True))
        baseline = {
            **joints.unary_perplexities(conditional, a, b),
            "hit": joints.mask_predict(conditional, tried) == (a, b),
        }
        columns = {f"{MODEL}_{name}": float(value) for name, value in baseline.items()}
        for method, joint in named_joints:
            ((*best, _),) = best_pairs(joint, tried, 1)
            measures = {**joints.joint_measures(conditional, joint, a, b), "hit": best == [a, b]}
            columns |= {f"{method}_{name}": float(value) for name, value in measures.items()}
            del joint  # as above
        texts = {"first": self._text(encoding.ids[i]), "second": self._text(encoding.ids[j])}
        first, second = (unit_numbers(encoding)[[i, j]] + 1).tolist()
        positions = {"i": i, "j": j, "position_i": first, "position_j": second}
        return {**positions, **texts, "deviation": joints.deviation(conditional), **columns}

    def _text(self, token: int) -> str:
        return self.session.tokenizer.spelling.surface(int(token))

    # Figures of finished rows

    def figures(self, rows: Iterable[Row]) -> Figures:
        """The row of the sequence on the command line, or each measure of an evaluation with its interval."""
        if self._typed is not None:
            (only,) = rows
            keys = ("filled", "deviation", "joints", "steps", "change")
            return {key: only[key] for key in keys if key in only}
        return {} if self.config.evaluate is None else joint_figures([*rows], self.config.methods)

    def conclusion(self, figures: Figures, items: People, rows: ReadRows) -> Conclusion:
        if "filled" in figures:
            return Conclusion(str(figures["filled"]))
        if "methods" not in figures:
            return Conclusion(f"found pairs for the gaps of {items_text(self, items)}")
        distances = {
            name: measures["a_kl"]["value"]
            for name, measures in figures["methods"].items()
            if "a_kl" in measures
        }
        return Conclusion(f"{items_text(self, items)} with a pair of gaps: {nearest_sentence(distances)}")

    def tables(self, figures: Figures) -> Iterator[Table]:
        if "joints" in figures:
            cells = [
                [name, pair["first"], pair["second"], f"{pair['p']:.2%}"]
                for name, pairs in figures["joints"].items()
                for pair in pairs
            ]
            yield Table("", ["joint", "first gap", "second gap", "p"], cells)
        if "methods" in figures:
            cells = [
                [name, *(_cell(measures.get(key)) for key in NAMES)]
                for name, measures in figures["methods"].items()
            ]
            yield Table("", ["joint", *NAMES.values()], cells)
            cells = [
                [distance, group["pairs"], *(f"{group['a_kl'][name]:.4f}" for name in self.config.methods)]
                for distance, group in figures["distances"].items()
            ]
            yield Table("A-KL by distance", ["tokens apart", "pairs", *self.config.methods], cells)

    def extra_files(self, rows: ReadRows) -> Sequence[Path]:
        """Write the table of evaluated pairs that `publish` names."""
        path = self.config.publish
        if path is None:
            return ()
        columns, text = ("id", "i", "j", "first", "second"), StringIO()
        table = csv.writer(text, delimiter="\t", lineterminator="\n")
        table.writerows([columns, *([row[name] for name in columns] for row in rows())])
        try:
            replace_file(path, text.getvalue().encode())
            remember(path)
        except OSError as error:
            raise write_error(path, error) from None
        return (path,)


def best_pairs(joint: Doubles, tried: Candidates, top: int) -> Iterator[tuple[int, int, float]]:
    """Yield row, column and probability of the most probable pairs, without `OTHERS`."""
    sizes = [int((ids != OTHERS).sum()) for ids in tried]
    log_probs = joint[: sizes[0], : sizes[1]]
    # The best pairs are in the `top` rows with the largest maxima. Sorting only these rows is faster.
    rows = np.sort(np.argsort(-log_probs.max(axis=1), kind="stable")[:top])
    for cell in np.argsort(-log_probs[rows].ravel(), kind="stable")[:top].tolist():
        a, b = int(rows[cell // sizes[1]]), cell % sizes[1]
        yield a, b, float(np.exp(log_probs[a, b]))


def joint_figures(rows: Sequence[Row], methods: Sequence[str]) -> Figures:
    """The mean measures of all evaluated pairs, and the divergence by the distance of the places."""
    names = ["deviation", *(f"{MODEL}_{name}" for name in ("u", "p", "hit"))]
    names += [f"{method}_{name}" for method in methods for name in NAMES]
    values = np.array([[row[name] for name in names] for row in rows])

    def means(weights: Doubles) -> Mapping[str, float]:
        return dict(zip(names, (weights @ values / weights.sum()).tolist(), strict=True))

    differences = bootstrap_intervals(means, np.arange(len(rows)))
    distance_groups = np.searchsorted(DISTANCES, [row["j"] - row["i"] for row in rows], side="right") - 1
    methods_of = {
        method: {
            key: _interval_figures(difference, key in ("u", "p"))
            for key in NAMES
            if (difference := differences.get(f"{method}_{key}"))
        }
        for method in (MODEL, *methods)
    }
    distances = dict[str, Any]()
    for group in np.unique(distance_groups).tolist():
        group_values = values[distance_groups == group]
        a_kl = {method: float(group_values[:, names.index(f"{method}_a_kl")].mean()) for method in methods}
        distances[_distance_text(group)] = {"pairs": len(group_values), "a_kl": a_kl}
    return {
        "deviation": _interval_figures(differences["deviation"]),
        "methods": methods_of,
        "distances": distances,
    }


def _distance_text(group: int) -> str:
    begin, *ends = DISTANCES[group : group + 2]
    if not ends:
        return f"{begin} or more"
    return str(begin) if ends[0] == begin + 1 else f"{begin} to {ends[0] - 1}"


def _interval_figures(difference: Estimate, exponential: bool = False) -> dict[str, float]:
    """The value and the bounds of an estimate by name, or their exponentials."""
    bounds = difference.bounds()
    return {name: float(np.exp(bound)) for name, bound in bounds.items()} if exponential else bounds


def _cell(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return "-"
    digits = 3 if figure["value"] >= 1 else 4
    return f"{figure['value']:.{digits}f}{bounds_text(figure['low'], figure['high'], f'.{digits}f')}"
