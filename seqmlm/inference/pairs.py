"""Score pairs of strings: the pseudo-log-likelihoods of both, over all tokens or over their common tokens."""

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
        mode: how units are masked.
        metric: `shared` scores the tokens that both sequences have in common. Other metrics score all tokens.

    Raises:
        UsageError: the sequences of the model's domain are not plain text.
    """

    def __init__(self, session: Session, *, mode: Mode = EXACT, metric: Metric = "sum") -> None:
        session.check_text()
        self.session, self._scorer, self._mode, self._metric = session, RecordScorer(session), mode, metric

    def cost(self, pair: Pair) -> float:
        """Estimate the forward tokens for both sequences."""
        cost = forward_tokens(self.session.model, self._mode)
        return sum(cost(self.session.tokens(text)) for text in (pair.good, pair.bad))

    def pair_rows(self, pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
        """Score pairs together. Equal masked copies are computed once.

        A row has the pseudo-log-likelihoods (nats), units and characters of both sequences, and the result of
        the metric. It also has the number of tokens outside the vocabulary, which no score counts.

        Raises:
            DataError: a sequence cannot be tokenized.
            NotFiniteError: a result is not a finite number. The error names the pair.
            UsageError: with `shared`, a sequence is longer than the model allows.
        """
        tokenizer = self.session.tokenizer
        encodings = encoded_texts(tokenizer, [text for pair in pairs for text in (pair.good, pair.bad)])
        selected, view = None, WHOLE
        if self._metric == "shared":
            view, couples = TOKENS, zip(encodings[::2], encodings[1::2], strict=True)
            selected = [mask for couple in couples for mask in common_tokens(*couple)]

        def sequence_name(number: int) -> str:
            pair, side = pairs[number // 2], "bad" if number % 2 else "good"
            return f"the {side} sequence of the pair {self.session.place_of(pair)}"

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
        """Results of the pairs (`seqmlm.evaluation.pairs.pair_figures`), and how they were scored."""
        return {
            "metric": self._metric,
            "mode": str(self._mode),
            "precision": self.session.precision,
            **pair_figures(rows, self._metric),
            "counts": self._metric != "shared" and session_expert(self.session) is not None,
        }


class _TokenView(View):
    """A view in which each token is a unit. Sequences must not be longer than the model allows."""

    def units(self, tokenizer: Tokenizer) -> Units:
        return Units(tokenizer.space)

    def windows(
        self, encoding: Encoding, tokenizer: Tokenizer, max_length: int, selected: Bools | None = None
    ) -> list[tuple[Encoding, Bools]]:
        if len(encoding) > max_length:
            raise UsageError(
                f"a text has {len(encoding)} tokens, more than the model's window of {max_length}: shorten "
                "it, or use another metric"
            )
        numbers = np.arange(len(encoding), dtype=np.int32)
        groups = np.where(encoding.groups >= 0, numbers, SPECIAL_GROUP).astype(np.int32)
        owned = np.ones(len(encoding), dtype=np.bool_) if selected is None else selected
        return [(replace(encoding, groups=groups), owned)]


TOKENS = _TokenView()


def common_tokens(first: Encoding, second: Encoding) -> tuple[Bools, Bools]:
    """The tokens that two sequences have in common, according to an alignment of their ids.

    For each sequence, a mask (L,) is True at these tokens. The metric of CrowS-Pairs compares only them (with
    the same difflib alignment), so that the frequency of the differing words does not count.
    """
    masks = np.zeros(len(first), dtype=np.bool_), np.zeros(len(second), dtype=np.bool_)
    matcher = SequenceMatcher(None, first.ids.tolist(), second.ids.tolist(), autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        masks[0][a : a + size] = True
        masks[1][b : b + size] = True
    return masks
