"""Models through the tasks: one call registers here and in MLflow; what is exported loads in transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow.tracking import MlflowClient
from registered import origin
from tiny_models import protein_model, random_model, saved
from transformers import AutoModelForMaskedLM, AutoTokenizer

from seqmlm import plugins
from seqmlm.domains.ehr.history import Event, History
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import Candidates
from seqmlm.errors import StateError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.model_folder import COUNTS, load_tokenizer, put_file
from seqmlm.management.models import alias_model, export_model, list_models, show_model
from seqmlm.registry.database import UnreachableError
from seqmlm.registry.entries import ModelEntry
from seqmlm.registry.references import resolve
from seqmlm.registry.store import Registry
from seqmlm.tasks import register as registration
from seqmlm.tasks.register import register_model, track_model
from seqmlm.tokenizers.base import fingerprint
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace

Make = Callable[..., int]


@pytest.fixture
def home(tracked_workspace: Path) -> Workspace:
    return Workspace.locate()


def _write_model(folder: Path) -> None:
    """A model folder as training writes it, with files beside it that are not the model."""
    saved(protein_model(), folder, metrics={"eval/bits_per_unit": 3.5})
    (folder / "pytorch_model.bin").write_bytes(b"not to be exported")


@pytest.fixture
def make(home: Workspace) -> Make:
    """Train nothing, but end a run with a registered model."""

    def build(name: str, *, run_name: str | None = None, init: str | None = None) -> int:
        with Tracker(home).start(run_name or name, experiment="e", params={}) as run:
            _write_model(run.directory / "model")
            run.dataset("p", "/p.fasta", "f", {})
            own = origin(init=init, mlflow_run_id=run.run_id)
            entry = register_model(run.directory / "model", name, own)
            track_model(run, entry, {"eval/bits_per_unit": 3.5}, dataset="p")
            return entry.version

    return build


def _aliases(home: Workspace, name: str) -> dict[str, str]:
    """Our version each alias of a model has in MLflow."""
    client = MlflowClient(tracking_uri=home.tracking_uri, registry_uri=home.tracking_uri)
    found = client.get_registered_model(name).aliases
    return {
        alias: client.get_model_version(name, str(version)).tags["seqmlm.version"]
        for alias, version in found.items()
    }


def test_the_first_version_is_champion_here_and_in_mlflow_until_the_alias_moves(home: Workspace, make: Make):
    assert make("a") == 1
    assert make("a", run_name="a-2") == 2
    assert resolve("a").path == home.run_dir("a-2") / "model"
    assert resolve("a@champion").path == home.run_dir("a") / "model"
    assert _aliases(home, "a") == {"champion": "1"}
    assert [summary.entry.reference for summary in list_models()] == ["a:2", "a:1"]
    assert list_models()[0].metrics == {"eval/bits_per_unit": 3.5}
    warnings: list[str] = []
    assert alias_model("a:2", "champion", warnings.append).version == 2
    assert resolve("a@champion").path == home.run_dir("a-2") / "model"
    assert (_aliases(home, "a"), warnings) == ({"champion": "2"}, [])


def test_a_connection_lost_after_the_commit_registers_once(
    home: Workspace, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    register, waited = Registry.register, list[float]()

    def lost(*args: Any, **kwargs: Any) -> ModelEntry:
        entry = register(*args, **kwargs)
        if len(waited) < 2:
            raise UnreachableError("server closed the connection unexpectedly")
        return entry

    monkeypatch.setattr(Registry, "register", lost)
    monkeypatch.setattr(registration, "patiently", partial(registration.patiently, pause=waited.append))
    assert make("a") == 1
    assert len(waited) == 2
    [summary] = list_models()
    assert (summary.entry.reference, summary.entry.aliases) == ("a:1", ("champion",))
    assert _aliases(home, "a") == {"champion": "1"}


def test_an_alias_without_mlflow_is_given_with_a_warning(
    home: Workspace, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("a")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://")
    warnings: list[str] = []
    alias_model("a", "good", warnings.append)
    assert resolve("a@good").entry is not None
    assert len(warnings) == 1


def test_only_registered_models_take_aliases(make: Make, home: Workspace) -> None:
    make("a")
    with pytest.raises(UsageError, match="not a registered model"):
        alias_model(str(home.run_dir("a")), "good", print)


def test_origin_is_shown(home: Workspace, make: Make) -> None:
    make("a")
    make("b", init="a@champion")
    make("c", init=str(home.run_dir("b") / "model"))
    make("d", init="facebook/esm2_t6_8M_UR50D")
    shown = show_model("c")
    assert (shown["parent"], shown["ancestors"]) == ("b:1", ["b:1", "a:1"])
    assert shown["dataset"]["sources"] == ["a.fasta"]
    assert (show_model("d")["init"], show_model("d")["parent"]) == ("facebook/esm2_t6_8M_UR50D", None)
    for card in (shown["card"], show_model(str(home.run_dir("a")))["card"]):
        assert card["domain"] == "protein"
    with pytest.raises(UsageError, match="on the Hugging Face hub"):
        show_model("hf:bert-base-uncased")


def test_an_exported_folder_loads_in_plain_transformers(home: Workspace, make: Make, tmp_path: Path) -> None:
    make("a")
    out = tmp_path / "deep" / "out"
    files = export_model("a", out)
    assert sorted(path.name for path in files) == sorted(path.name for path in out.iterdir())
    assert not (out / "pytorch_model.bin").exists()
    assert {"config.json", "model.safetensors", "seqmlm.json"} <= {path.name for path in files}
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids = plugins.tokenizer_class("residue")().encode("MKTAYIAK").ids.tolist()
    assert tokenizer("MKTAYIAK")["input_ids"] == ids
    # The folder is one of ours too.
    assert resolve(str(out)).path == out.resolve()


def test_an_exported_model_answers_alike_in_plain_transformers(home: Workspace, make: Make, tmp_path: Path):
    make("a")
    source, out = home.run_dir("a") / "model", tmp_path / "out"
    export_model("a", out)
    ours = model_folder.load(source)
    space = ours.tokenizer.space
    encoding = ours.tokenizer.encode("MKTAYIAKXQRLS")
    places = [2, 5, 9]
    log_probs = Candidates(tuple(space.ordinary.tolist()))

    def asked(folder: Path, **options: str) -> torch.Tensor:
        """(3, R) log-probabilities of all ordinary tokens where those places are hidden."""
        at = np.array(places, dtype=np.int32)
        query = Query(encoding=encoding, masked=at, asked=at)
        rows = model_folder.load(folder, **options).rows
        [answer] = Conditionals(rows).ask([query], (log_probs,))
        return torch.from_numpy(answer.values[log_probs.name])

    ids = torch.from_numpy(encoding.ids.astype(np.int64))[None]
    ids[0, places] = space.mask
    with torch.inference_mode():
        logits = AutoModelForMaskedLM.from_pretrained(out, attn_implementation="eager").eval()(ids).logits
        unchanged = AutoModelForMaskedLM.from_pretrained(source, attn_implementation="eager")(ids).logits
    expected = asked(source)
    outside = np.setdiff1d(np.arange(40), space.ordinary)
    assert torch.allclose(logits[0, places].log_softmax(-1)[:, space.ordinary], expected, atol=1e-4)
    assert not logits.softmax(-1)[..., outside].any()
    assert unchanged.softmax(-1)[..., outside].any(), "and the product's own folder is as it was"
    assert torch.allclose(asked(out), expected, atol=1e-6)
    (out / "seqmlm.json").unlink()
    assert torch.allclose(asked(out, domain="protein"), expected, atol=1e-5), "as an imported model"


def test_counts_stay_behind(home: Workspace, make: Make, tmp_path: Path) -> None:
    make("a")
    put_file(home.run_dir("a") / "model" / COUNTS, b"counts")
    said: list[str] = []
    files = export_model("a", tmp_path / "out", said.append)
    assert COUNTS not in {path.name for path in files}
    assert not (tmp_path / "out" / COUNTS).exists()
    assert COUNTS in said[0]


@pytest.mark.parametrize("name", ["templates", "log_words", "events"])
def test_an_exported_folder_has_the_whole_tokenizer(tmp_path: Path, name: str) -> None:
    history = History(subject="1", birth=None, events=(Event(time=0.0, code="ICD10//I10"),))
    texts = [history] if name == "events" else ["started\nready"]
    options = {"min_subjects": 1} if name == "events" else {}
    trained = plugins.tokenizer_class(name).train(texts, **options)
    folder = saved(random_model("ehr" if name == "events" else "logs", trained), tmp_path / "model")
    export_model(str(folder), tmp_path / "out")
    assert fingerprint(load_tokenizer(str(tmp_path / "out"))) == fingerprint(trained)


def test_export_of_what_cannot_be(make: Make, home: Workspace, tmp_path: Path) -> None:
    make("a")
    with pytest.raises(UsageError, match="download it from there"):
        export_model("hf:x", tmp_path / "out")
    folder = home.run_dir("a") / "model"
    (folder / "model.safetensors").unlink()
    with pytest.raises(StateError, match=r"model\.safetensors is missing"):
        export_model("a", tmp_path / "out")
    (folder / "seqmlm.json").unlink()
    with pytest.raises(StateError, match="no weights in safetensors"):
        export_model("a", tmp_path / "out")
    assert not (tmp_path / "out").exists()
