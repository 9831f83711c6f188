"""Sizes that readers feel, each with a budget that may only fall: interfaces, privacy, imports.

`python benchmarks/house.py` prints the figures; the goals are in the comments.
"""

from __future__ import annotations

import house
import pytest

MEMBERS = {"Task": 16, "Level": 18, "Units": 18, "Field": 20}  # 16, 18, 18, 20
PRIVACY_FILES = 49
PRIVACY_OPTIONS = {"cli/data.py"}
"""Files of commands that have an option --sensitive, and know nothing else of privacy."""
LOADED_LINES = {"score": 8_920, "structure": 8_710, "embed": 8_120, "train": 17_940, "finetune": 17_760}
"""Lines of code, without docstrings, comments and empty lines: a limit must not make docstrings terse."""
REACHABLE_LINES = {"score": 16_080, "structure": 14_640, "embed": 13_830, "train": 19_230, "finetune": 18_510}
"""With imports inside of functions: moving an import into a function is no progress."""
WATCH_MODULES = 15
WATCH_LINES = 2_710


@pytest.mark.parametrize("name", MEMBERS)
def test_interfaces_stay_small(name: str) -> None:
    members = house.public_members(house.INTERFACES[name], name)
    assert len(members) <= MEMBERS[name], members


def test_privacy_is_mentioned_in_few_files() -> None:
    paths = house.privacy_files()
    assert len(paths) <= PRIVACY_FILES, paths
    outside = {path for path in paths if path.startswith(("tasks/", "cli/"))}
    assert outside <= PRIVACY_OPTIONS, "exits withhold (`seqmlm.privacy`): tasks and commands do not ask"


@pytest.mark.parametrize("task", LOADED_LINES)
def test_a_task_imports_little(task: str) -> None:
    modules = house.TASKS[task]
    assert house.loaded_lines(*modules) <= LOADED_LINES[task]
    assert house.imported_lines(*modules) <= REACHABLE_LINES[task]


def test_watching_is_an_island() -> None:
    modules = house.outside_modules("watch")
    assert len(modules) <= WATCH_MODULES, modules
    assert house.lines(house.PACKAGE / "watch") <= WATCH_LINES
