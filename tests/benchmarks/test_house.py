"""What the size of the house is counted by."""

from __future__ import annotations

from pathlib import Path

from house import closure, functions, imports, lines, seconds


def _package(folder: Path) -> Path:
    package = folder / "pkg"
    files = {
        "__init__.py": "",
        "low.py": "import os\n",
        "mid.py": "from pkg import low\n\n\ndef late():\n    import pkg.apart\n",
        "apart.py": "x = 1\n",
        "part/__init__.py": "from pkg.mid import late\n",
        "part/long.py": "def f(" + ", ".join("abcdefghi") + "):\n" + "    pass\n" * 40,
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


def test_lines_by_part(tmp_path: Path) -> None:
    assert lines(_package(tmp_path)) == {"all": 49, "part": 42, "top": 7}


def test_a_module_loads_what_it_imports_at_its_head(tmp_path: Path) -> None:
    graph = imports(_package(tmp_path))
    assert closure(graph, "pkg.mid") == (2, 6)
    assert closure(graph, "pkg.part") == (3, 7)


def test_long_functions_are_counted(tmp_path: Path) -> None:
    found = functions(_package(tmp_path))
    assert found == {"functions": 2, "over 40 lines": 1, "over 8 parameters": 1}


def test_seconds_by_folder_of_tests(tmp_path: Path) -> None:
    cases = (("tests.cli.test_main", 1.25), ("tests.cli.test_data.TestIt", 2.0), ("tests.test_docs", 0.5))
    text = "".join(f'<testcase classname="{name}" name="x" time="{time}"/>' for name, time in cases)
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    assert seconds(tmp_path / "report.xml") == {"tests": 3, "all": 3.8, "cli": 3.2, "top": 0.5}
