"""Repositories that name programs, given to every command that reads one: none runs, nothing is written.

Each attack is shown to work first: plain git, in a copy of the repository, runs the program.
"""

from __future__ import annotations

import hashlib
import os
import pty
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from plain_git import git
from tiny_domain_models import MODULE, calibrated_code_model, work_tree
from written import written

from seqmlm.cli import main

AFTER = MODULE.replace("total + item.depth", "total - item.depth")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calibrated_code_model(tmp_path_factory.mktemp("model"))


@dataclass(frozen=True)
class Trap:
    """A repository, and the program that it names.

    folder: the work tree, with a changed file.
    canary: the file that the program makes.
    """

    folder: Path
    canary: Path

    @property
    def program(self) -> str:
        """A program that makes the canary and ends, so that whoever talks to it is not kept waiting."""
        path = written(self.canary.parent / "program.sh", f"#!/bin/sh\ntouch {self.canary}\n")
        path.chmod(0o755)
        return str(path)

    def config(self, **settings: str) -> None:
        for name, value in settings.items():
            git(self.folder, "config", name, self.filled(value))

    def filled(self, text: str) -> str:
        return text.format(program=self.program, folder=self.folder)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    monkeypatch.setenv("SEQMLM_HOME", str(tmp_path / "home"))
    return Trap(work_tree(tmp_path / "tree", AFTER), tmp_path / "canary")


FILTER, DRIVER = "*.py filter=x\n", "*.py diff=x\n"
# Files of attributes, settings of the repository, and what plain git is asked for.
SETTINGS: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "clean": (
        {".gitattributes": FILTER},
        {"filter.x.clean": "{program}", "filter.x.required": "true"},
        "diff HEAD",
    ),
    "smudge": ({".gitattributes": FILTER}, {"filter.x.smudge": "{program}"}, "checkout HEAD -- pkg"),
    "process": ({".gitattributes": FILTER}, {"filter.x.process": "{program}"}, "diff HEAD"),
    "attributes inside": ({".git/info/attributes": FILTER}, {"filter.x.clean": "{program}"}, "diff HEAD"),
    "attributes elsewhere": (
        {"evil.attributes": FILTER},
        {"core.attributesFile": "{folder}/evil.attributes", "filter.x.clean": "{program}"},
        "diff HEAD",
    ),
    "included config": (
        {".gitattributes": FILTER, "evil.cfg": '[filter "x"]\n\tclean = {program}\n'},
        {"include.path": "../evil.cfg"},
        "diff HEAD",
    ),
    "fsmonitor": ({}, {"core.fsmonitor": "{program}"}, "status"),
    "textconv": ({".gitattributes": DRIVER}, {"diff.x.textconv": "{program}"}, "diff HEAD"),
    "driver": ({".gitattributes": DRIVER}, {"diff.x.command": "{program}"}, "diff HEAD"),
    "external diff": ({}, {"diff.external": "{program}"}, "diff HEAD"),
    "pager": ({}, {"core.pager": "{program}", "pager.diff": "{program}"}, "diff HEAD"),
    # Git itself lets no alias hide a command.
    "alias": ({}, {"alias.diff": "!{program}", "alias.evil": "!{program}"}, "evil"),
}
# Partial clones that lack the blob which the diff needs, and say how it is to be fetched: address, setting.
LOST = {
    "ssh": ("ssh://localhost/nowhere", {"core.sshCommand": "{program}"}),
    "proxy": ("git://localhost/nowhere", {"core.gitProxy": "{program}"}),
    "remote helper": ("ext::{program}", {"protocol.ext.allow": "always"}),
    "upload pack": ("{folder}", {"remote.origin.uploadpack": "{program}"}),
}


def config_of_a_worktree(trap: Trap) -> list[str]:
    (trap.folder / ".gitattributes").write_text(FILTER)
    trap.config(**{"extensions.worktreeConfig": "true", "core.repositoryformatversion": "1"})
    git(trap.folder, "config", "--worktree", "filter.x.clean", trap.program)
    return ["diff", "HEAD"]


def hook(trap: Trap, folder: str = ".git/hooks") -> list[str]:
    (trap.folder / folder).mkdir(exist_ok=True)
    shutil.copy2(trap.program, trap.folder / folder / "post-index-change")
    os.utime(trap.folder / "same.py", (1, 1))  # so that git has the index to refresh
    return ["status"]


def hooks_path(trap: Trap) -> list[str]:
    trap.config(**{"core.hooksPath": "evil"})
    return hook(trap, "evil")


def git_file(trap: Trap) -> list[str]:
    asked = armed(trap, "clean")
    (trap.folder / ".git").rename(trap.folder / "fixtures")
    (trap.folder / ".git").write_text("gitdir: fixtures\n")
    return asked


def bare_inside(trap: Trap) -> list[str]:
    trap.config(**{"core.fsmonitor": "{program}", "core.bare": "false", "core.worktree": ".."})
    for path in (trap.folder / ".git").iterdir():
        path.rename(trap.folder / "pkg" / path.name)
    (trap.folder / ".git").rmdir()
    return ["-C", "pkg", "status"]


def submodule(trap: Trap) -> list[str]:
    library = trap.canary.parent / "library"
    shutil.copytree(trap.folder, library, symlinks=True)
    git(trap.folder, "submodule", "add", "-q", str(library), "lib")
    git(trap.folder, "commit", "-qm", "second")
    (trap.folder / "lib" / "same.py").write_text("x = 2\n")
    git(trap.folder / "lib", "config", "core.fsmonitor", trap.program)
    return ["diff", "HEAD"]


def submodule_asked_for(trap: Trap) -> list[str]:
    trap.config(**{"diff.submodule": "diff", "diff.ignoreSubmodules": "none"})
    return submodule(trap)


OTHERS: dict[str, Callable[[Trap], list[str]]] = {
    made.__name__: made
    for made in (
        config_of_a_worktree,
        hook,
        hooks_path,
        git_file,
        bare_inside,
        submodule,
        submodule_asked_for,
    )
}


def armed(trap: Trap, attack: str) -> list[str]:
    """Arm the trap; what plain git is asked for."""
    if attack in OTHERS:
        return OTHERS[attack](trap)
    if attack in LOST:
        blob = git(trap.folder, "rev-parse", "HEAD:pkg/stack.py").decode().strip()
        (trap.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        url, settings = LOST[attack]
        trap.config(**{"core.repositoryformatversion": "1", "extensions.partialClone": "origin"})
        trap.config(**{"remote.origin.promisor": "true", "remote.origin.url": url, **settings})
        return ["diff", "HEAD"]
    files, settings, asked = SETTINGS[attack]
    for name, text in files.items():
        (trap.folder / name).parent.mkdir(exist_ok=True)
        (trap.folder / name).write_text(trap.filled(text))
    trap.config(**settings)
    return asked.split()


def listing(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, time and content of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        told = path.lstat()
        content = os.readlink(path) if path.is_symlink() else ""
        if stat.S_ISREG(told.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = told.st_mode, told.st_mtime_ns, content
    return found


def plainly(trap: Trap, arguments: list[str], *, terminal: bool) -> None:
    """Run plain git in a copy, its output perhaps a terminal."""
    copy = trap.canary.parent / "copy" / "tree"
    shutil.copytree(trap.folder, copy, symlinks=True)
    for link in copy.rglob(".git"):  # those of submodules are told by relative paths
        assert link.exists()
    command = ["git", "-c", "safe.directory=*", "-c", "safe.bareRepository=all", "-C", str(copy), *arguments]
    if not terminal:
        subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=60)
    else:
        ours, theirs = pty.openpty()
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, start_new_session=True)
        running.wait(timeout=60)
        os.close(theirs)
        os.close(ours)
    shutil.rmtree(copy)


def run(*arguments: str | Path) -> int:
    try:
        main([*map(str, arguments)])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def everything(model: Path, folder: Path, out: Path) -> list[int]:
    """The exit codes of all commands that read a work tree."""
    return [
        run("review", model, folder, "--since", "HEAD", "--out", out / "since.jsonl"),
        run("score", model, folder, "--out", out / "rows.jsonl"),
        run("data", "inspect", folder, "--domain", "code"),
        run("train", "--dry-run", "--domain", "code", "--data", folder, "--size", "tiny", "--max-steps", "2"),
    ]


@pytest.mark.parametrize("attack", [*SETTINGS, *LOST, *OTHERS])
def test_nothing_of_a_repository_runs(model, trap, tmp_path, attack, capfd):
    asked = armed(trap, attack)
    trap.canary.unlink(missing_ok=True)
    plainly(trap, asked, terminal=attack == "pager")
    assert trap.canary.exists(), "the attack is not live"
    trap.canary.unlink()
    before = listing(trap.folder)
    codes = everything(model, trap.folder, tmp_path)
    assert not trap.canary.exists()
    assert listing(trap.folder) == before
    first = 3 if attack in LOST else 2 if attack == "bare_inside" else 0
    assert codes == [first, 0, 0, 0]
    assert "Traceback" not in capfd.readouterr().err
    if first == 0:
        assert "total - item.depth" in (trap.folder / "pkg" / "stack.py").read_text()
        assert (tmp_path / "since.jsonl").read_text().count("\n") == 1


def test_nothing_that_the_environment_names_runs(model, trap, tmp_path, monkeypatch):
    program = trap.program
    other = tmp_path / "other"
    shutil.copytree(trap.folder, other)
    for name, value in {
        "GIT_EXTERNAL_DIFF": program,
        "GIT_SSH_COMMAND": program,
        "GIT_PAGER": program,
        "GIT_TRACE": str(tmp_path / "trace"),
        "GIT_DIR": str(other / ".git"),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": program,
    }.items():
        monkeypatch.setenv(name, value)
    subprocess.run(["git", "-C", str(trap.folder), "diff", "HEAD"], capture_output=True, check=False)
    assert trap.canary.exists(), "the attack is not live"
    trap.canary.unlink()
    (tmp_path / "trace").unlink()
    before = listing(trap.folder), listing(other)
    assert everything(model, trap.folder, tmp_path) == [0, 0, 0, 0]
    assert (listing(trap.folder), listing(other)) == before
    assert not trap.canary.exists()
    assert not (tmp_path / "trace").exists()


SECRET = "password = 'of another folder'\n"


def test_nothing_outside_the_folder_is_read(model, trap, tmp_path, capfd):
    """Through links, folders that became links, an index of names that go up, and a work tree elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "stack.py").write_text(SECRET)
    (tmp_path / "upp.py").write_text(SECRET)
    (trap.folder / "link.py").symlink_to(outside / "stack.py")
    (trap.folder / "000000.py").write_text("x = 1\n")
    shutil.rmtree(trap.folder / "pkg")
    (trap.folder / "pkg").symlink_to(outside)
    git(trap.folder, "add", "link.py", "000000.py")
    index = trap.folder / ".git" / "index"
    raised = index.read_bytes().replace(b"000000.py", b"../upp.py")  # of equal length
    index.write_bytes(raised[:-20] + hashlib.sha1(raised[:-20]).digest())
    assert b"../upp.py" in git(trap.folder, "ls-files")
    trap.config(**{"core.worktree": str(outside)})
    before = listing(trap.folder), listing(outside)
    codes = everything(model, trap.folder, tmp_path)
    assert (listing(trap.folder), listing(outside)) == before
    said = capfd.readouterr()
    assert codes[:3] == [0, 0, 0], said.err
    assert "a symbolic link, skipped" in said.err
    for text in (said.out, said.err, *(path.read_text() for path in tmp_path.glob("*.jsonl"))):
        assert "password" not in text
        assert "of another folder" not in text
        assert "Traceback" not in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../up.py", "outside the folder"),
        ("{outside}/up.py", "outside the folder"),
        ("link.py", "outside the folder"),
        ("folder/up.py", "outside the folder"),
        ('"a\\000b.py"', "matches neither side"),
        ("n" * 5000 + ".py", "matches neither side"),
        ("pipe.py", "outside the folder, or of a link"),
        ("\x1b[31mred.py", "matches neither side"),
    ],
)
def test_a_patch_reaches_nothing_outside(model, trap, tmp_path, name, said, capfd):
    outside = tmp_path / "outside"
    outside.mkdir()
    for folder in (outside, tmp_path):
        (folder / "up.py").write_text("x = 1\n")
    (trap.folder / "link.py").symlink_to(outside / "up.py")
    (trap.folder / "folder").symlink_to(outside)
    os.mkfifo(trap.folder / "pipe.py")
    path = name.format(outside=outside)
    patch = written(tmp_path / "p.diff", f"--- {path}\n+++ {path}\n@@ -1 +1 @@\n-x = 2\n+x = 1\n")
    out = tmp_path / "rows.jsonl"
    assert run("review", model, trap.folder, "--diff", patch, "--out", out) == 3
    told = capfd.readouterr()
    assert said in told.err.replace("\n", " ")
    assert "Traceback" not in told.err
    assert run("review", model, trap.folder, "--diff", patch, "--out", out, "--on-error", "skip") in (0, 3)
    assert not out.exists() or not out.read_text()


@pytest.mark.parametrize(
    "hunk",
    [
        "@@ -1 +1,99999999999999999999 @@",
        f"@@ -{'9' * 5000} +1 @@",
        "@@ -1,999999999 +1,999999999 @@",
        "@@ -a +b @@",
    ],
)
def test_a_hunk_of_impossible_lines_is_said(model, trap, tmp_path, hunk, capfd):
    patch = written(tmp_path / "p.diff", f"--- a/same.py\n+++ b/same.py\n{hunk}\n-x = 2\n+x = 1\n")
    assert run("review", model, trap.folder, "--diff", patch, "--out", tmp_path / "rows.jsonl") == 3
    told = capfd.readouterr().err
    assert "p.diff:" in told.replace("\n", "")
    assert "Traceback" not in told
