"""Python as the command line has it: `load` or `train` gives a `Model`, whose methods are the tasks.

A method runs the very task of its command, into a file that is read back, so that the numbers are the same to
the last digit. The trade-off: each call loads the model and writes its rows to the disk, as a command does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

import pandas as pd

from seqmlm.cli import tasks
from seqmlm.cli.console import ScoringConsole, TrainingConsole
from seqmlm.config import from_dict, merge
from seqmlm.data.sources import KEPT_INPUTS
from seqmlm.engine.types import Precision
from seqmlm.errors import UsageError, nearest
from seqmlm.frames import Data, RowFrame, blame_caller, frame, sources
from seqmlm.inference.session import Session
from seqmlm.tasks.columns import NAMING
from seqmlm.workspace import Workspace

if TYPE_CHECKING:
    from seqmlm.estimators import Detector, Embedder

COLUMNS = {"variants": "mutant"}
"""What a column of strings is called for a task whose tables have no column `text`."""


def load(model: str | Path, *, domain: str | None = None, precision: Precision = "fp32") -> Model:
    """A trained model, to be asked.

    Args:
        model: NAME, NAME@ALIAS or NAME:VERSION of the workspace ($SEQMLM_HOME, else the current folder), a
            model folder, or a hub id.
        domain: field of its sequences; needed only for models that seqmlm did not train.
        precision: of matrix products: fp32, bf16 or auto.

    Raises:
        UsageError, StateError: no such model, or one of another field.
    """
    return Model(model, domain=domain, precision=precision)


def train(
    data: Data | None = None,
    *,
    domain: str | None = None,
    name: str | None = None,
    max_time: str | None = None,
    max_steps: int | None = None,
    size: str | None = None,
    init: str | None = None,
    resume: str = "never",
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Model:
    """Train a masked language model, as `seqmlm train` does, and load it.

    Args:
        data: strings, a Series, a DataFrame or a path; None for the field's built-in sample.
        domain: field of the sequences: text, protein, dna, code, ehr, logs, or one of a plug-in.
        name: of the run and of the model. Default: DOMAIN-SIZE-TIME.
        max_time: "90s", "10m", "2h": of the whole training, evaluation and calibration in it. What reading
            takes beyond half of it is added.
        max_steps: optimizer steps.
        size: tiny, small, base or linear. Default: by `max_time`, else by field.
        init: model whose weights and vocabulary are the beginning.
        resume: "auto", or the name of an interrupted run.
        options: of the file reader, such as {"text": "sequence"} for the column of a DataFrame.
        settings: further settings by dotted name, such as {"train.warmup": 100}.

    Raises:
        UsageError, DataError, StateError, TrainingError: as the command.
        KeyboardInterrupt: stopped by Ctrl-C and saved: `resume` goes on with it.
    """
    from seqmlm.training.launch import TrainRequest
    from seqmlm.training.pretrain import pretrain

    folder = Workspace.locate().runs / KEPT_INPUTS
    flags: dict[str, Any] = {
        "data": {
            "paths": None if data is None else sources(data, folder),
            "options": dict(options or {}),
        },
        "model": {"size": size, "init": init},
        "train": {"max_steps": max_steps, "max_time": max_time},
    }
    for key, value in (settings or {}).items():
        for part in reversed(key.split(".")):
            value = {part: value}
        flags = merge(flags, value)
    with TrainingConsole() as console:
        result = pretrain(TrainRequest(domain=domain, name=name, resume=resume, flags=flags), console)
    if result.signal is not None or result.model is None:
        raise KeyboardInterrupt(f"stopped and saved; train(..., resume={result.run_name!r}) goes on with it")
    return Model(result.model)


class Model:
    """A model that can be asked; made by `load` or `train`.

    Every method takes strings, a Series of them, a DataFrame or a path, and returns a DataFrame with the rows
    that the command of its name writes. Keyword arguments are the settings of that command, as
    `seqmlm COMMAND --print-config` lists them. Of a DataFrame, `options={"text": COLUMN}` names the column of
    the sequences.

    Args:
        model: name, folder or hub id, as for `load`.
        domain: field of its sequences, as for `load`.
        precision: precision of matrix products, as for `load`.
    """

    def __init__(
        self, model: str | Path, *, domain: str | None = None, precision: Precision = "fp32"
    ) -> None:
        self.name, self.precision = str(model), precision
        session = Session.open(self.name, domain=domain, precision=precision, labels="any")
        self.domain, self.card = session.card.domain, session.card
        self._columns = {k: v for k, v in session.model.reading("huggingface").items() if k in NAMING}
        self._messages: set[str] = set()

    def __repr__(self) -> str:
        return f"<Model {self.name}: {', '.join(self._facts().values())}>"

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._facts().items()
        )
        return f"<table><caption>{escape(self.name)}</caption>{cells}</table>"

    def _facts(self) -> dict[str, str]:
        card, facts = self.card, {"domain": self.domain, "tokenizer": self.card.tokenizer}
        if card.head:
            facts["predicts"] = str(card.head.get("label"))
        bits = card.metrics.get("eval/bits_per_unit")
        return facts if bits is None else {**facts, "held out": f"{bits:.3f} bits per {card.unit}"}

    def score(self, data: Data, **settings: Any) -> RowFrame:
        """How unusual each sequence, or each part of it, is; higher = more unusual (`seqmlm score`).

        With `fpr=0.01` rows have `alarm` and `reason`; with `per_unit=True` every unit has its surprisal in
        bits, and a notebook shows the sequences in colour.
        """
        return self.run("score", data, **settings)

    def fill(self, data: Data, **settings: Any) -> RowFrame:
        """Units that fit into the gaps of sequences, each gap alone and all together (`seqmlm fill`).

        A string is a sequence here, if it is no path: `model.fill("the dog [MASK] the cat.")`.
        """
        return self.run("fill", data, **settings)

    def zeroshot(self, data: Data, **settings: Any) -> RowFrame:
        """Classes without training, by the words that fit the gap of a template (`seqmlm zeroshot`).

        `templates="{text} it was [MASK]."`, `labels={"good": ["great"], "bad": ["terrible"]}`.
        """
        return self.run("zeroshot", data, **settings)

    def variants(self, data: Data, **settings: Any) -> RowFrame:
        """Log-ratios of variants such as A123G to the wild type, in nats (`seqmlm variants`).

        Higher is fitter. The wild type is `wildtype=FILE`, or the column wt_seq of a DataFrame.
        """
        return self.run("variants", data, **settings)

    def structure(self, data: Data, **settings: Any) -> RowFrame:
        """Pairs of units and how strongly they depend on each other, one in a row (`seqmlm structure`).

        `.matrix()` of the rows is the map as an array; rows with `predicted` are edges; a notebook shows the
        map.
        """
        return self.run("structure", data, **settings)

    def embed(self, data: Data, **settings: Any) -> RowFrame:
        """Vectors in context of records, units, windows or spans (`seqmlm embed`); `.vectors()`: an array."""
        return self.run("embed", data, **settings)

    def predict(self, data: Data, **settings: Any) -> RowFrame:
        """Predictions of a fine-tuned model, with calibrated probabilities (`seqmlm predict`)."""
        return self.run("predict", data, **settings)

    def generate(self, data: Data | None = None, **settings: Any) -> RowFrame:
        """New sequences, or gaps filled with draws (`seqmlm generate`): `length="80-120", n=10`."""
        return self.run("generate", data, **settings)

    def run(self, task: str, data: Data | None = None, /, **settings: Any) -> RowFrame:
        """The rows of any task, plug-ins among them: `run("pairs", "pairs.jsonl")` is `seqmlm pairs`.

        Args:
            task: its name.
            data: what it is asked about; None for a task that reads nothing.
            settings: of its command; lists and mappings where that repeats an option.

        Raises:
            UsageError, DataError, StateError: as the command.
            KeyboardInterrupt: stopped by Ctrl-C.
        """
        make = _task(task)
        from seqmlm.tasks.run import run

        if reserved := {"out", "resume", "format_out"} & settings.keys():
            raise UsageError(
                f"{', '.join(sorted(reserved))}: rows are returned here; to_json or to_parquet keeps them"
            )
        with tempfile.TemporaryDirectory(prefix="seqmlm-") as folder:
            place, out = Path(folder), Path(folder) / "rows.jsonl"
            paths = () if data is None else sources(data, place, COLUMNS.get(task, "text"))
            values = {"domain": self.domain, "precision": self.precision, **_plain(make.Config, settings)}
            if any(Path(path).parent == place for path in paths):  # the caller's own: without these columns
                there = data.columns if isinstance(data, pd.DataFrame) else ()
                absent = dict.fromkeys(name for name, column in self._columns.items() if column not in there)
                values["options"] = {**absent, **(values.get("options") or {})}
            config = from_dict(make.Config, {**values, "model": self.name, "paths": paths, "out": out})
            with _Console(self._messages) as console, blame_caller(place, data, task):
                summary = run(task, make, config, progress=console)
            if summary.stopped is not None:
                raise KeyboardInterrupt
            with out.open("rb") as file:
                rows = frame(map(json.loads, file), place)
        rows.attrs |= {"task": task, "answer": summary.answer, "figures": dict(summary.figures)}
        rows.attrs["sensitive"] = self.card.sensitive
        return rows

    def detector(self, **settings: Any) -> Detector:
        """An outlier detector of scikit-learn's contract; `settings` as for `Detector`."""
        from seqmlm.estimators import Detector

        return Detector(self, **settings)

    def embedder(self, **settings: Any) -> Embedder:
        """A transformer of scikit-learn's contract: strings to vectors; `settings` as for `Embedder`."""
        from seqmlm.estimators import Embedder

        return Embedder(self, **settings)


class _Console(ScoringConsole):
    """Progress, and each message once.

    Args:
        messages: those that were shown before; new ones are added.
    """

    def __init__(self, messages: set[str]) -> None:
        super().__init__()
        self._messages = messages

    def message(self, text: str) -> None:
        if text not in self._messages:
            self._messages.add(text)
            super().message(text)


def _task(name: str) -> Any:
    """The class of a task.

    Raises:
        UsageError: there is none that gives rows.
    """
    from seqmlm.tasks.task import Task

    known_tasks = tasks()
    make = known_tasks[name].load() if name in known_tasks else None
    if make is None or not issubclass(make, Task):
        reason = (
            f": 'seqmlm {name}' is a command alone" if name in known_tasks else nearest(name, known_tasks)
        )
        raise UsageError(f"no task {name!r} that gives rows{reason}")
    return make


def _plain(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a config has them: a list of a single value, NAME=A,B of a mapping, a text of a number."""
    hints, values = get_type_hints(kind), dict(settings)
    for name, value in settings.items():
        hint = hints.get(name)
        if hint == str | None and type(value) in (int, float):
            values[name] = str(value)
        elif get_origin(hint) is tuple and isinstance(value, Mapping):
            named = {k: [v] if isinstance(v, str) else v for k, v in value.items()}
            values[name] = tuple(f"{key}={','.join(words)}" for key, words in named.items())
        elif get_origin(hint) is tuple and isinstance(value, str):
            values[name] = (value,)
    return values
