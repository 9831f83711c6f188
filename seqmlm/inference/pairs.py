"""Pairs of strings to rows: the pseudo-log-likelihood of both, of all their tokens or of those they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from seqmlm.anomaly.levels import WHOLE, View
from seqmlm.data.pairs import Pair
from seqmlm.engine.types import SPECIAL_GROUP, Bools, Encoding
from seqmlm.engine.units import EXACT, Mode, Units
from seqmlm.errors import UsageError
from seqmlm.evaluation.pairs import Metric, comparison_signs, metric_scores, pair_figures
from seqmlm.inference.expert import session_expert
from seqmlm.inference.record_batches import encoded_texts, forward_tokens, unknown_tokens
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.tokenizers.base import Tokenizer


class PairScorer:
    """Scores pairs of strings with one model.

    Args:
        session: the model.
        mode: how units are hidden.
        metric: `shared` scores the tokens that both sequences have, the others all.

    Raises:
        UsageError: a sequence of the model's domain is no plain text.
    """

    def __init__(self, session: Session, *, mode: Mode = EXACT, metric: Metric = "sum") -> None:
        session.check_text()
        self.session, self._scorer, self._mode, self._metric = session, RecordScorer(session), mode, metric

    def cost(self, pair: Pair) -> float:
        """Forward tokens that both sequences take, by estimate."""
        cost = forward_tokens(self.session.model, self._mode)
        return sum(cost(self.session.tokens(text)) for text in (pair.good, pair.bad))

    def pair_rows(self, pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
        """Score pairs together; equal masked copies are computed once. A row has both sequences'
        pseudo-log-likelihoods (nats), units and characters, the tokens that the vocabulary does not have,
        which no score counts, and what the metric makes of it.

        Raises:
            DataError: a sequence that cannot be spelled.
            NotFiniteError: an answer is not a finite number; it names the pair.
            UsageError: under `shared`, a sequence longer than the model.
        """
        tokenizer = self.session.tokenizer
        encodings = encoded_texts(tokenizer, [text for pair in pairs for text in (pair.good, pair.bad)])
        selected, view = None, WHOLE
        if self._metric == "shared":
            view, couples = TOKENS, zip(encodings[::2], encodings[1::2], strict=True)
            selected = [mask for couple in couples for mask in common_tokens(*couple)]

        def sequence_name(number: int) -> str:
            pair, side = pairs[number // 2], "bad" if number % 2 else "good"
            return f"the {side} one of the pair {self.session.place_of(pair)}"

        scores = self._scorer.sequences(
            encodings, self._mode, selected=selected, view=view, name_of=sequence_name
        )
        for number, pair in enumerate(pairs):
            places = slice(2 * number, 2 * number + 2)
            good, bad = scores[places]
            row = {
                "id": pair.id,
                "source": pair.source,
                "line": pair.line,
                "group": pair.group,
                "pll_good": good.pll,
                "pll_bad": bad.pll,
                "units_good": len(good.units[0]),
                "units_bad": len(bad.units[0]),
                "length_good": len(pair.good),
                "length_bad": len(pair.bad),
                "unknown": unknown_tokens(tokenizer, encodings[places]),
            }
            first, second = metric_scores([row], self._metric)
            margin, correct = float(first[0] - second[0]), bool(comparison_signs(first, second)[0] > 0)
            yield {**row, "margin": margin, "correct": correct}

    def figures(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """How pairs came out (`seqmlm.evaluation.pairs.pair_figures`), and how they were scored."""
        return {
            "metric": self._metric,
            "mode": str(self._mode),
            "precision": self.session.precision,
            **pair_figures(rows, self._metric),
            "counts": self._metric != "shared" and session_expert(self.session) is not None,
        }


class _TokenView(View):
    """Each token a unit of its own, in sequences no longer than the model."""

    def units(self, tokenizer: Tokenizer) -> Units:
        return Units(tokenizer.space)

    def windows(
        self, encoding: Encoding, tokenizer: Tokenizer, max_length: int, selected: Bools | None = None
    ) -> list[tuple[Encoding, Bools]]:
        if len(encoding) > max_length:
            raise UsageError(
                f"a text of {len(encoding)} tokens is longer than the model's window of {max_length}: what "
                "it shares cannot be compared in one piece"
            )
        numbers = np.arange(len(encoding), dtype=np.int32)
        groups = np.where(encoding.groups >= 0, numbers, SPECIAL_GROUP).astype(np.int32)
        owned = np.ones(len(encoding), dtype=np.bool_) if selected is None else selected
        return [(replace(encoding, groups=groups), owned)]


TOKENS = _TokenView()


def common_tokens(first: Encoding, second: Encoding) -> tuple[Bools, Bools]:
    """(L,) for each of two sequences, True at the tokens that an alignment of their ids has in both.

    The metric of CrowS-Pairs compares these alone (by difflib's alignment, as there), so that the frequency
    of the words that differ does not count.
    """
    masks = np.zeros(len(first), dtype=np.bool_), np.zeros(len(second), dtype=np.bool_)
    matcher = SequenceMatcher(None, first.ids.tolist(), second.ids.tolist(), autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        masks[0][a : a + size] = True
        masks[1][b : b + size] = True
    return masks
