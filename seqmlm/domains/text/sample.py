"""The built-in text sample: sentences from a probabilistic grammar, with their dependency trees.

Determiners and verbs agree in number with their noun. They also do so across a relative clause or a
prepositional phrase whose noun has the other number. Verbs, adjectives and prepositions select the class of
their nouns. The grammar is unambiguous, so the probability of a sentence is the probability of its single
derivation, recorded exactly. Trees follow Universal Dependencies (the copula and its subject depend on the
adjective). Words earlier in a list are more frequent (weight 1 / rank).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from seqmlm.domains.samples import LABELS, Sample, checked_count, heading, write_sample

NOUNS: dict[str, tuple[str, ...]] = {
    "person": ("teacher", "king", "farmer", "pilot", "girl", "doctor", "boy", "queen"),
    "animal": ("dog", "cat", "horse", "bird", "wolf", "fox", "bear", "goat"),
    "food": ("cake", "carrot", "nut", "pie", "berry", "cookie"),
    "text": ("book", "letter", "map", "poem", "report", "story"),
    "device": ("clock", "radio", "lamp", "key", "bell", "motor"),
    "place": ("house", "garden", "village", "bridge", "school", "castle"),
}

PLURALS: dict[str, str] = {"wolf": "wolves", "fox": "foxes", "berry": "berries", "story": "stories"}

ADJECTIVES: dict[str, tuple[str, ...]] = {
    "person": ("wise", "young", "proud", "kind"),
    "animal": ("wild", "hungry", "young", "tame"),
    "food": ("sweet", "fresh", "ripe", "dry"),
    "text": ("long", "boring", "famous", "short"),
    "device": ("rusty", "loud", "broken", "heavy"),
    "place": ("quiet", "large", "bare", "famous"),
}

DETERMINERS: dict[str, tuple[str, ...]] = {
    "singular": ("the", "a", "every", "this"),
    "plural": ("the", "many", "some", "these"),
}

# Phrases that may follow a noun: class of the noun, to (preposition, class of the inner noun).
PREPOSITIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "person": (("with", "animal"), ("from", "place")),
    "animal": (("near", "person"), ("in", "place")),
    "food": (("for", "person"), ("from", "place")),
    "text": (("about", "animal"), ("by", "person")),
    "device": (("of", "person"), ("in", "place")),
    "place": (("near", "place"), ("of", "person")),
}


class Verb(NamedTuple):
    """A verb: third person singular and plural, and the noun classes of its subjects and objects.

    A verb without object classes takes no object.
    """

    singular: str
    plural: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...] = ()


VERBS: tuple[Verb, ...] = (
    Verb("sees", "see", ("person", "animal"), ("person", "animal", "place", "food")),
    Verb("eats", "eat", ("person", "animal"), ("food",)),
    Verb("reads", "read", ("person",), ("text",)),
    Verb("chases", "chase", ("animal",), ("animal", "person")),
    Verb("repairs", "repair", ("person",), ("device",)),
    Verb("visits", "visit", ("person",), ("place", "person")),
    Verb("feeds", "feed", ("person",), ("animal",)),
    Verb("writes", "write", ("person",), ("text",)),
    Verb("bakes", "bake", ("person",), ("food",)),
    Verb("fears", "fear", ("animal", "person"), ("animal",)),
    Verb("describes", "describe", ("text",), ("place", "animal", "person")),
    Verb("wakes", "wake", ("device",), ("person", "animal")),
    Verb("sleeps", "sleep", ("person", "animal")),
    Verb("runs", "run", ("animal", "device")),
    Verb("sings", "sing", ("person",)),
    Verb("breaks", "break", ("device",)),
    Verb("rots", "rot", ("food",)),
    Verb("burns", "burn", ("text", "place")),
)

COPULA = Verb("is", "are", tuple(NOUNS))
ADVERBS: tuple[str, ...] = ("often", "today", "again", "slowly")


def plural(noun: str) -> str:
    """The plural of a noun in the lexicon."""
    return PLURALS.get(noun, noun + "s")


# The grammar

DEFAULT_COUNT = 6000
NUMBERS = ("singular", "plural")

# Probabilities of the rules. A phrase inside a phrase is less likely to contain another phrase.
_ADJECTIVE, _PREPOSITIONAL, _RELATIVE, _COPULAR, _ADVERB, _SUBJECT_RELATIVE = 0.3, 0.25, 0.2, 0.25, 0.25, 0.6
_DEEPEST = 2

T = TypeVar("T")


@dataclass(eq=False)
class Node:
    """A word of a tree, and the words that depend on it, to its left and to its right."""

    form: str
    relation: str = "root"
    left_parts: list[Node] = field(default_factory=list)
    right_parts: list[Node] = field(default_factory=list)

    def phrase_words(self) -> list[Node]:
        """All words of the phrase under this word, from left to right."""
        left_words = [word for part in self.left_parts for word in part.phrase_words()]
        return [*left_words, self, *(word for part in self.right_parts for word in part.phrase_words())]


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A drawn sentence.

    Args:
        words: its words. The last is the full stop.
        heads: 1-based number of each word's head, 0 for the root.
        relations: relation of each word to its head.
        agreement: (subject, verb, attractors): 1-based words, and the number of nouns between them that have
            the other number.
        bits: -log2 of the sentence's probability under the grammar.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    agreement: tuple[tuple[int, int, int], ...]
    bits: float

    @property
    def text(self) -> str:
        """The line in the file: the first letter is a capital, and there is no space before the full stop."""
        line = " ".join(self.words[:-1]) + self.words[-1]
        return line[0].upper() + line[1:]


class Grammar:
    """Draws sentences.

    Args:
        seed: seed of the draws; the rules are fixed.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._bits = 0.0
        self._agreement: list[tuple[Node, Node]] = []
        self._number: dict[Node, str] = {}

    def sentence(self) -> Sentence:
        """Draw the next sentence."""
        self._bits, self._agreement, self._number = 0.0, [], {}
        root = self._clause()
        root.right_parts.append(Node(".", "punct"))
        words = root.phrase_words()
        place = {id(word): number for number, word in enumerate(words, start=1)}
        head = {id(part): place[id(word)] for word in words for part in (*word.left_parts, *word.right_parts)}
        return Sentence(
            words=tuple(word.form for word in words),
            heads=tuple(head.get(id(word), 0) for word in words),
            relations=tuple(word.relation for word in words),
            agreement=tuple(self._pair(words, place, *pair) for pair in self._agreement),
            bits=self._bits,
        )

    def _pair(
        self, words: Sequence[Node], place: dict[int, int], subject: Node, verb: Node
    ) -> tuple[int, int, int]:
        """(subject, verb, attractors) of an agreement; see `Sentence`."""
        first, last = place[id(subject)], place[id(verb)]
        number = self._number[subject]
        return first, last, sum(self._number.get(word, number) != number for word in words[first : last - 1])

    def _clause(self) -> Node:
        """The root of a random main clause."""
        if self._happens(_COPULAR):
            kind = self._choose(list(NOUNS))
            subject = self._noun_phrase(kind, "nsubj")
            copula = Node(self._verb_form(COPULA, subject), "cop")
            self._agreement.append((subject, copula))
            adjective = Node(self._choose(ADJECTIVES[kind]))
            adjective.left_parts = [subject, copula]
            return adjective
        verb = self._choose(VERBS)
        subject = self._noun_phrase(self._choose(verb.subjects), "nsubj")
        node = Node(self._verb_form(verb, subject))
        self._agreement.append((subject, node))
        node.left_parts = [subject]
        if verb.objects:
            node.right_parts.append(self._noun_phrase(self._choose(verb.objects), "obj"))
        if self._happens(_ADVERB):
            node.right_parts.append(Node(self._choose(ADVERBS), "advmod"))
        return node

    def _noun_phrase(self, kind: str, relation: str, depth: int = 0) -> Node:
        """The noun of a random phrase; `depth` is the number of noun phrases around it."""
        number = NUMBERS[self._happens(0.5)]
        singular = self._choose(NOUNS[kind])
        noun = Node(singular if number == "singular" else plural(singular), relation)
        self._number[noun] = number
        noun.left_parts.append(Node(self._choose(DETERMINERS[number]), "det"))
        if self._happens(_ADJECTIVE):
            noun.left_parts.append(Node(self._choose(ADJECTIVES[kind]), "amod"))
        if depth < _DEEPEST:
            if self._happens(_PREPOSITIONAL / (1 + depth)):
                noun.right_parts.append(self._prepositional_phrase(kind, depth + 1))
            elif self._happens(_RELATIVE / (1 + depth)):
                noun.right_parts.append(self._relative_clause(noun, kind, depth + 1))
        return noun

    def _prepositional_phrase(self, kind: str, depth: int) -> Node:
        preposition, inner = self._choose(PREPOSITIONS[kind])
        noun = self._noun_phrase(inner, "nmod", depth)
        noun.left_parts.insert(0, Node(preposition, "case"))
        return noun

    def _relative_clause(self, noun: Node, kind: str, depth: int) -> Node:
        objects = [verb for verb in VERBS if kind in verb.objects]
        # "wolves that ... feed" needs a verb with this noun as its object.
        if not objects or self._happens(_SUBJECT_RELATIVE):
            verb = self._choose([verb for verb in VERBS if kind in verb.subjects])
            node = Node(self._verb_form(verb, noun), "acl:relcl", [Node("that", "nsubj")])
            self._agreement.append((noun, node))
            if verb.objects:
                node.right_parts.append(self._noun_phrase(self._choose(verb.objects), "obj", depth))
            return node
        verb = self._choose(objects)
        subject = self._noun_phrase(self._choose(verb.subjects), "nsubj", depth)
        node = Node(self._verb_form(verb, subject), "acl:relcl", [Node("that", "obj"), subject])
        self._agreement.append((subject, node))
        return node

    def _verb_form(self, verb: Verb, subject: Node) -> str:
        """The form of a verb that agrees with its subject."""
        return verb.singular if self._number[subject] == "singular" else verb.plural

    def _happens(self, probability: float) -> bool:
        """Draw yes or no, and add its bits to the bits of the sentence."""
        yes = self._random.random() < probability
        self._bits -= math.log2(probability if yes else 1 - probability)
        return yes

    def _choose(self, items: Sequence[T]) -> T:
        """Draw an item with weights 1, 1/2, 1/3 ..., and add its bits to the bits of the sentence."""
        total = _harmonic(len(items))
        remainder = self._random.random() * total
        for rank, item in enumerate(items, start=1):
            remainder -= 1 / rank
            if remainder < 0 or rank == len(items):
                self._bits += math.log2(rank * total)
                return item
        raise ValueError("nothing to choose from")


@cache
def _harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n."""
    return sum(1 / rank for rank in range(1, n + 1))


def draw(n: int, seed: int) -> list[Sentence]:
    """Draw `n` random sentences."""
    source = Grammar(seed)
    return [source.sentence() for _ in range(n)]


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write `text.txt` (one sentence per line), `labels.json` and `truth.json` into `out`."""
    count = checked_count(n, DEFAULT_COUNT)
    sentences = draw(count, seed)
    positions = "1-based words of a sentence, the full stop being one; head 0 is the root"
    truth: dict[str, Any] = {
        **heading("text", count, seed, "text.txt", positions),
        "verb_forms": [[verb.singular, verb.plural] for verb in (*VERBS, COPULA)],
        "noun_forms": [[noun, plural(noun)] for nouns in NOUNS.values() for noun in nouns],
        "sentences": [_describe(line, sentence) for line, sentence in enumerate(sentences, start=1)],
        "anomalies": [],
    }
    labels = (
        json.dumps({"id": f"text.txt:{line}", "number": _number(sentence)})
        for line, sentence in enumerate(sentences, start=1)
    )
    return write_sample(out, "text.txt", (sentence.text for sentence in sentences), truth, {LABELS: labels})


def _number(sentence: Sentence) -> str:
    """Number of the main subject, "singular" or "plural", from the form of its verb."""
    root = sentence.heads.index(0) + 1
    verb = next(verb for _, verb, _ in sentence.agreement if root in (verb, sentence.heads[verb - 1]))
    plurals = {form.plural for form in (*VERBS, COPULA)}
    return "plural" if sentence.words[verb - 1] in plurals else "singular"


def _describe(line: int, sentence: Sentence) -> dict[str, Any]:
    """The tree and the agreement of a sentence, as written to `truth.json`."""
    return {
        "line": line,
        "heads": list(sentence.heads),
        "relations": list(sentence.relations),
        "agreement": [list(pair) for pair in sentence.agreement],
        "bits": round(sentence.bits, 4),
    }
