"""Texts are plain English: no known pattern of unclear English, and no long sentence.

`python benchmarks/english.py` prints the number of findings, and `--list PATH` those of a page or a package.
"""

from __future__ import annotations

import ast
from pathlib import Path

import english
import pytest


def _rules(text: str) -> list[str]:
    """The rules that a paragraph breaks."""
    return [rule for _, rule, _ in english.block_findings(english.Block(1, text))]


def test_texts_are_plain() -> None:
    findings = [
        f"{finding.path}:{finding.line}: {finding.rule}: {finding.text}" for finding in english.findings()
    ]
    assert not findings
    assert {kind for kind, *_ in english.blocks()} == {"docs", "help", "messages", "docstrings"}


def test_every_exception_is_needed_and_has_a_reason() -> None:
    texts = "\n".join(english.plain(block.text).replace("\n", " ") for *_, block in english.blocks())
    assert not [phrase for phrase in english.EXCEPTIONS if phrase not in texts]
    assert not [phrase for phrase, reason in english.EXCEPTIONS.items() if len(reason.split()) < 3]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("stands", "The value stands in the first column."),
        ("stands", "Everything that could stand there."),
        ("stands", "The symbol that stood at this place."),
        ("beside", "The file beside it is read."),
        ("alone", "It reads the database alone."),
        ("further", "Put further lines behind it."),
        ("usual", "Columns are found by their usual names."),
        ("so many", "The mean over so many rows is known."),
        ("so many", "A checkpoint is written after so much of either."),
        ("is no", "`app` is no folder."),
        ("is no", "Tokens that are no groups of units."),
        ("bent verb", "More counts do not better it."),
        ("bent verb", "A list of what the alarms come to."),
        ("bent verb", "What the model says of a token is kept: it says of a gap what fits."),
        ("bent verb", "A file does for the options."),
        ("bent verb", "Put rows together that several processes wrote."),
        ("bent verb", "The default is small, and --size names another."),
        ("riddle", "What is no option cannot be given."),
        ("riddle", "Rows are sorted. Of few records more are held out."),
        ("riddle", "of the draws."),
        ("riddle", "Those that fail are listed."),
        ("long", "word " * 25 + "word."),
        ("long", "It is short. " + "`code span` " * 26),
    ],
)
def test_a_rule_finds_what_it_is_for(rule: str, text: str) -> None:
    assert rule in _rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "A standalone program with a standard format stands for nothing, and N stands for any base.",
        "The long-standing bug stands out. It is a stand-in.",
        "Besides, `stand beside` is code.",
        "Leave the file alone; let alone the others.",
        "3.4 bits by the model alone, and each unit is masked alone.",
        "Training goes further. No position is further away than this. See further down.",
        "It usually works as usual, but this is unusual and larger than usual.",
        "There are so many rows that memory runs out.",
        "There is no model. It is no longer used, and nobody is no one. There are no rows.",
        "A better model is better than this. It does better here.",
        "The total came to 12 rows, and 3 come to the front.",
        "It is said to work.",
        "Put the file into the folder.",
        "What is a token? What to expect from it. Of course it is a word.",
        "**What is read.** The input is a table.",
        "word " * 24 + "word.",
        "word " * 20 + "word. " + "Word " * 20 + "word.",
        "[" + "link " * 10 + "](https://example.org/that/is/not/counted) and " + "word " * 10,
        "Some data, e.g. rows (i.e. lines) of Smith et al. 2020, are read.",
    ],
)
def test_normal_english_is_no_finding(text: str) -> None:
    assert _rules(text) == []


def test_sentences_end_at_points_but_not_in_numbers_and_abbreviations() -> None:
    text = english.plain(
        "It is 0.5, e.g. a half. `x` is next! *Is it?* (Yes.) See Fig. 2 of Smith et al. 2019."
    )
    assert [english.word_count(sentence) for sentence in english.sentences(text)] == [6, 3, 2, 1, 8]


def test_blocks_of_a_page() -> None:
    page = """\
# What a title says

A paragraph
of two lines.
* an item
  that goes on
1. another one
```sh
what is code beside code
```
| what | of |
| --- | --- |
| a `x|y` cell | what it is |
> A quote

**Bold.** Text
"""
    blocks = list(english.markdown_blocks(page))
    assert [(block.line, block.text, block.label) for block in blocks] == [
        (1, "What a title says", True),
        (3, "A paragraph\nof two lines.", False),
        (5, "an item\nthat goes on", False),
        (7, "another one", False),
        (11, "what", True),
        (11, "of", True),
        (13, f"a {english.CODE} cell", False),
        (13, "what it is", False),
        (14, "A quote", False),
        (16, "**Bold.** Text", False),
    ]


def test_blocks_of_a_docstring() -> None:
    docstring = """The first line.

        A paragraph
        of two lines:

            seqmlm train beside

        * an item
        >>> beside()
        "beside"

        Args:
            path: a file
                of two lines.
            seed, other: of the draws.

        Returns:
            A number
            of rows.

        Example: seqmlm train beside
        """
    assert [(block.line, block.text) for block in english.docstring_blocks(docstring)] == [
        (1, "The first line."),
        (3, "A paragraph\nof two lines:"),
        (8, "an item"),
        (13, "a file\nof two lines."),
        (15, "of the draws."),
        (18, "A number\nof rows."),
    ]


def test_findings_name_the_line() -> None:
    block = english.Block(7, "A `code\nspan` and\nmore beside it. Of\nthese it is one.")
    assert [(line, rule) for line, rule, _ in english.block_findings(block)] == [(9, "beside"), (9, "riddle")]


def test_placeholders_and_exceptions_are_looked_over() -> None:
    text = ast.parse("f'{path} is {1 if x else \"beside\"} there'", mode="eval").body
    assert [string for _, string in english.string_texts(text)] == [
        f"{english.CODE} is {english.CODE} there",
        "beside",
    ]
    block = english.Block(1, "It is the usual one and beside it.")
    assert [rule for _, rule, _ in english.block_findings(block, ["the usual"])] == ["beside"]


def test_texts_of_a_template() -> None:
    template = """\
<style>p { color: blue beside red }</style>
{% if rows %}<p title="not a text">{{ count }} rows
beside others</p>{% endif %}
"""
    blocks = list(english.template_blocks(template))
    assert [(block.line, block.text) for block in blocks] == [(2, f"{english.CODE} rows\nbeside others")]


def test_texts_of_a_source_file(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(
        '''"""The module."""
class ExampleConfig:
    """Settings.

    Args:
        seed: of the draws.
    """
class Example(Task):
    """Help of a task."""
    Config = ExampleConfig
    def rows(self):
        """The rows."""
        return "two words"
def other(count=typer.Option(help="Help of an option.")):
    console.message("the end\\nof it" if count else "start")
    print("message")
    names = "beside alone".split() + ["two words"]
    raise ValueError("no file here")
''',
        encoding="utf-8",
    )
    assert sorted((kind, block.line, block.text) for kind, block in english.source_blocks(path)) == [
        ("docstrings", 1, "The module."),
        ("docstrings", 12, "The rows."),
        ("help", 3, "Settings."),
        ("help", 6, "of the draws."),
        ("help", 9, "Help of a task."),
        ("help", 14, "Help of an option."),
        ("messages", 15, "of it"),
        ("messages", 15, "the end"),
        ("messages", 18, "no file here"),
    ]
