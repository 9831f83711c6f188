"""A folder of source code, above all a git work tree: its own files, each once, each with its package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath

from seqmlm.data.counts import Things
from seqmlm.data.duplicates import NearDuplicates
from seqmlm.data.files import expand, stem_suffix
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.code.collections import read_code_json, read_notebook
from seqmlm.domains.code.git import WorkTree, own_file
from seqmlm.domains.code.lexers.source import LANGUAGES, language_of
from seqmlm.domains.code.source import LARGEST, Unparsed, is_vendored, kept_by, packages, read_source
from seqmlm.domains.samples import TRUTH
from seqmlm.errors import DataError, UsageError, nearest
from seqmlm.parsing import Share

NOTEBOOK = (".ipynb",)
JSON = (".jsonl", ".ndjson", ".json")
LIKENESS = 0.85


def worktree_files(
    path: Path, *, languages: str | None = None, tracked: bool = True, vendored: bool = False, **_: object
) -> list[Path]:
    """The files that `read_worktree` would open with these options."""
    wanted = _wanted(languages)
    every = _files(path, tracked)[0]
    names = [name for name in every if _is_wanted(name, wanted) and (vendored or not is_vendored(name))]
    found = (own_file(path, name) for name in names or every)
    return [file for file in found if file is not None]


def read_worktree(
    path: str | Path,
    problems: Problems,
    *,
    languages: str | None = None,
    tracked: bool = True,
    generated: bool = False,
    vendored: bool = False,
    near_duplicates: Share = LIKENESS,
    unparsed: Unparsed = "keep",
    max_bytes: int = LARGEST,
) -> Iterator[Record]:
    """Read the source files and notebooks below a folder, in the order of their names; ids are paths below
    it.

    In a git work tree these are the tracked files; elsewhere, and where git is not there or tracks nothing
    below the folder, every file that is not hidden. A folder without any is searched for JSON with code.

    Args:
        path: the folder.
        problems: receives files that cannot be decoded; counts what is skipped, by reason: vendored,
            generated, minified, empty, binary and very large files, links, near duplicates.
        languages: comma-separated languages to read ("python,go"); None reads all that are known.
        tracked: False reads untracked and ignored files too.
        generated: keep generated and minified files.
        vendored: keep files below `site-packages`, `node_modules`, `vendor` and the like.
        near_duplicates: likeness from which a file counts as a copy of an earlier one, in (0, 1]; 0 keeps
            all, as scoring does where nothing else is asked for.
        unparsed, max_bytes: as in `read_source`.
    """
    root = Path(path)
    if not root.is_dir():
        raise UsageError(f"{path} is no folder, and a work tree is one: name it, or leave the format out")
    wanted = _wanted(languages)
    every, others = _files(root, tracked, problems)
    names = [name for name in every if _is_wanted(name, wanted)]
    left = [name for name in others if _is_wanted(name, wanted) and (vendored or not is_vendored(name))]
    note = "a file that git does not track, skipped (--option tracked=false reads it)"
    problems.note(note, Things(len(left)), source=next((str(root / name) for name in left), None))
    if not vendored:
        kept = [name for name in names if not is_vendored(name)]
        first = next((str(root / name) for name in names if is_vendored(name)), None)
        note = f"a vendored file, skipped{kept_by('vendored')}"
        problems.note(note, Things(len(names) - len(kept)), source=first)
        names = kept
    if not names:
        yield from _json(root, every, problems, near_duplicates)
        return
    known = NearDuplicates(near_duplicates) if near_duplicates else None
    for name, package in zip(names, packages(names), strict=True):
        file = own_file(root, name)
        if file is None:
            problems.note("a symbolic link, skipped", Things(1))
            continue
        if stem_suffix(str(name)) in NOTEBOOK:
            found = read_notebook(file, problems)
        else:
            found = read_source(file, problems, generated=generated, unparsed=unparsed, max_bytes=max_bytes)
        for record in found:
            if known is not None and known.seen(record.raw):
                problems.note("a near duplicate, skipped")
                continue
            yield replace(record, id=name.as_posix(), document=package)


def _json(
    root: Path, every: Sequence[PurePath], problems: Problems, near_duplicates: Share
) -> Iterator[Record]:
    found = [name for name in every if stem_suffix(str(name)) in JSON and name.name != TRUTH]
    names = [name for name in found if own_file(root, name) is not None]
    problems.note("a symbolic link, skipped", Things(len(found) - len(names)))
    if not names:
        remedy = f"known languages are {', '.join(LANGUAGES)}; also notebooks and JSON lines"
        raise DataError("no source file in this folder", source=str(root), remedy=remedy)
    for name in names:
        yield from read_code_json(root / name, problems, near_duplicates=near_duplicates)


def _wanted(languages: str | None) -> frozenset[str] | None:
    if languages is None:
        return None
    wanted = frozenset(one.strip().lower() for one in languages.split(","))
    for one in sorted(wanted - set(LANGUAGES)):
        raise UsageError(f"option languages: no language {one!r}{nearest(one, LANGUAGES)}")
    return wanted


def _is_wanted(name: PurePath, wanted: frozenset[str] | None) -> bool:
    suffix = stem_suffix(str(name))
    language = "python" if suffix in NOTEBOOK else language_of("x" + suffix)
    return bool(language) and (wanted is None or language in wanted)


def _files(
    root: Path, tracked: bool, problems: Problems | None = None
) -> tuple[list[PurePath], list[PurePath]]:
    """Files below `root`, sorted, as paths from there; and those that git does not track.

    `problems` is told what else is there.
    """
    found: list[PurePath] = []
    others: list[PurePath] = []
    if tracked:
        with suppress(DataError, UsageError), WorkTree(root) as tree:  # there may be no git, or no work tree
            found = tree.tracked()
            others = tree.untracked() if found else []
    # A submodule is a folder, and a file may have been removed since it was added.
    found = [name for name in found if (root / name).is_file()]
    if not found:
        found = [Path(name).relative_to(root) for name in expand([root], problems)]
    return sorted(found), others
