"""Convert records to memory-mapped encodings, once. A cache entry is either complete or absent.

The name of the entry is a hash of everything that determines its content (files, reader options, tokenizer,
split). Therefore an entry is only reused for the same content. If two processes need the same entry, it is
built once.
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

_GOLDEN = (5**0.5 - 1) / 2  # its multiples never have nearly equal fractional parts
_BATCH_RECORDS = 512
_BATCH_CHARACTERS = 1 << 20


class Encoder(Protocol):
    """The part of a tokenizer that preparing data needs. If it has `units`, they count the units."""

    def encode_batch(self, raws: list[Any], /) -> list[Encoding]: ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How records become windows.

    Args:
        space: the token space of the tokenizer.
        max_length: number of tokens of the longest window, including special tokens.
        split: a rule from `seqmlm.data.splits`.
        dedupe: keep only the first of records with exactly the same raw text.
        join_documents: let consecutive records share windows if they belong to the same document and split
            group. For records without a document, it is the file.
        cut: (sequence, max_length) -> its windows, if it is not joined with others. Default:
            `seqmlm.engine.windows.windows`.
        moving: cut windows at other places in each epoch, if `seqmlm.engine.windows.moving_windows` can.
            Otherwise they are always cut at the same places, as joined sequences are.
        seed: seed of these places.
        identity: key by which two records are the same. Default: the raw text.
        language: returns the language of a raw sequence, or "". Records are counted by language.
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

    If the entry does not exist, the stream is read once. Only 24 bytes per record are kept in memory (about
    40 more with `dedupe`).

    Args:
        records: the stream of records.
        tokenizer: any object with `encode_batch`.
        plan: how records become windows.
        cache: folder of all entries.
        fingerprint: name of the entry: a hash of everything that determines its content.
        problems: receives records that the tokenizer refuses. If it is `sensitive`, only the owner can read
            the entry.
        progress: called from time to time with the records and tokens so far.

    Returns:
        The entry. Its statistics are records, duplicates, characters, windows, tokens, units, unknown_tokens,
        length_quantiles (tokens of a window), problems, and languages (records of each). For train,
        validation and calibration, they have records, windows and tokens.

    Raises:
        DataError: there is no usable record.
        StateError: the disk is full or read-only. Nothing incomplete is left.
    """
    folder, problems = Path(cache) / fingerprint, problems or Problems()
    with _write_errors(folder), _only_one(folder):
        if not (folder / MANIFEST).exists():
            building = folder.with_name(f".{fingerprint}.building")
            # left by a process that died; this process has the lock
            shutil.rmtree(building, ignore_errors=True)
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
    """Builds a cache entry in a separate folder."""

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
        # Written last, because it marks the entry as complete.
        (self._folder / MANIFEST).write_text(json.dumps(statistics, indent=2) + "\n", encoding="utf-8")

    def _encode(self, batch: list[Record]) -> list[tuple[Record, Encoding]]:
        """Encode a batch. Records that the tokenizer refuses go to `problems` one by one."""
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
        """(`WAYS`,) shares of a range, evenly spread from a random start for each record.

        Neighbours are far apart.
        """
        random_share = uniform(self._plan.seed, np.array([record]), np.zeros(1, dtype=np.int64))
        return np.asarray((random_share + np.arange(WAYS) * _GOLDEN) % 1.0)

    def _add_joined(self, encoded: list[tuple[Record, Encoding]]) -> None:
        """Join neighbouring records of the same document and split group in windows."""
        marked = [(record, encoding, self._plan.split.mark(record)) for record, encoding in encoded]
        for _, run in groupby(marked, key=lambda m: (m[0].source, m[0].document, m[2][0])):
            members = list(run)
            numbers = [self._note(record, mark) for record, _, mark in members]
            encodings = [encoding for _, encoding, _ in members]
            # Windows keep the order of tokens. The count of ordinary tokens therefore finds the first record
            # of a window.
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
    """Context in which only this process builds an entry. Other processes wait and then find it complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Context that turns a full or read-only disk into a StateError."""
    try:
        yield
    except OSError as error:
        full = is_full(error) or "No space left" in str(error)
        reason = "the disk is full" if full else f"cannot be written ({error.strerror or error})"
        raise StateError(f"{folder.parent}: {reason}; free space, or choose another workspace") from error
