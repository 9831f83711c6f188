"""N-best lists: what a first pass (speech recognition, translation, OCR) proposes, best first or not.

.json    ESPnet's {"utts": {ID: {"output": [{"rec_text", "score", "text"}, ...]}}}, or mlm-scoring's
         {ID: {"hyp_1": {"text", "score"}, ..., "ref": TEXT}}
.jsonl   {"id", "hyps": [{"text", "score"}, ...], "ref"} a line; "ref" may be absent
.tsv     ID, score, text without a header; rows of one ID belong together
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from seqmlm.data.files import stem_suffix, whole
from seqmlm.data.problems import Problems
from seqmlm.data.readers.objects import json_value
from seqmlm.data.readers.tables import torn_text, torn_value
from seqmlm.data.rows import read_rows, required
from seqmlm.errors import DataError, UsageError

_LARGEST = 1 << 30  # bytes of a .json file, which is held whole
_BEYOND = 1e300  # whole numbers in JSON may be larger than what a number can be


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One hypothesis: its text, and the first pass's log-probability (higher is better)."""

    text: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NBest:
    """The hypotheses for one input, in the file's order, the reference, if known, and where it stands."""

    id: str
    hypotheses: tuple[Hypothesis, ...]
    reference: str | None = None
    source: str = field(default="", compare=False)
    line: int | None = field(default=None, compare=False)


def read_nbest(path: str, references: str | None = None, problems: Problems | None = None) -> list[NBest]:
    """Read a file of n-best lists, with references from a file of their own where one is named.

    Args:
        path: .json, .jsonl or .tsv (.gz, .zst too).
        references: .tsv of ID and text, or .jsonl with "id" and "text"; every list must be in it.
        problems: told of lists that cannot be read (without hypotheses, texts or scores); None raises their
            errors.

    Raises:
        UsageError: a file of another kind.
        DataError: a broken file, a list without a reference.
    """
    told, suffix, found = problems or Problems(), stem_suffix(path), list[NBest]()
    if suffix == ".json":
        lists = _whole(path)
    elif suffix in (".jsonl", ".ndjson"):
        lists = (partial(_line, row, path, line) for line, row in read_rows(path, told))
    elif suffix == ".tsv":
        lists = _table(path, told)
    else:
        raise UsageError(f"{path}: n-best lists are read from .json, .jsonl and .tsv files")
    for made in lists:
        try:
            found.append(made())
        except DataError as error:
            told.bad(error)
    return found if references is None else _with_references(found, references, path)


def _whole(path: str) -> Iterator[Callable[[], NBest]]:
    text = whole(path, _LARGEST, "file")
    values = json_value(text, path, 1, "see docs/EVALUATING.md for the forms")
    if torn_value(text.decode("utf-8"), values):
        raise torn_text(path)
    utterances = values.get("utts", values) if isinstance(values, dict) else None
    if not isinstance(utterances, dict):
        raise _no_lists(path)
    return (partial(_espnet, name, own, path) for name, own in utterances.items())


def _no_lists(path: str) -> DataError:
    return DataError(
        "not a JSON object of n-best lists", source=path, remedy="see docs/EVALUATING.md for the forms"
    )


def _espnet(name: str, own: Mapping[str, Any], path: str) -> NBest:
    try:
        if "output" in own:
            outputs = own["output"]
            reference = next((one["text"] for one in outputs if "text" in one), None)
            texts = [(_plain(one.get("rec_text")), one.get("score")) for one in outputs]
        else:
            reference = own.get("ref")
            names = sorted(
                (key for key in own if key.startswith("hyp_")), key=lambda key: int(key.removeprefix("hyp_"))
            )
            texts = [(own[key].get("text"), own[key].get("score")) for key in names]
    except (ValueError, TypeError, AttributeError):  # wherever a list stands for an object, or a number
        raise _no_lists(path) from None
    return _checked(name, texts, reference, path, None)


def _plain(text: Any) -> Any:
    """The text without ESPnet's own markers."""
    if not isinstance(text, str):
        return text
    marked = text.replace("<eos>", "").replace("<space>", " ").replace("▁", " ")
    return " ".join(marked.split())


def _line(row: Mapping[str, Any], path: str, line: int) -> NBest:
    hypotheses = required(row, "hyps", path, line)
    if not isinstance(hypotheses, list) or not all(isinstance(one, dict) for one in hypotheses):
        remedy = 'write [{"text": ..., "score": ...}, ...]'
        raise DataError("not a list of objects", source=path, line=line, field="hyps", remedy=remedy)
    texts = [(one.get("text"), one.get("score")) for one in hypotheses]
    return _checked(str(required(row, "id", path, line)), texts, row.get("ref"), path, line)


def _table(path: str, problems: Problems) -> Iterator[Callable[[], NBest]]:
    lists: dict[str, tuple[int, list[tuple[Any, Any]]]] = {}
    broken = set[str]()
    for line, row in read_rows(path, problems, columns=("id", "score", "text")):
        try:
            score = float(row["score"])
        except ValueError:
            reason = f"{row['score']!r} is not a number"
            remedy = "a row is ID, score, text, separated by tabs and without a header"
            wrong = DataError(reason, source=path, line=line, field="score", remedy=remedy)
            problems.bad(wrong)
            broken.add(row["id"])
        else:
            lists.setdefault(row["id"], (line, []))[1].append((row["text"], score))
    return (
        partial(_checked, name, texts, None, path, line)
        for name, (line, texts) in lists.items()
        if name not in broken
    )


def _checked(name: str, texts: list[tuple[Any, Any]], reference: Any, path: str, line: int | None) -> NBest:
    if not texts:
        raise DataError(f"list {name!r} has no hypotheses", source=path, line=line, remedy="remove it")
    for text, score in texts:
        number = isinstance(score, int | float) and not isinstance(score, bool)
        if not isinstance(text, str) or not number or not -_BEYOND < score < _BEYOND:  # so is NaN
            reason = f"a hypothesis of {name!r} has no text or no finite score"
            remedy = "every hypothesis needs both; the score is a log-probability"
            raise DataError(reason, source=path, line=line, remedy=remedy)
    return NBest(
        id=name,
        hypotheses=tuple(Hypothesis(text=text, score=float(score)) for text, score in texts),
        reference=None if reference is None else str(reference),
        source=path,
        line=line,
    )


def _with_references(found: list[NBest], references: str, path: str) -> list[NBest]:
    columns = ("id", "text") if stem_suffix(references) == ".tsv" else None
    texts = {
        str(required(row, "id", references, line)): str(required(row, "text", references, line))
        for line, row in read_rows(references, columns=columns)
    }
    absent = [one.id for one in found if one.id not in texts]
    if absent:
        raise DataError(
            f"no reference for {len(absent)} of the {len(found)} lists of {path}: {', '.join(absent[:5])}"
            f"{' ...' if len(absent) > 5 else ''}",
            source=references,
            remedy="give a reference for each, or remove those lists",
        )
    return [replace(one, reference=texts[one.id]) for one in found]
