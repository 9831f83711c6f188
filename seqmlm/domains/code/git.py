"""Git, asked what a work tree contains, and never letting the repository say what is run.

A repository's own configuration names programs: clean filters, file-system monitors, text converters, hooks,
the transport that fetches what a partial clone lacks. So git gets a directory of ours, in which HEAD and the
index are copies, references and objects are the repository's, and the configuration is written here: only
the settings below are taken over, none of which names a program or a file. An attribute that asks for a
filter then asks for one that does not exist, and the file is compared as it is. *Trade-off: what a filter
changes in each file (git-lfs, a cleaner of notebooks) is seen as a change.*
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Self

from seqmlm.errors import DataError, UsageError
from seqmlm.parsing import word_list

_TIMEOUT = 300  # seconds for one command of git
_LONGEST_NAME = 1 << 16  # bytes read of a file that holds one path

_SETTINGS = re.compile(
    r"core\.(?:autocrlf|eol|filemode|symlinks|ignorecase|precomposeunicode|trustctime|checkstat"
    r"|bigfilethreshold|sparsecheckout|sparsecheckoutcone|repositoryformatversion)"
    r"|extensions\.(?:objectformat|refstorage)"
    r"|branch\..+\.(?:remote|merge)|remote\..+\.fetch",  # what @{upstream} means
    re.DOTALL,
)
# What is copied of a git directory, and what is linked; `_OF_TREE` is what each linked work tree has itself.
# With their times: git takes files changed since the index was written for changed until it has looked.
_COPIED = ("packed-refs", "shallow", "info/attributes", "info/exclude", "info/grafts")
_COPIED_OF_TREE = ("*HEAD", "index", "sharedindex.*", "info/sparse-checkout", "logs/HEAD")
_LINKED = ("refs/*", "logs/refs", "reftable")
_LINKED_OF_TREE = ("refs/bisect", "refs/worktree", "refs/rewritten")
_QUOTES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
# Submodules are left out, or git would run inside them, with their configuration.
_DIFF = word_list(
    """--no-color --no-ext-diff --no-textconv --relative --find-renames --unified=0 --src-prefix=a/
    --dst-prefix=b/ --diff-filter=AMDR --ignore-submodules=all"""
)


class WorkTree:
    """A git work tree, or a folder in one; used in a `with` statement.

    Nothing is written into it, nothing that its files name is run, and nothing is fetched.

    Args:
        folder: names are paths below it.

    Raises:
        UsageError: no git work tree, or no git.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).resolve()
        location = _find(self._folder)
        if location is None:
            raise UsageError(f"{folder} is no git work tree; give one, or a unified diff")
        self._top, self._git_folder = location
        self._common = _common(self._git_folder)
        self._git_dir = Path()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            self._git_dir = Path(stack.enter_context(TemporaryDirectory(prefix="seqmlm-git-")))
            self._copy()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def commit(self, revision: str) -> str:
        """The name of the commit that a branch, a tag or an expression like "HEAD~3" means.

        Raises:
            UsageError: there is none.
        """
        arguments = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        try:
            return self._git("rev-parse", *arguments).decode("ascii").strip()
        except (DataError, ValueError):  # a revision may hold what no argument can: a NUL
            raise UsageError(
                f"the git work tree {self._folder} has no revision {revision!r}; see git log --oneline"
            ) from None

    def patch(self, commit: str) -> bytes:
        """The unified diff, without context, from a commit to the files of the work tree.

        Raises:
            DataError: git fails, as where objects are missing.
        """
        return self._git("diff", *_DIFF, commit, "--", ".")

    def tracked_files(self) -> list[PurePath]:
        """The files that the index names, each once.

        Raises:
            DataError: git fails.
        """
        return self._list_files("--cached")

    def untracked_files(self) -> list[PurePath]:
        """The files that the index does not name, without hidden ones and those that the repository ignores.

        Raises:
            DataError: git fails.
        """
        names = self._list_files("--others", "--exclude-standard")
        return [name for name in names if not any(part.startswith(".") for part in name.parts)]

    def _list_files(self, *filters: str) -> list[PurePath]:
        """Paths below the folder that `git ls-files` lists under some options, each once."""
        names = self._git("ls-files", "-z", *filters).split(b"\0")
        return [PurePath(os.fsdecode(name)) for name in dict.fromkeys(names) if name]

    def _copy(self) -> None:
        """Make our git directory."""
        for name in ("refs", "info", "logs"):
            (self._git_dir / name).mkdir()
        (self._git_dir / "HEAD").write_text("ref: refs/heads/none\n")
        for folder, copied, linked in (
            (self._common, _COPIED, _LINKED),
            (self._git_folder, _COPIED_OF_TREE, _LINKED_OF_TREE),
        ):
            for path in (path for name in copied for path in folder.glob(name)):
                _copy_file(path, self._git_dir / path.relative_to(folder))
            for path in (path for name in linked for path in folder.glob(name)):
                link = self._git_dir / path.relative_to(folder)
                if not link.is_symlink():
                    link.symlink_to(path)
        (self._git_dir / "config").write_text("".join(self._settings()), errors="surrogateescape")

    def _settings(self) -> Iterator[str]:
        """The settings that are kept, as a file of git's has them: the user's, then the repository's."""
        list_all = ("config", "--null", "--list")
        settings = self._git(*list_all, "--includes", in_tree=False)
        worktree_option = ("--type=bool", "--default=false", "--get", "extensions.worktreeConfig")
        for path in (self._common / "config", self._git_folder / "config.worktree"):
            copy = self._git_dir / f"their-{path.name}"
            if not _copy_file(path, copy):
                break
            from_file = ("--no-includes", f"--file={copy}")
            settings += self._git(*list_all, *from_file, in_tree=False)
            if self._git("config", *from_file, *worktree_option, in_tree=False).strip() != b"true":
                break  # git reads the file of the work tree only where this says so
        for entry in settings.split(b"\0"):
            name, equals, value = os.fsdecode(entry).partition("\n")
            if _SETTINGS.fullmatch(name):
                section, _, key = name.rpartition(".")
                head, dot, sub = section.partition(".")
                yield f"[{head}{' ' + _quote(sub) if dot else ''}]\n\t{key} = "
                yield f"{_quote(value if equals else 'true')}\n"

    def _git(self, *arguments: str, in_tree: bool = True) -> bytes:
        """Run git with our directory and none of the environment's GIT_ variables.

        Args:
            arguments: of git.
            in_tree: whether it runs in the folder, by our configuration alone; else it reads a configuration.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {
            "GIT_DIR": str(self._git_dir),
            "GIT_OBJECT_DIRECTORY": str(self._common / "objects"),
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_TERMINAL_PROMPT": "0",
        }
        if in_tree:
            environment |= {
                "GIT_WORK_TREE": str(self._top),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
            }
        command = [_program(), "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments]
        try:
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=_TIMEOUT,
                env=environment,
                cwd=self._folder if in_tree else self._git_dir,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(
                f"git could not be run in {self._folder}: {error}; install it, or give a unified diff"
            ) from None
        if process.returncode:
            message = process.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
            raise DataError(
                f"git {arguments[0]} failed: {''.join(c if c.isprintable() else '?' for c in message)[:300]}",
                source=str(self._folder),
                remedy="what is missing is not fetched; run git fsck, or give a unified diff",
            )
        return process.stdout


def file_in_folder(root: Path, name: str | PurePath) -> Path | None:
    """The file of that name below a folder, None unless it is a regular one that no link leads to.

    A name that a repository or a patch gives may be absolute, go up (".."), or pass through a link out of the
    folder; none of those is a file of the folder.
    """
    top = root.resolve()
    path = top / name
    try:
        is_direct = path.resolve(strict=True) == path and not PurePath(name).is_absolute()
    except (OSError, ValueError, RuntimeError):
        return None
    return root / name if is_direct and path.is_file() else None


def _program() -> str:
    """Git by its absolute path: "." in PATH would mean the folder that is asked about."""
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]
    return shutil.which("git", path=os.pathsep.join(places)) or "git"


def _find(folder: Path) -> tuple[Path, Path] | None:
    """The top of the work tree that a folder is in, and its git directory; None where there is none.

    A git directory is only ever called ".git" or named by a file ".git": a folder that looks like a bare
    repository is none.
    """
    for top in (folder, *folder.parents):
        inside = top / ".git"
        if inside.is_file():
            inside = top / _line(inside).removeprefix("gitdir:").strip()
        if (inside / "HEAD").is_file() and (_common(inside) / "objects").is_dir():
            return top, inside
    return None


def _common(git_folder: Path) -> Path:
    """The git directory that linked work trees share; for the main one its own."""
    pointer = git_folder / "commondir"
    return git_folder / _line(pointer) if pointer.is_file() else git_folder


def _line(path: Path) -> str:
    """The path that a small file of git's holds, without white space around it."""
    with path.open("rb") as file:
        return os.fsdecode(file.read(_LONGEST_NAME).replace(b"\0", b"")).strip()


def _copy_file(path: Path, to: Path) -> bool:
    """Copy a regular file with its time, and say whether there was one (a FIFO would wait for ever)."""
    if not path.is_file():
        return False
    shutil.copy2(path, to)
    return True


def _quote(text: str) -> str:
    """Text in quotes for a git configuration; other controls stay, for git knows no more escapes."""
    return f'"{text.translate(_QUOTES)}"'
