"""Prepared data: all that went in, once, with its origin; whole or not there."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import resource
import signal
import stat
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from seqmlm.data import store
from seqmlm.data.counts import Things, redacted
from seqmlm.data.prepare import Plan, prepare
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.splits import PARTS, ByKey, Marks, Parts, Split, neighbours
from seqmlm.data.store import EncodedDataset, Prepared
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.errors import DataError, StateError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPACE = TokenSpace(size=31, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))


class Letters:
    """A token a letter, a unit a word; digits are outside the alphabet, capitals unknown."""

    def encode_batch(self, raws: list[str], /) -> list[Encoding]:
        return [self.encode(raw) for raw in raws]

    def encode(self, raw: str) -> Encoding:
        for letter in raw:
            if letter.isdigit():
                raise DataError(f"{letter!r} is not in the alphabet", remedy="write letters")
        kept = [i for i, letter in enumerate(raw) if letter != " "]
        ids = [3, *(5 + LETTERS.index(raw[i]) if raw[i] in LETTERS else 2 for i in kept), 4]
        groups = [-1, *(raw[:i].count(" ") for i in kept), -1]
        spans = [(0, 0), *((i, i + 1) for i in kept), (0, 0)]
        return Encoding(
            ids=np.array(ids, np.int32), groups=np.array(groups, np.int32), spans=np.array(spans, np.int32)
        )


class Everything(Letters):
    """Fills every optional column."""

    def encode(self, raw: str) -> Encoding:
        plain = super().encode(raw)
        n = len(plain)
        return Encoding(
            ids=plain.ids,
            groups=plain.groups,
            classes=np.arange(n, dtype=np.int16),
            positions=np.arange(n, dtype=np.int32) * 2,
            weights=np.linspace(0, 1, n, dtype=np.float32),
            symbols=np.arange(n, dtype=np.int32) - 1,
            channels={"age": np.full(n, len(raw), np.float32), "time": np.arange(n, dtype=np.float32)},
        )


def record(number: int, raw: str, document: str | None = None) -> Record:
    return Record(id=f"r{number}", raw=raw, source="s.txt", line=number + 1, document=document)


def words(n: int, seed: int = 0, length: int = 12) -> list[Record]:
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list(LETTERS + "   "), length)).strip() or "a" for _ in range(n)]
    return [record(i, " ".join(text.split())) for i, text in enumerate(texts)]


@dataclass(frozen=True)
class Labelled:
    """A given split: a function from record to one of `PARTS`."""

    label: Callable[[Record], Any]

    def mark(self, record: Record) -> tuple[int, int]:
        return PARTS.index(self.label(record)), 0

    def parts(self, marks: Marks) -> Parts:
        return marks[:, 0].astype(np.int8)


BY_ID = ByKey(key=lambda r: r.id, share=0.2)


def made(
    records: Iterable[Record], cache: Path, tokenizer: Letters | None = None, **options: Any
) -> Prepared:
    settings: dict[str, Any] = {"max_length": 64, "split": BY_ID, **options}
    own = {name: settings.pop(name) for name in ("problems", "progress") if name in settings}
    own["fingerprint"] = settings.pop("fingerprint", "f")
    if not isinstance(settings["split"], Split):
        settings["split"] = Labelled(settings["split"])
    return prepare(records, tokenizer or Letters(), Plan(space=SPACE, **settings), cache=cache, **own)


def rows(dataset: EncodedDataset) -> Iterator[tuple[str, Encoding]]:
    for i in range(len(dataset)):
        yield dataset.origin(i).id, dataset[i]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches even of little data."""
    monkeypatch.setattr(store, "_BATCH_ROWS", 16)
    monkeypatch.setattr(store, "_RECORD_ROWS", 7)


def test_prepared_data_know_which_notes_count_no_people(tmp_path: Path) -> None:
    problems = Problems("skip")
    problems.note("no table visits", Things(1))
    problems.note("no time", 1)
    for _ in range(2):  # made, then read again
        told = made(words(20), tmp_path, problems=problems).statistics
        assert "things" not in told
        assert redacted(told["problems"]) == {"no table visits": 1, "no time": "<11"}


def test_names_that_are_not_utf_8_are_kept_as_escapes(tmp_path: Path) -> None:
    name = os.fsdecode(b"lat\xe9in.py")
    records = [Record(id=f"{name}:{n}", raw="ab cd", source=name, line=n, document=name) for n in range(1, 9)]
    places = [one for part in PARTS for one in made(records, tmp_path).places(part, 9)]
    assert {one.source for one in places} == {"lat\\udce9in.py"}
    assert {one.id for one in places} <= {f"lat\\udce9in.py:{n}" for n in range(1, 9)}


def test_what_went_in_comes_out(tmp_path: Path) -> None:
    records = words(100)
    prepared = made(records, tmp_path)
    parts = (prepared.train, prepared.validation)
    found = {part.origin(i): part[i] for part in parts for i in range(len(part))}
    assert len(found) == 100
    by_id = {r.id: (n, r) for n, r in enumerate(records)}
    for origin, encoding in found.items():
        number, wanted = by_id[origin.id]
        assert origin == (wanted.id, "s.txt", number + 1, None, number, 0)
        same = Letters().encode(wanted.raw)
        assert np.array_equal(encoding.ids, same.ids)
        assert np.array_equal(encoding.groups, same.groups)
        assert np.array_equal(encoding.spans, same.spans)
        assert encoding.classes is encoding.positions is encoding.weights is None
        assert encoding.channels == {}
    assert prepared.train.lengths.dtype == np.int32
    assert prepared.train.lengths.tolist() == [len(e) for _, e in rows(prepared.train)]
    some = [30, 3, 17, 3]
    owners = [prepared.train.origin(i).record for i in some]
    assert prepared.train.records(some).tolist() == owners


def test_every_column_a_tokenizer_gives_is_kept(tmp_path: Path) -> None:
    records = words(40)
    prepared = made(records, tmp_path, Everything())
    for i, (_, encoding) in enumerate(rows(prepared.train)):
        wanted = Everything().encode(records[prepared.train.origin(i).record].raw)
        assert encoding.spans is None
        for name in ("ids", "groups", "classes", "positions", "weights", "symbols"):
            assert np.array_equal(getattr(encoding, name), getattr(wanted, name))
            assert getattr(encoding, name).dtype == getattr(wanted, name).dtype
        told = [{n: c.tolist() for n, c in one.channels.items()} for one in (encoding, wanted)]
        assert told[0] == told[1]


def test_statistics_by_hand(tmp_path: Path) -> None:
    records = [record(0, "ab cd"), record(1, "abc"), record(2, "ab cd"), record(3, "Xb")]
    split = lambda r: "validation" if r.id == "r1" else "train"  # noqa: E731
    prepared = made(records, tmp_path, dedupe=True, split=split)
    assert prepared.statistics == {
        "records": 3,
        "duplicates": 1,
        "characters": 10,
        "windows": 3,
        "tokens": 6 + 5 + 4,
        "units": 2 + 1 + 1,
        "unknown_tokens": 1,
        "length_quantiles": {"0.0": 4, "0.05": 4, "0.25": 4, "0.5": 5, "0.75": 5, "0.95": 6, "1.0": 6},
        "train": {"records": 2, "windows": 2, "tokens": 10},
        "validation": {"records": 1, "windows": 1, "tokens": 5},
        "calibration": {"records": 0, "windows": 0, "tokens": 0},
        "languages": {},
        "problems": {},
    }
    counts = np.zeros(31, int)
    counts[[3, 4]] = 2
    counts[2] = 1
    counts[[5, 6, 7, 8]] = [1, 2, 1, 1]
    assert prepared.token_counts.tolist() == counts.tolist()


def test_ordinary_tokens_outside_all_units_are_not_counted(tmp_path: Path) -> None:
    """A unigram of what is never asked would flatter the model that is compared with it."""

    class Framed(Letters):
        def encode(self, raw: str) -> Encoding:
            plain = super().encode(raw)
            groups = plain.groups.copy()
            groups[plain.ids == 5 + LETTERS.index("z")] = -1
            return replace(plain, groups=groups)

    prepared = made([record(0, "zab"), record(1, "zzc")], tmp_path, Framed(), split=lambda r: "train")
    counts = np.zeros(31, int)
    counts[[3, 4]] = 2
    counts[[5, 6, 7]] = 1
    assert prepared.token_counts.tolist() == counts.tolist()


def test_no_key_on_both_sides(tmp_path: Path) -> None:
    records = [record(i, "some words", f"d{i % 7}") for i in range(60)]
    prepared = made(records, tmp_path, split=ByKey(key=lambda r: str(r.document), share=0.3))
    sides = [{d.origin(i).document for i in range(len(d))} for d in (prepared.train, prepared.validation)]
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == {f"d{i}" for i in range(7)}
    assert all(sides)


def test_long_records_become_windows_in_one_split(tmp_path: Path) -> None:
    records = words(30, length=200)
    prepared = made(records, tmp_path, max_length=40)
    assert prepared.statistics["windows"] > 100
    for dataset in (prepared.train, prepared.validation):
        assert dataset.lengths.max() <= 40
        pieces: dict[str, list[int]] = {}
        windows = Counter[str]()
        for i, (name, encoding) in enumerate(rows(dataset)):
            assert dataset.origin(i).window == windows[name]
            windows[name] += 1
            pieces.setdefault(name, []).extend(encoding.ids[1:-1].tolist())
        for name, ids in pieces.items():
            assert ids == Letters().encode(records[int(name[1:])].raw).ids[1:-1].tolist()
    assert not {n for n, _ in rows(prepared.train)} & {n for n, _ in rows(prepared.validation)}


def test_a_tokenizer_may_cut_its_own_windows(tmp_path: Path) -> None:
    def last_letters(encoding: Encoding, longest: int) -> list[Encoding]:
        return [replace(encoding, ids=encoding.ids[-longest:], groups=encoding.groups[-longest:], spans=None)]

    records = words(30, length=100)
    prepared = made(records, tmp_path, max_length=20, cut=last_letters)
    assert prepared.statistics["windows"] == 30
    for name, encoding in rows(prepared.train):
        assert encoding.ids.tolist() == Letters().encode(records[int(name[1:])].raw).ids[-20:].tolist()


def moving_rows(cache: Path, count: int = 60, **options: Any) -> Prepared:
    """Records of 2 to 120 words of one to three letters, in windows of 32 tokens that move."""
    rng = np.random.default_rng(4)

    def word() -> str:
        return "".join(rng.choice(list(LETTERS), int(rng.integers(1, 4))))

    texts = [" ".join(word() for _ in range(n)) for n in rng.integers(2, 120, count).tolist()]
    records = [record(number, text) for number, text in enumerate(texts)]

    return made(records, cache, max_length=32, moving=True, **options)


def contents(dataset: EncodedDataset, epoch: int) -> dict[str, list[tuple[int, ...]]]:
    """Record -> token, unit and place of all that is seen of it in an epoch, in the order of its windows."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for index in range(len(dataset)):
        window = dataset.at(epoch, index)
        kept = window.groups >= 0
        columns = (window.ids[kept], window.groups[kept], *window.spans[kept].T)
        own = found.setdefault(dataset.origin(index).id, [])
        own += zip(*(column.tolist() for column in columns), strict=True)
    return found


def test_windows_that_move_show_everything_once_in_each_epoch(tmp_path: Path) -> None:
    train = moving_rows(tmp_path / "moving").train
    prepared = made([], tmp_path / "moving").train
    whole = contents(prepared, 0)
    indices = np.arange(len(train))
    cuts = []
    for epoch in range(10):
        assert contents(train, epoch) == whole
        windows = [train.at(epoch, index) for index in indices.tolist()]
        lengths = train.lengths_at(epoch, indices)
        assert lengths.tolist() == [len(window) for window in windows]
        assert lengths.sum() == train.lengths.sum()
        assert lengths.max() <= train.longest <= 32
        some = indices[::3]
        assert train.lengths_at(epoch, some).tolist() == lengths[some].tolist()
        assert all((window.ids[0], window.ids[-1]) == (3, 4) for window in windows)
        cuts.append(lengths.tolist())
    assert cuts[:2] == cuts[8:]  # the ways to cut take turns
    assert len(set(map(tuple, cuts))) == 8


def test_what_stands_beside_a_cut_stands_amid_a_window_in_another_epoch(tmp_path: Path) -> None:
    train = moving_rows(tmp_path).train
    most: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    for epoch in range(8):
        for index in range(len(train)):
            window, record = train.at(epoch, index), int(train.records([index])[0])
            starts = window.spans[1:-1, 0].tolist()
            for place, start in enumerate(starts):
                near = min(place, len(starts) - 1 - place)  # letters between it and the nearer end
                most[record, start] = max(most.get((record, start), 0), near)
            last[record] = max(last.get(record, 0), starts[-1])
    # All but what is near the ends of its record.
    inside = [near for (record, start), near in most.items() if 12 <= start <= last[record] - 12]
    assert len(inside) > 1000
    assert min(inside) >= 3


def test_other_seeds_cut_elsewhere_and_other_parts_do_not_move(tmp_path: Path) -> None:
    one, two = (moving_rows(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    indices = np.arange(len(one.train))
    assert one.train.lengths.tolist() == two.train.lengths.tolist()
    assert one.train.lengths_at(0, indices).tolist() != two.train.lengths_at(0, indices).tolist()
    held = one.validation
    assert held.lengths_at(3, np.arange(len(held))).tolist() == held.lengths.tolist()
    assert all(held.at(3, index).ids.tolist() == held[index].ids.tolist() for index in range(len(held)))


def test_documents_share_windows_and_know_where_each_begins(tmp_path: Path) -> None:
    documents = {f"d{d}": [record(10 * d + i, "ab cde f", f"d{d}") for i in range(9)] for d in range(6)}
    records = [r for rs in documents.values() for r in rs]
    split = ByKey(key=lambda r: str(r.document), share=0.4)
    prepared = made(records, tmp_path, split=split, join_documents=True, max_length=20)
    for dataset in (prepared.train, prepared.validation):
        assert len(dataset)
        ids: dict[str | None, list[int]] = {}
        for i in range(len(dataset)):
            origin = dataset.origin(i)
            ordinary = [t for t in dataset[i].ids.tolist() if t > 4]
            last = i == len(dataset) - 1 or origin.document != dataset.origin(i + 1).document
            assert len(ordinary) == 12 or last
            before = ids.setdefault(origin.document, [])
            assert int(origin.id[1:]) % 10 == len(before) // 6  # the record this window begins in
            before += ordinary
        one = Letters().encode("ab cde f").ids[1:-1].tolist()
        assert all(found == one * 9 for found in ids.values())


def test_records_without_a_document_share_windows_within_their_file(tmp_path: Path) -> None:
    records = [record(i, "ab") for i in range(6)]
    records += [Record(id="o", raw="ab", source="other.txt", line=1)]
    prepared = made(records, tmp_path, split=lambda r: "train", join_documents=True, max_length=64)
    assert [prepared.train.origin(i).id for i in range(len(prepared.train))] == ["r0", "o"]
    assert prepared.train[0].ids.tolist() == [3, *[5, 6, 4] * 6]
    assert len(prepared.validation) == 0


def test_lines_of_a_text_share_windows_in_stretches(tmp_path: Path) -> None:
    records = [record(i, f"{LETTERS[i % 26]}b") for i in range(2999)]
    split = ByKey(key=neighbours, share=0.4)
    prepared = made(records, tmp_path, split=split, join_documents=True, max_length=64)
    for dataset in (prepared.train, prepared.validation):
        assert np.mean(dataset.lengths) > 55  # 21 lines and their ends, where a batch or stretch does not end
        stretches = {dataset.origin(i).line // 1000 for i in range(len(dataset))}
        assert stretches
    alone = made(records, tmp_path, join_documents=True, fingerprint="g")  # no two lines in one split group
    assert alone.train.lengths.max() == 4


def test_duplicates_are_dropped_only_on_request(tmp_path: Path) -> None:
    records = [record(i, f"word {LETTERS[i % 10]}") for i in range(1500)]
    kept = made(records, tmp_path, dedupe=True)
    assert kept.statistics["records"] == 10
    assert kept.statistics["duplicates"] == 1490
    assert made(records, tmp_path, fingerprint="g").statistics["records"] == 1500


def test_what_the_tokenizer_refuses_goes_to_problems(tmp_path: Path) -> None:
    records = [record(0, "ab"), record(1, "a1"), record(2, "cd")]
    with pytest.raises(DataError, match=r"s\.txt:2: '1' is not in the alphabet \(write letters\)"):
        made(records, tmp_path)
    assert not list(tmp_path.glob(".*.building"))
    aside = tmp_path / "aside.jsonl"
    with Problems("quarantine", aside) as problems:
        prepared = made(records, tmp_path, problems=problems)
    assert prepared.statistics["records"] == 2
    assert prepared.statistics["problems"] == {"'1' is not in the alphabet": 1}
    assert json.loads(aside.read_text())["raw"] == "a1"
    with pytest.raises(DataError) as caught:
        made(records, tmp_path, problems=Problems(sensitive=True), fingerprint="h")
    assert "1'" not in str(caught.value)


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no record was found"):
        made([], tmp_path)
    with pytest.raises(DataError, match="the first problem is: '1' is not in the alphabet"):
        made([record(0, "1")], tmp_path, problems=Problems("skip"))
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []


def test_the_same_fingerprint_reads_nothing_again(tmp_path: Path) -> None:
    def never() -> Iterator[Record]:
        raise AssertionError("read again")
        yield

    first = made(words(50), tmp_path)
    second = made(never(), tmp_path)
    assert second.statistics == first.statistics
    assert np.array_equal(second.train[3].ids, first.train[3].ids)


def test_what_a_dead_process_left_is_not_used(tmp_path: Path) -> None:
    def dies() -> Iterator[Record]:
        yield from words(200)
        os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=lambda: made(dies(), tmp_path))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert list(tmp_path.glob(".f.building/*"))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "sequences.arrow").write_bytes(b"half")  # an entry without its manifest is none
    prepared = made(words(50), tmp_path)
    assert prepared.statistics["records"] == 50
    assert not list(tmp_path.glob(".f.building"))


def test_a_reader_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> Iterator[Record]:
        yield from words(200)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(fails(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".f.lock"]


def test_a_full_disk_is_named_and_nothing_stays(tmp_path: Path) -> None:
    # The kernel refuses to let files grow, as it does on a full disk.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StateError, match="the disk is full; free space") as caught:
            made(words(2000), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [".f.lock"]
    assert made(words(2000), tmp_path).statistics["records"] == 2000


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be written"):
        made(words(5), tmp_path / "file")


def test_a_damaged_entry_is_named(tmp_path: Path) -> None:
    made(words(50), tmp_path)
    (tmp_path / "f" / "train.npy").unlink()
    with pytest.raises(StateError, match="delete it and run again"):
        made(words(50), tmp_path)


def test_sensitive_data_are_private(tmp_path: Path) -> None:
    made(words(5), tmp_path, problems=Problems(sensitive=True))
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o700


def test_a_dataset_travels_to_other_processes_by_its_path(tmp_path: Path) -> None:
    prepared = moving_rows(tmp_path)
    packed = pickle.dumps(prepared.train)
    assert len(packed) < 700
    copy = pickle.loads(packed)
    for index in range(len(copy)):  # windows move alike there
        assert copy[index].ids.tolist() == prepared.train[index].ids.tolist()
        assert copy.at(5, index).ids.tolist() == prepared.train.at(5, index).ids.tolist()
    assert np.array_equal(Prepared.open(tmp_path / "f").token_counts, prepared.token_counts)


def test_datasets_loads_the_same_file(tmp_path: Path) -> None:
    prepared = made(words(100), tmp_path)
    table = datasets.Dataset.from_file(str(prepared.folder / "sequences.arrow"))
    assert len(table) == 100
    row = int(prepared.train.rows[5])
    assert table[row]["ids"] == prepared.train[5].ids.tolist()
    assert table[row]["spans"] == prepared.train[5].spans.tolist()  # type: ignore[union-attr]
    assert table[row]["record"] == prepared.train.origin(5).record


def test_memory_stays_flat_as_the_input_grows(tmp_path: Path) -> None:
    def stream(n: int) -> Iterator[Record]:
        for i in range(n):
            yield record(i, f"{LETTERS[i % 26]}bc def {LETTERS[i % 25]}")

    made(stream(100), tmp_path, fingerprint="warm")
    peaks = []
    for n in (1000, 4000):
        tracemalloc.start()
        try:
            made(stream(n), tmp_path, fingerprint=str(n))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # Three thousand records more; kept in a list they would be some megabytes.
    assert peaks[1] - peaks[0] < 200_000


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    prepared = made(words(1200), tmp_path, progress=lambda records, tokens: told.append((records, tokens)))
    assert [records for records, _ in told] == [512, 1024, 1200]
    assert told[-1][1] <= prepared.statistics["tokens"]
