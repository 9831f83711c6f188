"""Measure the speed of reading and tokenizing files, and whether memory stays constant as files grow.

For every domain there is a row for each reader on real files. Files are unpacked first, so that unpacking is
not measured. If Biopython reads the format too, its speed is measured as well. Other rows measure the
tokenizers on the records, and the peak memory for an input and for the same input many times over. The last
rows measure raw log lines to template ids, on one process and on two. A row is skipped with a note if its
domain, format, tokenizer or files are missing.

    python benchmarks/ingest.py --data ../shared/data           # about 10 minutes
    python benchmarks/ingest.py --data ../shared/data --quick   # about 3: less input, memory 20-fold
    python benchmarks/ingest.py --data ../shared/data --only logs

Results are kept for each row under --out. An interrupted benchmark continues at the point of interruption.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from diabetes130 import OPTIONS

from seqmlm import plugins

ROWS = Path(__file__).with_name("ingest_rows.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
GOALS = {"protein fasta": ("MiB/s", 100.0), "dna fasta": ("MiB/s", 100.0)}
LINE_GOALS = {
    "HDFS file to ids": 150_000,
    "HDFS lines, 2 processes": 150_000,
    "six systems, 2 processes": 60_000,
}
FLAT_MIB = 64.0  # growth of peak memory that still counts as flat
MIX = ("BGL", "Linux", "OpenSSH", "OpenStack", "Spark", "Zookeeper")


@dataclass(frozen=True)
class Source:
    """Real files of one format.

    Args:
        domain: the name of a domain.
        format: one of its formats; the row is skipped if the domain does not have it.
        files: files below the data folder, or one file that is made.
        options: options of the reader.
        tokenizers: tokenizers to measure on these records, with their options.
        memory: whether this source, repeated, is the memory test of the domain.
        vary: changes the bytes of a repetition by its number, for example other days and ids.
        folder: the format is a whole folder.
        peer: a format of Bio.SeqIO to compare with.
    """

    domain: str
    format: str
    files: Callable[[Path], list[Path]]
    options: dict[str, Any] = field(default_factory=dict)
    tokenizers: tuple[str, ...] = ()
    memory: bool = False
    vary: Callable[[bytes, int], bytes] = lambda piece, number: piece
    folder: bool = False
    peer: str = ""

    @property
    def name(self) -> str:
        return f"{self.domain} {self.format}"


def below(folder: str, pattern: str) -> Callable[[Path], list[Path]]:
    """Files of a folder of the data."""
    return lambda data: sorted((data / folder).glob(pattern))


def library(data: Path) -> list[Path]:
    """The standard library's own folder."""
    return sorted(Path(os.__file__).parent.glob("*.py"))


def later(piece: bytes, number: int) -> bytes:
    """HDFS lines of another day, about other blocks."""
    day = (date(2008, 11, 9) + timedelta(days=number)).strftime("%y%m%d")
    other = piece.replace(b"blk_-", b"blk_").replace(b"blk_", b"blk_%d" % (number + 1))
    return other.replace(b"\n081109 ", b"\n%s " % day.encode()).replace(b"081109 ", day.encode() + b" ", 1)


SOURCES = (
    Source(
        "protein", "fasta", below("protein/pretrain", "*.faa.gz"), {},
        ("residue.v1",), memory=True, peer="fasta",
    ),
    Source(
        "text", "txt", below("text/books", "*.txt.gz"), {},
        ("bpe.v1", "wordpiece.v1", "unigram.v1"), memory=True,
    ),
    Source("text", "conllu", below("text/ud_en_ewt", "*.conllu.gz")),
    Source("text", "tsv", below("text/sst2", "train.tsv.gz"), {"column": "sentence"}),
    Source(
        "dna", "fasta", below("dna/genomes", "*.f*a.gz"), {},
        ("base.v1", "kmer_block.v1", "dna_bpe.v1"), memory=True, peer="fasta",
    ),
    Source("dna", "fastq", below("made", "*.fastq"), peer="fastq"),
    Source("dna", "genbank", below("made", "*.gbk"), peer="genbank"),
    Source("dna", "embl", below("made", "*.embl")),
    Source("code", "source", library, {}, ("code.v1",), memory=True),
    Source("ehr", "wide", below("ehr/diabetes130", "*.csv.gz"), OPTIONS, ("events.v1",), memory=True),
    Source("ehr", "synthea", below("ehr/synthea_small_full", "*.csv.gz"), folder=True),
    Source("ehr", "mimic3", below("ehr/mimic3_demo", "*.csv.gz"), folder=True),
    Source("logs", "auto", below("logs/loghub_2k", "*_2k.log.gz"), {}, ("templates.v1", "log_words.v1")),
    Source(
        "logs", "hdfs", below("logs/made", "HDFS.log"), {"session_gap": "1h"},
        ("templates.v1",), memory=True, vary=later,
    ),
    Source("logs", "sessions", below("logs/hdfs_deeplog", "*.txt.gz"), {}, ("templates.v1",)),
)  # fmt: skip


class Bench:
    """Run rows, each in its own process, and keep their results.

    Args:
        data: folder of the real data sets.
        out: cached rows and unpacked files.
        quick: use less data.
    """

    def __init__(self, data: Path, out: Path, quick: bool) -> None:
        self.data, self.out, self.quick = data, out, quick
        self.times = 20 if quick else 100
        self.notes: list[str] = []

    def files(self, source: Source) -> list[Path]:
        """The source's files, unpacked."""
        folder = self.out / "data" / source.name.replace(" ", "-")
        if source.domain == "dna":
            made_flat(self.data, self.out / "data")
        if source.domain == "logs":
            made_logs(self.data, self.out / "data")
        found = source.files(self.data) or source.files(self.out / "data")
        return [unpacked(path, folder) for path in found]

    def run(self, name: str, **arguments: Any) -> dict[str, Any]:
        """One measurement; cached."""
        kept = self.out / f"{name.replace(' ', '-').replace(',', '')}{'-quick' if self.quick else ''}.json"
        if not kept.exists():
            print(f"{name} ...", file=sys.stderr)
            done = subprocess.run(
                [sys.executable, str(ROWS), json.dumps(arguments)],
                env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                last = done.stderr.strip().splitlines()[-1:] or ["no message"]
                self.notes.append(f"{name}: failed: {last[0]}")
                return {}
            if json.loads(done.stdout.splitlines()[-1]).get("records") == 0:
                self.notes.append(f"{name}: no records came of its files")
                return {}
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(done.stdout.splitlines()[-1] + "\n")
        return {"name": name, **json.loads(kept.read_text())}

    def missing(self, source: Source) -> str | None:
        """Why a source cannot be measured here."""
        if source.domain not in plugins.names("domains"):
            return f"{source.name}: there is no domain {source.domain} yet"
        if source.format not in plugins.domain(source.domain).formats:
            return f"{source.name}: the domain has no format {source.format}"
        return None if self.files(source) else f"{source.name}: no files below {self.data}"

    def asked(self, source: Source, files: list[Path]) -> dict[str, Any]:
        size = sum(path.stat().st_size for path in files)
        paths = [files[0].parent] if source.folder else files
        return {
            "domain": source.domain,
            "format": source.format,
            "options": source.options,
            "files": [str(path) for path in paths],
            "bytes": size,
        }


def unpacked(path: Path, folder: Path) -> Path:
    """A file without its gzip."""
    if path.suffix != ".gz":
        return path
    target = folder / path.stem
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        with gzip.open(path) as packed, part.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        part.rename(target)
    return target


def made_flat(data: Path, out: Path) -> None:
    """The genome of E. coli with its genes in GenBank and EMBL, as reads in FASTQ."""
    from Bio import SeqIO
    from Bio.SeqFeature import SeqFeature, SimpleLocation

    folder, stem = out / "made", data / "dna/genomes/ecoli_k12_GCF_000005845.2"
    if (folder / "reads.fastq").exists() or not Path(f"{stem}.fna.gz").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(f"{stem}.fna.gz", "rt") as file:
        genome = next(SeqIO.parse(file, "fasta"))
    genome.annotations["molecule_type"] = "DNA"
    with gzip.open(f"{stem}.gff.gz", "rt") as file:
        rows = [line.split("\t") for line in file if "\tgene\t" in line]
    for row in rows:
        place = SimpleLocation(int(row[3]) - 1, int(row[4]), 1 if row[6] == "+" else -1)
        genome.features.append(SeqFeature(place, type="gene", qualifiers={"note": row[8].strip()}))
    for format, ending in (("genbank", "gbk"), ("embl", "embl")):
        SeqIO.write(genome, folder / f"genome.{ending}", format)
    letters = str(genome.seq)
    with (folder / "reads.fastq").open("w") as file:
        for at in range(0, len(letters) - 150, 50):
            file.write(f"@read{at}\n{letters[at : at + 150]}\n+\n{'I' * 150}\n")


def made_logs(data: Path, out: Path) -> None:
    """Two files of raw lines: HDFS as its nodes wrote it, and six other systems in turn."""
    folder, events = out / "logs/made", data / "logs/hdfs_2pct_raw/events.tsv.gz"
    if (folder / "mix.log").exists() or not events.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(events, "rt", encoding="utf-8") as file:
        next(file)
        rows = [line.rstrip("\n").split("\t") for line in file]
    lines = [f"{row[1]} {row[2]} {n % 20_000} {row[3]} {row[4]}: {row[5]}" for n, row in enumerate(rows)]
    (folder / "HDFS.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = []
    for system in MIX:
        with gzip.open(data / f"logs/loghub_2k/{system}_2k.log.gz", "rt", encoding="utf-8") as file:
            columns.append(file.read().splitlines())
    mixed = [line for turn in zip(*columns, strict=False) for line in turn]
    (folder / "mix.log").write_text("\n".join(mixed) + "\n", encoding="utf-8")


def measure(bench: Bench, source: Source) -> list[dict[str, Any]]:
    """All rows of one source."""
    reason = bench.missing(source)
    if reason is not None:
        bench.notes.append(reason)
        return []
    files = bench.files(source)
    asked = bench.asked(source, files)
    rows = [bench.run(f"{source.name}", kind="reader", **asked)]
    if source.peer:
        rows.append(bench.run(f"{source.name} by Biopython", kind="peer", **asked, peer=source.peer))
    for name in source.tokenizers:
        if name not in plugins.names("tokenizers"):
            bench.notes.append(f"{source.name}: there is no tokenizer {name} yet")
            continue
        limit = (4 if bench.quick else 20) << 20
        more = {"tokenizer": name, "tokenizer_options": {}, "characters": limit}
        rows.append(bench.run(f"{source.name} {name}", kind="tokenizer", **asked, **more))
    if source.memory:
        rows += memory_rows(bench, source, files[0])
    return [row for row in rows if row]


def memory_rows(bench: Bench, source: Source, file: Path) -> list[dict[str, Any]]:
    """Peak memory for a piece of a file, and for the piece many times over."""
    name = plugins.domain(source.domain).defaults.tokenizer
    if name not in plugins.names("tokenizers"):
        return []
    rows = []
    for times in (1, bench.times):
        target = bench.out / "data" / "memory" / f"{source.domain}-{times}{file.suffix}"
        if not target.exists():
            repeat(file, target, times, source.vary)
        asked = bench.asked(source, [target])
        more = {"tokenizer": name, "tokenizer_options": {}}
        rows.append(bench.run(f"{source.name} memory x{times}", kind="memory", **asked, **more))
        if times > 1:
            target.unlink()
    return rows


def repeat(
    file: Path, target: Path, times: int, vary: Callable[[bytes, int], bytes], size: int = 1 << 20
) -> None:
    """The first whole records of a file, about `size` bytes, repeated."""
    head = file.read_bytes()
    mark = b"\n>" if file.suffix in (".faa", ".fna", ".fa", ".fasta") and b"\n>" in head[:size] else b"\n"
    first, piece = b"", head[:size]
    piece = piece[: piece.rfind(mark) + 1] or piece
    if file.suffix == ".csv":
        first, _, piece = piece.partition(b"\n")
        first += b"\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        out.write(first)
        for number in range(times):
            out.write(vary(piece, number))


def line_rows(bench: Bench) -> list[dict[str, Any]]:
    """Raw lines to template ids."""
    made_logs(bench.data, bench.out / "data")
    rows = []
    for name, file in (("HDFS lines", "HDFS.log"), ("six systems", "mix.log")):
        path = bench.out / "data/logs/made" / file
        if not path.exists():
            bench.notes.append(f"{name}: no files below {bench.data}")
            continue
        for processes in (1, 2):
            plural = "es" if processes > 1 else ""
            folder = bench.out / "data" / "templates" / f"{path.stem}-{processes}"
            asked = {"files": [str(path)], "folder": str(folder), "processes": processes}
            rows.append(bench.run(f"{name}, {processes} process{plural}", kind="log_lines", **asked))
    whole = next(source for source in SOURCES if source.name == "logs hdfs")
    if bench.missing(whole) is None:
        more = {"tokenizer": "templates.v1", "tokenizer_options": {}}
        asked = bench.asked(whole, bench.files(whole))
        rows.append(bench.run("HDFS file to ids", kind="to_ids", **asked, **more))
    return [row for row in rows if row]


def show(rows: list[dict[str, Any]], notes: list[str]) -> None:
    print(f"{'row':<34}{'records':>10}{'MiB':>8}{'s':>8}{'cpu s':>8}{'records/s':>12}{'MiB/s':>8}")
    for row in rows:
        if "seconds" not in row:
            continue
        count, goal = row.get("records", row.get("lines", 0)), ""
        own = f"{row['cpu_seconds']:.2f}" if "cpu_seconds" in row else "-"
        speed, rate = row["mib"] / row["seconds"], count / row["seconds"]
        if row["name"] in GOALS:
            goal = f"goal {GOALS[row['name']][1]:.0f} MiB/s: {verdict(speed, GOALS[row['name']][1])}"
        if row["name"] in LINE_GOALS:
            goal = f"goal {LINE_GOALS[row['name']]:,}/s: {verdict(rate, LINE_GOALS[row['name']])}"
        if row.get("training_seconds"):
            goal += f" learnt in {row['training_seconds']:.1f} s"
        print(
            f"{row['name']:<34}{count:>10,}{row['mib']:>8.1f}{row['seconds']:>8.2f}{own:>8}{rate:>12,.0f}"
            f"{speed:>8.1f}   {goal.strip()}"
        )
    by_name = {row["name"]: row for row in rows}
    for name, theirs in by_name.items():
        own = by_name.get(name.partition(" by ")[0])
        if name.endswith(" by Biopython") and own is not None:
            ratio = theirs["cpu_seconds"] / own["cpu_seconds"]
            print(f"{own['name']:<34}{ratio:.1f} times as fast as Bio.SeqIO")
    peaks = [row for row in rows if "start_mib" in row]
    for small, large in zip(peaks[::2], peaks[1::2], strict=True):
        flat = "flat" if large["peak_mib"] - small["peak_mib"] < FLAT_MIB else "GROWN"
        print(
            f"{large['name']:<34}{small['mib']:.1f} -> {large['mib']:.0f} MiB of input: peak "
            f"{small['peak_mib']:.0f} -> {large['peak_mib']:.0f} MiB ({flat})"
        )
    for note in notes:
        print(f"passed over: {note}")


def verdict(found: float, goal: float) -> str:
    return "reached" if found >= goal else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ingest"))
    parser.add_argument("--only", action="append", help="only these domains; `lines` for only the log lines")
    parser.add_argument("--quick", action="store_true", help="less input")
    options = parser.parse_args()
    bench = Bench(options.data.resolve(), options.out.resolve(), options.quick)
    rows = []
    for source in SOURCES:
        if not options.only or source.domain in options.only:
            rows += measure(bench, source)
    if not options.only or {"logs", "lines"} & set(options.only):
        rows += line_rows(bench)
    show(rows, bench.notes)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "notes": bench.notes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
