"""No arrow goes up and no circle: which part of the package may import which, and who may know a field.

A field is known in `domains/` only. Everything else asks what a domain declares, so that a
field outside the package can do what the built-in ones do.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from seqmlm import plugins
from seqmlm.parsing import word_list

PACKAGE = Path(__file__).resolve().parent.parent / "seqmlm"

# Part -> the parts, or single modules of parts, that it may import besides itself. `engine.durable` loads no
# torch: how files are replaced is the same everywhere.
ENGINE = {"errors", "parsing", "engine"}
DATA = ENGINE | {"tokenizers", "data", "config", "privacy"}
FIELDS = DATA | {"evaluation", "anomaly", "structure", "reports", "domains"}
TASKS = FIELDS | {
    *("inference", "streams", "rows", "registry", "tracking", "plugins", "workspace", "__version__"),
}
COMMANDS = {"tasks", "scoring", "training", "finetuning", "management"}
MAY_IMPORT = {
    "errors": set(),
    "parsing": set(),
    "privacy": {"engine.durable"},
    "config": {"errors", "parsing"},
    "engine": ENGINE,
    "tokenizers": ENGINE,
    "data": DATA,
    "evaluation": DATA,
    "anomaly": DATA | {"evaluation"},
    "structure": DATA | {"evaluation"},
    "reports": {"errors", "privacy", "data", "anomaly", "parsing", "engine.durable"},
    "domains": FIELDS,
    "streams": {"errors", "data", "config", "parsing", "workspace", "engine.durable"},
    "rows": {"errors", "data", "engine.durable", "streams"},
    "workspace": {"errors", "config", "engine.durable"},
    "tracking": {"errors", "privacy", "workspace", "parsing", "engine.durable"},
    "registry": {"errors", "workspace", "parsing", "engine.durable"},
    "plugins": {"errors", "engine", "tokenizers", "domains"},
    "inference": FIELDS | {"streams", "registry", "workspace", "plugins", "__version__"},
    "tasks": TASKS,
    "scoring": TASKS | {"tasks"},
    "training": TASKS | {"tasks", "scoring"},
    "finetuning": TASKS | {"tasks", "scoring", "training"},
    "management": TASKS | {"tasks", "scoring", "training", "finetuning"},
    "watch": {
        *("errors", "parsing", "engine.durable", "engine.signals", "streams"),
        *("data.files", "data.problems", "data.record", "data.severities", "reports.page"),
        *("registry.schema", "registry.store", "scoring.config", "scoring.live", "reports.summary"),
    },  # nothing imports it
    "cli": {"errors", "parsing", "config", "watch", "plugins", "__version__", *COMMANDS},
    "__main__": {"cli"},
    "frames": {"errors", "engine.durable", "reports"},
    "api": {*word_list("errors config data engine inference workspace cli frames estimators"), *COMMANDS},
    "pyfunc": {"api", "errors", "frames"},
    "estimators": {"errors", "frames", "parsing"},
    "scorer": {"api", "errors"},
    "__init__": set(),
}
STDLIB = set(sys.stdlib_module_names)
LOWER_ROOMS = {"torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy", "seqmlm"}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(path: Path) -> list[str]:
    """Absolute dotted names a file imports, those inside functions included."""
    found: list[str] = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_part_is_known() -> None:
    assert {_part(path) for path in _files()} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_arrow_goes_up(path: Path) -> None:
    part = _part(path)
    for name in _imports(path):
        if name.split(".")[0] == "seqmlm" and name != "seqmlm":
            assert _allowed(part, name), f"{part} may not import {name}"


def _allowed(part: str, name: str) -> bool:
    _, target, *rest = name.split(".")
    module = ".".join([target, *rest[:1]])
    return target == part or bool({target, module} & MAY_IMPORT[part])


def test_the_island_stands_on_public_names() -> None:
    for path in (PACKAGE / "watch").rglob("*.py"):
        private = [name for name in _imports(path) if re.search(r"\._(?!_)", name)]
        assert not private, f"{path}: {private}"


def test_one_module_of_a_part_opens_no_other() -> None:
    assert _allowed("streams", "seqmlm.engine.durable.replace_file")
    assert not _allowed("streams", "seqmlm.engine.checkpoint.save")
    assert not _allowed("streams", "seqmlm.engine")


@pytest.mark.parametrize("part", ["engine", "tokenizers"])
def test_lower_rooms_use_only_the_listed_libraries(part: str) -> None:
    for path in (PACKAGE / part).rglob("*.py"):
        roots = {name.split(".")[0] for name in _imports(path)}
        assert roots <= STDLIB | LOWER_ROOMS, f"{path}: {roots - STDLIB - LOWER_ROOMS}"


REPLACING = {"replace", "rename", "renames", "fsync", "fdatasync"}


def _replacing(tree: ast.AST) -> Iterator[int]:
    """Lines that replace, rename or sync a file without `engine.durable`.

    A method called `replace` with one argument is that of a path: of a string it takes two, of a date names.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported = {f"{node.module}.{alias.name}" for alias in node.names}
            if imported & ({f"os.{name}" for name in REPLACING} | {"shutil.move"}):
                yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, owner = node.func.attr, node.func.value
            name = owner.id if isinstance(owner, ast.Name) else ""
            of_a_path = called in ("replace", "rename") and len(node.args) == 1 and not node.keywords
            if (name == "os" and called in REPLACING) or (name == "shutil" and called == "move") or of_a_path:
                yield node.lineno


def test_files_are_replaced_by_one_module() -> None:
    for path in _files():
        found = list(_replacing(_tree(path)))
        allowed = path.relative_to(PACKAGE).as_posix() == "engine/durable.py"
        assert bool(found) == allowed, f"{path}:{found}: use engine.durable, which syncs what it replaces"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("os.replace(a, b)", True),
        ("os.rename(a, b)", True),
        ("os.fsync(handle)", True),
        ("shutil.move(a, b)", True),
        ("from os import replace", True),
        ("path.replace(target)", True),
        ("(folder / name).rename(target)", True),
        ("text.replace('a', 'b')", False),
        ("DISK.rename(a, b)", False),
        ("date.replace(tzinfo=UTC)", False),
        ("replace(config, name=1)", False),
    ],
)
def test_replacing_is_recognised(code: str, found: bool) -> None:
    assert bool(list(_replacing(ast.parse(code)))) == found


def test_nothing_unpickles() -> None:
    for path in _files():
        source = path.read_text(encoding="utf-8")
        roots = {name.split(".")[0] for name in _imports(path)}
        assert not {"pickle", "joblib", "dill", "cloudpickle"} & roots, path
        assert "torch.load(" not in source, path


@pytest.mark.parametrize(
    "command",
    [
        *("import seqmlm", "from seqmlm.cli import main; main(['--help'])", "import seqmlm.engine.durable"),
        *(f"import seqmlm.{name}" for name in ("management.runs", "cli.train")),
        "from seqmlm import plugins; [plugins.load('tasks', name) for name in plugins.names('tasks')]",
        *(f"import seqmlm.{name}  # sqlalchemy" for name in ("watch.scoring", "cli.calibrate")),
        "from seqmlm import plugins; [plugins.domain(one).files.formats for one in plugins.names('domains')]",
        *("import seqmlm.watch.incidents  # sqlalchemy", "import seqmlm.management.models  # sqlalchemy"),
    ],
)
def test_what_asks_no_model_loads_nothing_heavy(command: str) -> None:
    heavy = "{'torch', 'transformers', 'mlflow', 'datasets', 'sqlalchemy', 'pandas', 'matplotlib'}"
    heavy += f" - {set(command.partition('# ')[2].split())}"
    code = (
        "import sys\n"
        f"try:\n    {command}\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"loaded = {heavy} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Who may know a field


GENERIC_TOKENIZERS = {"base", "huggingface"}

# Words that only one field has; as part of a name or of a text.
WORDS = {
    *("protein", "residue", "amino", "dna", "rna", "contig", "genome", "chromosome", "nucleotide", "kmer"),
    *("codon", "ehr", "patient", "visit", "diagnosis", "lexer"),
}
# Words that mean a field where something is compared with them, and anything elsewhere.
SWITCHES = {"text", "code", "logs", "log", "source", "session", "history"}

MAY_SAY = {
    "cli/demo.py": "the demo is one of proteins",
    "cli/models.py": "the same example, where there is no model yet",
    "cli/runs.py": "the same example, where there is no run yet",
    "cli/options.py": "the help of --domain lists the built-in ones, that of --level has examples",
    "plugins.py": "the stored names of what became a plug-in",
    "engine/masking/visit.py": "the stored name of a masker for any sets that share a position",
}


def _said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of names and strings; comments and docstrings are left out."""
    told = {
        id(line.value)
        for node in ast.walk(tree)
        for line in (getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ())
        if isinstance(line, ast.Expr)
    }
    for node in ast.walk(tree):
        names = (getattr(node, kind, None) for kind in ("id", "attr", "name", "arg", "asname"))
        strings = [node.value] if isinstance(node, ast.Constant) and id(node) not in told else []
        for text in (*names, *strings):
            if isinstance(text, str):
                yield getattr(node, "lineno", 0), text


def _fields_named(tree: ast.Module) -> list[str]:
    """What a module says of a field, with line numbers."""
    found = []
    for line, text in _said(tree):
        words = re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1 \2", text).lower())
        if {word.removesuffix("s") for word in words} & WORDS:
            found.append(f"{line}: {text!r}")
    for node in ast.walk(tree):
        compared = isinstance(node, ast.Compare | ast.MatchValue)
        constants = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant)) if compared else ()
        found += [f"{node.lineno}: compared with {value!r}" for value in constants if value in SWITCHES]
    return found


def _outside_of_fields() -> list[Path]:
    return [path for path in _files() if _part(path) != "domains"]


def test_no_module_outside_of_a_field_imports_one_of_its_modules() -> None:
    for path in [*_outside_of_fields(), *(PACKAGE / "domains" / name for name in ("field.py", "files.py"))]:
        for name in _imports(path):
            _, part, module, *_ = [*name.split("."), "", ""]
            own = module in (
                "content",
                "field",
                "files",
                "holes",
                "refusals",
                "samples",
                "structure",
                "variants",
            )
            assert part != "domains" or own, f"{path}: {name}: ask the domain's declaration"
            inside = _part(path) in ("domains", "tokenizers")
            assert part != "tokenizers" or inside or module in GENERIC_TOKENIZERS, f"{path}: {name}"


def test_no_module_outside_of_a_field_names_one() -> None:
    for path in _outside_of_fields():
        found = _fields_named(_tree(path))
        name = path.relative_to(PACKAGE).as_posix()
        assert bool(found) == (name in MAY_SAY), f"{name}: {found or 'no longer needs its exception'}"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("level = 'protein'", True),
        ("def add_visits(): pass", True),
        ("row.extra['contig_start']", True),
        ("class GenomeTrack: pass", True),
        ("f(kmer=3)", True),
        ("if domain == 'code': pass", True),
        ("if 'source' in pictures: pass", True),
        ("match kind:\n    case 'logs': pass", True),
        ("'of any protein'  # a docstring", False),
        ("exit_code = 2", False),
        ("kind = 'text'", False),
        ("supervisit = 1", False),
    ],
)
def test_names_of_fields_are_recognised(code: str, found: bool) -> None:
    assert bool(_fields_named(ast.parse(code))) == found


# Modules and who imports them


# Modules that one module of their own package imports, and why they stand apart all the same.
STAND_APART = {
    "anomaly.ranks": "the ranks of one statistic, which the fusion of several is built on",
    "cli.*": "one module a command",
    "domains.*.picture": "drawing, loaded with a report alone",
    "domains.protein.clusters": "a clustering of its own, loaded with a split by identity alone",
    "structure.cmi": "the estimators of one quantity; others, and the choice among all, are a chapter",
    "tasks.substitutions": "every substitution of a wild type: a picture, and a choice among them",
    "domains.*.structure": "what maps of dependence mean, loaded by the command that makes them alone",
    "domains.*.gaps": "a field whose sequences are no plain text says here how they are written and filled",
    "domains.*.levels": "what a field's records are judged by, a chapter a reader looks for",
    "domains.*.readers*": "a field's own formats, one a module, and what puts them together",
    "domains.dna.[fgt]*": "a format, or files for genome browsers",
    "domains.code.worktree": "which files of a folder are read, beside how one is read",
    "domains.ehr.audit": "what may be told of patients, apart from their readers",
    "domains.code.formulas": "what is planted for maps of dependence, apart from the modules",
    "domains.dna.rna": "what is planted for maps of dependence, apart from the contigs",
    "domains.logs.jobs": "what is planted for maps of dependence, apart from the requests",
    "domains.logs.counts": "counting templates needs no model",
    "engine.fused*": "what is computed otherwise on a GPU, beside the model it must agree with; its kernels",
    "tasks.tracked": "MLflow, loaded with a report alone",
    "tracking.run": "a run that is being written; `tracking` is the door",
    "training.*": "one step of a training a module, in the order of `pretrain`",
    "finetuning.*": "one step of a fine-tuning a module, in the order of `run`",
    "scoring.score": "the capability; a review is one of source code",
    "domains.logs.fields": "the fields of structured lines, apart from lines of words",
    "domains.code.lexers.*": "one language, or one parser",
    "watch.*": "an island: its door is `scoring`, and what a person does afterwards",
}


@cache
def _graph() -> dict[str, set[str]]:
    """Module to the modules of the package it imports."""
    names = {
        ".".join(("seqmlm", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in _files()
    }
    graph = {}
    for module, path in names.items():
        found = (name if name in names else name.rpartition(".")[0] for name in _imports(path))
        graph[module] = {name for name in found if name in names} - {module}
    return graph


def _circles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import themselves by way of others: what is left when all that cannot be is taken away."""
    left = {module: set(imported) for module, imported in graph.items()}
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    while free := [module for module in left if not any(module in imported for imported in left.values())]:
        for module in free:
            del left[module]
    return sorted(left)


def test_no_circle_of_files() -> None:
    assert not _circles(_graph())
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]


def test_a_module_with_one_importer_in_its_own_package_says_why() -> None:
    graph = _graph()
    groups = (plugins.entries("tasks"), plugins.entries("tokenizers"))
    by_name = {entry.module for group in groups for entry in group.values()}  # nothing imports these
    alone = []
    for module in graph.keys() - by_name:
        importers = [other for other, imported in graph.items() if module in imported]
        package = module.rpartition(".")[0]
        own = [one for one in importers if package in (one, one.rpartition(".")[0])]
        if len(importers) == 1 and own and package != "seqmlm":
            alone.append(module.removeprefix("seqmlm."))
    unexplained = [name for name in alone if not any(fnmatch(name, pattern) for pattern in STAND_APART)]
    assert not unexplained, f"fold them in, or say in STAND_APART why not: {unexplained}"
    unused = [pattern for pattern in STAND_APART if not any(fnmatch(name, pattern) for name in alone)]
    assert not unused, f"no longer needed: {unused}"
    assert len(STAND_APART) <= 30
