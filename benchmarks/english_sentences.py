"""The English text of the data catalogue as plain sentences, one per line, for small text models."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

SHORTEST, LONGEST = 3, 60  # words
_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z])")
_BEFORE = re.compile(r" +([,.;:!?)%]|'s\b|n't\b|'(?:re|ve|ll|d|m)\b)")
_AT = re.compile(r" @([-,.])@ ")
_TAGGED = re.compile(r"(\S+)_[^\s_]+")


def write_sentences(data: Path, out: Path) -> Path:
    """Write all distinct sentences of books, speeches, encyclopaedia and MASC; return the file."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_suffix(".part")
        with unfinished.open("w", encoding="utf-8") as file:
            file.writelines(f"{sentence}\n" for sentence in dict.fromkeys(_sentences(data / "text")))
        unfinished.replace(out)
    return out


def _sentences(text: Path) -> Iterator[str]:
    for paragraph in _paragraphs(text):
        for sentence in _END.split(_natural(paragraph)):
            if SHORTEST <= len(sentence.split()) <= LONGEST and sentence[-1] in ".!?\"'":
                yield sentence


def _paragraphs(text: Path) -> Iterator[str]:
    for path in sorted([*text.glob("books/*.gz"), *text.glob("state_union/*.gz")]):
        yield from re.split(r"\n\s*\n", _read(path))
    for path in sorted(text.glob("wikitext2/*.gz")):
        yield from (line for line in _read(path).split("\n") if "<unk>" not in line)
    for path in sorted(text.glob("wiki_split/*.gz")):
        yield from (line.split("\t")[0] for line in _read(path).split("\n"))
    for line in _read(text / "masc_tagged/masc_tagged.txt.gz").split("\n"):
        if not line.startswith("###"):
            yield _TAGGED.sub(r"\1", line)


def _natural(paragraph: str) -> str:
    """White space and punctuation as people write them, not as corpora cut them."""
    text = _AT.sub(r"\1", " ".join(paragraph.split()))
    return _BEFORE.sub(r"\1", text.replace("_", "").replace("``", '"').replace("''", '"'))


def _read(path: Path) -> str:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        return file.read().replace("\r\n", "\n")
