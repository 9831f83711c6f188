"""Git with a directory of ours: it says what git says in the repository itself. What it must not run is in
tests/hostile/test_git.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PurePath

import pytest
from plain_git import git

from seqmlm.domains.code.git import _DIFF, WorkTree, file_in_folder
from seqmlm.errors import DataError, UsageError

OLD = "def f(a):\n    return a + 1\n\n\ndef g(b):\n    return b\n"
NEW = "def f(a):\n    return a - 1\n\n\ndef g(b):\n    return b\n\n\nx = 1\n"


def started(folder: Path, *options: str) -> Path:
    """A repository of two commits; the second has a file more."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main", *options)
    (folder / "pkg").mkdir()
    for name in ("a.py", "pkg/b.py", "pkg/same.py"):
        (folder / name).write_text(OLD)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "later.py").write_text("y = 2\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "second")
    return folder


def changed(folder: Path) -> Path:
    """Staged, unstaged, same-sized, renamed, new and removed."""
    (folder / "a.py").write_text(OLD.replace("+", "-"))
    git(folder, "mv", "pkg/b.py", "pkg/c d.py")
    (folder / "pkg" / "c d.py").write_text(NEW)
    (folder / "staged.py").write_text(NEW)
    git(folder, "add", "staged.py")
    (folder / "staged.py").write_text(OLD)
    (folder / "pkg" / "same.py").unlink()
    return folder


def plain(tmp: Path) -> Path:
    return changed(started(tmp / "r"))


def sub_folder(tmp: Path) -> Path:
    return plain(tmp) / "pkg"


def through_a_link(tmp: Path) -> Path:
    (tmp / "link").symlink_to(sub_folder(tmp))
    return tmp / "link"


def carriage_returns(tmp: Path) -> Path:
    folder = started(tmp / "r")
    git(folder, "config", "core.autocrlf", "true")
    for path in folder.rglob("*.py"):
        path.write_bytes(OLD.replace("\n", "\r\n").encode())
    (folder / "a.py").write_bytes(NEW.replace("\n", "\r\n").encode())
    return folder


def attributes(tmp: Path) -> Path:
    folder = started(tmp / "r")
    (folder / ".gitattributes").write_text("*.py text eol=crlf ident\nu.py working-tree-encoding=UTF-16\n")
    (folder / "u.py").write_text(OLD, encoding="utf-16")
    (folder / "a.py").write_bytes(b"# $Id$\r\n" + OLD.replace("\n", "\r\n").encode())
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "third")
    (folder / "u.py").write_text(NEW, encoding="utf-16")
    (folder / ".git" / "info" / "attributes").write_text("later.py -diff\n")
    (folder / "later.py").write_text("y = 3\n")
    return folder


def linked(tmp: Path) -> Path:
    folder = started(tmp / "r")
    git(folder, "worktree", "add", "-q", "-b", "side", str(tmp / "other"), "HEAD~1")
    return changed(tmp / "other")


def submodule(tmp: Path) -> Path:
    started(tmp / "lib")
    folder = started(tmp / "r")
    git(folder, "submodule", "add", "-q", str(tmp / "lib"), "lib")
    git(folder, "commit", "-qm", "with lib")
    return changed(folder / "lib")


def above_a_submodule(tmp: Path) -> Path:
    return changed(submodule(tmp).parent)


def longer_hashes(tmp: Path) -> Path:
    return changed(started(tmp / "r", "--object-format=sha256"))


def split_index(tmp: Path) -> Path:
    folder = started(tmp / "r")
    git(folder, "update-index", "--split-index")
    return changed(folder)


def sparse(tmp: Path) -> Path:
    folder = changed(started(tmp / "r"))
    git(folder, "commit", "-qam", "third")
    git(folder, "sparse-checkout", "set", "--cone", "nothing")
    (folder / "pkg").mkdir(exist_ok=True)
    (folder / "pkg" / "c d.py").write_text("came = 'back'\n")
    return folder


def shallow(tmp: Path) -> Path:
    source = started(tmp / "source").as_uri()
    git(tmp, "clone", "-q", "--depth=1", source, "r")
    return changed(tmp / "r")


def quoted_names(tmp: Path) -> Path:
    started(tmp / "source")
    git(tmp / "source", "branch", 'fe"ä.b')
    git(tmp, "clone", "-q", "--branch", 'fe"ä.b', "source", "r")
    return changed(tmp / "r")


def borrowed_objects(tmp: Path) -> Path:
    started(tmp / "source")
    git(tmp, "clone", "-q", "--shared", "source", "r")
    git(tmp / "r", "pack-refs", "--all")
    return changed(tmp / "r")


def detached(tmp: Path) -> Path:
    folder = started(tmp / "r")
    git(folder, "checkout", "-q", "--detach", "HEAD~1")
    return changed(folder)


def no_modes(tmp: Path) -> Path:
    folder = started(tmp / "r")
    git(folder, "config", "core.fileMode", "false")
    (folder / "a.py").chmod(0o755)
    return folder


def settings_of_the_work_tree(tmp: Path, enabled: str = "yes") -> Path:
    folder = started(tmp / "r")
    git(folder, "config", "core.fileMode", "true")
    (folder / "a.py").chmod(0o755)
    (folder / "later.py").write_text("y = 3\n")
    git(folder, "config", "extensions.worktreeConfig", "true")
    git(folder, "config", "--worktree", "core.fileMode", "false")
    git(folder, "config", "extensions.worktreeConfig", enabled)
    return folder


def settings_of_the_work_tree_that_are_off(tmp: Path) -> Path:
    return settings_of_the_work_tree(tmp, "no")


def controls_in_settings(tmp: Path) -> Path:
    folder = started(tmp / "r")
    for number, value in enumerate(("\1x", "\r", "a\r", "\x7f", "\\", '"', "\n", "\t", " # ; ", "\b\f\x1b")):
        git(folder, "config", f"branch.{value if value != chr(10) else number}.merge", f"refs/heads/{value}")
    git(folder, "config", "branch.main.remote", ".")
    git(folder, "config", "branch.main.merge", "refs/heads/\1x")
    return changed(folder)


KINDS = (
    *(plain, sub_folder, through_a_link, carriage_returns, attributes, linked, submodule, above_a_submodule),
    *(longer_hashes, split_index, sparse, shallow, quoted_names, borrowed_objects, detached, no_modes),
    *(settings_of_the_work_tree, settings_of_the_work_tree_that_are_off, controls_in_settings),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_says_what_git_says(tmp_path, kind):
    folder = kind(tmp_path)
    seen = 0
    for revision in ("HEAD", "HEAD~1", "HEAD@{0}", "HEAD@{1}", "main", "origin/main", "@{upstream}"):
        asked = ("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        try:
            commit = git(folder, *asked).decode().strip()
        except subprocess.CalledProcessError:
            with WorkTree(folder) as tree, pytest.raises(UsageError, match="has no revision"):
                tree.commit(revision)
            continue
        with WorkTree(folder) as tree:
            assert tree.commit(revision) == commit
            assert tree.patch(commit) == git(folder, "diff", *_DIFF, commit, "--", ".")
            seen += 1
    assert seen >= 2
    names = [PurePath(os.fsdecode(one)) for one in git(folder, "ls-files", "-z").split(b"\0") if one]
    with WorkTree(folder) as tree:
        assert tree.tracked_files() == names


def test_settings_are_kept_as_they_are(tmp_path):
    folder = controls_in_settings(tmp_path)
    asked = ("--null", "--get-regexp", "^branch[.]")
    with WorkTree(folder) as tree:
        own = git(folder, "config", f"--file={tree._git_dir / 'config'}", *asked)
    assert own == git(folder, "config", *asked)


def test_no_commit_yet(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text(OLD)
    git(tmp_path, "add", ".")
    with WorkTree(tmp_path) as tree:
        assert tree.tracked_files() == [PurePath("a.py")]
        with pytest.raises(UsageError, match="has no revision 'HEAD'"):
            tree.commit("HEAD")


def test_what_is_no_work_tree(tmp_path):
    git(tmp_path, "init", "-q", "--bare", "bare")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / ".git").write_bytes(b"gitdir: \0/nowhere\xff\n")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / ".git")
    for name in ("bare", "torn", "pipe", "."):
        with pytest.raises(UsageError, match="is not a git work tree"):
            WorkTree(tmp_path / name)


def test_a_repository_that_is_torn_is_an_error(tmp_path):
    folder = plain(tmp_path)
    (folder / ".git" / "index").write_bytes(b"\x1b[31m no index")
    with WorkTree(folder) as tree, pytest.raises(DataError, match="git ls-files failed") as error:
        tree.tracked_files()
    assert "\x1b" not in str(error.value)
    (folder / ".git" / "config").write_text("[core\n")
    with pytest.raises(DataError, match="git config failed"), WorkTree(folder):
        pass


def test_a_file_of_the_folder_is_one_that_no_link_leads_to(tmp_path):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    for path in (tmp_path / "out.py", root / "in.py", root / "sub" / "x.py"):
        path.write_text("x = 1\n")
    (root / "link.py").symlink_to(tmp_path / "out.py")
    (root / "near.py").symlink_to("in.py")
    (root / "folder").symlink_to(tmp_path)
    (root / "loop.py").symlink_to("loop.py")
    os.mkfifo(root / "pipe.py")
    (tmp_path / "alias").symlink_to(root)
    for name in ("in.py", "sub/x.py"):
        assert file_in_folder(root, name) == root / name
        assert file_in_folder(tmp_path / "alias", PurePath(name)) == tmp_path / "alias" / name
    names = ["link.py", "near.py", "folder/out.py", "../out.py", "sub/../in.py", "loop.py", "pipe.py", "sub"]
    names += ["gone.py", "a\0b.py", "n" * 5000, str(tmp_path / "out.py"), str(root / "in.py")]
    assert [file_in_folder(root, name) for name in names] == [None] * len(names)
