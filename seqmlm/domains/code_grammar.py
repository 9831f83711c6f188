"""The functions of the built-in code sample: idioms with fixed slots, and what a bug puts into each slot.

A slot is written `<kind:right|wrong|wrong>`. What is right follows from the rest of the function, always by
the same rule (a sum adds up, an absent key is a KeyError, a length is end - start), so that a model can know
it; what is wrong comes from the four kinds of CuBERT's benchmarks (Kanade et al. 2020): operator, operands,
variable and exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = ("operator", "operands", "variable", "exception")
NOUNS = (
    *("price", "score", "weight", "node", "record", "order", "packet", "sensor", "sample", "ticket"),
    *("invoice", "token", "vector", "window", "message", "worker", "job", "route", "signal", "pixel"),
)
VERBS = ("handle", "process", "store", "check", "update", "prepare", "collect", "report")
TOPICS = (
    "billing",
    "network",
    "storage",
    "vision",
    "planning",
    "queueing",
    "metrics",
    "parsing",
    "routing",
    "audio",
)
_SLOT = re.compile(r"<(operator|operands|variable|exception):([^|<>]+|[<>]=?)((?:\|(?:[^|<>]+|[<>]=?))+)>")


@dataclass(frozen=True)
class Slot:
    """A place of a template where a bug may be planted.

    start: its offset in the clean text; wrong: what a bug writes instead of `right`.
    """

    kind: str
    start: int
    right: str
    wrong: tuple[str, ...]


# NOUN, NOUNS, VERB are filled in; everything else stands.
TEMPLATES = {
    "total": '''
def total_NOUN(NOUNS):
    """Return the sum of all NOUNS."""
    total = 0
    for NOUN in NOUNS:
        total <operator:+=|-=|*=> <variable:NOUN|total>
    return total
''',
    "mean": '''
def mean_NOUN(NOUNS):
    """Return the mean of the NOUNS."""
    if not NOUNS:
        raise <exception:ValueError|KeyError|TypeError>("no NOUNS")
    total = sum(NOUNS)
    count = len(NOUNS)
    return <operands:total / count|count / total>
''',
    "find": '''
def find_NOUN(NOUNS, key):
    """Return the NOUN that is stored under key."""
    if key <operator:not in|in> NOUNS:
        raise <exception:KeyError|ValueError|IndexError>(key)
    return NOUNS[<variable:key|NOUNS>]
''',
    "at": '''
def NOUN_at(NOUNS, index):
    """Return the NOUN at a position."""
    if index <operator:<|>> 0 or index <operator:>=|<|<=> len(NOUNS):
        raise <exception:IndexError|KeyError|ValueError>(index)
    return NOUNS[index]
''',
    "length": '''
def NOUN_length(start, end):
    """Return how long a NOUN takes from start to end."""
    if end <operator:<|>|>=> start:
        raise <exception:ValueError|TypeError|KeyError>("end before start")
    return <operands:end - start|start - end>
''',
    "largest": '''
def largest_NOUN(NOUNS):
    """Return the largest of the NOUNS."""
    largest = None
    for NOUN in NOUNS:
        if largest is None or NOUN <operator:>|<|<=> largest:
            largest = <variable:NOUN|NOUNS>
    return largest
''',
    "count": '''
def count_NOUNS(NOUNS, limit):
    """Return how many NOUNS are above the limit."""
    count = 0
    for NOUN in NOUNS:
        if NOUN <operator:>|<|==> <variable:limit|count>:
            count <operator:+=|-=> 1
    return count
''',
    "parse": '''
def parse_NOUN(text, default=0):
    """Return the NOUN in a text, or the default."""
    try:
        return int(<variable:text|default>)
    except <exception:ValueError|KeyError|IndexError>:
        return default
''',
    "get": '''
def get_NOUN(NOUNS, name, default=None):
    """Return the NOUN of this name, or the default."""
    try:
        return NOUNS[<variable:name|default>]
    except <exception:KeyError|OSError|ZeroDivisionError>:
        return default
''',
    "ratio": '''
def NOUN_ratio(part, whole):
    """Return the share of the NOUN that part is of whole."""
    try:
        return <operands:part / whole|whole / part>
    except <exception:ZeroDivisionError|IndexError|KeyError>:
        return 0.0
''',
    "load": '''
def load_NOUNS(path):
    """Return the NOUNS of a file, one a line."""
    try:
        with open(path) as handle:
            lines = handle.readlines()
    except <exception:OSError|KeyError|ZeroDivisionError>:
        return []
    return [line.strip() for line in <variable:lines|path>]
''',
    "class": '''
class NounStore:
    """Keeps NOUNS by name."""

    def __init__(self, limit):
        self.limit = limit
        self.NOUNS = {}

    def VERB(self, name, NOUN):
        """Keep a NOUN under a name."""
        if len(self.NOUNS) <operator:>=|<|==> self.limit:
            raise <exception:OverflowError|KeyError|TypeError>(name)
        self.NOUNS[<variable:name|NOUN>] = <variable:NOUN|name>

    def room(self):
        """Return how many NOUNS there is room for."""
        return <operands:self.limit - len(self.NOUNS)|len(self.NOUNS) - self.limit>
''',
}


def filled(template: str, noun: str, verb: str) -> tuple[str, list[Slot]]:
    """The clean text of a template and its slots."""
    text = template.replace("NOUNS", noun + "s").replace("NOUN", noun).replace("VERB", verb)
    text = text.replace("Noun", noun.capitalize()).strip("\n")
    pieces: list[str] = []
    slots: list[Slot] = []
    done = size = 0
    for match in _SLOT.finditer(text):
        kind, right, wrong = match.groups()
        pieces += [text[done : match.start()], right]
        size += match.start() - done
        slots.append(Slot(kind, size, right, tuple(wrong[1:].split("|"))))
        size += len(right)
        done = match.end()
    return "".join([*pieces, text[done:]]), slots
