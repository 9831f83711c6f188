"""Each field's README is a page that names every file, format, level and statistic of the field."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from seqmlm import plugins

DOMAINS = Path(plugins.__file__).parent / "domains"
FIELDS = ["code", "dna", "ehr", "logs", "protein", "text"]


def test_every_folder_of_a_field_has_one() -> None:
    folders = {path.name for path in DOMAINS.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(FIELDS) == {path.parent.name for path in DOMAINS.glob("*/README.md")}


@pytest.mark.parametrize("field", FIELDS)
def test_it_names_what_the_field_has(field: str) -> None:
    folder, domain = DOMAINS / field, plugins.domain(field)
    text = (folder / "README.md").read_text(encoding="utf-8")
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")]
    levels = [level.name for level in domain.levels]
    statistics = [name for level in domain.levels for name in level.statistics]
    defaults = [domain.defaults.tokenizer, domain.defaults.masking.masker]
    for name in (*files, *domain.formats, *levels, *statistics, *defaults):
        assert f"`{name}`" in text, name
    listed = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `") and ".py`" in line]
    assert sorted(listed) == sorted(files)


def test_it_is_shipped() -> None:
    project = tomllib.loads((DOMAINS.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert "domains/*/README.md" in project["tool"]["setuptools"]["package-data"]["seqmlm"]
