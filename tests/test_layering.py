"""No arrow goes up: which part of the package may import which, and which libraries the lower ones use."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "seqmlm"

# Part -> the parts it may import besides itself.
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
    "reports": {"errors", "data", "anomaly", "domains"},
    "domains": FIELDS,
    "streams": {"errors", "data", "config"},
    "workspace": {"errors", "config"},
    "tracking": {"errors", "workspace"},
    "registry": {"errors", "workspace"},
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
            assert name.split(".")[1] in MAY_IMPORT[part] | {part}, f"{part} may not import {name}"


@pytest.mark.parametrize("part", ["engine", "tokenizers"])
def test_lower_rooms_use_only_the_listed_libraries(part: str) -> None:
    for path in (PACKAGE / part).rglob("*.py"):
        roots = {name.split(".")[0] for name in _imports(path)}
        assert roots <= STDLIB | LOWER_ROOMS, f"{path}: {roots - STDLIB - LOWER_ROOMS}"


def test_nothing_unpickles() -> None:
    for path in _files():
        source = path.read_text(encoding="utf-8")
        assert not {"pickle", "joblib", "dill", "cloudpickle"} & {n.split(".")[0] for n in _imports(path)}, (
            path
        )
        assert "torch.load(" not in source, path


@pytest.mark.parametrize("command", ["import seqmlm", "from seqmlm.cli import main; main(['--help'])"])
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
