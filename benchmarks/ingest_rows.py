"""One measurement of `ingest.py` in its own process: JSON arguments in, one JSON line out.

The measurements are (speeds are those of the fastest of a few rounds):

    reader      records and bytes a second, files to records
    peer        the same records made with Biopython
    tokenizer   records and characters a second, records to encodings (records held in memory)
    memory      peak memory while a file of a given size is read and tokenized
    log_lines   log lines to template ids, on one process or several
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from seqmlm import plugins
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna.nucleotides import Contig, plain_letters
from seqmlm.tokenizers.base import Tokenizer

BATCH = 512
BATCH_CHARACTERS = 1 << 20
ROUNDS = 3  # the best counts: the machine is not ours alone
LINES_A_WINDOW = 64


@dataclass(frozen=True)
class Window:
    """Some log lines, as the log tokenizers take them."""

    lines: tuple[str, ...]
    times: None = None
    keys: bool = False


def peak_mib() -> float:
    """The most memory this process has held so far (`getrusage` would count what started it, too)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fastest(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the fastest of a few rounds, as wall time and as processor time of this process."""
    seconds, own = [], []
    for _ in range(ROUNDS):
        start, own_start = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - start)
        own.append(time.process_time() - own_start)
        if sum(seconds) > 20:
            break
    return {"seconds": min(seconds), "cpu_seconds": min(own)}


def records(asked: dict[str, Any]) -> Iterator[Record]:
    """The records of a row's files, as a training reads them."""
    problems, domain = Problems("skip"), plugins.domain(asked["domain"])
    return domain.read(asked["files"], problems, format=asked["format"], **asked["options"])


def reader(asked: dict[str, Any]) -> dict[str, Any]:
    """Speed of reading."""
    found = {"records": 0}

    def work() -> None:
        found["records"] = sum(1 for _ in records(asked))

    return {**fastest(work), **found, "mib": asked["bytes"] / 2**20, "peak_mib": peak_mib()}


def peer(asked: dict[str, Any]) -> dict[str, Any]:
    """The speed of the library that our own reader replaces."""
    found = {"records": 0}

    def work() -> None:
        found["records"] = sum(1 for _ in theirs(asked))

    return {**fastest(work), **found, "mib": asked["bytes"] / 2**20}


def theirs(asked: dict[str, Any]) -> Iterator[Record]:
    """A row's records, made of what Bio.SeqIO gives."""
    from Bio import SeqIO

    protein, problems, gaps = asked["domain"] == "protein", Problems(), str.maketrans("", "", "-.")
    for path in asked["files"]:
        for one in SeqIO.parse(path, asked["peer"]):
            where = {"source": path, "line": 1}
            if protein:
                raw = str(one.seq).upper().translate(gaps).removesuffix("*")
                yield Record(id=one.id, raw=raw, meta={"description": one.description}, **where)
            elif asked["peer"] == "fastq":
                quality = one.letter_annotations["phred_quality"]
                raw = (plain_letters(bytes(one.seq), problems) or b"").decode()
                meta = {"quality": round(sum(quality) / len(quality), 2)}
                yield Record(id=one.id, raw=raw, meta=meta, **where)
            else:
                meta = {"description": one.description}
                contig = Contig(one.id, problems=problems, meta=meta, **where)
                yield from contig.add(bytes(one.seq))
                yield from contig.finish()


def trained(asked: dict[str, Any], held: list[Record]) -> Tokenizer:
    """The tokenizer of the row, with a vocabulary learnt from the records in memory."""
    kind = plugins.tokenizer_class(asked["tokenizer"])
    if not kind.traits.trainable:
        return kind(**asked["tokenizer_options"])
    return kind.train((one.raw for one in held), **asked["tokenizer_options"])


def tokenizer(asked: dict[str, Any]) -> dict[str, Any]:
    """Speed of training (once) and of encoding, over as many records as fit some memory."""
    held: list[Record] = []
    characters = 0
    for record in records(asked):
        held.append(record)
        characters += len(str(record.raw))
        if characters >= asked["characters"]:
            break
    start = time.perf_counter()
    made = trained(asked, held)
    training = time.perf_counter() - start
    raws = [record.raw for record in held]
    found = {"tokens": 0}

    def work() -> None:
        batches = (raws[at : at + BATCH] for at in range(0, len(raws), BATCH))
        found["tokens"] = sum(sum(map(len, made.encode_batch(batch))) for batch in batches)

    return {
        **fastest(work),
        **found,
        "records": len(raws),
        "mib": characters / 2**20,
        "training_seconds": training if made.traits.trainable else 0.0,
        "ids": made.space.size,
    }


def memory(asked: dict[str, Any]) -> dict[str, Any]:
    """Peak memory of reading and encoding everything; the tokenizer learns from all of it."""
    made = trained_on_stream(asked)
    before = peak_mib()
    count, batch, held = 0, [], 0
    for record in records(asked):  # as many at a time as preparing data takes
        batch.append(record.raw)
        held += len(record.raw) if isinstance(record.raw, str) else 1000
        count += 1
        if len(batch) >= BATCH or held >= BATCH_CHARACTERS:
            made.encode_batch(batch)
            batch, held = [], 0
    if batch:
        made.encode_batch(batch)
    return {"records": count, "mib": asked["bytes"] / 2**20, "start_mib": before, "peak_mib": peak_mib()}


def trained_on_stream(asked: dict[str, Any]) -> Tokenizer:
    """The row's tokenizer, learnt from the whole stream."""
    kind = plugins.tokenizer_class(asked["tokenizer"])
    if not kind.traits.trainable:
        return kind(**asked["tokenizer_options"])
    return kind.train((one.raw for one in records(asked)), **asked["tokenizer_options"])


_KEPT: dict[str, Any] = {}


def _start(folder: str, paths: list[str]) -> None:
    _KEPT["folder"] = Path(folder)
    _KEPT["windows"] = [windows(path) for path in paths]


def windows(path: str) -> list[Window]:
    """The lines of a file, some at a time."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [Window(tuple(lines[at : at + LINES_A_WINDOW])) for at in range(0, len(lines), LINES_A_WINDOW)]


def _encode(share: tuple[int, int]) -> int:
    """Encode the windows of one process with a new tokenizer from its file, without a cache."""
    number, processes = share
    kind = plugins.tokenizer_class("templates.v1")
    made = kind.load(_KEPT["folder"])
    lines = 0
    for held in _KEPT["windows"]:
        own = held[number::processes]
        for at in range(0, len(own), BATCH // 8):
            lines += sum(len(one) - 2 for one in made.encode_batch(own[at : at + BATCH // 8]))
    return lines


def log_lines(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure raw log lines with headers to template ids.

    The lines are in memory. The templates are learnt before.
    """
    paths, folder, processes = asked["files"], asked["folder"], asked["processes"]
    kind = plugins.tokenizer_class("templates.v1")
    held = [one for path in paths for one in windows(path)]
    start = time.perf_counter()
    kind.train(held).save(Path(folder))
    training = time.perf_counter() - start
    found = {"lines": 0}
    _start(folder, paths)
    if processes == 1:

        def alone() -> None:
            found["lines"] = _encode((0, 1))

        spent = fastest(alone)
    else:
        with multiprocessing.get_context("fork").Pool(processes) as pool:

            def together() -> None:
                shares = [(number, processes) for number in range(processes)]
                found["lines"] = sum(pool.map(_encode, shares, chunksize=1))

            spent = fastest(together)
            del spent["cpu_seconds"]  # that of the process that waits
    size = sum(Path(path).stat().st_size for path in paths)
    return {**spent, **found, "mib": size / 2**20, "training_seconds": training}


def to_ids(asked: dict[str, Any]) -> dict[str, Any]:
    """A file read and tokenized, as preparing data does; the tokenizer is learnt before."""
    made = trained_on_stream(asked)
    found = {"lines": 0}

    def work() -> None:
        stream, lines = records(asked), 0
        while batch := [record.raw for record in islice(stream, BATCH)]:
            lines += sum(len(one) - 2 for one in made.encode_batch(batch))
        found["lines"] = lines

    return {**fastest(work), **found, "mib": asked["bytes"] / 2**20}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    kinds = (reader, peer, tokenizer, memory, log_lines, to_ids)
    chosen = next(kind for kind in kinds if kind.__name__ == arguments["kind"])
    print(json.dumps(chosen(arguments)))
