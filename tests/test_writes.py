"""Every place that can destroy a file, with the reason why it can only be a file of ours.

A new place fails the test until it is listed. Outputs that a person names go through `streams.ownership`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "seqmlm"

# Calls that delete a file, empty it, or put another into its place, whatever they are called on.
DELETES = {"rmtree", "unlink", "rmdir", "removedirs", "truncate", "ftruncate"}
OVERWRITES = {"write_text", "write_bytes", "copyfile", "copy2", "copytree", "replace_file", "move_into_place"}
SAVES = {"save_file", "write_table", "ParquetWriter", "OSFile", "save_pretrained", "save_to_disk", "savefig"}
OF_LIBRARIES = {("np", "save"), ("np", "savez"), ("os", "remove"), ("DISK", "remove"), ("DISK", "rename")}
OF_LIBRARIES |= {("os", "rename"), ("os", "replace"), ("shutil", "move"), ("shutil", "copy")}


def calls(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """(function it is in, what is called) of every call that can destroy a file."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            name = f"{inside}.{node.name}".strip(".")
        if isinstance(node, ast.Call) and (called := _destroys(node)):
            yield inside, called
        if isinstance(node, ast.Call):  # one that is handed to somebody who calls it
            yield from ((inside, _last_name(one)) for one in node.args if _last_name(one) in DELETES)
        yield from calls(node, name)


def _destroys(call: ast.Call) -> str:
    """What a call that can destroy a file is called; "" of another."""
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = _last_name(function.value) if isinstance(function, ast.Attribute) else ""
    if called in DELETES | OVERWRITES | SAVES or (owner, called) in OF_LIBRARIES:
        return called
    if called in ("rename", "replace") and len(call.args) == 1 and not call.keywords and owner != "":
        return called  # of a path: of a string it takes two
    if called == "open":
        words = [ast.unparse(one) for one in (*call.args, *(word.value for word in call.keywords))]
        flags = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "flags")
        modes = {f"'{mode}{kind}'" for mode in ("w", "a", "x", "r+", "w+") for kind in ("", "b")}
        if modes & set(words) or any(flag in word for word in words for flag in flags):
            return "open"
    return ""


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else "?"


REASONS: dict[str, str] = {
    "an output that a person names: `refuse_foreign` has looked at what is there": """
streams/sinks.py LinesSink._open open
streams/sinks.py convert replace_file replace_file
streams/sinks.py convert.fill ParquetWriter
rows/file.py Rows._write_all replace_file replace_file
reports/page.py Page.write replace_file
reports/findings.py write_sarif replace_file
domains/dna/track.py GenomeTrack.close replace_file
domains/dna/track.py GenomeTrack._write_bigwig move_into_place
management/merge.py merge replace_file
tasks/assays.py _write replace_file
tasks/structure.py _write replace_file
tasks/joint.py JointTask.extra_files replace_file
tasks/lexicon.py Lexicon.launch replace_file
training/corpus.py draw_sample move_into_place
data/problems.py _appending open
""",
    "beside an output, under a name that `check_outputs` has looked at": """
streams/cursor.py Cursor.save replace_file
streams/cursor.py Cursor.remove unlink
rows/file.py Rows._begun unlink
rows/file.py Rows.finish unlink
tasks/shards.py Share.finish replace_file
""",
    "cut back to what a cursor says that we wrote; a file with another checksum is refused": """
streams/sinks.py LinesSink._reopen open ftruncate
streams/sinks.py LinesSink.flush ftruncate
data/problems.py Problems.cut_quarantine truncate
""",
    "a new folder, whose name has random digits; `out` itself is new or empty": """
streams/outputs.py new_folder rmtree rmtree move_into_place
management/export_data.py _save save_to_disk
management/export_data.py _write write_table unlink
management/models.py export_model copyfile write_text
""",
    "a new temporary file or folder": """
data/files.py save_stdin unlink
data/readers/huggingface.py _plainly_named rmtree
domains/code/git.py WorkTree._copy write_text write_text
domains/code/git.py _copy_file copy2
domains/dna/track.py GenomeTrack._write_bigwig open
domains/dna/track.py GenomeTrack._fill_bigwig open
rows/file.py Rows._write_all open
domains/ehr/sample.py _write_csv open
domains/ehr/sample.py _write_parquet write_table
domains/samples.py write_lines open
domains/samples.py write_truth write_text
reports/drawing.py picture savefig
""",
    "the name is a digest of the content": """
data/files.py save_stdin move_into_place
frames.py sources replace_file
""",
    "the workspace's list of outputs, which only grows": """
streams/ownership.py remember open
""",
    "the mechanism itself: its callers are listed": """
engine/durable.py Disk.remove rmtree
engine/durable.py Disk.rename rename
engine/durable.py _remove_unheld unlink
engine/durable.py _temporary_file open
engine/durable.py move_into_place rename
engine/durable.py replace_file open open rename unlink
engine/durable.py write_bytes open
""",
    "a lock: an empty file, which is removed only while it is empty": """
engine/durable.py FileLock._open open
engine/durable.py FileLock.release unlink
""",
    "a checkpoint, in the folder of a run": """
engine/checkpoint.py _write_files write_bytes write_bytes
engine/checkpoint.py _prune rename remove remove
engine/checkpoint.py save remove rename rename remove
engine/checkpoint.py write_tensors open
""",
    "a record of a run, in its folder, whose name no other run may have": """
tasks/deadline.py Cuts.write replace_file
training/finalize.py _publish write_text
training/objective.py Best.__call__ replace_file
finetuning/teaching.py Teacher.train replace_file
finetuning/predictions.py write_predictions write_table
training/pretrain.py Pretraining._open_run unlink write_bytes
training/run.py TrainingRun.finish replace_file
training/corpus.py CorpusReader.prepared unlink
training/run.py TrainingRun._describe replace_file replace_file
training/run.py TrainingRun.begin replace_file
training/run.py TrainingRun.building rmtree rmtree move_into_place
tracking/push.py Ledger.write replace_file
tracking/push.py MetricsFile._keep_cut replace_file
tracking/push.py MetricsFile.cut_after truncate
tracking/push.py MetricsFile.write open
""",
    "a file of a model's folder, which its card lists or a new folder gets": """
inference/model_folder.py _replace_listed replace_file unlink
inference/model_folder.py _write_card replace_file
inference/model_folder.py save_weights save_pretrained
inference/model_folder.py write write_bytes
engine/channels.py InputChannels.save save_file
engine/linear.py Potts.save_pretrained save_file write_text
tokenizers/base.py Tokenizer.save save_pretrained write_text
tokenizers/base.py _name_for_all_versions write_text
domains/ehr/tokenizer.py EventsTokenizer.save write_text
tokenizers/huggingface.py _copy_known copyfile
tokenizers/huggingface.py _write write_text
domains/logs/templates.py TemplateTokenizer.save write_text
""",
    "prepared data, in the workspace's cache under a fingerprint": """
data/identity.py write_trained_on save unlink
data/prepare.py _Maker.run write_text
data/prepare.py _only_one open
data/prepare.py prepare rmtree rmtree rmtree move_into_place
data/store.py RecordWriter.__init__ save
data/store.py _Writer.__init__ OSFile open
data/store.py _count_tokens OSFile
data/store.py _write_moves save
data/store.py divide save save save save unlink
""",
    "the registry of the workspace, moved aside under a new name when it is damaged": """
registry/database.py set_aside move_into_place
""",
    "files that the manifest of a demo lists, and folders that are empty": """
management/demo_folder.py DemoFolder.clear unlink unlink rmdir
management/demo_folder.py DemoFolder.remove rmdir
management/demo_folder.py DemoFolder.list_files replace_file
cli/demo.py _shuffle write_text
""",
    "a device, or a file that is opened to be read": """
cli/__init__.py _end open
cli/__init__.py _open_streams open
data/files.py _at_once open
""",
}
"""Reason to the calls that it holds for: module, function, and what is called, as often as it is."""


def found() -> Counter[tuple[str, str, str]]:
    """How often each module, function and call comes in the package."""
    return Counter(
        (path.relative_to(PACKAGE).as_posix(), *one)
        for path in PACKAGE.rglob("*.py")
        for one in calls(ast.parse(path.read_text(encoding="utf-8")))
    )


def listed() -> Counter[tuple[str, str, str]]:
    lines = (line.split() for text in REASONS.values() for line in text.strip().splitlines())
    return Counter((module, function, call) for module, function, *several in lines for call in several)


def test_every_place_that_can_destroy_a_file_has_a_reason() -> None:
    there, known = found(), listed()
    assert not there - known, "say under REASONS why only a file of ours can be lost, or use what is there"
    assert not known - there, "no longer there"


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("shutil.rmtree(folder)", "rmtree"),
        ("rmtree(home, ignore_errors=True)", "rmtree"),
        ("atexit.register(rmtree, folder)", "rmtree"),
        ("path.unlink(missing_ok=True)", "unlink"),
        ("os.remove(path)", "remove"),
        ("kinds.remove(kind)", ""),
        ("list(map(Path.unlink, paths))", "unlink"),
        ("path.open('w')", "open"),
        ("open(path, mode='wb')", "open"),
        ("path.open('rb')", ""),
        ("os.open(path, os.O_WRONLY | os.O_TRUNC)", "open"),
        ("path.write_text(text)", "write_text"),
        ("os.ftruncate(handle, 0)", "ftruncate"),
        ("path.replace(target)", "replace"),
        ("text.replace('a', 'b')", ""),
        ("np.save(path, rows)", "save"),
        ("replace_file(path, data)", "replace_file"),
    ],
)
def test_what_can_destroy_a_file_is_recognised(code: str, call: str) -> None:
    assert [called for _, called in calls(ast.parse(code))] == [call] * bool(call)
