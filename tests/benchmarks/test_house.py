"""The figures of `benchmarks/house.py`, on a package that was made for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import house
import pytest

FILES = {
    "__init__.py": "",
    "low.py": "import os\n",
    "mid.py": "from seqmlm import low\n\n\ndef late():\n    import seqmlm.apart\n",
    "apart.py": "x = 1\n",
    "part/__init__.py": "from seqmlm.mid import late\n",
    "part/long.py": "def f(" + ", ".join("abcdefghi") + "):\n" + "    pass\n" * 40,
    "part/told.py": '''
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqmlm import low


class Box:
    """What a box holds."""

    size: int = 0
    _hidden = 1

    def __init__(self, found):
        self.sensitive, self._x = found, 1

    def told(self):
        return [one for one in self.sensitive]
''',
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "seqmlm"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "PACKAGE", folder)
    monkeypatch.setattr(house.files, "__defaults__", (folder,))
    house.empty_shares.cache_clear()
    yield folder
    house.empty_shares.cache_clear()


def test_imports_inside_of_functions_are_reached_and_those_for_types_are_not(package: Path) -> None:
    reached = {path.relative_to(package).as_posix() for path in house.closure("seqmlm.part")}
    assert reached == {"__init__.py", "low.py", "mid.py", "apart.py", "part/__init__.py"}
    # Of 18 lines: docstrings and empty lines do not count.
    assert house.imported_lines("seqmlm.part.told") == 10


def test_modules_outside_of_a_package(package: Path) -> None:
    assert house.outside_modules("part") == ["mid.py"]


def test_large_functions() -> None:
    figures = house.large_functions()
    assert figures == {"functions": 4, "over 40 lines": 1, "over 8 parameters": 1}


def test_names() -> None:
    shares = house.empty_shares()
    assert shares["part"] == 2 / 13  # found and one, of nine parameters, size, _hidden, found and one
    assert [text.rpartition(" ")[2] for text in house.participles()] == ["told"]
    assert [text.partition(" ")[2] for text in house.riddles()] == ["Box: What a box holds."]


def test_members_and_privacy() -> None:
    assert house.public_members("seqmlm.part.told", "Box") == ["size", "sensitive", "told"]
    assert house.privacy_files() == ["part/told.py"]
