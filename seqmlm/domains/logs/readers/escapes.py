"""Remove terminal escape sequences from lines. Colours, titles and links hide times and split templates.

A batch without any costs one search for a character. Logs of services therefore cost almost nothing extra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from seqmlm.data.problems import Problems
from seqmlm.domains.logs.readers.events import Lines

LEFT_OUT = "a line with colours or other terminal escape sequences, read without them"

# ECMA-48: CSI ends in a letter or sign, OSC in BEL or ST; others have two or three characters. JSON writes
# ESC as \u001b, with more backslashes in nested strings. rsyslog writes it as #033.
_ESC = r"(?:\x1b|\\{1,9}u001[bB]|#033)"
_ESCAPE = re.compile(
    rf"{_ESC}\[[0-?]*[ -/]*[@-~]"
    rf"|{_ESC}\](?:(?!{_ESC})[^\x07])*?(?:\x07|\\{{1,9}}u0007|#007|{_ESC}\\{{1,9}})"
    r"|\x1b(?:[ -/]+[0-~]|[78=>c\\])?"
)


def without_escapes(batches: Iterable[Lines], problems: Problems) -> Iterator[Lines]:
    """Yield the same lines without escape sequences, and note in `problems` how many lines had some."""
    for batch in batches:
        text = "".join(batch.texts)
        if "\x1b" in text or ("\\" in text and "\\u001" in text) or ("#" in text and "#033" in text):
            texts = [_ESCAPE.sub("", line) for line in batch.texts]
            changed = sum(clean != raw for clean, raw in zip(texts, batch.texts, strict=True))
            problems.note(LEFT_OUT, changed)
            batch = Lines(batch.numbers, texts)
        yield batch
