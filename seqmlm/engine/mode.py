"""The ways of asking a sequence for its conditionals: one unit hidden at a time, several, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqmlm.errors import UsageError

Kind = Literal["exact", "whole-unit", "partition", "one-pass"]


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of asking.

    Args:
        kind: "exact" asks each token with itself and the later tokens of its unit hidden (Kauf and Ivanova
            2023); "whole-unit" hides a unit whole and asks all its tokens at once; "partition" hides several
            units together, each exactly once in `parts` passes; "one-pass" hides nothing and corrects the
            answers (`seqmlm.engine.correction`).
        parts: passes of a partition, at least 1; 1 elsewhere.
        head: "one-pass" alone: a head trained for it answers (`seqmlm.engine.one_pass_head`).

    >>> str(Mode.parse("partition:8"))
    'partition:8'
    """

    kind: Kind
    parts: int = 1
    head: bool = False

    @classmethod
    def parse(cls, text: str) -> Mode:
        """The mode that `--mode` names.

        Raises:
            UsageError: no such mode, or a partition without a number of passes.
        """
        kind, _, parts = text.partition(":")
        if kind == "partition" and parts.isdecimal() and int(parts) >= 1:
            return cls("partition", int(parts))
        if text == "one-pass:head":
            return cls("one-pass", head=True)
        if not parts:
            for known in ("exact", "whole-unit", "one-pass"):
                if kind == known:
                    return cls(known)
        raise UsageError(
            f"unknown mode {text!r}; known: exact, whole-unit, partition:K (K passes), one-pass, "
            "one-pass:head"
        )

    def __str__(self) -> str:
        if self.head:
            return "one-pass:head"
        return f"{self.kind}:{self.parts}" if self.kind == "partition" else self.kind


EXACT = Mode("exact")
ONE_PASS = Mode("one-pass")
ONE_PASS_HEAD = Mode("one-pass", head=True)
