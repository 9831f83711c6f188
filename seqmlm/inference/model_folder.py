"""Read and write model folders: plain Hugging Face folders with a card of seqmlm.

The card names the tokenizer and the domain. This module loads the objects for these names.

    config.json  model.safetensors  tokenizer.json  tokenizer_config.json   files that transformers loads
    channels.safetensors                                                    other inputs, if the model has any
    head.safetensors                                                        the head of a fine-tuned model
    embedding.safetensors  senses.safetensors                               the normalization of its vectors,
    and
                                                                            centroids of senses
    seqmlm_tokenizer.json                                                   the name of the seqmlm tokenizer
    seqmlm.json                                                             the card: masking, data, origin,
                                                                            and SHA-256 of all other files

A damaged file is an error when the model is loaded, and never changes scores. The checksums do not protect
against deliberate changes, because they can be computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from errno import EIO
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from safetensors import SafetensorError

from seqmlm import __version__, plugins
from seqmlm.config import from_dict, to_dict
from seqmlm.engine.durable import DISK, FileLock, InUseError, entry_of, replace_file
from seqmlm.engine.foreign import ADAPTER, INDEX, file_of
from seqmlm.engine.types import TokenSpace
from seqmlm.errors import StateError, UsageError
from seqmlm.parsing import read_json
from seqmlm.privacy import PERSONAL, handling_sensitive_data
from seqmlm.tokenizers.base import CARD as TOKENIZER_CARD
from seqmlm.tokenizers.base import CHECKPOINT_FILES, Tokenizer, of_length
from seqmlm.tokenizers.base import read_card as tokenizer_card

if TYPE_CHECKING:  # code that only reads cards does not load torch
    from transformers import PreTrainedModel

    from seqmlm.domains.field import Field
    from seqmlm.engine.channels import InputChannels
    from seqmlm.engine.linear import LinearRows
    from seqmlm.engine.model import MaskedRows

CARD, CALIBRATION, COUNTS = "seqmlm.json", "calibration.safetensors", "counts.safetensors"
HEAD, EMBEDDING, SENSES = "head.safetensors", "embedding.safetensors", "senses.safetensors"
LOCK = ".seqmlm.lock"
"""Locked while files of a folder are replaced. After a kill, the empty file may remain."""

_LARGEST_CARD = 64 << 20
_LONGEST = 1 << 24  # tokens of a window
_CHECKSUM = "checksum"
_COPY = "copy the model again from an intact copy, or train it again"
_CALIBRATE = "copy it again from an intact copy, or calibrate the model again ('seqmlm calibrate')"
_ELSEWHERE = "free space, or copy the model to a folder of your own"
_PATIENCE = 60.0  # seconds to wait for another process that replaces files

# Files that change a model if they are present, besides the cards of seqmlm (seqmlm*.json). A card that lists
# files must list these. None of them may be a link out of the folder.
_READ_BY_NAME = (
    *("config.json", "generation_config.json", INDEX, ADAPTER, "model.safetensors", "channels.safetensors"),
    *(*CHECKPOINT_FILES, "log_templates.json", CALIBRATION, COUNTS, HEAD, EMBEDDING, SENSES),
    *("background.safetensors", "trained_on.safetensors"),
)


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Card:
    """Description of a model folder. It determines how the model may be used."""

    domain: str
    unit: str
    tokenizer: str
    max_length: int
    probability: Literal["ordinary", "full"]
    sensitive: bool = False
    channels: Mapping[str, Any] = field(default_factory=dict)
    """Other inputs of the model by name, in the form of `seqmlm.engine.channels.channels_of`."""
    masking: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Reader options of the training data, which apply to all other data too.

    They define what a record is (`Reading.cuts`), the columns of a linear model, or the sequence column of a
    fine-tuned model.
    """
    head: Mapping[str, Any] = field(default_factory=dict)
    """Predictions of a fine-tuned model (`seqmlm.inference.pieces.HeadCard`). Empty for other models."""
    languages: tuple[str, ...] = ()
    """Languages of the training data and of the parent. Empty if sequences of the field have no language."""
    seed: int = 0
    parent: str | None = None
    dataset: str | None = None
    run_name: str | None = None
    run_id: str | None = None
    steps: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__
    files: Mapping[str, Any] = field(default_factory=dict)
    """Accepted states of each other file, by name.

    Normally it is one {size, sha256}. While a file is replaced, there are the old and the new state. None
    means no file.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModel:
    """A loaded model: its module (which reads `rows` of tokens), tokenizer, domain and card."""

    rows: MaskedRows | LinearRows
    tokenizer: Tokenizer
    domain: Field
    card: Card
    path: str

    def reading(self, format: str | None = None) -> dict[str, Any]:
        """The reader options of the model's data that a format accepts.

        A format of None accepts all options.
        """
        accepted = self.domain.files.options(format)
        return {name: setting for name, setting in self.card.reading.items() if name in accepted}

    @property
    def files(self) -> list[Path]:
        """The files that determine the model's output. Empty for a model from the hub."""
        folder = Path(self.path)
        paths = (path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else ()
        return sorted(path for path in paths if path.suffix in (".json", ".safetensors", ".txt"))


def write(
    directory: Path,
    rows: MaskedRows | LinearRows,
    tokenizer: Tokenizer,
    card: Card,
    other_files: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write a model folder. The card is written last, so that a folder with a card is complete.

    For a sensitive model, only the owner can read the files. Others get the mode that the umask allows.

    Args:
        directory: the folder. It is created if missing.
        rows: the model.
        tokenizer: its tokenizer.
        card: its card.
        other_files: contents of other files, by name.
    """
    with data_rules(card):
        directory.mkdir(parents=True, exist_ok=True)
        save_weights(directory, rows.model, rows.channels)
        tokenizer.save(directory)
        for name, content in other_files.items():
            (directory / name).write_bytes(content)
        seal(directory, card)


def write_plain(directory: Path, folder: Path, card: Card) -> None:
    """Write settings and weights of a model so that plain transformers computes the same probabilities.

    Tokens outside the model's probability space (special ids, padding of the vocabulary) get no probability
    through the decoder's bias: see `never_predict`. No card is written. The files of the model's folder must
    be checked already.

    Raises:
        UsageError, StateError: the model or its tokenizer cannot be loaded.
        OSError: the files cannot be written.
    """
    from seqmlm.engine.backbones import never_predict
    from seqmlm.engine.model import MaskedRows

    space = _tokenizer(folder, card.domain).space
    model = _weights(folder, space)
    rows = MaskedRows(model, space, probability=card.probability, channels=load_channels(folder, model))
    never_predict(model, rows.excluded)
    save_weights(directory, model, rows.channels)


def save_weights(directory: Path, model: Any, channels: InputChannels | None = None) -> None:
    """Write settings and weights of a model in the format of transformers.

    Raises:
        OSError: the files cannot be written.
    """
    try:
        with _quiet():
            model.save_pretrained(directory)
        if channels is not None:
            channels.save(directory)
    except SafetensorError as error:  # the writer of its files raises this error if the disk is full
        raise OSError(EIO, " ".join(str(error).split())) from error
    usual = (directory / "config.json").stat().st_mode & 0o777
    for path in directory.glob("*.safetensors"):
        path.chmod(usual)  # safetensors creates files that only the owner can read


def seal(folder: Path, card: Card) -> None:
    """Write the card of a folder, with the checksums of all its files.

    Raises:
        OSError: the folder cannot be read or written.
    """
    paths = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in (CARD, LOCK))
    _write_card(folder, replace(card, files={path.name: [entry_of(path)] for path in paths}))


def _write_card(folder: Path, card: Card) -> None:
    values = to_dict(card)
    text = json.dumps({**values, _CHECKSUM: _digest(values)}, indent=2) + "\n"
    replace_file(folder / CARD, text.encode())


def _digest(values: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of the values of a card without its checksum."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def changing(folder: Path) -> Iterator[Callable[[str, bytes | None], None]]:
    """Context in which no other process can replace files of a model folder.

    After a kill at any moment, each file is either old or new, and the card accepts both. First the card
    lists both states. Then the file is replaced. Finally the card lists only the new state.

    Yields:
        A function put(name, content), which replaces a file with this content, or removes it for None. Only
        the owner can read the files of a sensitive model.

    Raises:
        StateError: the folder cannot be written (the old files are still there), or another process has been
            replacing files in it for a minute.
    """
    lock = FileLock(folder / LOCK, wait=_PATIENCE, holder=f"the model in {folder}", passing=True)
    try:
        lock.acquire()
    except InUseError:
        raise
    except StateError as error:  # its remedy is meant for a workspace
        raise StateError(f"{str(error).partition(';')[0]}; {_ELSEWHERE}") from None
    try:
        with data_rules(read_card(folder)):
            yield partial(_replace_listed, folder)
    finally:
        lock.release()


def _replace_listed(folder: Path, name: str, content: bytes | None) -> None:
    path, card = folder / name, read_card(folder)
    files = {} if card is None else dict(card.files)
    entry = None if content is None else {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    try:
        if card is not None:
            _write_card(folder, replace(card, files={**files, name: [*files.pop(name, [None]), entry]}))
        if content is None:
            path.unlink(missing_ok=True)
            DISK.sync(folder)
        else:
            replace_file(path, content)
        if card is not None:
            _write_card(folder, replace(card, files=files if entry is None else {**files, name: [entry]}))
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; {_ELSEWHERE}") from None


def put_file(path: Path, content: bytes | None) -> None:
    """Write a file of a model folder, or remove it for None. See `changing`.

    Raises:
        StateError: the file cannot be written. The old file is still there.
    """
    with changing(path.parent) as put:
        put(path.name, content)


def card_values(folder: Path) -> dict[str, Any]:
    """Unchecked values of the card of a model folder. Empty if the card cannot be read."""
    try:
        values = read_json(folder / CARD)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def data_rules(*cards: Card | None) -> AbstractContextManager[None]:
    """Context with the privacy rules for the data of these models (`seqmlm.privacy`)."""
    return handling_sensitive_data(any(card is not None and card.sensitive for card in cards))


def unexported_files(folder: Path) -> tuple[str, ...]:
    """Names of files that must stay in a model folder: for sensitive data, the files about records."""
    return PERSONAL if card_values(folder).get("sensitive", False) else ()


def check_files(folder: Path, card: Card, *, weights: bool = True, replaced: str | None = None) -> None:
    """Refuse a folder with a file that does not match its card.

    Args:
        folder: the folder.
        card: its card.
        weights: False skips the check of tensors.
        replaced: a file that will be replaced, and therefore may be damaged.

    Raises:
        StateError: a file is damaged or missing, or a file that would be read is not on the card.
    """
    for name, accepted in card.files.items():
        if name == replaced or (name.endswith(".safetensors") and not weights):
            continue
        remedy = _CALIBRATE if name == CALIBRATION else _COPY
        path = file_of(folder, name)
        try:
            entry = None if path is None else entry_of(path)
        except OSError as error:
            raise StateError(f"{path} cannot be read: {error.strerror}; {remedy}") from None
        if entry not in accepted:
            problem = "is missing" if entry is None else "is damaged (its SHA-256 is not that on the card)"
            raise StateError(f"{folder / name} {problem}: {remedy}")
    present = {path.name for path in folder.iterdir()} - {*card.files, CARD}
    if added := sorted(filter(_is_read, present)):
        problem = f"is not one of the files that {CARD} lists: remove it, or {_COPY}"
        raise StateError(f"{folder / added[0]} {problem}")


def _is_read(name: str) -> bool:
    return name in _READ_BY_NAME or fnmatch(name, "seqmlm*.json")


def _refuse_links(folder: Path) -> None:
    """Refuse a folder if a file that would be read is a link out of it, a pipe or a device."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _is_read(path.name):
            file_of(folder, path.name)


def load_tokenizer(reference: str | Path, domain: str | None = None) -> Tokenizer:
    """Load the tokenizer of a folder or hub id.

    It is a seqmlm tokenizer if the folder has its card, or else a Hugging Face fast tokenizer.

    Args:
        reference: the folder or hub id.
        domain: the field of the sequences. Without it, the field's own tokenizers are not tried on a
            checkpoint.

    Raises:
        UsageError: the tokenizer cannot be used with seqmlm.
        StateError: there is no tokenizer, or its files are damaged.
    """
    directory = Path(reference)
    _refuse_links(directory)
    card = read_card(directory)
    if card is not None:
        check_files(directory, card, weights=False)
    return _tokenizer(reference, domain)


def _tokenizer(reference: str | Path, domain: str | None = None) -> Tokenizer:
    directory = Path(reference)
    if not (directory / TOKENIZER_CARD).is_file():
        from seqmlm.tokenizers.huggingface import checkpoint_tokenizer

        names = () if domain is None else plugins.domain(domain).defaults.checkpoints
        readers: list[Any] = [plugins.tokenizer_class(name) for name in names]
        return checkpoint_tokenizer(reference, readers)
    kind = _installed(reference, plugins.tokenizer_class, tokenizer_card(directory)["name"])
    try:
        return kind.load(directory)
    except StateError:
        raise
    except Exception as error:  # each tokenizer has its own files, and they may have any content
        why = f"{type(error).__name__}: {error}"
        raise StateError(f"the tokenizer in {directory} cannot be read: {why}; copy it again") from error


def _installed(reference: str | Path, find: Callable[[str], T], name: object) -> T:
    """The installed plug-in that a card names.

    Raises:
        StateError: it is not installed.
    """
    try:
        return find(str(name))
    except UsageError as error:
        raise StateError(f"{reference}: {error}; install the plug-in that its card names") from None


def load(
    reference: str | Path,
    *,
    domain: str | None = None,
    replaced: str | None = None,
    head: Literal["needed", "optional"] = "needed",
) -> LoadedModel:
    """Load a model folder: a folder of seqmlm, or any Hugging Face masked LM with its tokenizer.

    Args:
        reference: a folder, or a Hugging Face hub id.
        domain: needed for a folder without a seqmlm card. With a card, it must agree with the card.
        replaced: a file of the folder that will be replaced, and therefore may be damaged.
        head: see `seqmlm.engine.backbones.load`.

    Raises:
        UsageError: the domain is missing or differs from the card.
        StateError: the folder is incomplete or damaged.
    """
    from seqmlm.engine import linear
    from seqmlm.engine.model import MaskedRows

    path = Path(reference)
    card = _checked_card(path, replaced)
    if card is not None and domain is not None and domain != card.domain:
        raise UsageError(f"{reference} is a {card.domain} model; it cannot be used with --domain {domain}")
    name = card.domain if card is not None else domain
    if name is None:
        how = "name the field of its sequences with --domain, or --set domain=NAME"
        raise UsageError(f"{reference} has no {CARD}: {how}")
    field = plugins.domain(name) if card is None else _installed(reference, plugins.domain, name)
    tokenizer = _tokenizer(reference, name)
    rows: MaskedRows | LinearRows | None = linear.load(reference, tokenizer.space)
    if rows is not None:
        if card is None:
            raise StateError(f"{reference} is a linear model without its card {CARD}: {_COPY}")
        tokenizer = of_length(tokenizer, rows.model.config.length)
    else:
        model = _weights(reference, tokenizer.space, head)
        if card is None:
            longest = getattr(model.config, "max_position_embeddings", None) or 10**9
            card = Card(
                domain=name,
                unit=tokenizer.traits.unit,
                tokenizer=tokenizer.name,
                max_length=min(field.defaults.max_length, longest),
                probability="full",
                sensitive=field.sensitive,
            )
        channels = load_channels(reference, model)
        rows = MaskedRows(model, tokenizer.space, probability=card.probability, channels=channels)
    return LoadedModel(rows=rows, tokenizer=tokenizer, domain=field, card=card, path=str(reference))


def _checked_card(folder: Path, replaced: str | None = None) -> Card | None:
    """The card, after a check that all files match it."""
    _refuse_links(folder)
    card = read_card(folder)
    if card is not None:
        try:
            check_files(folder, card, replaced=replaced)
        except StateError:
            if read_card(folder) == card:
                raise
            return _checked_card(folder, replaced)  # a file was replaced between the two reads
    return card


def load_weights(reference: str | Path, space: TokenSpace) -> PreTrainedModel:
    """Load the masked LM of a folder or hub id, after a check of its files.

    See `seqmlm.engine.backbones.load`.
    """
    _checked_card(Path(reference))
    return _weights(reference, space)


def _weights(
    reference: str | Path, space: TokenSpace, head: Literal["needed", "optional"] = "needed"
) -> PreTrainedModel:
    from seqmlm.engine import linear
    from seqmlm.engine.backbones import load as load_backbone

    if linear.load(reference, space) is not None:
        raise UsageError(
            f"{reference} is a linear model, which cannot be exported or continued with --init; use the "
            "folder itself, or train --size tiny, small or base"
        )
    with _quiet():
        return load_backbone(str(reference), space, head=head)


def load_channels(reference: str | Path, model: PreTrainedModel) -> InputChannels | None:
    """The channels that a saved model adds to its embeddings. None if the model has no other inputs.

    Raises:
        StateError: the card names channels whose weights are missing.
    """
    card = read_card(Path(reference))
    if card is None or not card.channels:
        return None
    from seqmlm.engine.channels import InputChannels

    return InputChannels.load(Path(reference), card.channels, model.get_input_embeddings().embedding_dim)


def read_card(folder: Path) -> Card | None:
    """The card of a model folder. None if it has no card, as for an imported Hugging Face folder.

    Raises:
        StateError: the card is damaged, or has values that are not allowed.
    """
    path = folder / CARD
    if not path.is_file():
        return None
    try:
        values = read_json(path, largest=_LARGEST_CARD)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        if values.pop(_CHECKSUM, None) != _digest(values):
            raise ValueError("its checksum does not match its content")
        card = from_dict(Card, values)
        _check_card(card)
    except (OSError, ValueError, UsageError, TypeError) as error:
        raise StateError(f"{path} is not a model card ({error}); export or copy the model again") from None
    return card


def _check_card(card: Card) -> None:
    """Check values that no model of seqmlm has, or that would lead out of the folder.

    Raises:
        ValueError: the card has such a value.
    """
    if "words_file" in (card.masking.get("options") or {}):
        problem = "is a file outside the folder, but a card must contain the words themselves"
        raise ValueError(f"masking.options.words_file {problem}")
    if not 3 <= card.max_length <= _LONGEST:
        raise ValueError(f"max_length is {card.max_length}")
    for name, accepted in card.files.items():
        if Path(name).name != name or not isinstance(accepted, list):
            raise ValueError(f"files: {name!r} is not a file of a model folder")


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without the progress bars and warnings of transformers. seqmlm reports what matters itself."""
    from transformers.utils import logging

    bars_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars_enabled:
            logging.enable_progress_bar()
