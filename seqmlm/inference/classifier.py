"""Classify without training: the words of each class are put into the gap of a template.

The method comes from Schick and Schuetze (2021). Words differ in their general probability, which is
subtracted. It is the probability of a word in the template without the text (pointwise mutual information).
Or it is the mean over unlabelled inputs (contextual calibration, Zhao et al. 2021; Hu et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.config import read_yaml
from seqmlm.data.record import Record
from seqmlm.domains.holes import Prompt, fields_in
from seqmlm.engine.gap_queries import chain_query, gap_window
from seqmlm.engine.query import Query
from seqmlm.engine.types import Longs
from seqmlm.engine.units import Doubles
from seqmlm.errors import DataError, UsageError, nearest
from seqmlm.inference.cloze import Cloze


@dataclass(frozen=True, kw_only=True)
class Verbalizer:
    """The words of the classes.

    Args:
        names: names of the C classes.
        words: the W words. Words of the same class are next to each other.
        owner: (W,) the class number of each word.

    Raises:
        UsageError: there are fewer than two classes, a class has no words, or two classes share a word.
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    owner: Longs

    @classmethod
    def of(cls, labels: Mapping[str, Sequence[str]]) -> Verbalizer:
        """Create a verbalizer from a mapping of each class to its words."""
        if len(labels) < 2:
            raise UsageError("at least two classes are needed: --label positive=great --label negative=bad")
        for name, words in labels.items():
            if not words or any(not word.strip() for word in words):
                raise UsageError(f"class {name!r} has no words, or an empty word: --label {name}=word,word")
        all_words = [word for class_words in labels.values() for word in class_words]
        if (twice := next((word for word in all_words if all_words.count(word) > 1), None)) is not None:
            raise UsageError(f"the word {twice!r} is used for two classes, or twice for the same class")
        owner = np.repeat(np.arange(len(labels)), [len(class_words) for class_words in labels.values()])
        return cls(names=tuple(labels), words=tuple(all_words), owner=owner)

    def probabilities(self, log_probs: Doubles, words: Longs | None = None) -> Doubles:
        """Probabilities of the classes, as an array (..., C), from log-probabilities of words (..., W).

        The probability of a class is the geometric mean over its words. Only the words numbered `words` are
        used, or all for None. The log-probabilities must be calibrated. Their unit may differ only by a
        factor.
        """
        chosen = np.arange(len(self.words)) if words is None else words
        word_log_probs = log_probs[..., chosen]
        word_log_probs = word_log_probs - np.logaddexp.reduce(word_log_probs, axis=-1, keepdims=True)
        of = self.owner[chosen]
        means = np.stack(
            [word_log_probs[..., of == number].mean(-1) for number in range(len(self.names))], axis=-1
        )
        class_probs: Doubles = np.exp(means - np.logaddexp.reduce(means, axis=-1, keepdims=True))
        return class_probs

    def word_sets(self) -> list[Longs]:
        """Word numbers (C,) with one word of each class: the first words, the second words, and so on."""
        class_words = [np.flatnonzero(self.owner == number) for number in range(len(self.names))]
        longest = max(map(len, class_words))
        return (
            [np.array([numbers[turn % len(numbers)] for numbers in class_words]) for turn in range(longest)]
            if longest > 1
            else []
        )


class Classifier:
    """Classifies records with one model.

    Args:
        cloze: the cloze of the model.
        templates: T texts with a gap and placeholders for data. A template without placeholders follows the
            text.
        verbalizer: the words of the classes.

    Attributes:
        fields: columns that the templates need.

    Raises:
        UsageError: there is no template, a template has no gap or several, or a word does not fit into it.
    """

    def __init__(self, cloze: Cloze, templates: Sequence[str], verbalizer: Verbalizer) -> None:
        if not templates:
            raise UsageError("a template is needed, such as --template '{text} It was [MASK].'")
        self.cloze, self.verbalizer = cloze, verbalizer
        self.templates = [text if fields_in(text) else f"{{text}} {text}" for text in templates]
        self.fields = set().union(*map(fields_in, self.templates)) - {"text"}
        special = {cloze.tokenizer.tokens[token] for token in cloze.tokenizer.space.special} | set(
            cloze.forms
        )
        for word in verbalizer.words:
            if mark := next((mark_text for mark_text in special if mark_text in word), None):
                raise UsageError(f"the word {word!r} contains {mark!r}, which does not occur in data")
        # for each template: its tokens, and the number of copies of a record
        self._copies: list[tuple[int, int]] = []
        self._empty = [self._checked(template) for template in self.templates]
        self._prior = np.zeros((len(self.templates), len(verbalizer.words)))

    def _checked(self, template: str) -> Prompt:
        """The template without data, after a check that every word fits into it."""
        prompt = self._prompt(template, self.cloze.domain.text.empty, dict.fromkeys(fields_in(template), ""))
        if len(prompt.holes) != 1:
            forms = " or ".join(self.cloze.forms)
            raise UsageError(f"the template {template!r} has {len(prompt.holes)} gaps; write one {forms}")
        sizes, tokens = list[int](), 0
        for word in self.verbalizer.words:
            try:
                [gapped] = self.cloze.encode_filled([prompt], [[word]])
            except (DataError, UsageError) as error:
                raise UsageError(f"the word {word!r} does not fit into {template!r}: {error}") from None
            sizes.append(len(gapped.units))
            tokens = max(tokens, len(gapped.encoding))
        self._copies.append((tokens, len(set(sizes)) + sum(sizes) - len(sizes)))
        return prompt

    def _prompt(self, template: str, raw: Any, fields: Mapping[str, Any]) -> Prompt:
        written = self.cloze.domain.gaps.framed(raw, template, fields, self.cloze.forms)
        return self.cloze.domain.gaps.prompt(written, self.cloze.forms)

    def query(self, record: Record, word: str, longest: int) -> Query:
        """A query for the probability of a word in the first template of a record, in a window around it."""
        prompt = self._prompt(self.templates[0], record.raw, record.meta)
        (gapped,) = self.cloze.encode_filled([prompt], [[word]])
        rule = self.cloze.rule
        return chain_query(rule, gap_window(rule, gapped, 0, longest), 0)

    def _log_probs(self, prompts: Sequence[Prompt]) -> Doubles:
        """Log-probabilities (N, T, W) of the words in the gaps of N x T prompts, in nats per token."""
        words = self.verbalizer.words
        pairs = [(prompt, [word]) for prompt in prompts for word in words]
        gapped = self.cloze.encode_filled([prompt for prompt, _ in pairs], [word for _, word in pairs])
        fits = [fit.log_prob / fit.units for fit in self.cloze.fits(gapped)]
        return np.array(fits, dtype=np.float64).reshape(-1, len(self.templates), len(words))

    def cost(self, tokens: int) -> float:
        """Estimate the forward tokens for a record with `tokens` tokens.

        Words with equally many tokens share the copy in which all their tokens are masked.
        """
        longest = self.cloze.session.card.max_length
        return float(
            sum(copies * min(longest, tokens + template_tokens) for template_tokens, copies in self._copies)
        )

    def log_probs(self, records: Sequence[Record]) -> Doubles:
        """Calibrated log-probabilities of the words in each template of each record, in nats per token.

        The shape of the array is (N, T, W).
        """
        framed_records = [(record, template) for record in records for template in self.templates]
        prompts = [self._prompt(template, record.raw, record.meta) for record, template in framed_records]
        calibrated: Doubles = self._log_probs(prompts) - self._prior
        return calibrated

    def calibrate(self, contexts: Sequence[Record]) -> None:
        """Measure the general probability of the words. From now on, it is subtracted.

        Args:
            contexts: unlabelled records, over which the mean is taken. If empty, the templates without data
                are used.
        """
        if contexts:
            self._prior = np.logaddexp.reduce(self.log_probs(contexts), axis=0) - math.log(len(contexts))
        else:
            self._prior = self._log_probs(self._empty)[0]

    def scores(self, calibrated: Doubles) -> Doubles:
        """Probabilities (N, C) of the classes: the mean over the templates."""
        class_probs: Doubles = self.verbalizer.probabilities(calibrated).mean(axis=1)
        return class_probs

    def wordings(self, calibrated: Doubles) -> dict[str, list[str]]:
        """The most probable class of each record, by each single template and by each set of single words."""
        templates, words = self.templates if len(self.templates) > 1 else [], self.verbalizer
        probabilities = {
            template: words.probabilities(calibrated[:, place]) for place, template in enumerate(templates)
        }
        for word_numbers in words.word_sets():
            name = ", ".join(words.words[place] for place in word_numbers)
            probabilities[name] = words.probabilities(calibrated, word_numbers).mean(axis=1)
        return {
            name: [words.names[best] for best in word_numbers.argmax(axis=1)]
            for name, word_numbers in probabilities.items()
        }


def read_wording(
    templates: Sequence[str], labels: Sequence[str], file: Path | None
) -> tuple[Sequence[str], dict[str, list[str]]]:
    """Read templates and the words of each class from options or from a file.

    Args:
        templates: the templates.
        labels: the words of classes, as CLASS=WORD,WORD.
        file: YAML file with `templates` and `labels`, which replaces both options.

    Raises:
        UsageError: a class has no words or is given twice, or the file cannot be read.
    """
    if file is None:
        words_of_class = dict[str, list[str]]()
        for text in labels:
            name, equals, words = text.partition("=")
            name = name.strip()
            if not equals or not name:
                raise UsageError(f"--label {text!r}: write CLASS=WORD,WORD, such as positive=great,excellent")
            if name in words_of_class:
                raise UsageError(f"--label names the class {name!r} twice: give all its words at once")
            words_of_class[name] = [word.strip() for word in words.split(",")]
        return templates, words_of_class
    if templates or labels:
        raise UsageError("task is a file with templates and labels: leave --template and --label out")
    values = read_yaml(file)
    if unknown := next((key for key in values if key not in ("templates", "labels")), None):
        raise UsageError(f"{file}: {unknown!r} is not known{nearest(unknown, ['templates', 'labels'])}")
    texts, classes = values.get("templates") or [], values.get("labels") or {}
    good = isinstance(texts, list) and isinstance(classes, dict)
    if not good or not all(isinstance(words, list) for words in classes.values()):
        raise UsageError(f"{file}: templates is a list, and labels has a list of words for each class")
    return [str(template) for template in texts], {
        str(k): [str(w) for w in class_words] for k, class_words in classes.items()
    }
