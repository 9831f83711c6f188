"""Changed files: against git itself, and diffs put on and taken off."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from plain_git import git
from written import written

from seqmlm.data.problems import Problems
from seqmlm.domains.code.changes import Change, changes_of_diff, changes_since, parse_patch
from seqmlm.domains.code.worktree import read_worktree
from seqmlm.errors import DataError, UsageError

BEFORE = "def f(a, b):\n    total = a + b\n    return total\n\n\ndef g(x):\n    return x\n"
LARGE = ("#" * 999 + "\n") * 4300
AFTER = "import os\n\n\ndef f(a, b):\n    total = a - b\n    return total\n\n\ndef g(x):\n    return x\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree of one commit, then changed in every way that there is."""
    git(tmp_path, "init", "-q")
    written(tmp_path / "same.py", "x = 1\n")
    written(tmp_path / "mod.py", BEFORE)
    written(tmp_path / "pkg/old name.py", BEFORE.replace("f", "renamed"))
    written(tmp_path / "gone.py", "y = 2\n")
    written(tmp_path / "notes.md", "hello\n")
    written(tmp_path / "vendor/lib.py", "z = 3\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    written(tmp_path / "mod.py", AFTER)
    git(tmp_path, "mv", "pkg/old name.py", "pkg/new nämé.py")
    (tmp_path / "gone.py").unlink()
    written(tmp_path / "added.py", "--- = 1\n+++ = 2\n@@ -1 +1 @@\n")
    git(tmp_path, "add", "added.py")
    written(tmp_path / "notes.md", "bye\n")
    written(tmp_path / "vendor/lib.py", "z = 4\n")
    return tmp_path


def by_path(changes: list[Change]) -> dict[str, Change]:
    return {change.patch.name: change for change in changes}


def places(change: Change) -> list[tuple[list[int], list[int]]]:
    """The numbers of the lines that went and of those that came, of each hunk."""
    return [
        (
            [line.source_line_no or 0 for line in hunk if line.is_removed],
            [line.target_line_no or 0 for line in hunk if line.is_added],
        )
        for hunk in change.patch.hunks
    ]


def test_every_kind_of_change(tree):
    problems = Problems()
    found = by_path(list(changes_since(tree, "HEAD", problems)))
    assert {(change.patch.old_name, change.patch.new_name) for change in found.values()} == {
        (None, "added.py"),
        ("gone.py", None),
        ("mod.py", "mod.py"),
        ("pkg/old name.py", "pkg/new nämé.py"),
    }
    changed = found["mod.py"]
    assert (changed.old_text, changed.new_text) == (BEFORE, AFTER)
    assert changed.new_text.language == "python"
    assert places(changed) == [([], [1, 2, 3]), ([2], [5])]
    assert not places(found["pkg/new nämé.py"])
    assert found["added.py"].old_text is None
    assert places(found["added.py"]) == [([], [1, 2, 3])]
    assert found["gone.py"].new_text is None
    assert set(problems.counts) == {
        "a changed file that is not source code, skipped",
        "a vendored file, skipped",
        "does not parse as Python 3: read without a syntax tree",
    }


def test_what_git_does_not_track_and_what_does_not_parse_is_counted(tree):
    for name in ("new.py", "other.js", "vendor/own.py", ".dot/a.py", "ours.py", "of_me.py", "notes2.md"):
        written(tree / name, "x = 1\n")
    written(tree / ".gitignore", "ours.py\n")
    written(tree / ".git/info/exclude", "of_me.py\n")
    written(tree / "added.py", "def g(:\n")
    problems = Problems()
    list(changes_since(tree, "HEAD", problems))
    assert problems.counts["a file that git does not track, not compared"] == 2
    assert (
        problems.counts["does not parse as Python 3: read without a syntax tree"] == 2
    )  # and the renamed one
    skipped = "a file that git does not track, skipped (--option tracked=false reads it)"
    for languages, number in ((None, 2), ("python", 1)):
        problems = Problems()
        names = {one.id for one in read_worktree(tree, problems, languages=languages)}
        assert problems.counts[skipped] == number
        every = {one.id for one in read_worktree(tree, Problems(), languages=languages, tracked=False)}
        assert {"new.py", "other.js"} & (every - names) == {"new.py", *(["other.js"] if number > 1 else [])}


def test_a_folder_inside_a_work_tree(tree):
    [change] = changes_since(tree / "pkg", "HEAD", Problems())
    assert (change.patch.old_name, change.patch.new_name) == ("old name.py", "new nämé.py")
    assert change.old_text == change.new_text


def test_a_change_of_mode_alone_is_none(tree):
    git(tree, "commit", "-qam", "second")
    git(tree, "config", "core.fileMode", "true")
    (tree / "mod.py").chmod(0o755)
    assert list(changes_since(tree, "HEAD", Problems())) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEFORE, LARGE),
        (LARGE, "import os\n"),
        (LARGE, None),
        (None, LARGE),
    ],
)
def test_a_change_that_nobody_wrote_is_counted(tree, before, after):
    if before is not None:
        written(tree / "large.py", before)
        git(tree, "add", ".")
    git(tree, "commit", "-qam", "second")
    if after is not None:
        written(tree / "large.py", after)
        git(tree, "add", ".")
    else:
        (tree / "large.py").unlink()
    for changes in (
        lambda problems: changes_since(tree, "HEAD", problems),
        lambda problems: changes_of_diff(tree, git(tree, "diff", "HEAD"), "d", problems),
    ):
        problems = Problems()
        assert list(changes(problems)) == []
        assert problems.counts == {"a file larger than the limit, skipped": 1}


def test_ends_of_lines_that_git_converts(tree):
    git(tree, "commit", "-qam", "second")
    git(tree, "config", "core.autocrlf", "true")
    written(tree / "mod.py", AFTER.replace("a - b", "a * b").replace("\n", "\r\n"))
    [change] = changes_since(tree, "HEAD", Problems())
    assert (change.old_text, places(change)) == (AFTER, [([5], [5])])


def test_a_diff_that_was_converted_itself(tree):
    diff = git(tree, "diff", "HEAD")
    plain = list(changes_of_diff(tree, diff, "d", Problems()))
    converted = list(changes_of_diff(tree, diff.replace(b"\n", b"\r\n"), "d", Problems()))
    assert (
        [(one.old_text, one.new_text) for one in converted]
        == [(one.old_text, one.new_text) for one in plain]
        != []
    )


def test_an_encoding_that_git_converts_is_counted(tree):
    written(tree / ".gitattributes", "wide.py working-tree-encoding=UTF-16\n")
    written(tree / "wide.py", BEFORE.encode("utf-16"))
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "second")
    written(tree / "wide.py", AFTER.encode("utf-16"))
    problems = Problems()
    assert list(changes_since(tree, "HEAD", problems)) == []
    assert set(problems.counts) == {"a changed file in an encoding that git converts, skipped"}


@pytest.mark.parametrize("revision", ["nowhere", "--all", "HEAD:mod.py"])
def test_no_such_revision(tree, revision):
    with pytest.raises(UsageError, match="no revision"):
        list(changes_since(tree, revision, Problems()))


@pytest.mark.parametrize("context", [0, 1, 3])
@pytest.mark.parametrize("applied", [True, False])
def test_a_diff_gives_what_git_gives(tree, context, applied):
    wanted = by_path(list(changes_since(tree, "HEAD", Problems())))
    diff = git(tree, "diff", "-M", f"-U{context}", "HEAD")
    if not applied:
        git(tree, "reset", "-q", "--hard")
    found = by_path(list(changes_of_diff(tree, diff, "d", Problems())))
    assert found.keys() == wanted.keys()
    for path, change in found.items():
        assert (change.old_text, change.new_text) == (wanted[path].old_text, wanted[path].new_text)
        assert (change.patch.old_name, change.patch.new_name) == (
            wanted[path].patch.old_name,
            wanted[path].patch.new_name,
        )
        came, expected = (
            [line for _, came in places(one) for line in came] for one in (change, wanted[path])
        )
        assert came == expected


def test_a_file_without_a_last_line_end(tmp_path):
    written(tmp_path / "a.py", "x = 1\ny = 3")
    diff = (
        b"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x = 1\n-y = 2\n\\ No newline at end of file\n+y = 3\n"
        b"\\ No newline at end of file\n"
    )
    [change] = changes_of_diff(tmp_path, diff, "d", Problems())
    assert (change.old_text, change.new_text) == ("x = 1\ny = 2", "x = 1\ny = 3")


def test_plain_diff_with_time_stamps_and_several_files(tmp_path):
    written(tmp_path / "a.py", "x = 1\n")
    written(tmp_path / "b.py", "x = 1\n")
    one = "--- a/{0}\t2020-01-01 00:00\n+++ b/{0}\t2020-01-02 00:00\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    found = list(
        changes_of_diff(tmp_path, (one.format("a.py") + one.format("b.py")).encode(), "d", Problems())
    )
    assert [(change.patch.name, change.new_text) for change in found] == [
        ("a.py", "x = 2\n"),
        ("b.py", "x = 2\n"),
    ]


def test_what_a_diff_does_not_fit_is_named(tmp_path):
    written(tmp_path / "a.py", "x = 5\n")
    diff = b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    with pytest.raises(DataError, match=r"a\.py matches neither side"):
        list(changes_of_diff(tmp_path, diff, "d", Problems()))


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        (r'"a/\xzz.py"', "xzz.py"),
        (r'"a/\u12.py"', "u12.py"),
        (r'"a/\N{x}.py"', "N{x}.py"),
        (r'"a/foo\"', "foo\\"),
        (r'"a/n\303\244\t\"\\m.py"', 'nä\t"\\m.py'),
        (r'"a/\777\377.py"', "\udcff\udcff.py"),
        ("a/nä m.py\t2020-01-01", "nä m.py"),
        ('"', ""),
        ("/dev/null", None),
    ],
)
def test_names(spelled, name):
    header = f"--- {spelled}\n+++ b/x.py\n@@ -1 +1 @@\n-x\n+y\n"
    [patch] = parse_patch(header.encode(), "d")
    assert patch.old_name == name
    if name is not None:
        bare = spelled.replace("a/", "", 1).partition("\t")[0]
        [patch] = parse_patch(f"diff --git 1 2\nrename from {bare}\nrename to x.py\n".encode(), "d")
        assert (patch.old_name, patch.new_name) == (name, "x.py")


@pytest.mark.parametrize(
    "hunk",
    [
        "@@ -99,0 +100 @@\n+y = 2\n",
        "@@ -99,0 +2 @@\n+y = 2\n",
        "@@ -1,0 +100 @@\n+y = 2\n",
        "@@ -1 +100 @@\n-x = 1\n+y = 2\n",
        "@@ -100 +1 @@\n-y = 2\n+x = 1\n",
        "@@ -0,0 +1,3 @@\n+y\n\\ No newline\n+y\n\\ No newline\n+y\n\\ No newline\n",
        "@@ -1 +1 @@\n-x = 1\n+y = 2\n@@ -1 +1 @@\n-x = 1\n+y = 2\n",
    ],
)
def test_hunks_of_lines_that_are_not_there_do_not_fit(tmp_path, hunk):
    written(tmp_path / "a.py", "x = 1\n")
    with pytest.raises(DataError, match="matches neither side"):
        list(changes_of_diff(tmp_path, f"--- a/a.py\n+++ b/a.py\n{hunk}".encode(), "d", Problems()))


def test_a_merge_is_refused_and_the_other_files_are_read(tree):
    git(tree, "commit", "-qam", "second")
    git(tree, "checkout", "-qb", "side", "HEAD~1")
    written(tree / "mod.py", BEFORE.replace("a + b", "a * b"))
    git(tree, "commit", "-qam", "third")
    git(tree, "merge", "-q", "--no-commit", "-s", "ours", "-")
    written(tree / "mod.py", AFTER.replace("a - b", "a @ b").replace("return x", "-- x"))
    git(tree, "commit", "-qam", "fourth")
    merged = git(tree, "show", "HEAD")
    assert b"\ndiff --cc mod.py\n" in merged
    written(tree / "same.py", "x = 2\n")
    for other in (git(tree, "diff"), git(tree, "diff").partition(b"\n")[2]):
        for diff in (merged + other, other + merged):
            problems = Problems("skip")
            [change] = changes_of_diff(tree, diff, "d", problems)
            assert (change.old_text, change.new_text) == ("x = 1\n", "x = 2\n")
            assert (problems.counts, problems.bad_count) == ({"a combined diff of a merge": 1}, 1)
    with pytest.raises(DataError, match=r"mod\.py: a combined diff of a merge"):
        list(changes_of_diff(tree, merged, "d", Problems()))


def test_a_torn_diff_says_where():
    with pytest.raises(DataError, match="d:5: a hunk with fewer or more lines"):
        list(parse_patch(b"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-x\n", "d"))


def test_no_diff():
    with pytest.raises(DataError, match="not a unified diff"):
        list(parse_patch(b"hello\n", "d"))
    assert list(parse_patch(b"", "d")) == []


def test_what_stands_between_files_takes_no_time():
    line = "Binary files" + " a and" * 20_000
    diff = f"--- a.py\n+++ a.py\n@@ -1 +1 @@\n-x\n+y\n{line}\n--- b.py\n+++ b.py\n@@ -1 +1 @@\n-x\n+y\n"
    begun = time.process_time()
    assert [patch.new_name for patch in parse_patch(diff.encode(), "d")] == ["a.py", "b.py"]
    assert time.process_time() - begun < 5
