"""Read the source files of a folder, such as a git work tree. Each file is read once, and has its package."""

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
from seqmlm.domains.code.git import WorkTree, file_in_folder
from seqmlm.domains.code.lexers.source import LANGUAGES, language_of
from seqmlm.domains.code.source import LARGEST, Unparsed, is_vendored, keep_hint, packages, read_source
from seqmlm.domains.samples import TRUTH
from seqmlm.errors import DataError, UsageError, nearest
from seqmlm.parsing import Share

NOTEBOOK = (".ipynb",)
JSON = (".jsonl", ".ndjson", ".json")
LIKENESS = 0.85


def worktree_files(
    path: Path, *, languages: str | None = None, tracked: bool = True, vendored: bool = False, **_: object
) -> list[Path]:
    """The files that `read_worktree` opens with these options."""
    chosen = _chosen_languages(languages)
    all_names = _files(path, tracked)[0]
    names = [name for name in all_names if _is_source(name, chosen) and (vendored or not is_vendored(name))]
    paths = (file_in_folder(path, name) for name in names or all_names)
    return [file for file in paths if file is not None]


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
    """Read the source files and notebooks in a folder and its subfolders, in the order of their names.

    The id of a record is the path of the file relative to the folder. In a git work tree, the tracked files
    are read. If git is not installed or tracks no file in the folder, all files that are not hidden are read.
    If the folder has no source file, JSON files with code are read.

    Args:
        path: the folder.
        problems: receives files that cannot be decoded. It counts skipped files by reason: vendored,
            generated, minified, empty, binary and very large files, links, and near duplicates.
        languages: the languages to read, separated by commas ("python,go"). None reads all known languages.
        tracked: whether to read only tracked files. False also reads untracked and ignored files.
        generated: keep generated and minified files.
        vendored: keep files in `site-packages`, `node_modules`, `vendor` and similar folders.
        near_duplicates: similarity in (0, 1] from which a file is a copy of an earlier file and is skipped. 0
            keeps all files, which is the default in scoring.
        unparsed, max_bytes: as in `read_source`.

    Raises:
        UsageError: the path is not a folder, or a language is unknown.
        DataError: the folder has no file with code.
    """
    root = Path(path)
    if not root.is_dir():
        raise UsageError(f"{path} is not a folder: give the folder of the work tree, or omit the format")
    chosen = _chosen_languages(languages)
    all_names, not_tracked = _files(root, tracked, problems)
    names = [name for name in all_names if _is_source(name, chosen)]
    untracked = [
        name for name in not_tracked if _is_source(name, chosen) and (vendored or not is_vendored(name))
    ]
    note = "a file that git does not track, skipped (--option tracked=false reads it)"
    problems.note(note, Things(len(untracked)), source=next((str(root / name) for name in untracked), None))
    if not vendored:
        own_names = [name for name in names if not is_vendored(name)]
        example = next((str(root / name) for name in names if is_vendored(name)), None)
        note = f"a vendored file, skipped{keep_hint('vendored')}"
        problems.note(note, Things(len(names) - len(own_names)), source=example)
        names = own_names
    if not names:
        yield from _json(root, all_names, problems, near_duplicates)
        return
    near_copies = NearDuplicates(near_duplicates) if near_duplicates else None
    for name, package in zip(names, packages(names), strict=True):
        file = file_in_folder(root, name)
        if file is None:
            problems.note("a symbolic link, skipped", Things(1))
            continue
        if stem_suffix(str(name)) in NOTEBOOK:
            records = read_notebook(file, problems)
        else:
            records = read_source(file, problems, generated=generated, unparsed=unparsed, max_bytes=max_bytes)
        for record in records:
            if near_copies is not None and near_copies.is_repeat(record.raw):
                problems.note("a near duplicate, skipped")
                continue
            yield replace(record, id=name.as_posix(), document=package)


def _json(
    root: Path, all_names: Sequence[PurePath], problems: Problems, near_duplicates: Share
) -> Iterator[Record]:
    """The records of the JSON files in a folder without source files.

    Raises:
        DataError: the folder has no JSON file either.
    """
    json_names = [name for name in all_names if stem_suffix(str(name)) in JSON and name.name != TRUTH]
    names = [name for name in json_names if file_in_folder(root, name) is not None]
    problems.note("a symbolic link, skipped", Things(len(json_names) - len(names)))
    if not names:
        remedy = f"seqmlm reads notebooks, JSON lines, and files in {', '.join(LANGUAGES)}"
        raise DataError("no source file in this folder", source=str(root), remedy=remedy)
    for name in names:
        yield from read_code_json(root / name, problems, near_duplicates=near_duplicates)


def _chosen_languages(languages: str | None) -> frozenset[str] | None:
    """The languages in an option, separated by commas; None for all languages."""
    if languages is None:
        return None
    chosen = frozenset(language.strip().lower() for language in languages.split(","))
    for language in sorted(chosen - set(LANGUAGES)):
        raise UsageError(f"option languages: no language {language!r}{nearest(language, LANGUAGES)}")
    return chosen


def _is_source(name: PurePath, chosen: frozenset[str] | None) -> bool:
    """Whether a file is source code or a notebook in a chosen language, from its name."""
    suffix = stem_suffix(str(name))
    file_language = "python" if suffix in NOTEBOOK else language_of("x" + suffix)
    return bool(file_language) and (chosen is None or file_language in chosen)


def _files(
    root: Path, tracked: bool, problems: Problems | None = None
) -> tuple[list[PurePath], list[PurePath]]:
    """The sorted files below `root` that git tracks, and the untracked files.

    If git tracks no file, the first list has all files that are not hidden. Paths are relative to `root`.
    `problems` counts links and other files that cannot be read.
    """
    tracked_names: list[PurePath] = []
    untracked_names: list[PurePath] = []
    if tracked:
        with suppress(DataError, UsageError), WorkTree(root) as tree:  # git or the work tree can be missing
            tracked_names = tree.tracked_files()
            untracked_names = tree.untracked_files() if tracked_names else []
    # A submodule is a folder, and a tracked file can be deleted in the work tree.
    tracked_names = [name for name in tracked_names if (root / name).is_file()]
    if not tracked_names:
        tracked_names = [Path(name).relative_to(root) for name in expand([root], problems)]
    return sorted(tracked_names), untracked_names
