"""The Python API: `load` and `train` return a `Model`, whose methods are the tasks of the command line.

A method runs the same task as the command, writes the rows to a temporary file and reads them back. Therefore
the numbers are identical to the last digit. The cost: as with a command, each call loads the model and writes
its rows to disk.
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
"""The column name for plain strings, by task. Tasks that are not listed read the column `text`."""


def load(model: str | Path, *, domain: str | None = None, precision: Precision = "fp32") -> Model:
    """Load a trained model.

    Example:

        model = seqmlm.load("english@champion")
        rows = model.score(["The dog sat on the mat."])

    Args:
        model: a model of the workspace (NAME, NAME@ALIAS or NAME:VERSION), the path of a model folder, or a
            hub id. The workspace is $SEQMLM_HOME, or else the current folder.
        domain: field of the sequences, such as "protein". Needed only for models that seqmlm did not train.
        precision: number format of matrix products: "fp32", "bf16" or "auto".

    Raises:
        UsageError, StateError: the model does not exist, or belongs to another field than `domain`.
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

    Example:

        model = seqmlm.train("books.txt", domain="text", max_time="90s", name="english")

    Args:
        data: strings, a Series, a DataFrame or a path. None trains on the built-in sample of the field.
        domain: field of the sequences: text, protein, dna, code, ehr, logs, or a field from a plug-in.
        name: name of the run and of the model. Default: DOMAIN-SIZE-TIME.
        max_time: time limit for training, evaluation and calibration together, such as "90s", "10m" or "2h".
            If reading the data takes more than half of the limit, the limit is extended by the excess.
        max_steps: largest number of optimizer steps.
        size: tiny, small, base or linear. Default: selected for `max_time`; without it, the default of the
            field.
        init: model whose weights and vocabulary the training starts from.
        resume: "never", "auto", or the name of an interrupted run.
        options: options of the file reader, such as {"text": "sequence"} to select a column of a DataFrame.
        settings: other settings by dotted name, such as {"train.warmup": 100}.

    Raises:
        UsageError, DataError, StateError, TrainingError: in the same cases as `seqmlm train`.
        KeyboardInterrupt: Ctrl-C stopped the training. Its state is saved, and `resume` continues it.
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
        raise KeyboardInterrupt(f"stopped and saved; train(..., resume={result.run_name!r}) continues it")
    return Model(result.model)


class Model:
    """A trained model, returned by `load` or `train`.

    Every method takes strings, a Series of strings, a DataFrame or a path. It returns a DataFrame with the
    rows that the command of the same name writes. Keyword arguments are the settings of that command, as
    listed by `seqmlm COMMAND --print-config`. With a DataFrame, `options={"text": COLUMN}` selects the column
    of the sequences.

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
        """Score how unusual each sequence, or each part of it, is (`seqmlm score`). Higher is more unusual.

        Example:

            rows = model.score(["The dog sat on the mat."], fpr=0.01, per_unit=True)

        With `fpr`, the rows have the columns `alarm` and `reason`. With `per_unit=True`, the rows also have
        the surprisal of every unit in bits, and notebooks show the sequences in colour.
        """
        return self.run("score", data, **settings)

    def fill(self, data: Data, **settings: Any) -> RowFrame:
        """Fill the gaps of sequences, each gap by itself and all gaps together (`seqmlm fill`).

        Example:

            model.fill("the dog [MASK] the cat.")

        In this method, a string that is not a path is read as a sequence.
        """
        return self.run("fill", data, **settings)

    def zeroshot(self, data: Data, **settings: Any) -> RowFrame:
        """Classify texts without training, by the words that fit the gap of a template (`seqmlm zeroshot`).

        Example:

            labels = {"good": ["great"], "bad": ["terrible"]}
            model.zeroshot(texts, templates="{text} it was [MASK].", labels=labels)
        """
        return self.run("zeroshot", data, **settings)

    def variants(self, data: Data, **settings: Any) -> RowFrame:
        """Compare variants such as A123G with the wild type, as log-ratios in nats (`seqmlm variants`).

        Example:

            model.variants(["A123G", "L45P"], wildtype="wildtype.fasta")

        A higher log-ratio means a fitter variant. The wild type is the file `wildtype`, or the column
        `wt_seq` of a DataFrame.
        """
        return self.run("variants", data, **settings)

    def structure(self, data: Data, **settings: Any) -> RowFrame:
        """Measure how strongly the two units of each pair depend on each other (`seqmlm structure`).

        Example:

            rows = model.structure("proteins.fasta")
            rows.matrix()

        Each row is a pair of units. `matrix` returns the map of a sequence as an array. Rows whose
        `predicted` is true are predicted edges. A notebook shows the maps.
        """
        return self.run("structure", data, **settings)

    def embed(self, data: Data, **settings: Any) -> RowFrame:
        """Compute vectors in context for records, units, windows or spans (`seqmlm embed`).

        Example:

            vectors = model.embed(["The dog sat on the mat."]).vectors()

        `vectors` returns them as an array (N, D), one vector per row.
        """
        return self.run("embed", data, **settings)

    def predict(self, data: Data, **settings: Any) -> RowFrame:
        """Predict with a fine-tuned model, with calibrated probabilities (`seqmlm predict`).

        Example:

            seqmlm.load("sentiment").predict(["a great film"])
        """
        return self.run("predict", data, **settings)

    def generate(self, data: Data | None = None, **settings: Any) -> RowFrame:
        """Generate new sequences, or fill gaps with random draws (`seqmlm generate`).

        Example:

            model.generate(length="80-120", n=10)
        """
        return self.run("generate", data, **settings)

    def run(self, task: str, data: Data | None = None, /, **settings: Any) -> RowFrame:
        """Run any task, including tasks from plug-ins, and return its rows.

        Example:

            model.run("pairs", "pairs.jsonl")    # as `seqmlm pairs`

        Args:
            task: name of the task, which is the name of its command.
            data: input of the task. None for a task that reads no input.
            settings: settings of the command. Options that can be repeated take lists or mappings.

        Raises:
            UsageError, DataError, StateError: in the same cases as the command.
            KeyboardInterrupt: Ctrl-C stopped the task.
        """
        make = _task(task)
        from seqmlm.tasks.run import run

        if reserved := {"out", "resume", "format_out"} & settings.keys():
            raise UsageError(
                f"{', '.join(sorted(reserved))} cannot be set here, because the rows are returned: save "
                "them with to_json or to_parquet"
            )
        with tempfile.TemporaryDirectory(prefix="seqmlm-") as folder:
            place, out = Path(folder), Path(folder) / "rows.jsonl"
            paths = () if data is None else sources(data, place, COLUMNS.get(task, "text"))
            values = {"domain": self.domain, "precision": self.precision, **_plain(make.Config, settings)}
            # The rows come from the caller: columns that they lack are not looked for.
            if any(Path(path).parent == place for path in paths):
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
        """Create an outlier detector for scikit-learn. `settings` are the arguments of `Detector`.

        Example:

            detector = model.detector(fpr=0.05).fit(normal)
            labels = detector.predict(new)
        """
        from seqmlm.estimators import Detector

        return Detector(self, **settings)

    def embedder(self, **settings: Any) -> Embedder:
        """Create a scikit-learn transformer of sequences into vectors.

        `settings` are the arguments of `Embedder`.

        Example:

            pipeline = make_pipeline(model.embedder(), LogisticRegression())
        """
        from seqmlm.estimators import Embedder

        return Embedder(self, **settings)


class _Console(ScoringConsole):
    """Shows progress, and each message only once.

    Args:
        messages: messages that were shown before. New messages are added to the set.
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
        UsageError: no task with this name returns rows.
    """
    from seqmlm.tasks.task import Task

    known_tasks = tasks()
    make = known_tasks[name].load() if name in known_tasks else None
    if make is None or not issubclass(make, Task):
        if name in known_tasks:
            raise UsageError(
                f"{name!r} is not a task that returns rows: run it on the command line, as 'seqmlm {name}'"
            )
        raise UsageError(f"no task {name!r} that returns rows{nearest(name, known_tasks)}")
    return make


def _plain(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert keyword arguments to the forms of a config.

    A single string becomes a list, a mapping becomes NAME=A,B assignments, and a number becomes text where
    the setting is text.
    """
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
