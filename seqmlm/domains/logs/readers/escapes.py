"""Lines without what a terminal would act on: colours, titles and links hide times and part templates.

A batch without any costs one search for a character, so logs of services pay nothing for those of consoles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from seqmlm.data.problems import Problems
from seqmlm.domains.logs.readers.events import Lines

LEFT_OUT = "a line with colours or other escape sequences of a terminal, read without them"

# ECMA-48: CSI ends in a letter or sign, OSC in BEL or ST; others are of two or three characters. JSON writes
# ESC as \u001b (within a string within a string with more backslashes), rsyslog as #033.
_ESC = r"(?:\x1b|\\{1,9}u001[bB]|#033)"
_ESCAPE = re.compile(
    rf"{_ESC}\[[0-?]*[ -/]*[@-~]"
    rf"|{_ESC}\](?:(?!{_ESC})[^\x07])*?(?:\x07|\\{{1,9}}u0007|#007|{_ESC}\\{{1,9}})"
    r"|\x1b(?:[ -/]+[0-~]|[78=>c\\])?"
)


def without_escapes(batches: Iterable[Lines], problems: Problems) -> Iterator[Lines]:
    """The same lines without escape sequences; `problems` is told how many had some."""
    for batch in batches:
        text = "".join(batch.texts)
        if "\x1b" in text or ("\\" in text and "\\u001" in text) or ("#" in text and "#033" in text):
            texts = [_ESCAPE.sub("", line) for line in batch.texts]
            changed = sum(clean != raw for clean, raw in zip(texts, batch.texts, strict=True))
            problems.note(LEFT_OUT, changed)
            batch = Lines(batch.numbers, texts)
        yield batch
