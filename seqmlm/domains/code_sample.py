"""The built-in code sample: small Python packages, a few of whose functions have a bug that was put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.domains.base import Sample
from seqmlm.domains.code_grammar import KINDS, NOUNS, TEMPLATES, TOPICS, VERBS, Slot, filled
from seqmlm.domains.samples import checked_count, write_sample

DEFAULT_COUNT = 400
FOLDER = "code"
_FUNCTIONS = (5, 10)  # of a module, from and to
_BUGS = 0.05  # share of functions with one
_SUFFIXES = ("", "core", "tools", "model", "state", "view", "cache", "index", "codec", "store")


def draw(n: int, seed: int) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Modules by their path, and the bugs planted in them, in the order of files and lines."""
    rng = np.random.Generator(np.random.Philox(seed))
    modules: dict[str, str] = {}
    bugs: list[dict[str, Any]] = []
    for number in range(n):
        path = _path(number)
        modules[path], planted = _module(rng)
        bugs += [{"file": path, **bug} for bug in planted]
    return modules, bugs


def truth(n: int, seed: int, bugs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is planted, as `truth.json` holds it (docs/SAMPLES.md)."""
    return {
        "schema": "seqmlm.sample.code.v1",
        "domain": "code",
        "seed": seed,
        "n": n,
        "file": FOLDER,
        "positions": "0-based characters of a file; lines from 1",
        "kinds": list(KINDS),
        "bug_share": _BUGS,
        "idioms": [_describe(name) for name in TEMPLATES],
        "anomalies": bugs,
    }


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write the folder `code` and `truth.json` into `out`."""
    count = checked_count(n, DEFAULT_COUNT)
    modules, bugs = draw(count, seed)
    lines = {path: text.splitlines() for path, text in modules.items()}
    return write_sample(out, FOLDER, lines, truth(count, seed, bugs))


def _path(number: int) -> str:
    """Every module's place: packages by topic, so that a split has packages to hold out."""
    topic, rest = TOPICS[number % len(TOPICS)], number // len(TOPICS)
    noun, rest = NOUNS[rest % len(NOUNS)], rest // len(NOUNS)
    suffix, more = _SUFFIXES[rest % len(_SUFFIXES)], rest // len(_SUFFIXES)
    name = "_".join(part for part in (noun, suffix, str(more) if more else "") if part)
    return f"{topic}_{number // (len(TOPICS) * 10)}/{name}.py"


def _module(rng: np.random.Generator) -> tuple[str, list[dict[str, Any]]]:
    noun, verb = NOUNS[int(rng.integers(len(NOUNS)))], VERBS[int(rng.integers(len(VERBS)))]
    text = f'"""Work with {noun}s: {verb} them and count them."""\n'
    bugs: list[dict[str, Any]] = []
    chosen = rng.permutation(list(TEMPLATES))[: int(rng.integers(*_FUNCTIONS))]
    for name in chosen.tolist():
        other = NOUNS[int(rng.integers(len(NOUNS)))] if rng.random() < 0.3 else noun
        body, slots = filled(TEMPLATES[name], other, verb)
        text += "\n\n"
        if rng.random() < _BUGS:
            slot = slots[int(rng.integers(len(slots)))]
            wrong = slot.wrong[int(rng.integers(len(slot.wrong)))]
            body = body[: slot.start] + wrong + body[slot.start + len(slot.right) :]
            bugs.append(_bug(name, text, body, slot, wrong))
        text += body + "\n"
    return text, bugs


def _bug(idiom: str, before: str, body: str, slot: Slot, wrong: str) -> dict[str, Any]:
    start = len(before) + slot.start
    return {
        "line": (before + body).count("\n", 0, start) + 1,
        "start": start,
        "end": start + len(wrong),
        "kind": slot.kind,
        "idiom": idiom,
        "found": wrong,
        "original": slot.right,
    }


def _describe(name: str) -> dict[str, Any]:
    _, slots = filled(TEMPLATES[name], "NOUN", "VERB")
    return {
        "name": name,
        "slots": [{"kind": slot.kind, "right": slot.right, "wrong": list(slot.wrong)} for slot in slots],
    }
