"""`seqmlm models`: list, show, alias and export models, and register them again from their cards."""

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

# Patterns of the files that are exported: the files of a plain Hugging Face folder, and seqmlm's card.
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
    """One version of a model, with its card."""

    entry: ModelEntry
    card: Mapping[str, Any]
    """The card in the model's folder; empty if the folder is missing."""

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
    """All facts about a model: its origin, ancestors, calibrations and card.

    Raises:
        UsageError: the model is on the hub, so that nothing is known about it.
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
    """The result of `rescan_models`.

    Args:
        aside: the new path of an unusable registry; None if the registry was usable.
        added: the versions that were registered.
        known: the number of versions that were already registered.
        broken: the reason for each folder that was not registered, or only without its calibrations.
    """

    aside: Path | None
    added: tuple[ModelEntry, ...]
    known: int
    broken: Mapping[Path, str]


def rescan_models() -> RescanResult:
    """Register all models in the workspace's run folders that the registry lacks, from their cards.

    A registry file that is damaged, or has an unknown schema, is renamed before. A server database is never
    moved. Versions of a name are numbered in the order of their training steps. The first version becomes the
    `champion`.

    Raises:
        UnreachableError: the registry is in use, or does not answer.
        StateError: the registry cannot be read, moved or written.
    """
    home = Workspace.locate()
    moved_to = set_aside(home.database_url)
    broken: dict[Path, str] = {}
    cards = _cards(home, broken)
    with model_folder.data_rules(*cards.values()), Registry(home) as registry:
        registered = {model.path for model in registry.models()}
        missing = {folder: card for folder, card in cards.items() if folder not in registered}
        entries: dict[Path, ModelEntry] = {}
        for _ in range(2):  # in the second pass, the models that trainings started from are registered
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
    """The card of each model folder, by training steps. Reasons why cards cannot be read go to `broken`."""
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
    """Give a model version an alias, in the registry and, if it answers, in MLflow.

    Raises:
        UsageError: the alias is reserved, or the reference does not name a registered model.
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
    """Export a model as a plain Hugging Face folder, with seqmlm's card; return the files of the folder.

    `AutoModelForMaskedLM`, `AutoTokenizer` and seqmlm can load the folder. All compute the same
    probabilities: tokens that seqmlm excludes get none in the exported weights either. A folder without a
    card is copied unchanged. The exported folder is complete or absent.

    Counts are not exported, because only seqmlm can read them. Calibrations that use them are not exported
    either. A fine-tuned model becomes transformers' own class for its task, without a card: see
    `plain_classifier`.

    Args:
        reference: the model.
        out: the folder to create.
        notify: receives a message about files that are not exported.
        format: "sentence" adds the files for sentence-transformers. Its vectors are means over all tokens,
            like the vectors of `seqmlm embed --set pool=tokens`.

    Raises:
        UsageError: the model is already on the hub, or transformers would compute other values.
        StateError: `out` exists or cannot be written, or the model is incomplete.
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
    """The files of a model folder that are copied unchanged."""
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
        notify(
            f"{' and '.join(left_behind)} are not exported: only seqmlm can use counts of the training data"
        )
    files = [path for path in files if path.name not in left_behind]
    if not any(path.suffix == ".safetensors" for path in files):
        raise StateError(f"{folder} has no weights in safetensors; train or copy the model again")
    rewritten = _matching(folder, _REWRITTEN) if card is not None else []
    return [path for path in files if path not in rewritten]


def _sentence_modules(folder: Path, card: model_folder.Card | None) -> dict[str, Any]:
    """The contents of files for sentence-transformers, by name: an encoder, and the mean over its tokens."""
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
