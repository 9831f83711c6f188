"""Scores of strings that stand in no file of the domain: sentences of pairs, hypotheses of n-best lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.conditionals import Conditionals, Statistics
from seqmlm.engine.correction import Correction
from seqmlm.engine.device import Precision, best_device
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.types import SPECIAL_GROUP, Bools, Encoding
from seqmlm.engine.units import EXACT, Mode, Units
from seqmlm.engine.windows import central_windows
from seqmlm.errors import DataError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.one_pass import correction_in, head_for
from seqmlm.tokenizers.base import UnknownUnit

_TOKENIZED_TOGETHER = 64
Window = tuple[Encoding, Bools | None]


class TextScorer:
    """Pseudo-log-likelihoods of strings, in order and lazily.

    Args:
        model: asked.
        mode: how units are hidden.
        correction: of the model's outputs; None for what its training asks for in the mode.
        tokens_per_batch: budget of a forward pass.
        precision: of the matrix products.

    Attributes:
        unknown: tokens met that the vocabulary does not have, which no score can count.

    Raises:
        UsageError: a sequence of the model's is no text (patients, log windows), its data is sensitive, or
            the one-pass mode has no correction, or no head where one shall answer.
    """

    def __init__(
        self,
        model: model_folder.LoadedModel,
        *,
        mode: Mode = EXACT,
        correction: Correction | None = None,
        tokens_per_batch: int | None = None,
        precision: Precision = "fp32",
    ) -> None:
        if not model.tokenizer.reads(""):
            raise UsageError(
                f"a sequence of the {model.card.domain} domain is no plain text; use seqmlm score on files"
            )
        if model.card.sensitive:
            raise UsageError("the model is of sensitive data: scores of its records are not to be shown")
        self.model, self.mode = model, mode
        self._correction = correction_in(model, mode) if correction is None else correction
        rows = head_for(model) if mode.head else model.rows
        self._ask = Conditionals(
            rows, tokens_per_batch=tokens_per_batch, device=best_device(), precision=precision
        )
        self._unfamiliar = np.array(model.tokenizer.unfamiliar, dtype=np.int32)
        self.unknown = 0

    @property
    def precision(self) -> Precision:
        """What is computed in, "fp32" or "bf16"."""
        return self._ask.precision

    @property
    def statistics(self) -> Statistics:
        """What was asked, and what of it had to be computed."""
        return self._ask.statistics

    def scores(self, texts: Iterable[str]) -> Iterator[SequenceScore]:
        """The score of each text; one longer than the model is scored window by window.

        Equal masked copies that are near each other are computed once.

        Raises:
            DataError: a text that the tokenizer cannot spell.
        """
        counts: deque[int] = deque()

        def windows() -> Iterator[Window]:
            for encoding in self._encoded(texts):
                parts = central_windows(encoding, self.model.tokenizer.space, self.model.card.max_length)
                counts.append(len(parts))
                yield from parts

        parts: list[SequenceScore] = []
        for part in self._scorer(self.model.tokenizer.units).windows(windows()):
            parts.append(part)
            if len(parts) == counts[0]:
                counts.popleft()
                yield _joined(parts)
                parts = []

    def shared(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[SequenceScore, SequenceScore]]:
        """Scores of two texts at the tokens they have in common, each masked alone (CrowS-Pairs' metric).

        What is in common is an alignment of the token ids (difflib's, as there), so that the frequency of the
        words that differ does not count.

        Raises:
            UsageError: a text longer than the model.
        """

        def windows() -> Iterator[Window]:
            stream = self._encoded(text for pair in pairs for text in pair)
            while two := tuple(islice(stream, 2)):
                if max(map(len, two)) > self.model.card.max_length:
                    raise UsageError(
                        f"a text of {max(map(len, two))} tokens is longer than the model's window of "
                        f"{self.model.card.max_length}: what it shares cannot be compared in one piece"
                    )
                for encoding, kept in zip(two, common_tokens(*two), strict=True):
                    yield _token_by_token(encoding), kept

        found = self._scorer(Units(self.model.tokenizer.space)).windows(windows())
        while two := tuple(islice(found, 2)):
            yield two[0], two[1]

    def _scorer(self, rule: Units) -> Scorer:
        return Scorer(self._ask, rule, mode=self.mode, correction=self._correction)

    def _encoded(self, texts: Iterable[str]) -> Iterator[Encoding]:
        stream = iter(texts)
        while batch := list(islice(stream, _TOKENIZED_TOGETHER)):
            try:
                encodings = self.model.tokenizer.encode_batch(batch)
            except UnknownUnit as error:
                where = f"text {batch[error.index][:40]!r}"
                raise DataError(f"{where}: {error.reason}", remedy=error.remedy) from None
            for encoding in encodings:
                if len(self._unfamiliar):
                    self.unknown += int(np.isin(encoding.ids, self._unfamiliar).sum())
                yield encoding


def common_tokens(first: Encoding, second: Encoding) -> tuple[Bools, Bools]:
    """(L,) for each of two sequences, True at the tokens that an alignment of their ids has in both."""
    kept = np.zeros(len(first), dtype=np.bool_), np.zeros(len(second), dtype=np.bool_)
    matcher = SequenceMatcher(None, first.ids.tolist(), second.ids.tolist(), autojunk=False)
    for a, b, size in matcher.get_matching_blocks():
        kept[0][a : a + size] = True
        kept[1][b : b + size] = True
    return kept


def _token_by_token(encoding: Encoding) -> Encoding:
    """The same tokens, each a unit of its own."""
    numbers: NDArray[np.int32] = np.arange(len(encoding), dtype=np.int32)
    return replace(encoding, groups=np.where(encoding.groups >= 0, numbers, SPECIAL_GROUP).astype(np.int32))


def _joined(parts: list[SequenceScore]) -> SequenceScore:
    """The score of a text from those of its windows, units still in order."""
    if len(parts) == 1:
        return parts[0]
    groups = np.concatenate([part.groups for part in parts])
    log_probs = np.concatenate([part.log_probs for part in parts])
    return SequenceScore(np.arange(len(groups), dtype=np.int32), log_probs, groups)
