"""`seqmlm models`: register, list, alias and export trained models, and register them by their cards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from seqmlm.config import to_dict
from seqmlm.errors import SeqmlmError, StateError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.calibrations import calibration_summary, stored_calibrations
from seqmlm.inference.model_folder import CALIBRATION, CARD, COUNTS, card_values
from seqmlm.parsing import read_json
from seqmlm.registry.database import UnreachableError, set_aside
from seqmlm.registry.entries import ModelEntry
from seqmlm.registry.references import resolve
from seqmlm.registry.store import Registry
from seqmlm.streams.outputs import new_folder
from seqmlm.tasks.register import origin_of, register_calibrations, registered_version
from seqmlm.tokenizers.base import CARD as TOKENIZER_CARD
from seqmlm.tracking import Tracker
from seqmlm.workspace import Workspace

# The files of a plain Hugging Face folder, and our card; nothing else in a model folder is exported.
_HUGGING_FACE = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_VOCABULARY = ("vocab.txt", "vocab.json", "merges.txt", "log_templates.json")
_REWRITTEN = ("config.json", "generation_config.json", "model*.safetensors*", "channels.safetensors")
_EXPORTED = (*_HUGGING_FACE, *_TOKENIZER, *_VOCABULARY, "seqmlm*.json")
_BESIDE_CLASSIFIER = (*_TOKENIZER, *_VOCABULARY, TOKENIZER_CARD)


_SUMMARY = (
    *("name", "version", "aliases", "domain", "path", "present", "created", "init", "parent", "run_id"),
    *("masking", "tokenizer", "dataset", "metrics"),
)
_TOKENIZER_FACTS = ("name", "hash", "vocabulary_size", "options")
_DATASET_FACTS = ("fingerprint", "sources", "counts")


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """One version of a model with what its card says."""

    entry: ModelEntry
    card: Mapping[str, Any]
    """The model folder's own card; empty if the folder is missing."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Final metrics of the training."""
        metrics: Mapping[str, float] = self.card.get("metrics", {})
        return metrics

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        entry, facts = self.entry, to_dict(self.entry)
        facts |= {"present": entry.present, "created": entry.created.isoformat()}
        facts |= {"run_id": entry.mlflow_run_id, "metrics": dict(self.metrics)}
        facts["tokenizer"] = {name: facts["tokenizer"][name] for name in _TOKENIZER_FACTS}
        facts["dataset"] = {name: facts["dataset"][name] for name in _DATASET_FACTS}
        return {name: facts[name] for name in _SUMMARY}


def list_models() -> list[ModelSummary]:
    """All versions of all models, newest first."""
    with Registry(Workspace.locate()) as registry:
        return [ModelSummary(entry=entry, card=card_values(entry.path)) for entry in registry.models()]


def show_model(reference: str) -> dict[str, Any]:
    """Everything about one model: its origin, its ancestors, its calibrations, its card.

    Raises:
        UsageError: it is a hub model, of which nothing is known here.
    """
    home = Workspace.locate()
    resolved = resolve(reference)
    if resolved.path is None:
        raise UsageError(
            f"{reference} is a model on the Hugging Face hub; see https://huggingface.co/{resolved.hub_id}"
        )
    card, calibrations = card_values(resolved.path), stored_calibrations(resolved.path)
    shared_facts = {
        "card": dict(card),
        "calibrations": calibration_summary(calibrations) if calibrations else None,
    }
    if resolved.entry is None:
        return {"path": str(resolved.path), **shared_facts}
    with Registry(home) as registry:
        ancestors = [model.reference for model in registry.lineage(resolved.entry)]
    summary = ModelSummary(entry=resolved.entry, card=card)
    return {**summary.to_dict(), "ancestors": ancestors, **shared_facts}


@dataclass(frozen=True, kw_only=True)
class RescanResult:
    """The model folders that `rescan_models` registered, and those that it could not.

    Args:
        aside: where the registry is that could not be used; None where it could.
        added: versions that it lacked.
        known: how many versions it had.
        broken: folders that were not registered, or without their calibrations, and why.
    """

    aside: Path | None
    added: tuple[ModelEntry, ...]
    known: int
    broken: Mapping[Path, str]


def rescan_models() -> RescanResult:
    """Register the models of the workspace's run folders that the registry lacks, by what their cards say.

    A registry that is damaged, or of an unknown schema, is moved aside before; a server never is. Versions of
    a name are numbered in the order of their training steps, and the first one becomes its `champion`.

    Raises:
        UnreachableError: the registry is in use, or does not answer.
        StateError: it cannot be read, moved or written.
    """
    home = Workspace.locate()
    moved_to = set_aside(home.database_url)
    broken: dict[Path, str] = {}
    cards = _cards(home, broken)
    with model_folder.data_rules(*cards.values()), Registry(home) as registry:
        registered = {model.path for model in registry.models()}
        missing = {folder: card for folder, card in cards.items() if folder not in registered}
        entries: dict[Path, ModelEntry] = {}
        for _ in range(2):  # the second time, what a model was trained on from is there
            for folder, card in missing.items():
                name = card.run_name or folder.parent.name
                try:
                    origin = origin_of(card, model_folder.load_tokenizer(folder))
                    entries[folder] = registered_version(registry, name, folder, origin)
                    register_calibrations(registry, entries[folder])
                except UnreachableError:
                    raise
                except SeqmlmError as error:
                    broken[folder] = str(error)
    return RescanResult(aside=moved_to, added=tuple(entries.values()), known=len(registered), broken=broken)


def _cards(home: Workspace, broken: dict[Path, str]) -> dict[Path, model_folder.Card]:
    """The card of each model folder, earlier versions first; why one cannot be read goes to `broken`."""
    cards: dict[Path, model_folder.Card] = {}
    for file in sorted([*home.runs.glob(f"*/model/{CARD}"), *home.runs.glob(f"*/model-*/{CARD}")]):
        try:
            card = model_folder.read_card(file.parent)
        except StateError as error:
            broken[file.parent] = str(error)
        else:
            if card is not None and file.parent.suffix != ".tmp":
                cards[file.parent.resolve()] = card
    return dict(sorted(cards.items(), key=lambda pair: pair[1].steps))


def alias_model(reference: str, alias: str, warn: Callable[[str], None]) -> ModelEntry:
    """Point an alias of a model's name at one version, in our registry and, where it answers, in MLflow.

    Raises:
        UsageError: the alias is reserved, or the reference is not of a registered model.
    """
    home = Workspace.locate()
    resolved = resolve(reference)
    if resolved.entry is None:
        raise UsageError(
            f"{reference} is not a registered model; an alias needs NAME, NAME@ALIAS or NAME:VERSION"
        )
    with Registry(home) as registry:
        registry.set_alias(resolved.entry, alias)
    Tracker(home, warn=warn).set_alias(resolved.entry.name, resolved.entry.version, alias)
    return resolved.entry


def export_model(
    reference: str,
    out: Path,
    notify: Callable[[str], None] = lambda text: None,
    *,
    format: Literal["plain", "sentence"] = "plain",
) -> list[Path]:
    """Copy a model as a plain Hugging Face folder, with our card beside it; the files of that.

    `AutoModelForMaskedLM` and `AutoTokenizer` load it, and so does seqmlm; both give the same probabilities,
    for what ours excludes has none there either (a folder without our card excludes nothing and is copied as
    it is). It appears whole or not at all. Counts stay behind, for only seqmlm could read them; so do
    calibrations that rest on them. A fine-tuned model becomes transformers' own class of its task, without
    our card: see `plain_classifier`.

    Args:
        notify: told what stays behind.
        format: "sentence" adds what sentence-transformers reads: its vectors are the mean over all tokens, as
            those of `seqmlm embed --set pool=tokens`.

    Raises:
        UsageError: the model is on the hub already, or transformers would compute it otherwise.
        StateError: `out` is taken or cannot be written, or the model is incomplete.
    """
    resolved = resolve(reference)
    if resolved.path is None:
        raise UsageError(f"{reference} is on the Hugging Face hub: download it from there")
    card, target = model_folder.read_card(resolved.path), out.expanduser().absolute()
    modules = _sentence_modules(resolved.path, card) if format == "sentence" else {}
    classifies = card is not None and card.head and not modules
    files = [] if classifies else _exported(resolved.path, card, notify)
    with model_folder.data_rules(card), new_folder(target) as building:
        if classifies:
            from seqmlm.inference.plain_classifier import plain_classifier

            model_folder.save_weights(building, plain_classifier(model_folder.load(resolved.path)))
            files = _matching(resolved.path, _BESIDE_CLASSIFIER)
        elif card is not None:
            model_folder.write_plain(building, resolved.path, card)
        for path in files:
            shutil.copyfile(path, building / path.name)
        for name, content in modules.items():
            (building / name).parent.mkdir(exist_ok=True)
            (building / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if card is not None and not classifies:
            model_folder.seal(building, card)
    return sorted(target.iterdir())


def _exported(folder: Path, card: model_folder.Card | None, notify: Callable[[str], None]) -> list[Path]:
    """Files of a model folder that are copied as they are."""
    files = _matching(folder, _EXPORTED)
    if card is not None:
        model_folder.check_files(folder, card)
        files = [path for path in files if path.name not in model_folder.unexported_files(folder)]
    left_behind = [path.name for path in files if path.name == COUNTS]
    if left_behind and any(
        calibration.counts != "none" for calibration in stored_calibrations(folder).values()
    ):
        left_behind.append(CALIBRATION)
    if left_behind:
        notify(f"the plain model, without counts of the training data: {' and '.join(left_behind)} stay here")
    files = [path for path in files if path.name not in left_behind]
    if not any(path.suffix == ".safetensors" for path in files):
        raise StateError(f"{folder} has no weights in safetensors; train or copy the model again")
    rewritten = _matching(folder, _REWRITTEN) if card is not None else []
    return [path for path in files if path not in rewritten]


def _sentence_modules(folder: Path, card: model_folder.Card | None) -> dict[str, Any]:
    """Files of sentence-transformers, by name: an encoder, and the mean over its tokens."""
    tokenizer = model_folder.load_tokenizer(folder)
    if not tokenizer.traits.reads("") or (card is not None and (card.channels or card.head)):
        raise UsageError(
            f"{folder}: sentence-transformers reads only plain text and its encoders; use seqmlm embed"
        )
    config = read_json(folder / "config.json")
    length = card.max_length if card is not None else config.get("max_position_embeddings", 512)
    kind, pooling = "sentence_transformers.models", "1_Pooling"
    named = [("", "Transformer"), (pooling, "Pooling")]
    return {
        "modules.json": [
            {"idx": number, "name": str(number), "path": path, "type": f"{kind}.{name}"}
            for number, (path, name) in enumerate(named)
        ],
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        f"{pooling}/config.json": {
            "word_embedding_dimension": config["hidden_size"],
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    }


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [
        path for path in sorted(folder.iterdir()) if any(fnmatch(path.name, pattern) for pattern in patterns)
    ]
