"""Loaded models of patients and of code, so small and untrained that a test can ask them anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from histories import histories
from plain_git import git
from tiny_models import random_model, saved
from written import written

from seqmlm.anomaly.judge import Normal
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.code.levels import ClassNorms, LineLevel
from seqmlm.domains.code.lexers.source import SourceText
from seqmlm.domains.code.tokenizer import CodeTokenizer
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.inference.calibrations import Stored, store, store_backgrounds
from seqmlm.inference.detector import table
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.tokenizers.base import Tokenizer

MODULE = '''"""Stacks."""
import os


class Stack:
    def push(self, item):
        self.items.append(item)
        return len(self.items) + 1

    def pop(self):
        return self.items.pop()


def depth(stack, limit=10):
    total = 0
    for item in stack.items:
        total = total + item.depth
    return min(total, limit)
'''


def loaded(domain: str, tokenizer: Tokenizer, max_length: int) -> LoadedModel:
    """Two random layers that see everything, with weights as they are drawn."""
    return random_model(domain, tokenizer, max_length=max_length, layers="everywhere.v1", spread=1)


def patients_model(max_length: int = 256, **options: Any) -> LoadedModel:
    """Knows the codes of 60 drawn patients."""
    return loaded("ehr", EventsTokenizer.train(histories(60), **options), max_length)


def patients(count: int) -> list[Record]:
    """Patients whose codes the model knows."""
    return [
        Record(id=one.subject, raw=one, source="t.csv", line=number, document=one.subject)
        for number, one in enumerate(histories(count), start=1)
    ]


def code_model(max_length: int = 512) -> LoadedModel:
    """Knows the bytes of `MODULE`."""
    return loaded("code", CodeTokenizer.train([MODULE] * 4, vocabulary_size=300), max_length)


def source(text: str = MODULE, name: str = "stack.py") -> Record:
    """A Python file."""
    return Record(id=name, raw=SourceText(text, "python"), source=f"/tree/{name}", line=1)


def changed_source() -> str:
    """`MODULE` with one line changed and one more."""
    changed = MODULE.replace("total + item.depth", "total - item.depth")
    return changed.replace("import os\n", "import os\nimport sys\n")


def work_tree(folder: Path, changed: str) -> Path:
    """A work tree of one commit, then with `MODULE` changed."""
    module = written(folder / "pkg" / "stack.py", MODULE)
    written(folder / "same.py", "x = 1\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        git(folder, *command)
    module.write_text(changed)
    return folder


def calibrated_code_model(folder: Path) -> Path:
    """Write `code_model`, calibrated for lines in the mode "exact", and return the folder."""
    loaded = code_model()
    saved(loaded, folder)
    scorer = RecordScorer(Session(loaded))
    found = scorer.unit_scores(scorer.encoded([source(), source(changed_source())] * 4, Problems()))
    norms = ClassNorms(np.zeros((17, 4, 3))).learn(found)
    store_backgrounds(folder, {"line": norms})
    rows = [row for one in found for row in LineLevel().rows(one, norms)]
    calibration = Normal.fit(*table(rows, LineLevel().statistics.judging), seed=0)
    store(folder, {("line", "exact"): Stored(fitted=calibration)})
    return folder
