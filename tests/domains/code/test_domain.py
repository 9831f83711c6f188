"""The code domain: what people are shown of a file, and which files stay together in a split."""

from __future__ import annotations

from pathlib import Path

import pytest
from written import all_written

from seqmlm.data.problems import Problems
from seqmlm.domains.code import CODE
from seqmlm.domains.code.tokenizer import CodeTokenizer


@pytest.mark.parametrize("lexer", ["auto", "generic"])
def test_prediction_lines_show_the_source(lexer):
    text = "def f(a):\n    return a + 1\n"
    tokenizer = CodeTokenizer.train([text] * 5, lexer=lexer)
    encoding = tokenizer.encode(text)
    asked = (encoding.symbols == encoding.symbols[encoding.ids == encoding.ids[4]][0]).nonzero()[0]
    shown = CODE.text.show(tokenizer, text, encoding, asked, encoding.ids[asked])
    assert shown.splitlines()[0] == "masked    def f([MASK]): return [MASK] + 1"
    assert shown.splitlines()[1] == "predicted def f(a): return a + 1"


def test_a_package_and_its_tests_are_on_one_side(tmp_path: Path):
    files = {"json/a.py": "x = 1\n", "test/test_json.py": "y = 2\n", "os.py": "z = 3\n", "re/b.py": "w = 4\n"}
    read = CODE.read([all_written(tmp_path, files)], Problems())
    keys = {record.id: CODE.keys.split(record) for record in read}
    assert keys == {"json/a.py": "json", "test/test_json.py": "json", "os.py": "os", "re/b.py": "re"}
