"""Generate the code sample: small Python packages in which a few functions have a planted bug.

Functions are idioms with slots. A slot has the form `<kind:right|wrong|wrong>`. The right text always follows
from the rest of the function by the same rule, so that a model can predict it. For example, a sum uses +=,
and a missing key is a KeyError. The wrong texts have the four kinds of the CuBERT benchmarks (Kanade et al.
2020): operator, operands, variable and exception.

The sample also has formulas (`seqmlm.domains.code.formulas`), which are planted for maps.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.domains.code import formulas
from seqmlm.domains.code.syntax import syntax
from seqmlm.domains.samples import Sample, checked_count, heading, write_sample
from seqmlm.parsing import word_list

KINDS = ("operator", "operands", "variable", "exception")
NOUNS = word_list(
    """price score weight node record order packet sensor sample ticket invoice token vector window
    message worker job route signal pixel"""
)
VERBS = ("handle", "process", "store", "check", "update", "prepare", "collect", "report")
TOPICS = word_list("billing network storage vision planning queueing metrics parsing routing audio")
_SLOT = re.compile(r"<(operator|operands|variable|exception):([^|<>]+|[<>]=?)((?:\|(?:[^|<>]+|[<>]=?))+)>")


@dataclass(frozen=True)
class Slot:
    """A part of a template in which a bug can be planted.

    start: its character offset in the text without bugs. wrong: the texts with which a bug can replace
    `right`.
    """

    kind: str
    start: int
    right: str
    wrong: tuple[str, ...]


# NOUN, NOUNS, Noun, VERB and slots are replaced. The other text is not changed.
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


def fill_template(template: str, noun: str, verb: str) -> tuple[str, list[Slot]]:
    """The text of a template without bugs, and its slots."""
    text = template.replace("NOUNS", noun + "s").replace("NOUN", noun).replace("VERB", verb)
    text = text.replace("Noun", noun.capitalize()).strip("\n")
    pieces: list[str] = []
    slots: list[Slot] = []
    end = size = 0
    for match in _SLOT.finditer(text):
        kind, right, wrong = match.groups()
        pieces += [text[end : match.start()], right]
        size += match.start() - end
        slots.append(Slot(kind, size, right, tuple(wrong[1:].split("|"))))
        size += len(right)
        end = match.end()
    return "".join([*pieces, text[end:]]), slots


# Modules

DEFAULT_COUNT = 400
FOLDER = "code"
_FUNCTIONS = (5, 10)  # number of functions per module, from and to (excluded)
_BUGS = 0.05  # share of functions with a bug
_SUFFIXES = ("", "core", "tools", "model", "state", "view", "cache", "index", "codec", "store")


def draw(n: int, seed: int) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Generate modules by path, and the list of their bugs in the order of files and lines."""
    rng = np.random.Generator(np.random.Philox(seed))
    modules: dict[str, str] = {}
    bugs: list[dict[str, Any]] = []
    for number in range(n):
        path = _path(number)
        modules[path], planted = _module(rng)
        bugs += [{"file": path, **bug} for bug in planted]
    return modules, bugs


def truth(n: int, seed: int, modules: dict[str, str], bugs: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of `truth.json`: idioms, links and planted bugs (docs/reference/samples.md)."""
    return {
        **heading("code", n, seed, FOLDER, "0-based characters of a file; lines from 1"),
        "kinds": list(KINDS),
        "bug_share": _BUGS,
        "idioms": [_describe(name) for name in TEMPLATES],
        "modules": [_links(path, text) for path, text in modules.items()],
        "anomalies": bugs,
    }


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write the folder `code`, `formulas.jsonl` and `truth.json` into `out`."""
    count = checked_count(n, DEFAULT_COUNT)
    modules, bugs = draw(count, seed)
    lines = {path: text.splitlines() for path, text in modules.items()}
    planted = list(formulas.draw(count, seed))
    extra_lines = {formulas.FILE: [json.dumps(formula.row()) for formula in planted]}
    return write_sample(
        out, FOLDER, lines, truth(count, seed, modules, bugs) | formulas.truth(planted), extra_lines
    )


def _path(number: int) -> str:
    """The path of a module. There is a package for each topic, so that whole packages can be held out."""
    topic, quotient = TOPICS[number % len(TOPICS)], number // len(TOPICS)
    noun, quotient = NOUNS[quotient % len(NOUNS)], quotient // len(NOUNS)
    suffix, copy = _SUFFIXES[quotient % len(_SUFFIXES)], quotient // len(_SUFFIXES)
    name = "_".join(part for part in (noun, suffix, str(copy) if copy else "") if part)
    return f"{topic}_{number // (len(TOPICS) * 10)}/{name}.py"


def _module(rng: np.random.Generator) -> tuple[str, list[dict[str, Any]]]:
    """Generate the text of a random module, and the list of its bugs."""
    noun, verb = NOUNS[int(rng.integers(len(NOUNS)))], VERBS[int(rng.integers(len(VERBS)))]
    text = f'"""Work with {noun}s: {verb} them and count them."""\n'
    bugs: list[dict[str, Any]] = []
    chosen = rng.permutation(list(TEMPLATES))[: int(rng.integers(*_FUNCTIONS))]
    for name in chosen.tolist():
        function_noun = NOUNS[int(rng.integers(len(NOUNS)))] if rng.random() < 0.3 else noun
        body, slots = fill_template(TEMPLATES[name], function_noun, verb)
        text += "\n\n"
        if rng.random() < _BUGS:
            slot = slots[int(rng.integers(len(slots)))]
            wrong = slot.wrong[int(rng.integers(len(slot.wrong)))]
            body = body[: slot.start] + wrong + body[slot.start + len(slot.right) :]
            bugs.append(_bug(name, text, body, slot, wrong))
        text += body + "\n"
    return text, bugs


def _bug(idiom: str, preceding: str, body: str, slot: Slot, wrong: str) -> dict[str, Any]:
    """A planted bug in the form of `truth.json`: its line, span, kind and original text."""
    start = len(preceding) + slot.start
    return {
        "line": (preceding + body).count("\n", 0, start) + 1,
        "start": start,
        "end": start + len(wrong),
        "kind": slot.kind,
        "idiom": idiom,
        "found": wrong,
        "original": slot.right,
    }


def _links(path: str, text: str) -> dict[str, Any]:
    """The dependences between the tokens of a module, in the form of `truth.json`."""
    links = syntax(text)
    if links is None:
        raise ValueError(f"{path} of the sample does not parse")
    return {"file": path, **links._asdict()}


def _describe(name: str) -> dict[str, Any]:
    """The slots of an idiom, in the form of `truth.json`."""
    _, slots = fill_template(TEMPLATES[name], "NOUN", "VERB")
    return {
        "name": name,
        "slots": [{"kind": slot.kind, "right": slot.right, "wrong": list(slot.wrong)} for slot in slots],
    }
