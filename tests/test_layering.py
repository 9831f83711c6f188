"""No arrow goes up: which part of the package may import which, and which libraries the lower ones use."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "seqmlm"

# Part -> the parts, or single modules of parts, that it may import besides itself. `engine.durable` loads no
# torch: how files are replaced is the same everywhere.
ENGINE = {"errors", "engine"}
DATA = ENGINE | {"tokenizers", "data", "config"}
FIELDS = DATA | {"evaluation", "anomaly", "reports", "domains"}
MAY_IMPORT = {
    "errors": set(),
    "config": {"errors"},
    "engine": ENGINE,
    "tokenizers": ENGINE,
    "data": DATA,
    "evaluation": DATA,
    "anomaly": DATA | {"evaluation"},
    "reports": {"errors", "data", "anomaly", "domains", "engine.durable"},
    "domains": FIELDS,
    "streams": {"errors", "data", "config", "engine.durable"},
    "workspace": {"errors", "config"},
    "tracking": {"errors", "workspace", "engine.durable"},
    "registry": {"errors", "workspace", "engine.durable"},
    "plugins": {"errors", "engine", "tokenizers", "domains"},
    "inference": FIELDS | {"streams", "registry", "workspace", "plugins", "__version__"},
    "tasks": FIELDS | {"inference", "streams", "registry", "tracking", "plugins", "workspace", "__version__"},
    "cli": {"errors", "config", "tasks", "__version__"},
    "__main__": {"cli"},
    "__init__": set(),
}
STDLIB = set(sys.stdlib_module_names)
LOWER_ROOMS = {"torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy", "seqmlm"}


def _imports(path: Path) -> Iterator[str]:
    """Absolute dotted names a file imports, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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
        found = list(_replacing(ast.parse(path.read_text(encoding="utf-8"))))
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
        assert not {"pickle", "joblib", "dill", "cloudpickle"} & {n.split(".")[0] for n in _imports(path)}, (
            path
        )
        assert "torch.load(" not in source, path


@pytest.mark.parametrize(
    "command",
    ["import seqmlm", "from seqmlm.cli import main; main(['--help'])", "import seqmlm.engine.durable"],
)
def test_help_loads_nothing_heavy(command: str) -> None:
    heavy = "{'torch', 'transformers', 'mlflow', 'datasets', 'sqlalchemy', 'pandas', 'matplotlib'}"
    code = (
        "import sys\n"
        f"try:\n    {command}\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"loaded = {heavy} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
