"""How easy the code is to read: names, sizes of interfaces, imports, and where privacy is mentioned.

    python benchmarks/house.py                        a table for people
    python benchmarks/house.py --json before.json     the same figures for machines
    python benchmarks/house.py --before before.json   the same figures next to those of an earlier state
    python benchmarks/house.py --files                the files with the most empty names

The figures are read from the source; nothing is timed. `tests/test_names.py` and `tests/test_house.py` hold
them below their limits. `python tests/golden/scenarios.py --compare A B` compares the results of two states.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from seqmlm.parsing import word_list

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "seqmlm"

EMPTY_NAMES = frozenset(
    word_list(
        """
        one own found told made given asked known some kept rest further beside aside again apart
        shown said met every others other wanted seen taken read drawn held left more back behind
        before after least most whole alone both new old this that what so each
        """
    )
)
"""Words that fit every value, and so say nothing about this one."""

VAGUE_NAMES = frozenset(("item", "value", "result", "data"))
"""Words for names if no better one is known; their share must not grow when empty names are removed."""

PARTICIPLES = frozenset(
    word_list(
        """
        told said shown met asked given known kept made found read written spelled named seen sent
        joined drawn held taken cut put left gone came apart near beside behind again aside alone
        both whole beyond within ahead until unseen unsettled unwritable changed placed fitted
        judged scored learnt counted brief hidden
        """
    )
)
"""Participles, prepositions and adverbs: none of them says what a function returns or does."""

VERBS = frozenset(
    word_list(
        """
        add build call check close collect commit compare connect count create decode delete detect
        draw drop encode estimate evaluate expand export fill find finish fit forget format get
        index join label launch list load log main make mark match measure merge open pack parse
        place plan plot prepare print publish put rank read redact refuse remove rename render
        replace report resolve run save scale score select send set show sort split start stop store
        train undo update validate wait warn write
        """
    )
)
"""A function that acts is named by its verb, and several modules may have the same one."""

RIDDLES = frozenset(("What", "Those", "Of", "As", "That", "Which", "Who", "Beside", "With", "So"))
"""First words of docstrings that do not name what is described."""

PRIVACY = re.compile(r"sensitiv(?!ity)|privat|privacy|redact", re.IGNORECASE)
"""Words about sensitive data; "sensitivity" is a figure."""


def files(folder: Path = PACKAGE) -> list[Path]:
    """All Python files of a folder, sorted."""
    return sorted(folder.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def package_of(path: Path) -> str:
    """The package of a file, such as "engine" or "domains/logs"; "." for a module directly in `seqmlm`."""
    parts = path.relative_to(PACKAGE).parts
    if len(parts) == 1:
        return "."
    return "/".join(parts[:2]) if parts[0] == "domains" and len(parts) > 2 else parts[0]


def bound_names(module: ast.AST) -> Iterator[str]:
    """Every name that is bound: assigned variables, loop variables and parameters except self and cls."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg


def name_counts(paths: Iterable[Path]) -> tuple[int, int, int]:
    """Bound names in some files: all of them, the empty ones, the vague ones."""
    counts = Counter(name.strip("_") for path in paths for name in bound_names(tree(path)))
    return (
        sum(counts.values()),
        sum(counts[name] for name in EMPTY_NAMES),
        sum(counts[name] for name in VAGUE_NAMES),
    )


@cache
def empty_shares() -> dict[str, float]:
    """The share of empty names among bound names, by package; "seqmlm" for all of them."""
    packages = defaultdict(list)
    for path in files():
        packages[package_of(path)].append(path)
    shares = {}
    for package, paths in {"seqmlm": files(), **dict(sorted(packages.items()))}.items():
        names, empty, _ = name_counts(paths)
        shares[package] = empty / max(names, 1)
    return shares


def vague_share() -> float:
    """The share of vague names among all bound names."""
    names, _, vague = name_counts(files())
    return vague / names


def definitions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions, methods and classes of a file, those inside others included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node


def participles() -> list[str]:
    """Definitions that are named by a participle or a preposition only, as path:line name."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}"
        for path in files()
        for node in definitions(path)
        if node.name.strip("_").lower() in PARTICIPLES
    ]


def repeated_public_names(modules: int = 3) -> dict[str, list[str]]:
    """Public functions and classes of a module's top level with the same name in more modules than this.

    Names that are verbs are left out.
    """
    places = defaultdict(list)
    for path in files():
        for node in tree(path).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and node.name.partition("_")[0] not in VERBS:
                places[node.name].append(path.relative_to(PACKAGE).as_posix())
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > modules}


def riddles() -> list[str]:
    """Definitions whose docstring begins with a word that names nothing, as path:line name: first line."""
    result = []
    for path in files():
        for node in definitions(path):
            first_line = (ast.get_docstring(node) or "").partition("\n")[0]
            if first_line.partition(" ")[0] in RIDDLES:
                place = f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"
                result.append(f"{place} {node.name}: {first_line}")
    return result


Documented = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def docstrings(path: Path) -> Iterator[tuple[Documented, int, str]]:
    """Docstrings of a file, each with its module, function or class and with its line.

    A string below a field or a constant counts as one of the class or of the module.
    """
    for node in (tree(path), *definitions(path)):
        for part in node.body if isinstance(node, ast.Module | ast.ClassDef) else node.body[:1]:
            text = part.value if isinstance(part, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield node, part.lineno, inspect.cleandoc(text.value)


SECTION = re.compile(r"^(Args|Attributes):\n((?: .*\n?|\n)+)", re.MULTILINE)
EXPLAINED = re.compile(r"(?:^    |(?<=[.;]) )(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*):(?: |$)", re.MULTILINE)


def documented_names(docstring: str) -> Iterator[tuple[str, str]]:
    """The names that the sections "Args" and "Attributes" of a docstring explain, each behind its section."""
    for section, text in SECTION.findall(docstring):
        for group in EXPLAINED.findall(text):
            for name in group.split(","):
                if name != "default":  # "default: ..." ends many explanations
                    yield section, name.strip("* ")


def stale_arguments() -> list[str]:
    """Names below `Args:` and `Attributes:` that the code does not have, as path:line name."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{line} {name}"
        for path in files()
        for node, line, docstring in docstrings(path)
        for section, name in documented_names(docstring)
        if name not in _documentable(node, section)
    ]


def _documentable(node: Documented, section: str) -> frozenset[str]:
    """The names that a section of a docstring may explain."""
    if isinstance(node, ast.Module):
        return frozenset()
    if isinstance(node, ast.ClassDef):
        makers = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        if section == "Attributes" or not makers:
            return class_members(node)
        (node,) = makers
    return frozenset(part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg))


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """The classes of the package by name."""
    by_name = defaultdict(list)
    for path in files():
        for node in definitions(path):
            if isinstance(node, ast.ClassDef):
                by_name[node.name].append(node)
    return by_name


def class_members(*definitions: ast.ClassDef) -> frozenset[str]:
    """Fields, attributes, methods and parameters of some classes and of their bases in the package."""
    members: set[str] = set()
    waiting, reached = list(definitions), set()
    while waiting:
        node = waiting.pop()
        if id(node) not in reached:
            reached.add(id(node))
            members |= _own_members(node)
            bases = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
            waiting += [definition for base in bases for definition in classes().get(base, ())]
    return frozenset(members)


def _own_members(node: ast.ClassDef) -> set[str]:
    """The members that a class itself binds, with the parameters of its `__init__`."""
    members = {name for statement in node.body for name in _bound_by(statement)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            members |= {part.attr} if ast.unparse(part.value) in ("self", "cls") else set()
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            members |= {argument.arg for argument in ast.walk(part.args) if isinstance(argument, ast.arg)}
    return members


def _bound_by(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, those in its branches included."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names = set()
    for part in ast.walk(statement):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            names.add(part.id)
        elif isinstance(part, ast.alias):
            names.add((part.asname or part.name).partition(".")[0])
        elif isinstance(part, ast.FunctionDef | ast.ClassDef):
            names.add(part.name)
    return names


@cache
def module_names(path: Path) -> frozenset[str]:
    """The names at the top level of a file, imported ones and, for a package, its modules included."""
    names = {name for statement in tree(path).body for name in _bound_by(statement)}
    if "__getattr__" in names:  # it imports lazily what its strings name
        parts = (getattr(part, "value", None) for part in ast.walk(tree(path)))
        names |= {part for part in parts if isinstance(part, str)}
    if path.name == "__init__.py":
        names |= {inner.stem for inner in path.parent.glob("*.py")}
        names |= {inner.parent.name for inner in path.parent.glob("*/__init__.py")}
    return frozenset(names)


@cache
def modules() -> dict[str, list[Path]]:
    """The files of the package by the last part of their module's name."""
    by_name = defaultdict(list)
    for path in files():
        by_name[path.parent.name if path.name == "__init__.py" else path.stem].append(path)
    return by_name


def resolves(name: str) -> bool:
    """Whether a dotted name that begins with `seqmlm` is a module, or is defined in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = source_of(".".join(parts[:end]))
        if path is not None:
            return end == len(parts) or (
                parts[end] in module_names(path) and _has_members(parts[end], parts[end + 1 :])
            )
    return ROOT.joinpath(*parts).is_dir()


def _has_members(class_name: str, members: list[str]) -> bool:
    """Whether a class has a member; True if the class is not in the package."""
    return not members or class_name not in classes() or members[0] in class_members(*classes()[class_name])


DOTTED = re.compile(r"`(\w+(?:\.\w+)+)(?:\(\))?`|\b(seqmlm(?:\.\w+)+)\b(?!\()")
"""A dotted name in backticks, or one that begins with the package."""
MARKED = re.compile(r"`(_{0,2}[A-Za-z]\w*)(?:\(\))?`")
"""A single name in backticks."""
FILE_NAME = re.compile(r"[\w.]+\.(?:jsonl?|txt|tsv|fasta|genes|dbn|conllu|trace|db|v\d+)")
"""Names of files, and of versions of what is plugged in."""
SETTINGS = frozenset(("data", "model", "train", "config"))
"""Groups of settings that are also names of modules."""
FOREIGN = frozenset(
    word_list(
        """
        AutoModelForSequenceClassification AutoModelForTokenClassification Pipeline cross_val_score drain3
        f1_TYPE load_model mlruns NAME_end NAME_position NAME_start nonlocal seqmlm.maskers tokenize
        tokenizers.Tokenizer
        """
    )
)
"""Names in docstrings that other libraries and languages have, that are patterns, or entry points."""


def stale_references() -> list[str]:
    """Names in docstrings that the package does not have, as path:line name.

    Dotted names are checked if they begin with a module or a class of the package. This excludes the name of
    a setting ("data.seed"), of a file or of another library. A single name in backticks has to occur in the
    code of the package: as a name or as a string.
    """
    stale = []
    for path in files():
        for _, line, docstring in docstrings(path):
            names = [marked or plain for marked, plain in DOTTED.findall(docstring)]
            stale += [
                f"{path.relative_to(ROOT).as_posix()}:{line} {name}"
                for name in names
                if name not in FOREIGN and not _exists(name, path)
            ] + [
                f"{path.relative_to(ROOT).as_posix()}:{line} {name}"
                for name in MARKED.findall(docstring)
                if name not in code_words() | FOREIGN
            ]
    return stale


def _exists(name: str, path: Path) -> bool:
    """Whether a dotted name in a docstring of a file exists, as far as it begins with a module or a class."""
    head, *members = name.split(".")
    if FILE_NAME.fullmatch(name):
        return True
    if head == PACKAGE.name:
        return resolves(name) or name in code_words()  # a tag of MLflow, such as "seqmlm.version"
    if head in classes():
        return _has_members(head, members)
    if head in set(bound_names(tree(path))) | SETTINGS:
        return members[0] in code_words()
    sources = modules().get(head, [])
    return not sources or any(
        members[0] in module_names(source) and _has_members(members[0], members[1:]) for source in sources
    )


@cache
def code_words() -> frozenset[str]:
    """The words of all names and strings of the package, docstrings excluded."""
    words: set[str] = set()
    for path in files():
        words |= set(path.relative_to(ROOT).with_suffix("").parts)
        texts = {id(part.value) for node in ast.walk(tree(path)) for part in _documentation(node)}
        for part in ast.walk(tree(path)):
            for name in ("id", "attr", "arg", "name", "module", "asname"):
                words |= set(re.findall(r"\w+", str(getattr(part, name, None) or "")))
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in texts:
                words |= {part.value, *re.findall(r"\w+", part.value)}
    return frozenset(words)


def _documentation(node: ast.AST) -> list[ast.Expr]:
    """The expressions of a body that stand alone; docstrings are among them."""
    body = getattr(node, "body", ())
    return [part for part in body if isinstance(part, ast.Expr)] if isinstance(body, list) else []


def public_members(module: str, name: str) -> list[str]:
    """The public attributes, properties and methods that a class declares, in the order of its source."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    (definition,) = (node for node in tree(path).body if isinstance(node, ast.ClassDef) and node.name == name)
    members: dict[str, None] = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            members[node.target.id] = None
        elif isinstance(node, ast.Assign):
            members |= {target.id: None for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef):
            members[node.name] = None
            if node.name == "__init__":
                for part in ast.walk(node):
                    stored = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                    if stored and isinstance(part.value, ast.Name) and part.value.id == "self":
                        members[part.attr] = None
    return [member for member in members if not member.startswith("_")]


def privacy_files() -> list[str]:
    """Files that mention privacy, in code or in text."""
    return [
        path.relative_to(PACKAGE).as_posix()
        for path in files()
        if PRIVACY.search(path.read_text(encoding="utf-8"))
    ]


@cache
def imports(path: Path) -> frozenset[Path]:
    """The files of the package that a file imports, inside functions included, for type checks excluded."""
    checked_only = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            checked_only |= {id(part) for part in ast.walk(node)}
    names = set()
    for node in ast.walk(tree(path)):
        if id(node) in checked_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(source for name in names if (source := source_of(name)) is not None)


def source_of(name: str) -> Path | None:
    """The file of a module of the package; None for other names."""
    if name.split(".")[0] != PACKAGE.name:
        return None
    path = ROOT.joinpath(*name.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@cache
def code_lines(path: Path) -> int:
    """Lines of a file without docstrings, comments and empty lines, which a limit must not make terse."""
    docstring_lines: set[int] = set()
    for node in ast.walk(tree(path)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstring_lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        number not in docstring_lines and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    )


def loaded_lines(*modules: str) -> int:
    """Lines of code that an import of modules loads from the package, in a process of its own."""
    code = (
        f"import sys, {', '.join(modules)}\n"
        "paths = {m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'seqmlm' and m.__file__}\n"
        "print(*paths, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return sum(code_lines(Path(line)) for line in done.stdout.splitlines())


def closure(*modules: str) -> set[Path]:
    """The files that some modules import, directly or by way of others, themselves included."""
    waiting = [path for module in modules if (path := source_of(module)) is not None]
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += imports(path)
    return reached


def imported_lines(*modules: str) -> int:
    """Lines of code that some modules can reach by imports, those inside of functions included."""
    return sum(map(code_lines, closure(*modules)))


UNCOUNTED = frozenset(("errors.py", "parsing.py", "engine/durable.py"))
"""The modules that every part of the package may use."""


def outside_modules(package: str) -> list[str]:
    """The modules outside of a package that its files import directly."""
    inside = files(PACKAGE / package)
    outside = {source for path in inside for source in imports(path)} - set(inside)
    names = {path.relative_to(PACKAGE).as_posix() for path in outside}
    return sorted(name for name in names - UNCOUNTED if not name.endswith("__init__.py") or "/" in name)


def lines(folder: Path) -> int:
    """Lines of code in all Python files of a folder."""
    return sum(map(code_lines, files(folder)))


INTERFACES = {
    "Task": "seqmlm.tasks.task",
    "Level": "seqmlm.anomaly.levels",
    "Units": "seqmlm.engine.units",
    "Field": "seqmlm.domains.field",
}
TASKS = {
    "score": ("seqmlm.scoring.score", "seqmlm.tasks.run"),
    "structure": ("seqmlm.tasks.structure", "seqmlm.tasks.run"),
    "embed": ("seqmlm.tasks.embed", "seqmlm.tasks.run"),
    "train": ("seqmlm.training.pretrain",),
    "finetune": ("seqmlm.finetuning.run",),
}
"""The modules that do the work of each task."""


LONG_LINES, MANY_PARAMETERS = 40, 8


def large_functions() -> dict[str, int]:
    """Functions, those longer than a screen, and those with more parameters than a reader remembers."""
    counts = {"functions": 0, f"over {LONG_LINES} lines": 0, f"over {MANY_PARAMETERS} parameters": 0}
    for path in files():
        for node in definitions(path):
            if not isinstance(node, ast.ClassDef):
                arguments = node.args
                parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                counted = sum(parameter.arg not in ("self", "cls") for parameter in parameters)
                counts["functions"] += 1
                counts[f"over {LONG_LINES} lines"] += (node.end_lineno or 0) - node.lineno + 1 > LONG_LINES
                counts[f"over {MANY_PARAMETERS} parameters"] += counted > MANY_PARAMETERS
    return counts


Table = dict[str, float]


def tables() -> dict[str, Table]:
    """All figures: name to figure, by the title of a table."""
    packages = sorted({path.relative_to(PACKAGE).parts[0] for path in files() if path.parent != PACKAGE})
    shares = empty_shares()
    return {
        "names": {
            "share of empty names": shares["seqmlm"],
            "packages above 4 % empty names": sum(s > 0.04 for name, s in shares.items() if name != "seqmlm"),
            "share of item, value, result, data": vague_share(),
            "definitions named by a participle or preposition": len(participles()),
            "public names in more than three modules": len(repeated_public_names()),
            "docstrings that begin with a riddle": len(riddles()),
        },
        "empty names, share by package": shares,
        "public members": {name: len(public_members(module, name)) for name, module in INTERFACES.items()},
        "files that mention privacy": {"all": len(privacy_files())},
        "lines that an import loads": {task: loaded_lines(*modules) for task, modules in TASKS.items()},
        "lines that imports can reach": {task: imported_lines(*modules) for task, modules in TASKS.items()},
        "watch": {
            "modules it imports from": len(outside_modules("watch")),
            "lines": lines(PACKAGE / "watch"),
        },
        "lines": {"all": lines(PACKAGE), **{package: lines(PACKAGE / package) for package in packages}},
        "functions": dict(large_functions()),
    }


def show(now: dict[str, Table], before: dict[str, Table]) -> None:
    """Print the tables, each figure next to the earlier one where there is one."""
    for title, figures in now.items():
        print(f"\n{title}")
        for name, figure in figures.items():
            earlier = before.get(title, {}).get(name)
            change = "" if earlier is None else f"   before: {_text(earlier)}"
            print(f"  {name:50} {_text(figure):>8}{change}")


def _text(figure: float) -> str:
    return f"{figure:.1%}" if 0 < figure < 1 else f"{figure:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--before", type=Path, help="figures of an earlier state, written with --json")
    parser.add_argument("--files", action="store_true", help="list the files with most empty names")
    arguments = parser.parse_args()
    if arguments.files:
        for path in sorted(files(), key=lambda path: -name_counts([path])[1])[:60]:
            names, empty, _ = name_counts([path])
            print(f"{empty:4} of {names:4}  {path.relative_to(ROOT)}")
        return
    now = tables()
    show(now, json.loads(arguments.before.read_text(encoding="utf-8")) if arguments.before else {})
    if arguments.json:
        arguments.json.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
