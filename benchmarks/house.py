"""How large the house is, before and after a change: lines, imports, options, functions, seconds of tests.

    python benchmarks/house.py --json before.json      what is here now
    python benchmarks/house.py --before before.json    the same beside an earlier state
    python benchmarks/house.py --junit report.xml      with the seconds of `pytest --junitxml report.xml`
    python benchmarks/house.py --goldens OUT           and everything the samples give, into OUT

Results of two states are compared to the last bit by `python tests/golden/scenarios.py --compare A B`.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
LONG, MANY = 40, 8

Numbers = Mapping[str, float]


def lines(folder: Path) -> dict[str, int]:
    """Lines of Python below each part of a folder, and of all."""
    found: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        part = path.relative_to(folder).parts
        found[part[0] if len(part) > 1 else "top"] += _length(path)
    return {"all": found.total(), **dict(found.most_common())}


def _length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _imported(path: Path) -> Iterator[str]:
    """Dotted names that loading a file imports: those in functions, or for type checks alone, are not."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports(package: Path) -> dict[str, tuple[set[str], int]]:
    """Module to the modules of the package that it imports, and its lines."""
    paths = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }
    graph = {}
    for module, path in paths.items():
        found = {name if name in paths else name.rpartition(".")[0] for name in _imported(path)}
        graph[module] = found & paths.keys(), _length(path)
    return graph


def closure(graph: Mapping[str, tuple[set[str], int]], module: str) -> tuple[int, int]:
    """How many modules, of how many lines, importing a module loads, itself included."""
    seen, left = {module}, [module]
    while left:
        new = graph[left.pop()][0] - seen
        seen |= new
        left += new
    return len(seen), sum(graph[one][1] for one in seen)


def options() -> dict[str, int]:
    """Parameters of each command, and of all."""
    sys.path.insert(0, str(ROOT))
    from typer.main import get_command

    from seqmlm.cli import app, tasks
    from seqmlm.cli.command import command

    found: Counter[str] = Counter()
    left = [("", get_command(app))]
    left += [(name, command(name, one.load())) for name, one in tasks().items()]
    while left:
        words, one = left.pop()
        inner = getattr(one, "commands", None)
        if inner is None:
            found[words] = len(one.params)
        else:
            left += [(f"{words} {word}".strip(), each) for word, each in inner.items()]
    return {"all": found.total(), **dict(found.most_common())}


def functions(package: Path) -> dict[str, int]:
    """Functions that are longer than a screen, or take more than a head holds."""
    found = {"functions": 0, f"over {LONG} lines": 0, f"over {MANY} parameters": 0}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                asked = node.args
                given = [*asked.posonlyargs, *asked.args, *asked.kwonlyargs]
                count = sum(one.arg not in ("self", "cls") for one in given)
                found["functions"] += 1
                found[f"over {LONG} lines"] += (node.end_lineno or 0) - node.lineno + 1 > LONG
                found[f"over {MANY} parameters"] += count > MANY
    return found


def seconds(report: Path) -> dict[str, float]:
    """Wall seconds of the tests by folder, and how many tests there are, of a JUnit report."""
    found: Counter[str] = Counter()
    cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        parts = (case.get("classname") or "").split(".")
        parts = parts[1:] if parts[0] == "tests" else parts
        found[parts[0] if (ROOT / "tests" / parts[0]).is_dir() else "top"] += float(case.get("time") or 0)
    by_folder = {name: round(time, 1) for name, time in found.most_common()}
    return {"tests": len(cases), "all": round(found.total(), 1), **by_folder}


def measured(report: Path | None) -> dict[str, Numbers]:
    """Every table."""
    package = ROOT / "seqmlm"
    graph = imports(package)
    parts = ("seqmlm.tasks.", "seqmlm.engine.conditionals")
    closures = {module: closure(graph, module) for module in sorted(graph) if module.startswith(parts)}
    closures = dict(sorted(closures.items(), key=lambda one: -one[1][1]))
    tables: dict[str, Numbers] = {
        "lines of seqmlm": lines(package),
        "lines of tests": lines(ROOT / "tests"),
        "modules that one loads": {module: count for module, (count, _) in closures.items()},
        "lines that one loads": {module: count for module, (_, count) in closures.items()},
        "parameters of commands": options(),
        "functions": functions(package),
    }
    if report is not None:
        tables["seconds of tests"] = seconds(report)
    return tables


def tell(tables: Mapping[str, Numbers], before: Mapping[str, Numbers]) -> None:
    """Print the tables, each number beside that of before where there is one."""
    for title, numbers in tables.items():
        old = before.get(title, {})
        print(f"\n{title}" + (": before, now, change" if old else ""))
        for name in dict.fromkeys((*numbers, *old)):
            now = numbers.get(name, 0)
            if old:
                was = old.get(name, 0)
                print(f"  {name:40}{was:>10,}{now:>10,}{round(now - was, 1):>+10,}")
            else:
                print(f"  {name:40}{now:>10,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--before", type=Path, metavar="FILE", help="compare with what --json wrote earlier")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="what `pytest --junitxml` wrote")
    parser.add_argument("--goldens", type=Path, metavar="OUT", help="run tests/golden/scenarios.py into OUT")
    asked = parser.parse_args()
    tables = measured(asked.junit)
    tell(tables, json.loads(asked.before.read_text(encoding="utf-8")) if asked.before else {})
    if asked.json:
        asked.json.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
    if asked.goldens:
        subprocess.run([sys.executable, ROOT / "tests/golden/scenarios.py", asked.goldens], check=True)


if __name__ == "__main__":
    main()
