"""Reranking of n-best lists by log-linear interpolation (Salazar et al. 2020), and its error rates.

    total(W) = (first(W) + weight * PLL(W) / temperature) / norm(|W|)

with |W| the words of W, and norm 1 ("none"), |W| ("length") or ((5 + |W|) / 6) ** 0.6 ("gnmt", Wu et al.
2016).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqmlm.errors import DataError
from seqmlm.evaluation.intervals import ratio

Norm = Literal["none", "length", "gnmt"]
Doubles = NDArray[np.float64]
_GNMT_ALPHA = 0.6


class Ranked(NamedTuple):
    """A list of hypotheses, ranked.

    best: the place of its best hypothesis, the earlier one at a tie, by each weight and, under None, by the
        first pass.
    edits: (H,) that each hypothesis is away from the reference; empty without one.
    length: words (or characters) of the reference.
    hypotheses, unknown: how many there are, and unknown tokens in them.
    """

    id: str
    best: Mapping[float | None, int]
    edits: Sequence[int]
    length: int
    hypotheses: int
    unknown: int


@dataclass(frozen=True)
class Reranking:
    """How lists are ranked, and their errors counted; a function of finished rows.

    A row is a list: `id`, `ref` (its reference, or None), `unknown` tokens, and `hyps`, each with its `text`,
    first-pass `score` and `pll` (nats).

    Args:
        weights: of the pseudo-log-likelihood, each at least 0.
        norm, temperature: as of `totals`.
        characters: errors count characters instead of words.
    """

    weights: Sequence[float]
    norm: Norm = "none"
    temperature: float = 1.0
    characters: bool = False

    def totals(self, row: Mapping[str, Any]) -> dict[float, Doubles]:
        """By weight, the interpolated scores (H,) of a list's hypotheses."""
        first, pll = ([one[name] for one in row["hyps"]] for name in ("score", "pll"))
        words = [len(one["text"].split()) for one in row["hyps"]]
        return {
            weight: totals(first, pll, words, weight=weight, norm=self.norm, temperature=self.temperature)
            for weight in self.weights
        }

    def reranked(self, row: Mapping[str, Any], chosen: float | None) -> dict[str, Any]:
        """A list with its totals and its best hypothesis by each weight; best first by the chosen one, in the
        file's order without one."""
        made, hyps = self.totals(row), row["hyps"]
        order = list(range(len(hyps)))
        if chosen is not None:
            order.sort(key=lambda place: -made[chosen][place])
        return {
            "id": row["id"],
            "ref": row["ref"],
            "weight": chosen,
            "best": {f"{weight:g}": hyps[int(np.argmax(own))]["text"] for weight, own in made.items()},
            "hyps": [
                {**hyps[at], "total": {f"{weight:g}": float(own[at]) for weight, own in made.items()}}
                for at in order
            ],
        }

    def ranked(self, row: Mapping[str, Any]) -> Ranked:
        """What the errors of a list are counted from."""
        hyps, reference = row["hyps"], row["ref"]
        best: dict[float | None, int] = {None: int(np.argmax([one["score"] for one in hyps]))}
        best |= {weight: int(np.argmax(own)) for weight, own in self.totals(row).items()}
        goal, texts = self._cut(reference or ""), [one["text"] for one in hyps if reference is not None]
        edits = [edit_distance(self._cut(text), goal) for text in texts]
        return Ranked(row["id"], best, edits, len(goal), len(hyps), row["unknown"])

    def _cut(self, text: str) -> list[str]:
        return list(" ".join(text.split())) if self.characters else text.split()

    def figures(self, rows: Iterable[Mapping[str, Any]], dev: float | None) -> dict[str, Any]:
        """What was rescored, and the errors of the first pass, of every weight and of the oracle.

        `dev` is the share of the lists that choose the `weight` that lists are ranked by, the one of the
        fewest errors; without it that is the only one, or None. With references there are errors of the part
        that chose it (`dev`) and of all others (`test`), and by how much its error rate is below the first
        pass's (`gain`), with a bootstrap over lists (Bisani and Ney 2004); None for a single list.

        Raises:
            DataError: a part without lists; references without words.
        """
        lists = [*map(self.ranked, rows)]
        chosen_by, test = list[Ranked](), lists
        weight = self.weights[0] if len(self.weights) == 1 else None
        if dev is not None:
            choosing = parts([one.id for one in lists], dev)
            chosen_by, test = (
                [one for one, chooses in zip(lists, choosing, strict=True) if chooses == wanted]
                for wanted in (True, False)
            )
            weight = min(self.weights, key=lambda own: _errors(chosen_by, "", own)["error_rate"])
        referred, gain = bool(lists) and all(one.edits for one in lists), None
        if referred and weight is not None and len(test) > 1:
            gains = [one.edits[one.best[None]] - one.edits[one.best[weight]] for one in test]
            gain = asdict(ratio(gains, [one.length for one in test]))
        return {
            "lists": len(lists),
            "hypotheses": sum(one.hypotheses for one in lists),
            "weight": weight,
            "dev": self._choices(chosen_by) if chosen_by else [],
            "test": self._choices(test) if referred else [],
            "gain": gain,
            "unknown": sum(one.unknown for one in lists),
        }

    def _choices(self, part: Sequence[Ranked]) -> list[dict[str, Any]]:
        weights = [_errors(part, f"weight {weight:g}", weight) for weight in self.weights]
        oracle = _of_choices(part, "oracle", [int(np.argmin(one.edits)) for one in part])
        return [_errors(part, "first pass", None), *weights, oracle]


def parts(names: Sequence[str], share: float) -> list[bool]:
    """Whether the list of each name helps to choose the weight: by hash, so the same in every run.

    Raises:
        DataError: all of them, or none.
    """
    found = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) < share * 2**64 for name in names]
    if not 0 < sum(found) < len(found):
        raise DataError(
            f"--dev {share:g} of {len(found)} lists leaves {sum(found)} to choose by and "
            f"{len(found) - sum(found)} to report on",
            remedy="take another share, or more lists",
        )
    return found


def _errors(part: Sequence[Ranked], name: str, weight: float | None) -> dict[str, Any]:
    return _of_choices(part, name, [one.best[weight] for one in part])


def _of_choices(part: Sequence[Ranked], name: str, choices: Sequence[int]) -> dict[str, Any]:
    """How some choices compare with the references: share of exact ones, and those unlike the first pass."""
    edits = [one.edits[choice] for one, choice in zip(part, choices, strict=True)]
    return {
        "name": name,
        "error_rate": error_rate(edits, [one.length for one in part]),
        "exact": float(np.mean([count == 0 for count in edits])),
        "changed": sum(one.best[None] != choice for one, choice in zip(part, choices, strict=True)),
    }


def totals(
    first: ArrayLike,
    pll: ArrayLike,
    lengths: ArrayLike,
    *,
    weight: float,
    norm: Norm = "none",
    temperature: float = 1.0,
) -> Doubles:
    """The interpolated score of each of H hypotheses; higher is better.

    A hypothesis without words has no pseudo-log-likelihood: with a weight above 0 its total is -inf.

    Args:
        first, pll: (H,) log-probabilities of the first pass, pseudo-log-likelihoods (nats).
        lengths: (H,) words.
        weight: at least 0; 0 is the first pass, divided by the norm.
        temperature: above 0; divides the pseudo-log-likelihood.
    """
    words = np.asarray(lengths, dtype=np.float64)
    model = np.asarray(pll, dtype=np.float64) / temperature
    total = np.asarray(first, dtype=np.float64) + weight * model
    if norm == "length":
        total = total / np.maximum(words, 1)
    elif norm == "gnmt":
        total = total / ((5 + words) / 6) ** _GNMT_ALPHA
    return np.where((words == 0) & (weight > 0), -np.inf, total)


def edit_distance(first: Sequence[object], second: Sequence[object]) -> int:
    """Fewest insertions, deletions and substitutions between two sequences (Levenshtein 1966).

    >>> edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(second) + 1))
    for i, one in enumerate(first, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, start=1):
            changed = before + (one != other)
            before = row[j]
            row[j] = min(changed, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def error_rate(edits: ArrayLike, lengths: ArrayLike) -> float:
    """Edits over the words of the references: the word error rate.

    Raises:
        DataError: references without a word.
    """
    words = float(np.sum(np.asarray(lengths)))
    if not words:
        raise DataError("the references have no words", remedy="check the reference file")
    return float(np.sum(np.asarray(edits))) / words
