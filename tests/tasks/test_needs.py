"""What a model's field must have for a task: refused from the card, before weights or inputs are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import TASKS
from fork_server import Run
from log_models import write_log_model
from text_models import text_model
from tiny_domain_models import code_model, patients_model
from tiny_models import dna_model, protein_model, saved

from seqmlm.errors import StateError, UsageError
from seqmlm.tasks.run import run

FIELDS = ("text", "protein", "dna", "code", "ehr", "logs")
NEEDS = {
    "assays": {"protein", "dna"},
    "review": {"code"},
    "risk": {"ehr"},
    "variants": {"protein", "dna"},
}
"""Tasks that not all fields have, and the fields that do."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each field, without its weights: one that is loaded is a StateError."""
    folder = tmp_path_factory.mktemp("models")
    found = {"text": text_model(folder), "logs": folder / "logs"}
    write_log_model(folder / "logs")
    made = {"protein": protein_model(), "dna": dna_model(), "code": code_model(), "ehr": patients_model()}
    found |= {name: saved(model, folder / name) for name, model in made.items()}
    for path in found.values():
        for weights in path.glob("*.safetensors"):
            weights.unlink()
    return found


def test_each_task_says_what_its_model_must_have() -> None:
    tasks = {name: one for name, one in TASKS.items() if one.requires.capabilities}
    assert tasks.keys() == NEEDS.keys()


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_task_that_the_field_lacks_is_refused_before_the_model_is_loaded(
    name: str, field: str, models: dict[str, Path], tmp_path: Path
) -> None:
    kind = TASKS[name]
    config = replace(kind.Config(model=str(models[field])), **_least(name, tmp_path))
    if field in NEEDS[name]:
        with pytest.raises(StateError, match="missing"):
            run(name, kind, config)
        return
    with pytest.raises(UsageError, match=f"domain {field}") as refused:
        run(name, kind, config)
    assert "code '" not in str(refused.value)


def _least(name: str, folder: Path) -> dict[str, Any]:
    """The fewest settings that a task accepts."""
    (folder / "a.txt").write_text("nothing of any field")
    more: dict[str, Any] = {"risk": {"codes": ("1",)}, "review": {}, "variants": {}}.get(name, {})
    return {"paths": (str(folder if name in ("assays", "review") else folder / "a.txt"),), **more}


def test_the_command_says_so_before_it_looks_at_codes_and_records(
    seqmlm: Run, models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "a.fasta").write_text("no protein at all")
    ended = seqmlm("risk", models["protein"], tmp_path / "a.fasta", "--code", "1")
    assert ended.code == 2
    assert "sequences of domain protein have no times" in ended.err
