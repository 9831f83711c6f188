"""The words of the built-in text sample: who can do what to whom, in the singular and the plural.

Constants only. Words earlier in a list are more frequent (weight 1 / rank).
"""

from __future__ import annotations

from typing import NamedTuple

NOUNS: dict[str, tuple[str, ...]] = {
    "person": ("teacher", "king", "farmer", "pilot", "girl", "doctor", "boy", "queen"),
    "animal": ("dog", "cat", "horse", "bird", "wolf", "fox", "bear", "goat"),
    "food": ("cake", "carrot", "nut", "pie", "berry", "cookie"),
    "text": ("book", "letter", "map", "poem", "report", "story"),
    "device": ("clock", "radio", "lamp", "key", "bell", "motor"),
    "place": ("house", "garden", "village", "bridge", "school", "castle"),
}

PLURALS: dict[str, str] = {
    "wolf": "wolves",
    "fox": "foxes",
    "berry": "berries",
    "story": "stories",
}

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

# What may stand after a noun: class of the noun, to (preposition, class of the inner noun).
PREPOSITIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "person": (("with", "animal"), ("from", "place")),
    "animal": (("near", "person"), ("in", "place")),
    "food": (("for", "person"), ("from", "place")),
    "text": (("about", "animal"), ("by", "person")),
    "device": (("of", "person"), ("in", "place")),
    "place": (("near", "place"), ("of", "person")),
}


class Verb(NamedTuple):
    """A verb: its third person singular and plural, who does it, and to what (empty: nothing)."""

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
    """The plural of a noun of the lexicon."""
    return PLURALS.get(noun, noun + "s")
