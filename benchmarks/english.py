"""How plain the English is of everything that people read: pages, help, messages and docstrings.

    python benchmarks/english.py                      findings by rule, and by place
    python benchmarks/english.py --list README.md     findings of a page, file or folder, with line and rule
    python benchmarks/english.py --rule beside        the findings of one rule, with --list or without

The texts are read from the source; nothing is imported or run. `tests/test_english.py` allows none. A place
is a page or, for texts in Python files, a package and the kind of text.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import house

ROOT = house.ROOT
EXCEPTIONS: dict[str, str] = {
    "units beside counts": "a key of the file that says what the time limit cut; a resumed training reads it",
}
"""Phrases that no rule looks at, each with its reason."""

MAX_WORDS = 25
"""Words of the longest sentence that is not a finding."""

PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md"),
    *("seqmlm/**/*.md", "examples/**/*.md", "benchmarks/**/*.md"),
)
GENERATED = ("docs/reference/commands/",)
"""Pages that are written from docstrings, which are counted where they are written."""

CODE = "◊"
"""The replacement for code, URLs and placeholders of f-strings: one word that no rule looks at."""

PHRASES: dict[str, str] = {
    "stands": r"\b(?:stands?|stood|standing)\b(?! (?:for|out|still|in for|by itself)\b|-)(?<!-standing)",
    "beside": r"\bbeside\b",
    "alone": r"\balone\b",
    "further": (
        r"\bfurther (?!(?:down|away|than|apart|from|below|up|back|along|on|to|and|by|reading)\b)[a-z]"
    ),
    "usual": r"\busual\b",
    "so many": r"\bso (?:many|much) [a-z◊]",
    "is no": (
        r"(?<!there )\b(?:is|are|was|were|be) no "
        r"(?!(?:one|longer|more|less|fewer|better|worse|use)\b)[a-z◊]"
    ),
    "bent verb": (
        r"\b(?:does|do|did|to|not|can|will|would) better (?:it|them|this|that|these|the|a|any)\b"
        r"|\b(?:says?|said|tells?|told) of\b"
        r"|\bdo(?:es)? for (?:it|them|the|a|an|all)\b"
        r"|\b(?:comes?|came|amounts?) to(?=[.,;:)]|$)"
        r"|\bputs? [a-z]+ together\b"
        r"|\bnames another\b"
        r"|\b(?:is|are|was|were) to be had\b"
    ),
}
"""Rules for words: patterns, without regard to case."""

IDIOMS = re.compile(
    r"\b(?:leav\w+|left|let)(?: [\w◊]+){0,3} alone\b|\bstand(?:s|ing)? alone\b"
    r"|\bby(?: [\w◊]+){1,3} alone\b|\b(?:masked|hidden|taken|used) alone\b"
    r"|\b(?:as|than) usual\b"
    r"|\bso (?:many|much|few)(?: [\w◊]+){0,4} that (?!(?:are|is|was|were|have|has|had|can)\b)"
    r"|\bso much (?:so|for|as)\b",
    re.IGNORECASE,
)
"""Forms of the same words that are normal English."""

RIDDLE = re.compile(r"(?:What(?! to\b)|Of(?! course\b)|Those (?:that|who|which|whose|of))\b", re.IGNORECASE)
"""First words of sentences whose subject is not named; a question may begin with "What"."""

MIN_WORDS = 3
"""Words of the shortest string in Python code or in a template that is read as a text."""

RULES = (*PHRASES, "riddle", "long")

_PATTERNS = {rule: re.compile(pattern, re.IGNORECASE) for rule, pattern in PHRASES.items()}
_ANY_PHRASE = re.compile(r"stand|stood|beside|alone|further|usual|so |no |better|of|for|to|put|nam", re.I)
_SENTENCE_END = re.compile(r"""(?<=[.!?])["')*\]]*\s+(?=["'(*\[]*[A-Z0-9◊])""")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|al|cf|vs|approx|Fig|Sec|p|No)\.(?=[\s,)])")
_WORD = re.compile(r"\S*[\w◊]\S*")
_CODE_SPAN = re.compile(r"(`+)[^`].*?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_URL = re.compile(r"<?https?://[^\s>)]+>?|<[a-zA-Z/!][^>]*>")
_ITEM = re.compile(r"^(?:[*+-]|\d+[.)])\s+")
_COMMAND = re.compile(r"\.(?:command|callback)\b")
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples|Note|Warns):$")


@dataclass(frozen=True)
class Finding:
    """One place where a rule applies.

    Attributes:
        kind: "docs", "help", "messages" or "docstrings".
        place: the page or the package that it counts for.
        path: the file, relative to the repository.
        rule: one of `RULES`.
        text: the words that matched, or the sentence.
    """

    kind: str
    place: str
    path: str
    line: int
    rule: str
    text: str


@dataclass
class Block:
    """A paragraph, an item of a list, a cell of a table, a heading, or a string.

    Attributes:
        line: the number of its first line.
        text: its lines, with their ends.
        label: it is a heading or a column's name; such may begin with "What", and so may bold first words.
    """

    line: int = 0
    text: str = ""
    label: bool = False

    def add(self, line: int, text: str) -> None:
        """Append a line of the file."""
        self.line = self.line or line
        self.text += f"\n{text}" if self.text else text


def markdown_blocks(text: str, first_line: int = 1) -> Iterator[Block]:
    """The blocks of a page or of a paragraph; fenced and indented code is left out."""
    block, fence, table = Block(), "", False
    for number, line in enumerate(text.splitlines(), first_line):
        stripped = line.strip().removeprefix("> ").strip()
        if fence:
            fence = "" if stripped.startswith(fence) else fence
            continue
        if stripped.startswith(("```", "~~~")):
            fence = stripped[:3]
            stripped = ""
        row = stripped.startswith("|")
        heading = bool(re.match(r"#+ ", stripped))
        if not stripped or row or heading or _ITEM.match(stripped):
            if block.text:
                yield block
            block = Block()
        if row:
            if not re.fullmatch(r"[|:\-\s]+", stripped):
                code_free = _CODE_SPAN.sub(CODE, stripped)
                yield from (
                    Block(number, cell.strip(), label=not table)
                    for cell in re.split(r"(?<!\\)\|", code_free.strip("|"))
                )
        elif heading:
            yield Block(number, stripped.lstrip("# "), label=True)
        elif stripped:
            block.add(number, stripped if block.text else _ITEM.sub("", stripped, count=1))
        table = row
    if block.text:
        yield block


def docstring_blocks(text: str, first_line: int = 1) -> Iterator[Block]:
    """The blocks of a docstring: its paragraphs and the entries of its sections, without examples."""
    block, section, code = Block(), "", False
    for number, line in enumerate(inspect.cleandoc(text).splitlines(), first_line):
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        code = stripped.startswith(">>>") or (code and bool(stripped))
        header = _SECTION.match(stripped) if indent == 0 else None
        if indent == 0 and stripped:
            section = header[1] if header else ""
        entry = section in ("Args", "Attributes", "Raises") and indent == 4
        item = _ITEM.match(line)
        skipped = (
            not stripped
            or code
            or header is not None
            or section.startswith("Example")
            or stripped.startswith(("Example:", "For example: seqmlm", "$ "))
            or (indent >= 4 and not section)
        )
        if (skipped or entry or item) and block.text:
            yield block
            block = Block()
        if not skipped:
            stripped = re.sub(r"^[\w*, ]+: ", "", stripped) if entry else stripped
            block.add(number, _ITEM.sub("", stripped, count=1) if item else stripped)
    if block.text:
        yield block


def _same_length(match: re.Match[str]) -> str:
    return match[0].replace(".", "_")


def plain(text: str) -> str:
    """A text without marks: code spans and addresses are one word, links are their words; lines stay."""
    text = _CODE_SPAN.sub(lambda span: CODE + "\n" * span[0].count("\n"), text) if "`" in text else text
    text = _LINK.sub(r"\1", text) if "](" in text else text
    text = _URL.sub(CODE, text) if "<" in text or "://" in text else text
    return text.replace("**", "")


def sentences(text: str) -> list[str]:
    """The sentences of a plain text."""
    return _SENTENCE_END.split(_ABBREVIATION.sub(_same_length, text.strip()))


def word_count(sentence: str) -> int:
    """The number of words; what has no letter and no digit is none."""
    return len(_WORD.findall(sentence))


def block_findings(block: Block, exceptions: Iterable[str] = ()) -> Iterator[tuple[int, str, str]]:
    """Line, rule and text of each finding in a block."""
    text = plain(block.text)
    spaced = text.replace("\n", " ")
    for phrase in exceptions:
        spaced = spaced.replace(phrase, CODE.ljust(len(phrase)))
    if _ANY_PHRASE.search(spaced):
        searched = IDIOMS.sub(lambda match: CODE.ljust(len(match[0])), spaced)
        for rule, pattern in _PATTERNS.items():
            for match in pattern.finditer(searched):
                line = block.line + text.count("\n", 0, match.start())
                yield line, rule, spaced[max(0, match.start() - 25) : match.end() + 25].strip()
    start = 0
    for sentence in sentences(spaced):
        start = max(spaced.find(sentence, start), start)
        line = block.line + text.count("\n", 0, start)
        label = block.label or (start == 0 and block.text.startswith("**"))
        if not label and RIDDLE.match(sentence.lstrip("\"'(*_")) and not sentence.endswith("?"):
            yield line, "riddle", sentence[:70]
        if len(sentence) > MAX_WORDS and (count := word_count(sentence)) > MAX_WORDS:
            yield line, "long", f"{count} words: {sentence[:60]}"


def string_texts(tree: ast.AST, skipped: Container[int] = ()) -> Iterator[tuple[int, str]]:
    """The strings below a node with their lines; a placeholder of an f-string is one word of it.

    Strings inside of placeholders are texts of their own.

    Args:
        skipped: the `id` of nodes that are left out.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        part = waiting.pop()
        if id(part) in skipped or isinstance(part, _LEAVES):
            continue
        if isinstance(part, ast.JoinedStr):
            pieces = (piece.value if isinstance(piece, ast.Constant) else CODE for piece in part.values)
            yield part.lineno, "".join(map(str, pieces))
            waiting += [piece.value for piece in part.values if isinstance(piece, ast.FormattedValue)]
        elif isinstance(part, ast.Constant):
            if isinstance(part.value, str):
                yield part.lineno, part.value
        else:
            waiting += ast.iter_child_nodes(part)


def source_blocks(path: Path) -> Iterator[tuple[str, Block]]:
    """The kind and the block of every text in a Python file that people read."""
    in_cli = path.is_relative_to(house.PACKAGE / "cli")
    help_lines: set[int] = set()
    docstrings: set[int] = set()
    words_lists: set[int] = set()
    nodes = list(_nodes(house.tree(path)))
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "help" if _is_help(node, in_cli=in_cli) else "docstrings"
            for part in node.body if isinstance(node, ast.Module | ast.ClassDef) else node.body[:1]:
                text = part.value if isinstance(part, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    docstrings.add(id(text))
                    for block in docstring_blocks(text.value, part.lineno):
                        yield kind, block
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "split":
                words_lists.add(id(node.func.value))
            for text in (keyword.value for keyword in node.keywords if keyword.arg == "help"):
                for line, string in string_texts(text):
                    help_lines.add(line)
                    for paragraph in string.split("\n"):
                        yield "help", Block(line, paragraph.strip())
    for line, string in string_texts(house.tree(path), docstrings | words_lists):
        if line not in help_lines and word_count(string) >= MIN_WORDS:
            for paragraph in string.split("\n"):
                yield "messages", Block(line, paragraph.strip())


def template_blocks(text: str) -> Iterator[Block]:
    """The texts between the tags of an HTML template; placeholders are words that no rule looks at."""
    text = re.sub(r"<(style|script)\b.*?</\1>|\{%.*?%\}|\{#.*?#\}", _lines_only, text, flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", lambda match: CODE + _lines_only(match), text, flags=re.DOTALL)
    line = 1
    for piece in re.split(r"(<[^>]*>)", text):
        if not piece.startswith("<") and word_count(piece) >= MIN_WORDS:
            yield Block(line, piece.strip())
        line += piece.count("\n")


def _lines_only(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes but names and constants; twice as fast as `ast.walk`, which half of the time was spent in."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in node._fields:
            child = getattr(node, field, None)
            if isinstance(child, list):
                waiting += [part for part in child if isinstance(part, ast.AST)]
            elif isinstance(child, ast.AST) and not isinstance(child, _LEAVES):
                waiting.append(child)


_LEAVES = (ast.Name, ast.expr_context, ast.operator)


def _is_help(node: ast.AST, *, in_cli: bool) -> bool:
    """Whether `--help` shows the docstring: of commands, of tasks, and of the classes of their settings."""
    if isinstance(node, ast.ClassDef):
        return node.name.endswith("Config") or any(
            isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "Config" for part in node.body
        )
    if in_cli and isinstance(node, ast.FunctionDef):
        decorators = map(ast.unparse, node.decorator_list)
        return any(map(_COMMAND.search, decorators)) or "\nExample: " in (ast.get_docstring(node) or "")
    return False


def pages() -> list[Path]:
    """The pages that are written by hand."""
    paths = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(path for path in paths if not path.relative_to(ROOT).as_posix().startswith(GENERATED))


@cache
def findings() -> list[Finding]:
    """All findings, by file and line."""
    return sorted(
        (
            Finding(kind, place, path.relative_to(ROOT).as_posix(), line, rule, text)
            for kind, place, path, block in blocks()
            for line, rule, text in block_findings(block, EXCEPTIONS)
        ),
        key=lambda finding: (finding.path, finding.line),
    )


@cache
def blocks() -> list[tuple[str, str, Path, Block]]:
    """Kind, place, file and block of every text."""
    collects = gc.isenabled()
    gc.disable()  # syntax trees hold no garbage, and looking for some takes four times as long as all else
    try:
        texts = [
            ("docs", path.relative_to(ROOT).as_posix(), path, block)
            for path in pages()
            for block in markdown_blocks(path.read_text(encoding="utf-8"))
        ]
        for path in house.files():
            package = house.package_of(path)
            texts += [(kind, package, path, block) for kind, block in source_blocks(path)]
        for path in sorted(house.PACKAGE.glob("**/*.jinja")):
            package = house.package_of(path)
            texts += [
                ("messages", package, path, block)
                for block in template_blocks(path.read_text(encoding="utf-8"))
            ]
        return texts
    finally:
        if collects:
            gc.enable()


@cache
def figures() -> dict[str, dict[str, int]]:
    """The number of findings by kind and place, places without any included."""
    counts: dict[str, dict[str, int]] = {kind: {} for kind in ("docs", "help", "messages", "docstrings")}
    for path in pages():
        counts["docs"][path.relative_to(ROOT).as_posix()] = 0
    for package in sorted({house.package_of(path) for path in house.files()}):
        for kind in ("help", "messages", "docstrings"):
            counts[kind][package] = 0
    for finding in findings():
        counts[finding.kind][finding.place] += 1
    return counts


def show() -> None:
    """Print the findings by rule and kind, and by place."""
    by_rule = Counter((finding.rule, finding.kind) for finding in findings())
    kinds = list(figures())
    print(f"{'':12}" + "".join(f"{kind:>12}" for kind in kinds))
    for rule in RULES:
        print(f"{rule:12}" + "".join(f"{by_rule[rule, kind]:12,}" for kind in kinds))
    print(f"{'all':12}" + "".join(f"{sum(figures()[kind].values()):12,}" for kind in kinds))
    for kind, counts in figures().items():
        print(f"\n{kind}")
        for place, count in counts.items():
            if count:
                print(f"  {place:50} {count:6,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", metavar="PATH", help="list the findings of a page, a file or a folder")
    parser.add_argument("--rule", choices=RULES, help="list the findings of this rule only")
    arguments = parser.parse_args()
    if arguments.list or arguments.rule:
        prefix = Path(arguments.list or ".").as_posix().strip("/")
        for finding in findings():
            inside = prefix in ("", ".") or f"{finding.path}/".startswith(f"{prefix}/")
            if inside and arguments.rule in (None, finding.rule):
                print(f"{finding.path}:{finding.line}: {finding.kind}: {finding.rule}: {finding.text}")
    else:
        show()


if __name__ == "__main__":
    main()
