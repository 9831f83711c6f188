"""How codes are named: vocabulary and family of a code, its spelling as a token; what a history gives."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Protocol

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[VS]", "[VE]")
# CEHR-BERT's artificial time tokens (Pang et al. 2021): weeks, months, "long term" since the last visit.
INTERVALS = (*(f"W{n}" for n in range(4)), *(f"M{n}" for n in range(1, 12)), "LT")
BIRTH = "MEDS_BIRTH"

# Vocabularies whose codes begin with their category; a code with a dot ("E11.9") is taken for one, too.
_HIERARCHICAL = re.compile(r"(?:^|[/_ ])(?:ICD|ATC|ICPC|READ|OPCS)", re.IGNORECASE)
_DOTTED = re.compile(r"[A-Z]?\d[0-9A-Z]{1,2}\.[0-9A-Z]{1,4}|[A-Z]?\d[0-9A-Z]{1,2}")
_PREFIX = 3  # characters of a category


class EventLike(Protocol):
    """What is read of an event; see `seqmlm.data.events.Event`."""

    @property
    def time(self) -> float | None: ...
    @property
    def code(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def text(self) -> str | None: ...
    @property
    def visit(self) -> str | None: ...
    @property
    def kind(self) -> str: ...


class HistoryLike(Protocol):
    """What is read of a subject; see `seqmlm.data.events.History`."""

    @property
    def subject(self) -> str: ...
    @property
    def birth(self) -> float | None: ...
    @property
    def events(self) -> tuple[EventLike, ...]: ...
    def code_spans(self) -> list[tuple[int, int]]: ...


def is_birth(code: str) -> bool:
    """Whether a code says that the subject was born: the age says that better than a token."""
    return code.startswith(BIRTH) and code[len(BIRTH) :][:2] in ("", "//")


def vocabulary_of(code: str) -> str:
    """The vocabulary that a code is from: all up to its last "//"; "" where it names none."""
    return code.rpartition("//")[0]


@lru_cache(maxsize=1 << 16)
def family(code: str) -> str:
    """What a code is a case of: its first three characters in a hierarchical vocabulary, else the code.

    >>> family("ICD10//I50.9"), family("LAB//2345-7")
    ('ICD10//I50', 'LAB//2345-7')
    """
    vocabulary, _, own = code.rpartition("//")
    if _HIERARCHICAL.search(vocabulary) or _DOTTED.fullmatch(own):
        return f"{vocabulary}//{own[:_PREFIX]}"
    return code


def spell(name: str) -> str:
    """A code as a token without white space, which no code can turn into one of the vocabulary's own."""
    text = re.sub(r"[%\s]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    text = re.sub(r"//Q(?=\d+$)", "//%51", text).replace("//=", "//%3D")
    return f"%5B{text[1:]}" if text.startswith("[") else text
