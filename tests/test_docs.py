"""Documents name only what exists (files, names, commands, options, settings), and their Python runs."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import datasets
import house
import numpy as np
import pytest
import torch
from commands import COMMANDS, CONFIGURED
from fork_server import Run
from tiny_models import TINY, residues

import seqmlm as package
from seqmlm import plugins
from seqmlm.cli import main
from seqmlm.config import parse_assignments
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.masking.base import Corruptor, MaskingConfig, make_masker
from seqmlm.engine.units import EXACT
from seqmlm.inference.record_batches import Encoded
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.training.config import resolve_config

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path
    for part in (
        "*.md",
        "docs/**/*.md",
        "seqmlm/**/*.md",
        "examples/**/*.md",
        "benchmarks/**/*.md",
    )
    for path in ROOT.glob(part)
)

_FILE = re.compile(r"(?<![\w/])(?:seqmlm|tests|benchmarks|docs|examples)/[\w./-]*\.(?:py|md|sh|toml)\b")
_DOTTED = re.compile(r"\bseqmlm(?:\.\w+)+\b(?!\()")
_SPAN = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|(?<=[|&$\s]))seqmlm +((?:[^|&#\n]|(?<=\w)\|(?=\w))+)")
_ENTRY = re.compile(r'^(\w+) = "[\w.]+:\w+"$', re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_SETTING = re.compile(r"--set +([a-z][\w.]*=[^\s`]+)")


def _command_lines(text: str) -> Iterator[str]:
    """What follows `seqmlm` in code, one command line each; `a|b` in a command word means either."""
    text = text.replace("\\|", "|").replace("\\\n", " ")
    pieces = [block.group(1) for block in _FENCE.finditer(text)]
    pieces += _SPAN.findall(_FENCE.sub("", text))
    for piece in pieces:
        for found in _COMMAND.finditer(piece):
            words = found.group(1).split()
            choice = next(
                (index for index, word in enumerate(words[:2]) if re.fullmatch(r"\w+(\|\w+)+", word)), None
            )
            for word in words[choice].split("|") if choice is not None else [""]:
                yield " ".join([*words[:choice], word, *words[choice + 1 :]] if choice is not None else words)


def _wrong(line: str) -> str | None:
    """What a command line has that the command does not know."""
    words = shlex.split(line.replace("...", ""))
    if "--" in words:  # behind it stands another command
        inner = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
        if wrong := _wrong(shlex.join(inner)):
            return wrong
    if not words or not words[0][:1].islower():
        return None  # a placeholder such as COMMAND
    path = next((key for key in ((words[0],), tuple(words[:2])) if key in COMMANDS), None)
    if path is None:
        known = {key[0] for key in COMMANDS}
        return None if len(words) == 1 and words[0] in known else f"no command {' '.join(words[:2])}"
    known = {name for parameter in COMMANDS[path].params for name in parameter.opts} | {"--help"}
    given = {re.split("=", word)[0].strip("[]") for word in words if re.match(r"\[?--?[a-z]", word)}
    unknown = given - known
    return f"{' '.join(path)} has no {', '.join(sorted(unknown))}" if unknown else None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    places = ROOT, path.parent  # a name is of the repository, a link of the document's folder
    assert not [name for name in _FILE.findall(text) if not any((place / name).exists() for place in places)]
    groups = {"seqmlm.domains", "seqmlm.tokenizers", "seqmlm.maskers", "seqmlm.tasks"}
    files = (".db", ".json")
    names = {name for name in _DOTTED.findall(text) if not name.endswith(files) and name not in groups}
    # A schema ("seqmlm.sample.text.v1") is no module either.
    assert not [name for name in names if not name.startswith("seqmlm.sample") and not house.resolves(name)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_and_settings_are_known(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    added = _ENTRY.findall(text)  # what the document itself shows how to add
    lines = [line for line in _command_lines(text) if line.split(" ")[0] not in added]
    assert not [wrong for line in lines if (wrong := _wrong(line))]
    of_tasks = {field.name for task in CONFIGURED.values() for field in fields(task.Config)}
    for setting in _SETTING.findall(text):
        if setting.partition("=")[0] in of_tasks:
            continue
        resolve_config(plugins.domain("text"), parse_assignments([setting]))


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_every_help_text_has_an_example_that_its_command_understands(words: tuple[str, ...]) -> None:
    help_text = " ".join(str(COMMANDS[words].help).split())
    examples = help_text.split("Example: ")[1:]
    assert examples, "no example"
    for example in examples:
        found = _COMMAND.search(example)
        assert found, example
        assert tuple(found.group(1).split()[: len(words)]) == words
        assert _wrong(found.group(1)) is None


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("train --domain text --no-such-option 3", "train has no --no-such-option"),
        ("data look", "no command data look"),
        ("train --domain text x.txt", None),
        ("runs show enzymes", None),
    ],
)
def test_what_is_wrong_with_a_command_line_is_found(line: str, wrong: str | None) -> None:
    assert _wrong(line) == wrong


def _anchors(text: str) -> set[str]:
    """The names that GitHub gives to the headings of a document."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    lost = []
    for name, anchor in _LINK.findall(text):
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in _anchors(target.read_text(encoding="utf-8"))):
            lost.append(f"{name}#{anchor}")
    assert not lost


def test_every_benchmark_is_in_the_results() -> None:
    index = ROOT / "docs" / "explanation" / "results.md"
    pages = sorted((ROOT / "docs" / "explanation" / "benchmarks").glob("*.md"))
    text = index.read_text(encoding="utf-8")
    assert not [path.name for path in pages if f"(benchmarks/{path.name})" not in text]
    text += "".join(path.read_text(encoding="utf-8") for path in pages)
    scripts = [
        path
        for path in (ROOT / "benchmarks").glob("**/*.py")
        if "argparse.ArgumentParser(" in path.read_text(encoding="utf-8")
    ]
    assert len(scripts) > 20
    assert not [path.name for path in scripts if f"`{path.relative_to(ROOT)}" not in text]
    studies = {path.name for path in (ROOT / "benchmarks" / "studies").glob("*.py")}
    decisions = (ROOT / "benchmarks" / "studies" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+\.py)`", decisions)) == studies


def test_command_lines_are_found_in_documents() -> None:
    found = list(
        _command_lines((ROOT / "docs" / "reference" / "command-overview.md").read_text(encoding="utf-8"))
    )
    assert {"runs list", "runs compare"} <= set(found)
    assert any(line.startswith("score app - --max-latency 1s") for line in found)


# Python that documents show: each fence runs, in the workspace `home` with the models `enzymes` and `english`

_PYTHON = re.compile(r"^```(?:python|py|pycon)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ENTRIES = re.compile(r"^```toml\n(\[project\.entry-points.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```bash\n(printf .*?)^```", re.MULTILINE | re.DOTALL)

FENCES = {
    f"{path.relative_to(ROOT)}: {code.splitlines()[0]}": code
    for path in DOCUMENTS
    for code in _PYTHON.findall(path.read_text(encoding="utf-8"))
}
"""Code by document and first line."""

CANNOT_RUN = {
    "docs/how-to/scale.md: from pyspark.sql.functions import struct": "pyspark is not a dependency",
    "docs/tutorials/first-alarm.md: import seqmlm  # in the folder of the tutorial": "it needs its model",
}
"""Fences that are not run, and why."""


@dataclass(frozen=True)
class Surroundings:
    """What a fence runs in.

    Args:
        seqmlm: runs a command line.
        home: the workspace with the models `enzymes` and `english`; the current directory.
        names: what the prelude and the fence have bound.
        patch: undone after the test.
    """

    seqmlm: Run
    home: Path
    names: dict[str, Any]
    patch: pytest.MonkeyPatch

    def add_entry(self, document: str, name: str) -> None:
        """Declare the entry point of this name as a document's TOML does."""
        for text in _ENTRIES.findall((ROOT / document).read_text(encoding="utf-8")):
            ((group, declared),) = tomllib.loads(text)["project"]["entry-points"].items()
            if name in declared:
                kind = group.removeprefix("seqmlm.")
                self.patch.setitem(plugins.entries(kind), name, EntryPoint(name, declared[name], group))
                return
        raise AssertionError(f"{document} declares no {name}")


def _use_readme(here: Surroundings) -> None:
    assert len(here.names["rows"]) == 2
    assert set(here.names["rows"]) >= {"alarm", "reason", "per_unit"}


def _use_reference(here: Surroundings) -> None:
    assert {"bits_per_unit", "p_value"} <= set(here.names["rows"])


def _use_domain(here: Surroundings) -> None:
    music = here.names["MUSIC"]
    music.sample.draw(here.home / "tunes", n=5, seed=0)
    tunes = list(music.read([str(here.home / "tunes" / "tunes.tune")], Problems()))
    assert [tune.id for tune in tunes] == [f"tune-{number}" for number in range(5)]


def _use_reader(here: Surroundings) -> None:
    (here.home / "few.tab").write_text("first\tmkta\n\nsecond\tMKV\n")
    problems = Problems("skip")
    (record,) = here.names["read_tab"](here.home / "few.tab", problems, least=4)
    assert (record.id, record.raw, record.line) == ("first", "MKTA", 1)
    assert problems.bad_count == 1  # the empty line


def _use_format(here: Surroundings) -> None:
    """The document's commands: a file is made, and inspected with the new format."""
    entry = EntryPoint("protein", "with_tab:PROTEIN", "seqmlm.domains")
    here.patch.setitem(plugins.entries("domains"), "protein", entry)
    ((make, inspect),) = (
        text.splitlines() for text in _SHELL.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    )
    subprocess.run(["bash", "-c", make], check=True)
    words = shlex.split(inspect)[1:]
    inspected = here.seqmlm(*words, "--json").ok().json
    assert inspected["records"] == 1
    assert sorted(inspected["problems"].values()) == [1, 1]  # no tab, and shorter than the option
    assert "least" in here.seqmlm("data", "formats", "--domain", "protein").ok().out


def _use_task(here: Surroundings) -> None:
    here.add_entry("CONTRIBUTING.md", "uncertainty")
    rows = package.load("enzymes").run("uncertainty", [residues(30), residues(12)], least=0.2)
    assert [len(bits) for bits in rows["bits"]] == [30, 12]
    assert all(0 < value <= math.log2(25) for bits in rows["bits"] for value in bits)
    command = ("uncertainty", "enzymes", "new.csv", "--json")
    figures = here.seqmlm(*command, "--out", "uncertainty.jsonl", "--least", 5).ok().json
    assert (figures["units"], figures["certain"]) == (20 + 21, 1)
    here.seqmlm(*command, "--least", -1).refused(2, "--least is a number of bits")


def _use_reduction(here: Surroundings) -> None:
    """Against the logits of the model where one unit at a time is hidden."""
    session, sequence = Session.open("enzymes"), residues(9)
    (encoding,) = session.tokenizer.encode_batch([sequence])
    batch = [Encoded(Record(id="a", raw=sequence, source="a", line=1), encoding)]
    (scored,) = RecordScorer(session).unit_scores(batch, EXACT, want=(here.names["Margin"](),))
    session.model.rows.model.set_attn_implementation("sdpa")
    space, naive = session.tokenizer.space, []
    for place in np.flatnonzero(encoding.groups >= 0):
        ids = torch.tensor(encoding.ids.astype(np.int64))
        ids[place] = space.mask
        with torch.no_grad():
            logits = session.model.rows.model(input_ids=ids[None]).logits[0, place]
        best = logits[torch.tensor(np.asarray(space.ordinary, dtype=np.int64))].topk(2).values
        naive.append(float(best[0] - best[1]))
    assert scored.values["margin"].tolist() == pytest.approx(naive, abs=1e-5)


def _use_masker(here: Surroundings) -> None:
    here.add_entry("CONTRIBUTING.md", "every.v1")
    config = resolve_config(plugins.domain("protein"), parse_assignments(["masking.masker=every"]))
    assert plugins.versioned("maskers", config.masking.masker) == "every.v1"
    tokenizer = Session.open("enzymes").tokenizer
    (encoding,) = tokenizer.encode_batch([residues(40)])
    masking = MaskingConfig(masker="every.v1", rate=0.25)
    masker = make_masker(plugins.load("maskers", "every.v1"), masking, tokenizer.space)
    masked = Corruptor(masking, masker, tokenizer.space, None, seed=0)(encoding, epoch=0, sample=0)
    assert len(masked.positions) == 10
    assert set(np.diff(masked.positions)) == {4}


def _use_embeddings(here: Surroundings) -> None:
    expected = package.load("english").embed(["the dog sees the cats"], layers="-2", of="unit").vectors()
    assert here.names["vectors"] == pytest.approx(expected, abs=1e-6)


def _use_pyfunc(here: Surroundings) -> None:
    expected = package.load("english").score(here.names["table"], fpr=0.01)
    assert here.names["rows"]["score"].tolist() == expected["score"].tolist()
    assert here.names["rows"]["alarm"].tolist() == expected["alarm"].tolist()


def _use_map(here: Surroundings) -> None:
    scored, vectors = here.names["scored"], here.names["vectors"]
    assert set(scored.column_names) >= {"score", "bits_per_unit", "p_value", "alarm", "reason"}
    expected = package.load("enzymes").run("embed", [*here.names["table"]["text"]]).vectors()
    assert np.array(vectors["vector"][:]) == pytest.approx(expected, abs=1e-5)


def _use_formula(here: Surroundings) -> None:
    assert here.names["width"] == 3  # the second line takes the first one back


@dataclass(frozen=True)
class Fence:
    """How a fence is run, and what is then asked of it.

    Args:
        use: does with the code what the document says, and asserts what comes of it.
        prelude: code that binds what a fragment takes from elsewhere.
        around: code with `{}` for a fragment that is part of an expression.
        module: the fence is a file of this name, for an entry point to find.
    """

    use: Callable[[Surroundings], None]
    prelude: str = ""
    around: str = "{}"
    module: str | None = None


TAB = "CONTRIBUTING.md: # tab.py, in the folder of the protein domain"
TAB_ENTRY = "CONTRIBUTING.md: # seqmlm/domains/protein/__init__.py, in `formats`"

USES = {
    "README.md: import seqmlm": Fence(_use_readme),
    "docs/reference/python.md: import seqmlm": Fence(_use_reference),
    "CONTRIBUTING.md: # music/__init__.py, shortened": Fence(
        _use_domain,
        prelude="from music import *\n"
        "from music import Defaults, Field, Format, MaskingConfig, BuiltInSample, chapter, read_tunes\n"
        "__name__ = 'music'\n",
    ),
    TAB: Fence(_use_reader),
    TAB_ENTRY: Fence(
        _use_format,
        prelude=f"{FENCES.get(TAB)}\n"
        "from dataclasses import replace\n"
        "from seqmlm.domains.files import Format\n"
        "from seqmlm.domains.protein import PROTEIN\n",
        around="PROTEIN = replace(PROTEIN, formats={{**PROTEIN.formats,\n{}}})\n",
        module="with_tab",
    ),
    "CONTRIBUTING.md: # uncertainty.py": Fence(_use_task, module="uncertainty"),
    "CONTRIBUTING.md: @dataclass(frozen=True)": Fence(
        _use_reduction,
        prelude="from dataclasses import dataclass\n"
        "from torch import Tensor\n"
        "from seqmlm.engine.reductions import Block, Reduction\n",
    ),
    "CONTRIBUTING.md: class Every(RateMasker):": Fence(
        _use_masker,
        prelude="import numpy as np\n"
        "from seqmlm.engine.masking.base import RateMasker\n"
        "from seqmlm.engine.types import Bools, Encoding\n",
        module="genes.every",
    ),
    "docs/how-to/embed.md: from seqmlm.inference.session import Session": Fence(
        _use_embeddings,
        prelude="from seqmlm.data.record import Record\n"
        "records = [Record(id='a', raw='the dog sees the cats', source='a', line=1)]\n",
    ),
    "docs/how-to/scale.md: import mlflow": Fence(
        _use_pyfunc,
        prelude="import mlflow, pandas\n"
        "mlflow.set_tracking_uri('sqlite:///mlflow.db')\n"
        "table = pandas.DataFrame({'text': ['The dog sees the cats.', 'The the the.']})\n",
    ),
    "docs/how-to/scale.md: import datasets, seqmlm": Fence(_use_map),
    "docs/reference/samples/code.md: speed = (width + 7) * rate": Fence(
        _use_formula, prelude="width, rate = 3, 2\n"
    ),
}


@pytest.fixture(scope="module")
def trained_home(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path, no_waits: None, one_parser: None
) -> Path:
    """A workspace with two tiny models, registered and calibrated."""
    home = tmp_path_factory.mktemp("fences")
    shutil.copyfile(empty_store, home / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQMLM_HOME", str(home))
        for name in ("MLFLOW_TRACKING_URI", "SEQMLM_DATABASE_URL"):
            patch.delenv(name, raising=False)
        for model, domain, file in (("enzymes", "protein", "protein.fasta"), ("english", "text", "text.txt")):
            plugins.domain(domain).sample.draw(home / domain, n=400, seed=0)
            train = ["train", str(home / domain / file), "--domain", domain, "--name", model, *TINY]
            few = ("--max-steps", "2", "--set", "train.evaluation_records=8", "--set", "data.calibration=0.5")
            with pytest.raises(SystemExit) as stop:
                main([*train, *few])
            assert not stop.value.code
    return home


@pytest.fixture
def surroundings(
    seqmlm: Run, trained_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Surroundings:
    """The workspace, with a table of new proteins, and a folder of modules."""
    shutil.copytree(trained_home, tmp_path, dirs_exist_ok=True)
    (tmp_path / "new.csv").write_text(f"text\n{residues(20)}\n{residues(21)}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "plugin"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return Surroundings(seqmlm, tmp_path, {"__name__": "fence"}, monkeypatch)


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")  # of MLflow's import
@pytest.mark.parametrize("name", [name for name in FENCES if name not in CANNOT_RUN])
def test_python_in_documents_runs(name: str, surroundings: Surroundings) -> None:
    fence, names = USES[name], surroundings.names
    code = fence.prelude + fence.around.format(FENCES[name])
    if fence.module is None:
        exec(compile(code, name, "exec"), names)
    else:
        file = surroundings.home.joinpath(*fence.module.split(".")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(code, encoding="utf-8")
    fence.use(surroundings)


def test_every_python_fence_is_run_and_used_or_says_why_not() -> None:
    assert FENCES.keys() == USES.keys() | CANNOT_RUN.keys()
    assert not USES.keys() & CANNOT_RUN.keys()
