"""Run git on a work tree, so that the repository cannot make git run other programs.

The configuration of a repository can name programs: clean filters, file-system monitors, text converters and
hooks. Another program can be the transport that fetches missing objects. Therefore git gets a temporary git
directory. In it, HEAD and the index are copies, and references and objects belong to the repository.
Its configuration has only the settings below, none of which names a program or a file.

If an attribute requests a filter, this filter does not exist there, and the file is compared without it.
*Trade-off: everything that a filter changes in a file (git-lfs, a cleaner of notebooks) appears as a change.*
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
_LONGEST_NAME = 1 << 16  # maximum bytes that are read from a file with one path

_SETTINGS = re.compile(
    r"core\.(?:autocrlf|eol|filemode|symlinks|ignorecase|precomposeunicode|trustctime|checkstat"
    r"|bigfilethreshold|sparsecheckout|sparsecheckoutcone|repositoryformatversion)"
    r"|extensions\.(?:objectformat|refstorage)"
    r"|branch\..+\.(?:remote|merge)|remote\..+\.fetch",  # needed for @{upstream}
    re.DOTALL,
)
# Files of a git directory that are copied or linked. `_OF_TREE` are those that each linked work tree has.
# Copies keep their times, because git compares the time of the index with the times of the files.
_COPIED = ("packed-refs", "shallow", "info/attributes", "info/exclude", "info/grafts")
_COPIED_OF_TREE = ("*HEAD", "index", "sharedindex.*", "info/sparse-checkout", "logs/HEAD")
_LINKED = ("refs/*", "logs/refs", "reftable")
_LINKED_OF_TREE = ("refs/bisect", "refs/worktree", "refs/rewritten")
_QUOTES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
# Submodules are left out, because git would run inside them with their configuration.
_DIFF = word_list(
    """--no-color --no-ext-diff --no-textconv --relative --find-renames --unified=0 --src-prefix=a/
    --dst-prefix=b/ --diff-filter=AMDR --ignore-submodules=all"""
)


class WorkTree:
    """A git work tree or a folder in one, for use in a `with` statement.

    Nothing is written to the work tree, no program that its files name is run, and nothing is fetched.

    Args:
        folder: the folder. All file names are relative to it.

    Raises:
        UsageError: the folder is not in a git work tree, or git is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).resolve()
        location = _find(self._folder)
        if location is None:
            raise UsageError(f"{folder} is not a git work tree: give a work tree, or a unified diff")
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
        """The hash of the commit for a branch, a tag or an expression such as "HEAD~3".

        Raises:
            UsageError: there is no such commit.
        """
        arguments = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        try:
            return self._git("rev-parse", *arguments).decode("ascii").strip()
        except (DataError, ValueError):  # an argument with a NUL raises a ValueError
            raise UsageError(
                f"the git work tree {self._folder} has no revision {revision!r}: see git log --oneline"
            ) from None

    def patch(self, commit: str) -> bytes:
        """The unified diff, without context lines, from a commit to the files of the work tree.

        Raises:
            DataError: git fails, for example because objects are missing.
        """
        return self._git("diff", *_DIFF, commit, "--", ".")

    def tracked_files(self) -> list[PurePath]:
        """The distinct files in the index.

        Raises:
            DataError: git fails.
        """
        return self._list_files("--cached")

    def untracked_files(self) -> list[PurePath]:
        """The files that are not in the index, without hidden files and files that the repository ignores.

        Raises:
            DataError: git fails.
        """
        names = self._list_files("--others", "--exclude-standard")
        return [name for name in names if not any(part.startswith(".") for part in name.parts)]

    def _list_files(self, *filters: str) -> list[PurePath]:
        """The distinct paths in the folder that `git ls-files` lists with the given options."""
        names = self._git("ls-files", "-z", *filters).split(b"\0")
        return [PurePath(os.fsdecode(name)) for name in dict.fromkeys(names) if name]

    def _copy(self) -> None:
        """Fill the temporary git directory."""
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
        """The allowed settings in the format of git, first of the user and then of the repository."""
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
                break  # git reads `config.worktree` only if this setting is true
        for entry in settings.split(b"\0"):
            name, equals, value = os.fsdecode(entry).partition("\n")
            if _SETTINGS.fullmatch(name):
                section, _, key = name.rpartition(".")
                head, dot, sub = section.partition(".")
                yield f"[{head}{' ' + _quote(sub) if dot else ''}]\n\t{key} = "
                yield f"{_quote(value if equals else 'true')}\n"

    def _git(self, *arguments: str, in_tree: bool = True) -> bytes:
        """Run git with the temporary git directory, and without the GIT_ variables of the environment.

        Args:
            arguments: the arguments of git.
            in_tree: whether git runs in the folder, with only the configuration of this class. Otherwise, git
                only reads a configuration.

        Returns:
            The standard output of git.

        Raises:
            UsageError: git cannot be run.
            DataError: git fails.
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
                f"git could not be run in {self._folder}: {error}; install git, or give a unified diff"
            ) from None
        if process.returncode:
            message = process.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
            raise DataError(
                f"git {arguments[0]} failed: {''.join(c if c.isprintable() else '?' for c in message)[:300]}",
                source=str(self._folder),
                remedy="run git fsck, or give a unified diff; seqmlm does not fetch missing objects",
            )
        return process.stdout


def file_in_folder(root: Path, name: str | PurePath) -> Path | None:
    """The path of a file in a folder, or None unless it is a regular file in the folder and not a link.

    Names from a repository or a patch can be absolute, have "..", or lead out of the folder through a link.
    The result for these names is None.
    """
    top = root.resolve()
    path = top / name
    try:
        is_direct = path.resolve(strict=True) == path and not PurePath(name).is_absolute()
    except (OSError, ValueError, RuntimeError):
        return None
    return root / name if is_direct and path.is_file() else None


def _program() -> str:
    """The absolute path of git. Relative folders in PATH are ignored, because "." would be the work tree."""
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]
    return shutil.which("git", path=os.pathsep.join(places)) or "git"


def _find(folder: Path) -> tuple[Path, Path] | None:
    """The top folder of the work tree that contains a folder, and its git directory; None if there is none.

    A git directory has the name ".git", or its path is in a file ".git". A folder that looks like a bare
    repository is not used.
    """
    for top in (folder, *folder.parents):
        inside = top / ".git"
        if inside.is_file():
            inside = top / _line(inside).removeprefix("gitdir:").strip()
        if (inside / "HEAD").is_file() and (_common(inside) / "objects").is_dir():
            return top, inside
    return None


def _common(git_folder: Path) -> Path:
    """The git directory that all linked work trees share, which is the directory of the main work tree."""
    pointer = git_folder / "commondir"
    return git_folder / _line(pointer) if pointer.is_file() else git_folder


def _line(path: Path) -> str:
    """The path in a small file of git, without white space around it."""
    with path.open("rb") as file:
        return os.fsdecode(file.read(_LONGEST_NAME).replace(b"\0", b"")).strip()


def _copy_file(path: Path, to: Path) -> bool:
    """Copy a regular file with its time, and return whether it exists. Reading a FIFO would never end."""
    if not path.is_file():
        return False
    shutil.copy2(path, to)
    return True


def _quote(text: str) -> str:
    """The text in quotes for a git configuration. Other control characters are kept, because git has no
    escapes for them."""
    return f'"{text.translate(_QUOTES)}"'
