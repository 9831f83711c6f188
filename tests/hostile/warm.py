"""Gives every kind of hostile input to the command line, each in a process forked from a warm parent.

    python warm.py FOLDER text-csv ...      [--kinds value:nul] [--seed 0]

A process that imports torch takes seconds to start; so one parent imports everything, computes nothing (no
thread pool may exist at a fork), and forks a child for every command. Of each input it is asked: no
traceback, no hang, an exit code that means something, memory within bounds, nothing else on the disk changed,
no control characters to the terminal; every clean record gives the very row it gives alone; what was scored
and what was left out are all records; and a message names the file, and the line where there is one.

Prints one JSON object a format: {"format", "cases", "commands", "seconds", "complaints": [...]}.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter, eq
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", COLUMNS="200", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from forked_cli import Ended, build_once, command, import_what, no_threads, start, vanishing
from hostile_formats import COUNT, Hostile, hostile_formats, place
from hostile_kinds import Case, Kind, large_kinds, together
from hostile_tables import every_kind, large_table_kinds, shared_out

if TYPE_CHECKING:
    from seqmlm.inference.model_folder import LoadedModel

SECONDS = 20
LEVELS = {"code": "file", "ehr": "patient"}  # a row a record
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
COMPARED = ("units", "pll", "score", "max", "good", "bad", "difference")
READ = (*COMPARED, "id")


def resident() -> int:
    """Bytes this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a folder: kind, mode, size, time of change."""
    found = {}
    for at, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            path = os.path.join(at, name)
            stat = os.lstat(path)
            changed = 0 if name in folders else stat.st_mtime_ns
            found[os.fsdecode(path)] = (stat.st_mode, stat.st_size if name in files else 0, changed)
    return found


def models(formats: Sequence[Hostile], root: Path) -> None:
    """An untrained model of each field, which knows the words of the clean files; run in a child."""
    from tiny_models import random_model

    from seqmlm import plugins
    from seqmlm.config import parse_options
    from seqmlm.data.problems import Problems
    from seqmlm.inference import model_folder
    from seqmlm.inference.calibrations import store_backgrounds
    from seqmlm.training.config import resolve_config
    from seqmlm.training.corpus import load_or_train

    for domain in sorted({"text", *(one.domain for one in formats)}):
        own = plugins.domain(domain)
        records = []
        for one in hostile_formats().values():
            if one.domain == domain and one.command == "score":
                path = place(one, root / "words" / one.key)
                options = parse_options([w.replace("{}", str(path.parent)) for w in one.options if "=" in w])
                named = f"{one.prefix}{path}"
                records += list(own.read([named], Problems("raise"), format=one.format, **options))
        texts = partial(map, attrgetter("raw"), records)
        tokenizer = load_or_train(resolve_config(own, {}).tokenizer, texts)
        loaded = random_model(domain, tokenizer, max_length=128, spread=4.0)
        model_folder.write(root / domain, loaded.rows, loaded.tokenizer, loaded.card)
        level = own.level(LEVELS.get(domain))
        if level.background is not None:
            encodings = tokenizer.encode_batch([record.raw for record in records])
            known = level.background.fit(encodings, tokenizer, seed=0)
            store_backgrounds(root / domain, {level.name: known})


def warm_up(one: Hostile, root: Path) -> None:
    """Inspect and score a small file in this process."""
    build_once()
    path = place(one, root / "warm")
    options = [word.replace("{}", str(root / "warm")) for word in one.options]
    score = ("score", root / one.domain, path, "--out", root / "warm.jsonl", "--json", "--mode", "exact")
    inspect = ("data", "inspect", path, "--domain", one.domain, "--json")
    for words in (score, inspect):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as told:
            try:
                command(*words, *options)()
            except SystemExit as stop:
                if stop.code:
                    raise RuntimeError(told.getvalue()) from None
    importlib.import_module("seqmlm.tasks.pairs")


def load_once(folders: Iterable[Path]) -> None:
    """Load models here, and have commands take them: what a folder may hold, other tests try."""
    from seqmlm.inference import model_folder

    load = model_folder.load
    known = {str(folder): load(folder) for folder in folders}

    def taken(reference: str | Path, **options: Any) -> LoadedModel:
        return known.get(str(reference)) or load(reference, **options)

    model_folder.load = taken


class Bench:
    """One format: its clean rows, and the cases tried on it."""

    def __init__(self, one: Hostile, root: Path, seed: int, seconds: int) -> None:
        self.seconds = seconds
        self.one, self.root, self.seed = one, root, seed
        self.model = root / one.domain
        self.complaints: list[str] = []
        self.commands = 0
        self.cases = 0
        self.resident = 0  # before the last command: this process grows, and its children begin as it is
        folder = root / "cases" / one.key / "clean"
        path = place(one, folder)
        done = import_what(command(*self._words(path, folder, Case(path=path))), folder.with_name("imports"))
        self.clean, summary = self._told(done, folder)
        if one.command == "score" and summary["items"] != COUNT:
            raise RuntimeError(f"{one.key}: {summary['items']} records of the clean file: {summary}")
        _, self.packed, _ = self._score(path, folder, Case(path=path, packed=True))

    def _options(self, folder: Path) -> list[str]:
        home = folder / "clean" if (folder / "clean").is_dir() else folder
        return [word.replace("{}", str(home)) for word in self.one.options]

    @staticmethod
    def _out(folder: Path) -> Path:
        return folder.parent / f"{folder.name}.jsonl"

    def _words(self, path: Path | str, folder: Path, case: Case, *, raises: bool = False) -> Sequence[object]:
        words: list[object] = [self.one.command, self.model, f"{self.one.prefix}{path}"]
        words += [*self._options(folder), "--out", self._out(folder)]
        words += [] if raises else ["--on-error", "skip"]
        if self.one.command != "score":
            words += ["--set", "mode=one-pass"]
            return words + ([] if case.packed else ["--set", "tokens_per_batch=1"])
        words += ["--mode", "one-pass", "--set", f"format={self.one.format}", "--json"]
        words += [] if case.packed else ["--set", "tokens_per_batch=1"]
        return words + (["--level", LEVELS[self.one.domain]] if self.one.domain in LEVELS else [])

    def _run(self, folder: Path, case: Case, *words: object) -> Ended:
        self.commands += 1
        self.resident = resident()
        streams = folder.parent / f"{folder.name}.streams"
        work = command(*words)
        if case.vanishes is None:
            return start(work, streams, seconds=self.seconds).wait()
        victim, after = case.vanishes
        content, stat = victim.read_bytes(), victim.stat()
        done = start(vanishing(work, victim, after), streams, seconds=self.seconds).wait()
        victim.write_bytes(content)
        os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return done

    def _score(
        self, path: Path | str, folder: Path, case: Case, *, raises: bool = False
    ) -> tuple[Ended, list[dict[str, Any]], dict[str, Any]]:
        self._out(folder).unlink(missing_ok=True)
        done = self._run(folder, case, *self._words(path, folder, case, raises=raises))
        return done, *self._told(done, folder)

    def _told(self, done: Ended, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The rows and the summary of a command."""
        out, rows = self._out(folder), []
        if out.exists():
            with out.open(
                encoding="utf-8"
            ) as lines:  # without the values of units, of which there may be 10^7
                rows = [{n: v for n, v in json.loads(line).items() if n in READ} for line in lines]
        summary = {}
        if done.code == 0 and self.one.command == "score":
            with contextlib.suppress(ValueError):
                summary = json.loads(done.out)
        return rows, summary

    def try_kind(self, name: str, kind: Kind) -> None:
        """Make the input, ask for it to be inspected and scored, and complain."""
        folder = self.root / "cases" / self.one.key / re.sub(r"\W", "_", name)
        folder.mkdir(parents=True)
        case = kind(self.one, folder, random.Random(crc32(name.encode()) + self.seed))
        if case is None:
            folder.rmdir()
            return
        self.cases += 1
        before = snapshot(folder), snapshot(self.root / "home"), snapshot(self.model)
        for complaint in self._complaints(folder, case):
            self.complaints.append(f"{self.one.key} {name}: {complaint}")
            print(self.complaints[-1], file=sys.stderr, flush=True)
        after = snapshot(folder), snapshot(self.root / "home"), snapshot(self.model)
        for old, new in zip(before, after, strict=True):
            changed = {at for at in old.keys() | new.keys() if old.get(at) != new.get(at)}
            for at in sorted(changed):
                if not at.endswith(".fai"):
                    self.complaints.append(f"{self.one.key} {name}: changed on disk: {at!r}")
        shutil.rmtree(folder, ignore_errors=True)

    def try_all(self, chosen: set[str], *, packed: bool) -> None:
        """Try the kinds that are chosen, each alone; before, all of the records together, where `packed`."""
        alone = every_kind(self.one) | large_kinds() | large_table_kinds()
        for refused in (False, True) if packed else ():
            if (pack := together(self.one, refused=refused)) is None:
                continue
            before = len(self.complaints)
            self.try_kind(f"{'no text' if refused else 'records'} together", pack[0])
            self.cases += len(pack[1]) - 1
            clean = len(self.complaints) == before
            for name in pack[1]:
                kind = alone.pop(name)
                if not clean:  # which of them?
                    self.try_kind(name, kind)
        for name, kind in alone.items():
            if name in chosen:
                self.try_kind(name, kind)

    def _complaints(self, folder: Path, case: Case) -> Iterator[str]:
        if self.one.command == "score":
            done = self._run(
                folder,
                case,
                *("data", "inspect", f"{self.one.prefix}{case.path}", "--domain", self.one.domain),
                *("--format", self.one.format),
                *("--json", *self._options(folder)),
            )
            yield from (f"inspect: {text}" for text in self._ending(done, case))
            if done.code == 0:
                found = json.loads(done.out)
                yield from (f"inspect: {text}" for text in self._inspected(found, case))
        if not case.scored:
            return
        done, rows, summary = self._score(case.path, folder, case)
        yield from (f"score: {text}" for text in self._ending(done, case))
        if done.code == 0:
            yield from (f"score: {text}" for text in self._rows(rows, summary, case))
        if summary.get("bad"):
            done, _, _ = self._score(case.path, folder, case, raises=True)
            yield from (f"score, raising: {text}" for text in self._raised(done, case))

    def _ending(self, done: Ended, case: Case) -> Iterator[str]:
        last = done.err.strip().splitlines()[-1:] or ["(nothing)"]
        if done.code == -signal.SIGALRM:
            yield f"still running after {self.seconds} s"
            return
        if done.code < 0:
            yield f"ended by signal {-done.code}: {last[0]!r}"
            return
        if "Traceback" in done.err or done.code in (1, 97):
            yield f"traceback, exit {done.code}: {last[0][:300]!r}"
        elif done.code not in (0, 2, 3, 4):
            yield f"exit {done.code}: {last[0]!r}"
        elif case.nothing and done.code != 3:
            yield f"nothing could be read, but exit {done.code}: {done.err[-200:]!r}"
        elif done.code and not (case.nothing or case.refusable):
            yield f"exit {done.code} though records can be read: {last[0][:300]!r}"
        if done.code and not done.err.strip():
            yield f"exit {done.code} without a word"
        if done.code and "error: " not in done.err and "Error" not in done.err:
            yield f"exit {done.code} without a sentence: {last[0][:300]!r}"
        if len(done.err) > 6000:
            yield f"{len(done.err):,} characters of message"
        if (control := _CONTROL.search(done.out + done.err)) is not None:
            around = (done.out + done.err)[max(0, control.start() - 40) : control.end() + 20]
            yield f"a control character is printed: {around!r}"
        taken = done.memory - self.resident
        if taken > case.memory:
            yield f"{taken >> 20:,} MiB of memory (at most {case.memory >> 20:,})"

    def _inspected(self, found: dict[str, Any], case: Case) -> Iterator[str]:
        records, left = found["records"], found["problems"]
        if records == 0:
            yield f"exit 0 with no record: {left}"
        counts = [records, *left.values()]
        if case.total is not None and all(isinstance(count, int) for count in counts):
            told = sum(counts)
            if told < case.total:
                yield f"{records} records and {left} of {case.total} records"
        for reason, at in found["places"].items():
            if Path(str(case.path)).name not in at and str(case.path) not in at:
                yield f"{reason!r} is placed at {at!r}"

    def _rows(self, rows: list[dict[str, Any]], summary: dict[str, Any], case: Case) -> Iterator[str]:
        wanted = [_facts(row) for row in (self.packed if case.packed else self.clean)]
        if case.untouched:
            per = len(wanted) // COUNT
            kept = [fact for n in case.untouched for fact in wanted[n * per : (n + 1) * per]]
            missing = _not_in_order(kept, [_facts(row) for row in rows], _close if case.packed else eq)
            if missing:
                yield f"{missing} of {len(kept)} untouched rows are not as they are alone; {len(rows)} rows"
        if self.one.command != "score":
            return
        if not summary:
            yield "no summary"
            return
        if case.total is not None:
            records, bad, told = summary["items"], summary["bad"], summary["notes"]
            noted = bad + sum(
                count for reason, count in told.items() if reason.endswith(("left out", "skipped"))
            )
            # Where a record has several lines, a fault may cost one of them alone.
            lines = self.one.lines and records <= case.total <= records + sum(told.values())
            if case.total not in (records + bad, records + noted) and not lines:
                yield f"{records} records and {bad} left out of {case.total}: {summary['notes']}"
        if not summary["items"]:
            yield f"exit 0 with no record: {summary['notes']}"
        if case.most is not None and summary["items"] > case.most:
            yield f"{summary['items']} records, though bytes that are no text leave at most {case.most}"
        for row in rows:
            if row.get("score") is None and (row.get("units") or 0) > 1:  # one alone may have no context
                yield f"a row without a score: {str(row)[:200]}"
                break

    def _raised(self, done: Ended, case: Case) -> Iterator[str]:
        if done.code == 0:
            yield "records are left out, but nothing is raised"
            return
        if done.code != 3 or "Traceback" in done.err:
            yield f"exit {done.code}: {done.err[-300:]!r}"
        name = Path(str(case.path)).name
        if name.isprintable() and name.isascii() and name not in done.err:
            yield f"the file is not named: {done.err[-300:]!r}"
        if case.lines and not any(f":{line}:" in done.err for line in case.lines):
            yield f"no line of {case.lines[:5]} is named: {done.err[:300]!r}"
        if (control := _CONTROL.search(done.out + done.err)) is not None:
            yield f"a control character is printed: {control[0]!r}"


def _facts(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in COMPARED)


def _close(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Equal to rounding: a product of matrices adds in an order that depends on how many rows there are, so
    the last bits of a masked copy depend on what it is packed with. With one copy a forward they do not."""
    return all(
        a == b or (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-6))
        for a, b in zip(one, other, strict=True)
    )


def _not_in_order(wanted: list[Any], found: list[Any], same: Callable[[Any, Any], bool]) -> int:
    """How many of `wanted` cannot be met in `found` in order."""
    missing = place = 0
    for one in wanted:
        at = next((n for n in range(place, len(found)) if same(one, found[n])), None)
        missing += at is None
        place = place if at is None else at + 1
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("formats", nargs="*")
    parser.add_argument(
        "--kinds", help="part of the names of those to try, each alone; large: for large ones"
    )
    parser.add_argument("--share", type=int, default=1, help="try one in so many kinds, chosen by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="patience with one command")
    arguments = parser.parse_args()
    root = arguments.folder.resolve()
    (root / "home").mkdir(parents=True)
    os.environ["SEQMLM_HOME"] = str(root / "home")
    known = hostile_formats()
    formats = [known[name] for name in arguments.formats or known]
    # Models are made in a child, because that computes; the parent does as little as imports and caches what
    # every command needs.
    made = start(lambda: models(formats, root), root / "streams").wait()
    if made.code:
        raise RuntimeError(made.err)
    load_once(root / domain for domain in sorted({"text", *(one.domain for one in formats)}))
    warm_up(known["text-txt"], root)
    no_threads()
    chosen = shared_out(arguments.share, arguments.seed)
    for one in formats:
        began = time.monotonic()
        bench = Bench(one, root, arguments.seed, arguments.seconds)
        if arguments.kinds is None:
            bench.try_all(chosen[one.key], packed=arguments.share > 1)
        else:
            every = every_kind(one) | large_kinds() | large_table_kinds()
            bench.try_all({name for name in every if arguments.kinds in name}, packed=False)
        told = {
            "format": one.key,
            "cases": bench.cases,
            "commands": bench.commands,
            "seconds": round(time.monotonic() - began, 2),
            "complaints": bench.complaints,
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
