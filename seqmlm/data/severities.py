"""Severities of log lines: the words and numbers of syslog, programming languages and log libraries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_ORDER = (
    ("FINEST", "FINER", "TRACE", "VERBOSE"),
    ("DEBUG", "FINE"),
    ("INFO", "INFORMATION", "INFORMATIONAL", "CONFIG"),
    ("NOTICE",),
    ("WARN", "WARNING"),
    ("ERR", "ERROR", "SEVERE", "FAILURE"),
    ("CRIT", "CRITICAL", "FATAL"),
    ("ALERT",),
    ("EMERG", "EMERGENCY", "PANIC"),
)
RANKS = {word: rank for rank, words in enumerate(_ORDER) for word in words}
"""Severity words with their rank, from harmless to the worst. Words of the same rank mean about the same."""

SYSLOG = ("EMERG", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG")
"""The severities of RFC 5424 by their number."""

_LETTERS = {"V": "TRACE", "D": "DEBUG", "I": "INFO", "W": "WARN", "E": "ERROR", "F": "FATAL", "A": "FATAL"}
"""The letters of Android and Kubernetes."""
# the numbers of bunyan and pino
_NUMBERS = {10: "TRACE", 20: "DEBUG", 30: "INFO", 40: "WARN", 50: "ERROR", 60: "FATAL"}


def severity(value: Any) -> str:
    """The severity that a word or number means, in capital letters. "" if it is not a severity.

    >>> [severity(one) for one in ("warn", 3, "50", "core:error", "rather bad", None)]
    ['WARN', 'ERR', 'ERROR', 'ERROR', '', '']
    """
    text = str(value).rpartition(":")[2].strip().upper()
    if text.isdecimal() and len(text) < 3:
        return SYSLOG[int(text)] if int(text) < len(SYSLOG) else _NUMBERS.get(int(text), "")
    return _LETTERS.get(text) or (text if text in RANKS else "")


def highest(severities: Iterable[str | None]) -> str | None:
    """The worst of several severities, or the first of equally bad severities. None if there are none.

    >>> highest(["INFO", "", "ERROR", "ERR", None]), highest([])
    ('ERROR', None)
    """
    ranked = (severity for severity in dict.fromkeys(severities) if severity in RANKS)
    return max(ranked, key=lambda severity: RANKS[severity], default=None)
