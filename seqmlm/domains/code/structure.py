"""Decode maps of source code into a tree over lexer tokens, and measure how well maps show the syntax.

The measures are about the syntax tree, names and brackets with their partners, and operator precedence. The
truth for Python needs no file. It is computed from the source (`seqmlm.domains.code.syntax`).

Near tokens always depend on each other. Each measure is therefore compared with baselines that use only
distances. The baseline `_matched` is the decoder on a shuffled map, in which values are exchanged between
pairs at equal distance. The other baseline is a rule without a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.code.lexers import lex
from seqmlm.domains.code.lexers.classes import COMMENT, WHITESPACE
from seqmlm.domains.code.lexers.source import LANGUAGES, language_of
from seqmlm.domains.code.syntax import PAIRS, Syntax, syntax
from seqmlm.domains.samples import TRUTH, read_truth
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth, unit_spans
from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import ratio
from seqmlm.structure.maps import DependenceMap
from seqmlm.structure.trees import (
    Node,
    chain,
    favour_adjacent,
    node_values,
    shuffle_by_distance,
    spanning_tree,
    unit_edges,
)

SCHEMA = "seqmlm.sample.code.v1"
PARENT, USE, BRACKET = "parent", "def-use", "bracket"


@dataclass(frozen=True, kw_only=True, eq=False)
class Structure(Truth):
    """The known structure of a file. A token is represented by its first unit.

    Args:
        nodes: the units of each lexer token, in order.
        parents: the pairs of the syntax tree.
        uses: (binding, use) of names.
        brackets: (opening bracket, closing bracket).
        precedence: (operand, tighter operator, looser operator).
    """

    nodes: Sequence[Node]
    parents: frozenset[Pair]
    uses: Sequence[Pair]
    brackets: Sequence[Pair]
    precedence: Sequence[tuple[int, int, int]]


class SyntaxDecoder(Decoder):
    """The decoder of source code: a tree over the lexer tokens of a file."""

    measure: str = "parents"

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The maximum spanning tree over lexer tokens, without comments and white space."""
        nodes = _tokens(record, units)
        return unit_edges(spanning_tree(favour_adjacent(node_values(dependence.values, nodes))), nodes)

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """A function that gives the structure of a record, from its source or from `truth.json` of a sample.

        The structure of a formula in the sample is its planted pairs, and not its syntax.

        Args:
            path: a Python file or a folder with Python files, or `truth.json`. With the first two, each
                record is parsed.
            problems: counts records that are not Python or do not parse.

        Raises:
            DataError: the path is none of these.
        """
        if path.suffix == ".json" or (path / TRUTH).is_file():
            return _sample_truths(path, problems)
        if not path.exists() or (path.is_file() and path.suffix not in LANGUAGES["python"]):
            reason = "the structure of code is computed only for Python, and this file is not Python"
            remedy = "give a .py file, a folder, or the truth.json of a sample"
            raise DataError(reason, source=str(path), remedy=remedy)

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            language = getattr(record.raw, "language", "") or language_of(record.source) or "python"
            links = syntax(str(record.raw)) if language == "python" else None
            if links is None:
                problems.note(
                    "a source that is not Python or does not parse, so that its structure is unknown"
                )
            return _structure_of(record, units, links, problems)

        return truth_of

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """The shares of true pairs that are found, over all files.

        * `parents`: pairs of the syntax tree that are in the spanning tree, with bootstrap bounds over files.
          The baseline "parents_chain" links neighbours.
        * `def_use`: uses of names whose binding has the largest value of all earlier names. The baseline
          "def_use_nearest" takes the nearest earlier name with the same spelling.
        * `brackets`: closing brackets whose partner has the largest value of all earlier opening brackets of
          the same kind. The baseline "brackets_nearest" takes the nearest.
        * `precedence`: operands that depend more on the tighter of their two operators. The baseline
          "precedence_left" takes the left operator.

        The module explains the baselines `_matched`. Measures without any true pair are left out.
        """
        files = [_count_hits(file, file.truth) for file in decoded if isinstance(file.truth, Structure)]
        total: Counter[str] = sum((counts for counts in files), Counter[str]())
        figures: dict[str, float] = {}
        for name, rivals in (
            ("parents", ("chain", "matched")),
            ("def_use", ("nearest", "matched")),
            ("brackets", ("nearest", "matched")),
            ("precedence", ("left",)),
        ):
            if not (count := total[f"{name} of"]):
                continue
            figures[name] = total[name] / count
            if name == self.measure:
                interval = ratio([file[name] for file in files], [file[f"{name} of"] for file in files])
                if len(files) > 1:
                    figures |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
            figures |= {f"{name}_{rival}": total[f"{name}_{rival}"] / count for rival in rivals}
        return figures


# Units and tokens


def _tokens(record: Record, units: Sequence[str]) -> list[Node]:
    """The units of each lexer token, without white space and comments."""
    spans = unit_spans(str(record.raw), units)
    if spans is None:
        return [(number,) for number, unit in enumerate(units) if unit.strip()]
    tokens = lex(record.raw)
    starts = [start for start, _ in spans]
    owner = np.searchsorted(tokens.starts, starts, side="right") - 1
    nodes: dict[int, list[int]] = {}
    for unit, token in enumerate(owner.tolist()):
        inside = token >= 0 and starts[unit] < tokens.ends[token] and units[unit].strip()
        if inside and tokens.classes[token] not in (WHITESPACE, COMMENT):
            nodes.setdefault(token, []).append(unit)
    return [tuple(node) for node in nodes.values()]


def _structure_of(
    record: Record, units: Sequence[str], syntax_links: Syntax | None, problems: Problems
) -> Structure | None:
    """The structure of a file, from its syntax links with unit numbers instead of offsets.

    It is None without links, or if the units cannot be aligned with the source.
    """
    if syntax_links is None:
        return None
    nodes = _tokens(record, units)
    unit_at = _first_units(record, units, nodes, syntax_links, problems)
    if unit_at is None:
        return None

    def pairs(links: Iterable[tuple[int, int]]) -> list[Pair]:
        ordered = (sorted((unit_at[a], unit_at[b])) for a, b in links)
        return [(a, b) for a, b in ordered if a != b]

    parents, uses, brackets = (
        pairs(syntax_links.parents),
        pairs(syntax_links.uses),
        pairs(syntax_links.brackets),
    )
    kinds = dict.fromkeys(parents, PARENT) | dict.fromkeys(uses, USE) | dict.fromkeys(brackets, BRACKET)
    judged = frozenset(unit for pair in parents for unit in pair)
    return Structure(
        edges=frozenset(kinds),
        kinds=kinds,
        covers=judged.issuperset,
        nodes=nodes,
        parents=frozenset(parents),
        uses=uses,
        brackets=brackets,
        precedence=[(unit_at[a], unit_at[b], unit_at[c]) for a, b, c in syntax_links.precedence],
    )


def _first_units(
    record: Record,
    units: Sequence[str],
    nodes: Iterable[Node],
    links: Iterable[Iterable[Sequence[int]]],
    problems: Problems,
) -> dict[int, int] | None:
    """The first unit of the token at each offset. If a link has an offset without a token, this is counted,
    and the result is None."""
    first = {unit: node[0] for node in nodes for unit in node}
    spans = enumerate(unit_spans(str(record.raw), units) or ())
    unit_at = {start: first[unit] for unit, (start, _) in spans if unit in first}
    if {offset for group in links for link in group for offset in link} <= unit_at.keys():
        return unit_at
    problems.note("a source whose tokens could not be aligned with its truth: it is not evaluated")
    return None


def _sample_truths(path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
    """A function that gives the truth of a record in the code sample, from `truth.json` and the modules."""
    truth = read_truth(path, SCHEMA, ("modules", "formulas"))
    folder = (path if path.is_dir() else path.parent) / str(truth["file"])
    modules: dict[str, Syntax] = {}
    for module in truth["modules"]:
        try:
            text = (folder / module["file"]).read_text(encoding="utf-8")
        except OSError as error:
            reason = f"a file of this truth could not be read: {error.strerror}"
            remedy = "keep truth.json next to the folder that was generated with it"
            raise DataError(reason, source=str(folder / module["file"]), remedy=remedy) from None
        links = {name: [tuple(link) for link in module[name]] for name in Syntax._fields}
        modules[text] = Syntax(**links)
    formulas = {formula["id"]: formula["pairs"] for formula in truth["formulas"]}

    def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
        if (pairs := formulas.get(record.id)) is None:
            return _structure_of(record, units, modules.get(str(record.raw)), problems)
        nodes = _tokens(record, units)
        unit_at = _first_units(record, units, nodes, [pairs], problems)
        if unit_at is None:
            return None
        judged = frozenset(node[0] for node in nodes)
        return Truth(edges=frozenset((unit_at[a], unit_at[b]) for a, b in pairs), covers=judged.issuperset)

    return truth_of


# Measures


def _count_hits(decoded: Decoded, truth: Structure) -> Counter[str]:
    """The number of found pairs in a file by measure, and the number of all true pairs ("NAME of")."""
    number = {unit: place for place, node in enumerate(truth.nodes) for unit in node}
    spellings = [decoded.units[node[0]] for node in truth.nodes]
    weights = node_values(decoded.dependence.values, truth.nodes)
    shuffled = shuffle_by_distance(weights, np.random.default_rng(len(spellings)))
    parents = {(number[a], number[b]) for a, b in truth.parents}
    hits = Counter({"parents of": len(parents), "parents_chain": len(parents & chain(len(spellings)))})
    for name, values in (("parents", weights), ("parents_matched", shuffled)):
        hits[name] = len(parents & spanning_tree(favour_adjacent(values)))
    names = [place for place, text in enumerate(spellings) if text.isidentifier() and not iskeyword(text)]
    for name, links in (("def_use", truth.uses), ("brackets", truth.brackets)):
        for partner, place in ((number[a], number[b]) for a, b in links):
            if name == "def_use":
                candidates = [candidate for candidate in names if candidate < place]
                alike = [candidate for candidate in candidates if spellings[candidate] == spellings[place]]
            else:
                opening = PAIRS[spellings[place]]
                candidates = alike = [
                    candidate for candidate in range(place) if spellings[candidate] == opening
                ]
            if partner not in candidates:  # the name is bound after its use
                continue
            hits[f"{name} of"] += 1
            hits[name] += candidates[weights[place, candidates].argmax()] == partner
            hits[f"{name}_matched"] += candidates[shuffled[place, candidates].argmax()] == partner
            hits[f"{name}_nearest"] += alike[-1] == partner
    for operand, tight, loose in ((number[a], number[b], number[c]) for a, b, c in truth.precedence):
        hits["precedence of"] += 1
        hits["precedence"] += bool(weights[operand, tight] > weights[operand, loose])
        hits["precedence_left"] += tight < loose
    return hits
