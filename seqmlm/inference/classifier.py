"""Classes without training: the words of each, put into the gap of a template (Schick and Schuetze 2021).

Words differ in how probable they are anyway, and that is taken off: by what they have in the template without
the text (pointwise mutual information), or by what they have on average over unlabelled inputs (contextual
calibration, Zhao et al. 2021; Hu et al. 2022).
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
        names: C classes. words: W words, those of a class side by side. owner: (W,) the class of each.

    Raises:
        UsageError: fewer than two classes, a class without words, or a word of two classes.
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    owner: Longs

    @classmethod
    def of(cls, labels: Mapping[str, Sequence[str]]) -> Verbalizer:
        """From class to words."""
        if len(labels) < 2:
            raise UsageError("at least two classes are needed: --label positive=great --label negative=bad")
        for name, words in labels.items():
            if not words or any(not word.strip() for word in words):
                raise UsageError(f"class {name!r} has no words, or an empty one: --label {name}=word,word")
        all_words = [word for class_words in labels.values() for word in class_words]
        if (twice := next((word for word in all_words if all_words.count(word) > 1), None)) is not None:
            raise UsageError(f"the word {twice!r} stands for two classes, or twice for one")
        owner = np.repeat(np.arange(len(labels)), [len(class_words) for class_words in labels.values()])
        return cls(names=tuple(labels), words=tuple(all_words), owner=owner)

    def probabilities(self, log_probs: Doubles, words: Longs | None = None) -> Doubles:
        """(..., C) of the classes: a class has the geometric mean of its words, among all of (..., W) words
        or those that are chosen. Log-probabilities are calibrated, in any unit but that of a factor."""
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
        """(C,) word numbers with one word of each class: the first words, the second words, and so on."""
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
        cloze: of the model.
        templates: T texts with a gap, and places for data; one without these stands behind the text.
        verbalizer: the words.

    Attributes:
        fields: columns that the templates need.

    Raises:
        UsageError: no template, one without a gap or with several; a word that cannot stand in it.
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
                raise UsageError(f"the word {word!r} has {mark!r} in it, which is no word of the data")
        self._copies: list[tuple[int, int]] = []  # of each template: its tokens, and copies of a record in it
        self._empty = [self._checked(template) for template in self.templates]
        self._prior = np.zeros((len(self.templates), len(verbalizer.words)))

    def _checked(self, template: str) -> Prompt:
        """The template without data, once every word was seen to fit into it."""
        prompt = self._prompt(template, self.cloze.domain.text.empty, dict.fromkeys(fields_in(template), ""))
        if len(prompt.holes) != 1:
            forms = " or ".join(self.cloze.forms)
            raise UsageError(f"the template {template!r} has {len(prompt.holes)} gaps; write one {forms}")
        sizes, tokens = list[int](), 0
        for word in self.verbalizer.words:
            try:
                [gapped] = self.cloze.encode_filled([prompt], [[word]])
            except (DataError, UsageError) as error:
                raise UsageError(f"the word {word!r} cannot stand in {template!r}: {error}") from None
            sizes.append(len(gapped.units))
            tokens = max(tokens, len(gapped.encoding))
        self._copies.append((tokens, len(set(sizes)) + sum(sizes) - len(sizes)))
        return prompt

    def _prompt(self, template: str, raw: Any, fields: Mapping[str, Any]) -> Prompt:
        written = self.cloze.domain.gaps.framed(raw, template, fields, self.cloze.forms)
        return self.cloze.domain.gaps.prompt(written, self.cloze.forms)

    def query(self, record: Record, word: str, longest: int) -> Query:
        """The question how probable a word in the first template of a record is, in a window around it."""
        prompt = self._prompt(self.templates[0], record.raw, record.meta)
        (gapped,) = self.cloze.encode_filled([prompt], [[word]])
        rule = self.cloze.rule
        return chain_query(rule, gap_window(rule, gapped, 0, longest), 0)

    def _log_probs(self, prompts: Sequence[Prompt]) -> Doubles:
        """(N, T, W) of the words in the gaps of N x T prompts, in nats per token."""
        words = self.verbalizer.words
        pairs = [(prompt, [word]) for prompt in prompts for word in words]
        gapped = self.cloze.encode_filled([prompt for prompt, _ in pairs], [word for _, word in pairs])
        fits = [fit.log_prob / fit.units for fit in self.cloze.fits(gapped)]
        return np.array(fits, dtype=np.float64).reshape(-1, len(self.templates), len(words))

    def cost(self, tokens: int) -> float:
        """Forward tokens that a record of so many tokens takes, by estimate.

        Words of equally many tokens share the copy in which all these are hidden.
        """
        longest = self.cloze.session.card.max_length
        return float(
            sum(copies * min(longest, tokens + template_tokens) for template_tokens, copies in self._copies)
        )

    def log_probs(self, records: Sequence[Record]) -> Doubles:
        """(N, T, W) log-probabilities of the words in each template of each record, calibrated (nats per
        token)."""
        framed_records = [(record, template) for record in records for template in self.templates]
        prompts = [self._prompt(template, record.raw, record.meta) for record, template in framed_records]
        calibrated: Doubles = self._log_probs(prompts) - self._prior
        return calibrated

    def calibrate(self, contexts: Sequence[Record]) -> None:
        """Take off, from now on, what words have anyway: in the mean over unlabelled records, or without
        data, where there are none."""
        if contexts:
            self._prior = np.logaddexp.reduce(self.log_probs(contexts), axis=0) - math.log(len(contexts))
        else:
            self._prior = self._log_probs(self._empty)[0]

    def scores(self, calibrated: Doubles) -> Doubles:
        """(N, C) of the classes, the mean over templates."""
        class_probs: Doubles = self.verbalizer.probabilities(calibrated).mean(axis=1)
        return class_probs

    def wordings(self, calibrated: Doubles) -> dict[str, list[str]]:
        """The most probable class of each record by each template, and each word of a class, alone."""
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
    """Templates and the words of each class, as a person wrote them: CLASS=WORD,WORD, or a file of YAML with
    `templates` and `labels`, in place of both.

    Raises:
        UsageError: a class without words or given twice, or a file that cannot be read.
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
