"""A model folder: a plain Hugging Face folder, with our card beside the weights, and the way back in.

The card names tokenizer and domain; here these names become objects.

config.json  model.safetensors  tokenizer.json  tokenizer_config.json   what transformers loads
channels.safetensors                                                    further inputs, where it reads any
head.safetensors                                                        the head of a fine-tuned model
embedding.safetensors  senses.safetensors                               the normalization of its vectors, and
                                                                        centroids of senses
seqmlm_tokenizer.json                                                   which of our tokenizers it is
seqmlm.json                                                             the card: masking, data, origin,
                                                                        and SHA-256 of all other files

A file that was damaged is an error when the model is loaded, not another score. Against who changes files on
purpose the checksums are no protection: they can be computed again.
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

if TYPE_CHECKING:  # who reads a card loads no torch for that
    from transformers import PreTrainedModel

    from seqmlm.domains.field import Field
    from seqmlm.engine.channels import InputChannels
    from seqmlm.engine.linear import LinearRows
    from seqmlm.engine.model import MaskedRows

CARD, CALIBRATION, COUNTS = "seqmlm.json", "calibration.safetensors", "counts.safetensors"
HEAD, EMBEDDING, SENSES = "head.safetensors", "embedding.safetensors", "senses.safetensors"
LOCK = ".seqmlm.lock"
"""Held while files of a folder are replaced; a kill may leave it, without content."""

_LARGEST_CARD = 64 << 20
_LONGEST = 1 << 24  # tokens of a window
_CHECKSUM = "checksum"
_COPY = "copy the model again from where it is whole, or train it again"
_CALIBRATE = "copy it again from where it is whole, or calibrate the model again ('seqmlm calibrate')"
_ELSEWHERE = "free space, or copy the model to a folder of your own"
_PATIENCE = 60.0  # seconds to wait for another process that replaces files

# Files that change a model where they are found, beside our own cards (seqmlm*.json): a card that lists files
# must list these, and no link leads from them out of the folder.
_READ_BY_NAME = (
    *("config.json", "generation_config.json", INDEX, ADAPTER, "model.safetensors", "channels.safetensors"),
    *(*CHECKPOINT_FILES, "log_templates.json", CALIBRATION, COUNTS, HEAD, EMBEDDING, SENSES),
    *("background.safetensors", "trained_on.safetensors"),
)


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Card:
    """Description of a model folder, by which every scorer checks what it is asked to do."""

    domain: str
    unit: str
    tokenizer: str
    max_length: int
    probability: Literal["ordinary", "full"]
    sensitive: bool = False
    channels: Mapping[str, Any] = field(default_factory=dict)
    """Further inputs it reads, by name, as `seqmlm.engine.channels.channels_of` takes them."""
    masking: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Options that its data were read with and all others are too: what is a record (`Reading.cuts`), which
    columns a linear model reads, and in which one a fine-tuned model found its sequences."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """Of a fine-tuned model what it predicts (`seqmlm.inference.labeller.HeadCard`); of others nothing."""
    languages: tuple[str, ...] = ()
    """Those of its training data, and of its parent's; none where sequences of the field have none."""
    seed: int = 0
    parent: str | None = None
    dataset: str | None = None
    run_name: str | None = None
    run_id: str | None = None
    steps: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__
    files: Mapping[str, Any] = field(default_factory=dict)
    """By name of each other file what may be there: one {size, sha256}; while it is replaced the old one and
    the new one, None for no file."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModel:
    """A model ready to be asked: the module (`rows` of tokens are its input), tokenizer, domain and card."""

    rows: MaskedRows | LinearRows
    tokenizer: Tokenizer
    domain: Field
    card: Card
    path: str

    def reading(self, format: str | None = None) -> dict[str, Any]:
        """Options of readers that its data are read with, those that a format (None: any) takes."""
        accepted = self.domain.files.options(format)
        return {name: setting for name, setting in self.card.reading.items() if name in accepted}

    @property
    def files(self) -> list[Path]:
        """The files that decide what it answers; none of a model from the hub."""
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
    """Write a model folder, with further files by name; the card goes last, so a folder with a card is
    complete.

    Only their owner may read files of a sensitive model; others have the mode that the umask allows.
    """
    with data_rules(card):
        directory.mkdir(parents=True, exist_ok=True)
        save_weights(directory, rows.model, rows.channels)
        tokenizer.save(directory)
        for name, content in other_files.items():
            (directory / name).write_bytes(content)
        seal(directory, card)


def write_plain(directory: Path, folder: Path, card: Card) -> None:
    """Write settings and weights of a model so that plain transformers gives its probabilities too.

    What the model's probability space excludes (special ids, padded vocabulary) gets no probability by the
    decoder's bias: see `never_predict`. No card is written; the files of the model's folder were checked.

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
    """Write settings and weights of a model, as transformers does.

    Raises:
        OSError: the files cannot be written.
    """
    try:
        with _quiet():
            model.save_pretrained(directory)
        if channels is not None:
            channels.save(directory)
    except SafetensorError as error:  # which its files' writer raises for a full disk
        raise OSError(EIO, " ".join(str(error).split())) from error
    usual = (directory / "config.json").stat().st_mode & 0o777
    for path in directory.glob("*.safetensors"):
        path.chmod(usual)  # safetensors makes its files for the owner alone


def seal(folder: Path, card: Card) -> None:
    """Write the card of a folder, with the checksums of all files that are there.

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
    """SHA-256, in hex, of what a card says besides it."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def changing(folder: Path) -> Iterator[Callable[[str, bytes | None], None]]:
    """Replace files of a model folder while no other process does.

    A kill at any moment leaves each file as it was or as it shall be, and a card that accepts it: the card
    first lists both, then the file is replaced, then the card lists the new one.

    Yields:
        put(name, content): replaces a file by all of its content, or removes it for None. Only the owner may
            read files of a sensitive model.

    Raises:
        StateError: the folder cannot be written (the old files are still there), or another process has been
            replacing files in it for a minute.
    """
    lock = FileLock(folder / LOCK, wait=_PATIENCE, holder=f"the model in {folder}", passing=True)
    try:
        lock.acquire()
    except InUseError:
        raise
    except StateError as error:  # its remedy is for a workspace
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
    """Put one file into a model folder, or remove it for None; see `changing`.

    Raises:
        StateError: it cannot be written; the old one is still there.
    """
    with changing(path.parent) as put:
        put(path.name, content)


def card_values(folder: Path) -> dict[str, Any]:
    """Values of the card of a model folder, unchecked; none where it cannot be read."""
    try:
        values = read_json(folder / CARD)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def data_rules(*cards: Card | None) -> AbstractContextManager[None]:
    """Context in which the rules for the data of some models hold (`seqmlm.privacy`)."""
    return handling_sensitive_data(any(card is not None and card.sensitive for card in cards))


def unexported_files(folder: Path) -> tuple[str, ...]:
    """Names of the files of a model folder that may not leave it: of sensitive data those about records."""
    return PERSONAL if card_values(folder).get("sensitive", False) else ()


def check_files(folder: Path, card: Card, *, weights: bool = True, replaced: str | None = None) -> None:
    """Refuse a folder one of whose files is not what its card says.

    Args:
        weights: False checks all but tensors.
        replaced: a file that will be replaced, whatever it is.

    Raises:
        StateError: a file is damaged or missing, or one that would be read is not on the card.
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
    """Refuse a folder of which a file that would be read is a link out of it, a pipe or a device."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _is_read(path.name):
            file_of(folder, path.name)


def load_tokenizer(reference: str | Path, domain: str | None = None) -> Tokenizer:
    """Load the tokenizer of a folder or hub id: ours by its card, else a Hugging Face fast tokenizer.

    Args:
        reference: the folder or hub id.
        domain: the field that it reads; without it no tokenizer of a field is tried on a checkpoint.

    Raises:
        UsageError: one that cannot be used here.
        StateError: there is none, or its files are damaged.
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
    except Exception as error:  # each tokenizer has its own files, and they may hold anything
        why = f"{type(error).__name__}: {error}"
        raise StateError(f"the tokenizer in {directory} cannot be read: {why}; copy it again") from error


def _installed(reference: str | Path, find: Callable[[str], T], name: object) -> T:
    """The installed plug-in that a card names; StateError where it is not installed."""
    try:
        return find(str(name))
    except UsageError as error:
        raise StateError(f"{reference}: {error}; its card names what is not installed here") from None


def load(
    reference: str | Path,
    *,
    domain: str | None = None,
    replaced: str | None = None,
    head: Literal["needed", "optional"] = "needed",
) -> LoadedModel:
    """Load a model folder, ours or any Hugging Face masked LM with its tokenizer.

    Args:
        reference: a folder, or a Hugging Face hub id.
        domain: needed for a folder without our card; for one with it, must agree.
        replaced: a file of the folder that will be replaced, so that it may be damaged.
        head: see `seqmlm.engine.backbones.load`.

    Raises:
        UsageError: the domain is missing or another one.
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
        how = "say what its sequences are with --domain, or --set domain=NAME"
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
    """The card, once all files are what it says."""
    _refuse_links(folder)
    card = read_card(folder)
    if card is not None:
        try:
            check_files(folder, card, replaced=replaced)
        except StateError:
            if read_card(folder) == card:
                raise
            return _checked_card(folder, replaced)  # a file was replaced between the two looks
    return card


def load_weights(reference: str | Path, space: TokenSpace) -> PreTrainedModel:
    """The masked LM of a folder or hub id, its files checked; see `seqmlm.engine.backbones.load`."""
    _checked_card(Path(reference))
    return _weights(reference, space)


def _weights(
    reference: str | Path, space: TokenSpace, head: Literal["needed", "optional"] = "needed"
) -> PreTrainedModel:
    from seqmlm.engine import linear
    from seqmlm.engine.backbones import load as load_backbone

    if linear.load(reference, space) is not None:
        raise UsageError(
            f"{reference} is a linear model, which has no weights that transformers could load: it cannot be "
            "exported or continued with --init; use the folder itself, or train --size tiny, small or base"
        )
    with _quiet():
        return load_backbone(str(reference), space, head=head)


def load_channels(reference: str | Path, model: PreTrainedModel) -> InputChannels | None:
    """Channels that a saved model adds to its embeddings; None where it reads no further inputs.

    Raises:
        StateError: its card names channels whose weights are not there.
    """
    card = read_card(Path(reference))
    if card is None or not card.channels:
        return None
    from seqmlm.engine.channels import InputChannels

    return InputChannels.load(Path(reference), card.channels, model.get_input_embeddings().embedding_dim)


def read_card(folder: Path) -> Card | None:
    """The card of a model folder, or None where it has none (an imported Hugging Face folder).

    Raises:
        StateError: the card is broken, or asks for what a card may not.
    """
    path = folder / CARD
    if not path.is_file():
        return None
    try:
        values = read_json(path, largest=_LARGEST_CARD)
        if not isinstance(values, dict):
            raise ValueError("it does not hold keys and values")
        if values.pop(_CHECKSUM, None) != _digest(values):
            raise ValueError("its content is not that of its checksum")
        card = from_dict(Card, values)
        _check_card(card)
    except (OSError, ValueError, UsageError, TypeError) as error:
        raise StateError(f"{path} is not a model card ({error}); export or copy the model again") from None
    return card


def _check_card(card: Card) -> None:
    """Raise ValueError for values that no model of ours has, and that would lead out of the folder."""
    if "words_file" in (card.masking.get("options") or {}):
        problem = "names a file elsewhere: a card holds the words themselves"
        raise ValueError(f"masking.options.words_file {problem}")
    if not 3 <= card.max_length <= _LONGEST:
        raise ValueError(f"max_length is {card.max_length}")
    for name, accepted in card.files.items():
        if Path(name).name != name or not isinstance(accepted, list):
            raise ValueError(f"files: {name!r} is no file of a model folder")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own progress bars and warnings off the terminal: what matters is said by us."""
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
