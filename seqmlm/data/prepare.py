"""Records to memory-mapped encodings, once: a cache entry that is either complete or absent.

The entry's name is a hash of everything that decides its content (files, reader options, tokenizer, split),
so an entry is reused only where it fits, and two processes that want the same one build it once.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.duplicates import SeenHashes, hash128
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.splits import Split
from seqmlm.data.store import MANIFEST, WAYS, Prepared, RecordWriter, SequenceWriter, divide
from seqmlm.engine.durable import is_full, move_into_place
from seqmlm.engine.randomness import uniform
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.units import Units
from seqmlm.engine.windows import join, moving_windows, windows
from seqmlm.errors import DataError, StateError

Cut = Callable[[Encoding, int], list[Encoding]]

_GOLDEN = (5**0.5 - 1) / 2  # of its multiples, however many, no two leave nearly the same rest
_BATCH_RECORDS = 512
_BATCH_CHARACTERS = 1 << 20


class Encoder(Protocol):
    """The part of a tokenizer that preparing data needs; its `units`, if any, count the units."""

    def encode_batch(self, raws: list[Any], /) -> list[Encoding]: ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How records become windows.

    Args:
        space: the tokenizer's.
        max_length: tokens of the longest window, special tokens included.
        split: a rule from `seqmlm.data.splits`.
        dedupe: keep only the first of records whose raw text is exactly the same.
        join_documents: consecutive records of one document (of one file, where records name no document)
            and of one split group share windows.
        cut: (sequence, max_length) -> its windows, where it is not joined with others; default:
            `seqmlm.engine.windows.windows`.
        moving: cut windows elsewhere in each epoch, where `seqmlm.engine.windows.moving_windows` can; by
            default all are cut at the same places always, as those that are joined with others are.
        seed: of those places.
        identity: key by which two records are the same; by default the raw text.
        language: of a raw sequence what it is written in, "" for none: the records of each are counted.
    """

    space: TokenSpace
    max_length: int
    split: Split
    dedupe: bool = False
    join_documents: bool = False
    cut: Cut | None = None
    moving: bool = False
    seed: int = 0
    identity: Callable[[Record], str] = lambda record: str(record.raw)
    language: Callable[[Any], str] = lambda raw: ""


def prepare(
    records: Iterable[Record],
    tokenizer: Encoder,
    plan: Plan,
    *,
    cache: Path,
    fingerprint: str,
    problems: Problems | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """Tokenize a stream of records into a cache entry, or open the existing entry.

    The stream is read once, unless the entry exists, and nothing is kept of it but 24 bytes a record (with
    `dedupe`: about 40 more).

    Args:
        records, tokenizer, plan: the stream, anything with `encode_batch`, and how it becomes windows.
        cache: folder of all entries.
        fingerprint: name of the entry: a hash of everything that decides its content.
        problems: receives records the tokenizer refuses; if `sensitive`, only the owner may read the entry.
        progress: called from time to time with the records and tokens so far.

    Returns:
        Prepared, whose statistics hold: records, duplicates, characters, windows, tokens, units,
        unknown_tokens, length_quantiles (tokens of a window), problems, languages (records of each), and
        for train, validation and calibration records, windows, tokens.

    Raises:
        DataError: no usable record.
        StateError: the disk is full or read-only; nothing incomplete is left.
    """
    folder, problems = Path(cache) / fingerprint, problems or Problems()
    with _write_errors(folder), _only_one(folder):
        if not (folder / MANIFEST).exists():
            building = folder.with_name(f".{fingerprint}.building")
            shutil.rmtree(building, ignore_errors=True)  # left by a process that died: we hold the lock
            building.mkdir(mode=0o700 if problems.sensitive else 0o777)
            try:
                _Maker(building, tokenizer, plan, problems).run(records, progress)
                shutil.rmtree(folder, ignore_errors=True)  # an entry without a manifest is incomplete
                move_into_place(building, folder)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
    return Prepared.open(folder)


class _Maker:
    """Builds one cache entry in a folder of its own."""

    def __init__(self, folder: Path, tokenizer: Encoder, plan: Plan, problems: Problems) -> None:
        self._folder, self._tokenizer, self._plan, self._problems = folder, tokenizer, plan, problems
        units = getattr(tokenizer, "units", Units(plan.space))
        self._sequences = SequenceWriter(folder, plan.max_length, units)
        self._records = RecordWriter(folder, plan.identity)
        self._duplicates = self._characters = 0
        self._languages: Counter[str] = Counter()

    def run(self, records: Iterable[Record], progress: Callable[[int, int], None] | None) -> None:
        hashes = SeenHashes() if self._plan.dedupe else None
        try:
            for batch in _batches(records):
                if hashes is not None:
                    fresh = [record for record in batch if hashes.add(hash128(record.raw))]
                    self._duplicates += len(batch) - len(fresh)
                    batch = fresh
                encoded = self._encode(batch)
                self._add_joined(encoded) if self._plan.join_documents else self._add(encoded)
                if progress is not None:
                    progress(self._records.rows, self._sequences.tokens)
        finally:
            with closing(self._sequences), closing(self._records):
                pass
        if not self._sequences.rows:
            raise self._problems.nothing()
        counts = {
            "records": self._records.rows,
            "duplicates": self._duplicates,
            "characters": self._characters,
            "windows": self._sequences.rows,
            "tokens": self._sequences.tokens,
            "units": self._sequences.units,
        }
        divided = divide(self._folder, self._plan.split, self._plan.space, self._plan.max_length)
        languages = {name: n for name, n in self._languages.most_common() if name}
        statistics = {**counts, **divided, "languages": languages, "problems": self._problems.counts}
        statistics["things"] = self._problems.things
        # Written last: it marks the entry as complete.
        (self._folder / MANIFEST).write_text(json.dumps(statistics, indent=2) + "\n", encoding="utf-8")

    def _encode(self, batch: list[Record]) -> list[tuple[Record, Encoding]]:
        """Encode a batch; records the tokenizer refuses go to `problems` one by one."""
        if not batch:
            return []
        try:
            encodings = self._tokenizer.encode_batch([record.raw for record in batch])
            return list(zip(batch, encodings, strict=True))
        except DataError as error:
            if len(batch) == 1:
                record = batch[0]
                reason = self._problems.quoted(error.reason, "a part of it is not in the alphabet")
                placed = DataError(reason, source=record.source, line=record.line, remedy=error.remedy)
                self._problems.bad(placed, record.raw if isinstance(record.raw, str) else None)
                return []
        return [pair for record in batch for pair in self._encode([record])]

    def _add(self, encoded: list[tuple[Record, Encoding]]) -> None:
        plan, longest = self._plan, self._plan.max_length
        for record, encoding in encoded:
            number = self._note(record, plan.split.mark(record))
            moving = plan.moving and moving_windows(encoding, plan.space, longest, self._shares(number))
            if moving:
                self._sequences.add_moving(moving, number)
                continue
            cuts = plan.cut(encoding, longest) if plan.cut else windows(encoding, plan.space, longest)
            for window, part in enumerate(cuts):
                self._sequences.add(part, number, window)

    def _shares(self, record: int) -> NDArray[np.float64]:
        """(`WAYS`,) of a range: spread evenly from a place drawn for the record, neighbours far apart."""
        random_share = uniform(self._plan.seed, np.array([record]), np.zeros(1, dtype=np.int64))
        return np.asarray((random_share + np.arange(WAYS) * _GOLDEN) % 1.0)

    def _add_joined(self, encoded: list[tuple[Record, Encoding]]) -> None:
        """Join neighbours of one document and one split group in windows."""
        marked = [(record, encoding, self._plan.split.mark(record)) for record, encoding in encoded]
        for _, run in groupby(marked, key=lambda m: (m[0].source, m[0].document, m[2][0])):
            members = list(run)
            numbers = [self._note(record, mark) for record, _, mark in members]
            encodings = [encoding for _, encoding, _ in members]
            # Windows keep the order of tokens: counting ordinary ones finds the record a window begins in.
            ends = np.cumsum([np.count_nonzero(e.groups >= 0) for e in encodings])
            done = window = 0
            last = -1
            for part in join(encodings, self._plan.space, self._plan.max_length):
                at = min(int(np.searchsorted(ends, done, side="right")), len(numbers) - 1)
                window = window + 1 if at == last else 0
                self._sequences.add(part, numbers[at], window)
                done += int(np.count_nonzero(part.groups >= 0))
                last = at

    def _note(self, record: Record, mark: tuple[int, int]) -> int:
        self._characters += len(record.raw) if isinstance(record.raw, str) else 0
        self._languages[self._plan.language(record.raw)] += 1
        return self._records.add(record, mark)


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    characters = 0
    for record in records:
        batch.append(record)
        characters += len(record.raw) if isinstance(record.raw, str) else 1000
        if len(batch) >= _BATCH_RECORDS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Let one process at a time build an entry; the others wait and then find it complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk into a StateError."""
    try:
        yield
    except OSError as error:
        full = is_full(error) or "No space left" in str(error)
        reason = "the disk is full" if full else f"cannot be written ({error.strerror or error})"
        raise StateError(f"{folder.parent}: {reason}; free space, or choose another workspace") from error
