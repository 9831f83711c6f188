"""What maps of dependence mean in source code: a tree over lexer tokens, names and brackets that find their
partners, operators that bind more or less tightly.

The truth of Python needs no file of its own: it is computed from the source (`seqmlm.domains.code.syntax`).
Near tokens depend on each other whatever they are, so every figure has rivals that know distances alone: the
decoder on a map whose values were dealt anew among the pairs that are equally far apart (`_matched`), and a
rule without a model.
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
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth, placed
from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import ratio
from seqmlm.structure.maps import DependenceMap
from seqmlm.structure.trees import (
    Node,
    chain,
    node_values,
    shuffle_by_distance,
    spanning_tree,
    unit_edges,
    with_ties,
)

SCHEMA = "seqmlm.sample.code.v1"
PARENT, USE, BRACKET = "parent", "def-use", "bracket"


@dataclass(frozen=True, kw_only=True, eq=False)
class Structure(Truth):
    """What is known of a file; every token is told by the first of its units.

    Args:
        nodes: the units of each lexer token, in order.
        parents: pairs of the syntax tree.
        uses: (binding, use) of names.
        brackets: (opening, closing).
        precedence: (operand, tighter operator, looser one).
    """

    nodes: Sequence[Node]
    parents: frozenset[Pair]
    uses: Sequence[Pair]
    brackets: Sequence[Pair]
    precedence: Sequence[tuple[int, int, int]]


class SyntaxDecoder(Decoder):
    """A tree over the lexer tokens of a file."""

    measure: str = "parents"

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The maximum spanning tree over lexer tokens; comments and white space are left out."""
        nodes = _tokens(record, units)
        return unit_edges(spanning_tree(with_ties(node_values(dependence.values, nodes))), nodes)

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """What the source says itself, or `truth.json` of a sample with its data beside it.

        Of the sample's formulas, the pairs that were planted; their syntax has no part in it.

        Args:
            path: a Python file or a folder of them (each record is then parsed by itself), or `truth.json`.
            problems: receives files that are no Python, or do not parse.
        """
        if path.suffix == ".json" or (path / TRUTH).is_file():
            return _of_sample(path, problems)
        if not path.exists() or (path.is_file() and path.suffix not in LANGUAGES["python"]):
            reason = "the structure of code is computed from Python alone, and this is none"
            remedy = "give a .py file, a folder, or the truth.json of a sample"
            raise DataError(reason, source=str(path), remedy=remedy)

        def computed(record: Record, units: Sequence[str]) -> Truth | None:
            language = getattr(record.raw, "language", "") or language_of(record.source) or "python"
            found = syntax(str(record.raw)) if language == "python" else None
            if found is None:
                problems.note("source that is no Python, or does not parse: its structure is not known")
            return _of_units(record, units, found, problems)

        return computed

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """Shares of what is found, over all files; what no file has is left out.

        `parents`: pairs of the syntax tree in the spanning tree, with the bounds of a bootstrap over files;
        `parents_chain`: neighbours linked. `def_use`, `brackets`: uses and closing brackets whose partner has
        the largest value of all names, or opening brackets of the kind, in front; `_nearest`: the nearest
        (of the same spelling). `precedence`: operands that depend more on the tighter of the two operators
        beside them; `precedence_left`: the left one. `_matched` see the module.
        """
        files = [_counted(one, one.truth) for one in decoded if isinstance(one.truth, Structure)]
        total: Counter[str] = sum((found for found in files), Counter[str]())
        made: dict[str, float] = {}
        for name, rivals in (
            ("parents", ("chain", "matched")),
            ("def_use", ("nearest", "matched")),
            ("brackets", ("nearest", "matched")),
            ("precedence", ("left",)),
        ):
            if not (count := total[f"{name} of"]):
                continue
            made[name] = total[name] / count
            if name == self.measure:
                own = ratio([one[name] for one in files], [one[f"{name} of"] for one in files])
                if len(files) > 1:
                    made |= {f"{name}_low": own.low, f"{name}_high": own.high}
            made |= {f"{name}_{rival}": total[f"{name}_{rival}"] / count for rival in rivals}
        return made


# Units and tokens


def _tokens(record: Record, units: Sequence[str]) -> list[Node]:
    """The units of each lexer token that is neither white space nor a comment."""
    spans = placed(str(record.raw), units)
    if spans is None:
        return [(number,) for number, unit in enumerate(units) if unit.strip()]
    found = lex(record.raw)
    starts = [start for start, _ in spans]
    owner = np.searchsorted(found.starts, starts, side="right") - 1
    nodes: dict[int, list[int]] = {}
    for unit, token in enumerate(owner.tolist()):
        inside = token >= 0 and starts[unit] < found.ends[token] and units[unit].strip()
        if inside and found.classes[token] not in (WHITESPACE, COMMENT):
            nodes.setdefault(token, []).append(unit)
    return [tuple(own) for own in nodes.values()]


def _of_units(
    record: Record, units: Sequence[str], found: Syntax | None, problems: Problems
) -> Structure | None:
    """Offsets as units; None where nothing is known, or units are no pieces of the file."""
    if found is None:
        return None
    nodes = _tokens(record, units)
    at = _begins(record, units, nodes, found, problems)
    if at is None:
        return None

    def pairs(links: Iterable[tuple[int, int]]) -> list[Pair]:
        ordered = (sorted((at[a], at[b])) for a, b in links)
        return [(a, b) for a, b in ordered if a != b]

    parents, uses, brackets = pairs(found.parents), pairs(found.uses), pairs(found.brackets)
    kinds = dict.fromkeys(parents, PARENT) | dict.fromkeys(uses, USE) | dict.fromkeys(brackets, BRACKET)
    judged = frozenset(unit for pair in parents for unit in pair)
    return Structure(
        edges=frozenset(kinds),
        kinds=kinds,
        known=judged.issuperset,
        nodes=nodes,
        parents=frozenset(parents),
        uses=uses,
        brackets=brackets,
        precedence=[(at[a], at[b], at[c]) for a, b, c in found.precedence],
    )


def _begins(
    record: Record,
    units: Sequence[str],
    nodes: Iterable[Node],
    links: Iterable[Iterable[Sequence[int]]],
    problems: Problems,
) -> dict[int, int] | None:
    """The first unit of the token at each offset; None, and `problems` is told, where one has no token."""
    first = {unit: node[0] for node in nodes for unit in node}
    spans = enumerate(placed(str(record.raw), units) or ())
    at = {start: first[unit] for unit, (start, _) in spans if unit in first}
    if {offset for own in links for link in own for offset in link} <= at.keys():
        return at
    problems.note("source whose tokens could not be aligned with its truth: it is not judged")
    return None


def _of_sample(path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
    truth = read_truth(path, SCHEMA, ("modules", "formulas"))
    folder = (path if path.is_dir() else path.parent) / str(truth["file"])
    modules: dict[str, Syntax] = {}
    for module in truth["modules"]:
        try:
            text = (folder / module["file"]).read_text(encoding="utf-8")
        except OSError as error:
            reason = f"a file of this truth could not be read: {error.strerror}"
            remedy = "keep truth.json beside the folder that was drawn with it"
            raise DataError(reason, source=str(folder / module["file"]), remedy=remedy) from None
        links = {name: [tuple(link) for link in module[name]] for name in Syntax._fields}
        modules[text] = Syntax(**links)
    formulas = {one["id"]: one["pairs"] for one in truth["formulas"]}

    def knows(record: Record, units: Sequence[str]) -> Truth | None:
        if (pairs := formulas.get(record.id)) is None:
            return _of_units(record, units, modules.get(str(record.raw)), problems)
        nodes = _tokens(record, units)
        at = _begins(record, units, nodes, [pairs], problems)
        if at is None:
            return None
        judged = frozenset(node[0] for node in nodes)
        return Truth(edges=frozenset((at[a], at[b]) for a, b in pairs), known=judged.issuperset)

    return knows


# Measures


def _counted(one: Decoded, truth: Structure) -> Counter[str]:
    """Hits of one file by figure, and how many there are to be found (`of`)."""
    number = {unit: place for place, node in enumerate(truth.nodes) for unit in node}
    spelled = [one.units[node[0]] for node in truth.nodes]
    weights = node_values(one.dependence.values, truth.nodes)
    dealt = shuffle_by_distance(weights, np.random.default_rng(len(spelled)))
    parents = {(number[a], number[b]) for a, b in truth.parents}
    found = Counter({"parents of": len(parents), "parents_chain": len(parents & chain(len(spelled)))})
    for name, values in (("parents", weights), ("parents_matched", dealt)):
        found[name] = len(parents & spanning_tree(with_ties(values)))
    names = [place for place, text in enumerate(spelled) if text.isidentifier() and not iskeyword(text)]
    for name, links in (("def_use", truth.uses), ("brackets", truth.brackets)):
        for partner, place in ((number[a], number[b]) for a, b in links):
            if name == "def_use":
                candidates = [other for other in names if other < place]
                alike = [other for other in candidates if spelled[other] == spelled[place]]
            else:
                opening = PAIRS[spelled[place]]
                candidates = alike = [other for other in range(place) if spelled[other] == opening]
            if partner not in candidates:  # a name that is bound behind its use
                continue
            found[f"{name} of"] += 1
            found[name] += candidates[weights[place, candidates].argmax()] == partner
            found[f"{name}_matched"] += candidates[dealt[place, candidates].argmax()] == partner
            found[f"{name}_nearest"] += alike[-1] == partner
    for operand, tight, loose in ((number[a], number[b], number[c]) for a, b, c in truth.precedence):
        found["precedence of"] += 1
        found["precedence"] += bool(weights[operand, tight] > weights[operand, loose])
        found["precedence_left"] += tight < loose
    return found
