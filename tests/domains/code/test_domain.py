"""The code domain through the command line: the sample, a folder, a file, JSON, a Python 2 file."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.code import CODE
from seqmlm.tokenizers.code import CodeTokenizer

STDLIB = Path(sysconfig.get_paths()["stdlib"])
FAST = (
    *("--size", "tiny", "--max-steps", "2", "--tokens-per-batch", "1024", "--json"),
    *("--set", "model.overrides={num_hidden_layers: 2, hidden_size: 16, intermediate_size: 32}"),
    *("--set", "train.evaluation_records=20", "--set", "train.tokens_per_row=512"),
    *("--set", "tokenizer.vocabulary_size=400"),
)


def test_trains_on_every_format(seqmlm, tmp_path: Path):
    rows = [{"code": f"def f{i}(x):\n    return x + {i}\n", "repo": f"r{i % 5}"} for i in range(40)]
    lines = tmp_path / "python.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)))
    cell = {"cell_type": "code", "source": "import os\nx = os.getcwd()\n" * 5, "metadata": {}}
    note = tmp_path / "n.ipynb"
    note.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    old = tmp_path / "old.py"
    old.write_text("print 'hello'\n" * 20)
    done = seqmlm("train", "--domain", "code", lines, note, old, STDLIB / "bisect.py", "--name", "all", *FAST)
    assert done.code == 0, done.err


@pytest.mark.parametrize("lexer", ["auto", "generic"])
def test_prediction_lines_show_the_source(lexer):
    text = "def f(a):\n    return a + 1\n"
    tokenizer = CodeTokenizer.train([text] * 5, lexer=lexer)
    encoding = tokenizer.encode(text)
    assert encoding.symbols is not None
    asked = (encoding.symbols == encoding.symbols[encoding.ids == encoding.ids[4]][0]).nonzero()[0]
    shown = CODE.show(tokenizer, text, encoding, asked, encoding.ids[asked])
    assert shown.splitlines()[0] == "masked    def f([MASK]): return [MASK] + 1"
    assert shown.splitlines()[1] == "predicted def f(a): return a + 1"


def test_a_package_and_its_tests_are_on_one_side(tmp_path: Path):
    files = {"json/a.py": "x = 1\n", "test/test_json.py": "y = 2\n", "os.py": "z = 3\n", "re/b.py": "w = 4\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    keys = {record.id: CODE.split_key(record) for record in CODE.read([tmp_path], Problems())}
    assert keys == {"json/a.py": "json", "test/test_json.py": "json", "os.py": "os", "re/b.py": "re"}
