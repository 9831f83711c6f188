"""How many items an answer tells of sensitive data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from seqmlm.data.counts import People
from seqmlm.privacy import handling_sensitive_data
from seqmlm.tasks.fill import Fill
from seqmlm.tasks.joint import JointTask
from seqmlm.tasks.structure import Structure
from seqmlm.tasks.task import Output, Task

NEAREST = {"methods": {"mrf": {"a_kl": {"value": 0.5}}}}
MAPPED = {"method": "cmi", "passes": 3}


@pytest.mark.parametrize(
    ("kind", "figures"),
    [(Fill, {}), (JointTask, {}), (JointTask, NEAREST), (Structure, MAPPED)],
    ids=lambda one: one.__name__ if isinstance(one, type) else ",".join(one),
)
@pytest.mark.parametrize(("sensitive", "shown"), [(True, "<11 "), (False, "3 ")])
def test_an_answer_tells_no_small_number_of_people(
    kind: type[Task[Any, Any]], figures: dict[str, Any], sensitive: bool, shown: str
) -> None:
    task: Any = object.__new__(kind)
    task.config = SimpleNamespace(dry_run=True)
    task.output = Output(unit="item")
    with handling_sensitive_data(sensitive):
        assert shown in task.conclusion(figures, People(3), tuple).sentence
        assert Task.conclusion(task, {}, People(3), tuple).sentence == f"{shown}items"
