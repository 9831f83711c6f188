"""A model folder: a plain Hugging Face folder, with our card beside the weights, and the way back in.

The card names tokenizer, domain and masking; here these names become objects.

config.json  model.safetensors  tokenizer.json  tokenizer_config.json   what transformers loads
channels.safetensors                                                    further inputs, where it reads any
seqmlm_tokenizer.json                                                   which of our tokenizers it is
seqmlm.json                                                             the card: masking, data, origin
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seqmlm import __version__, plugins
from seqmlm.config import from_dict, to_dict
from seqmlm.domains.base import Domain
from seqmlm.engine.backbones import load as load_backbone
from seqmlm.engine.channels import InputChannels
from seqmlm.engine.durable import replace_file
from seqmlm.engine.masking import base
from seqmlm.engine.masking.base import Masker, MaskingConfig
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.types import TokenSpace
from seqmlm.errors import StateError, UsageError
from seqmlm.tokenizers.base import CARD as TOKENIZER_CARD
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.base import read_card as tokenizer_card
from seqmlm.tokenizers.huggingface import imported

if TYPE_CHECKING:
    from transformers import PreTrainedModel


CARD = "seqmlm.json"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a model folder says of itself, so that every scorer can check what it is asked to do."""

    domain: str
    unit: str
    tokenizer: str
    max_length: int
    probability: Literal["ordinary", "full"]
    sensitive: bool = False
    channels: Mapping[str, Any] = field(default_factory=dict)
    """Further inputs it reads, by name, as `seqmlm.engine.channels.channels_of` takes them."""
    masking: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    parent: str | None = None
    dataset: str | None = None
    run_name: str | None = None
    run_id: str | None = None
    steps: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModel:
    """A model ready to be asked: the module, its tokenizer, its domain and its card."""

    rows: MaskedRows
    tokenizer: Tokenizer
    domain: Domain
    card: Card
    path: str

    @property
    def files(self) -> list[Path]:
        """The files that decide what it answers; none of a model from the hub."""
        folder = Path(self.path)
        found = (path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else ()
        return sorted(path for path in found if path.suffix in (".json", ".safetensors", ".txt"))


def write(directory: Path, rows: MaskedRows, tokenizer: Tokenizer, card: Card) -> None:
    """Write a model folder; the card goes last, so a folder with a card is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    with _no_bars():
        rows.model.save_pretrained(directory)
    if rows.channels is not None:
        rows.channels.save(directory)
    tokenizer.save(directory)
    (directory / CARD).write_text(json.dumps(to_dict(card), indent=2) + "\n", encoding="utf-8")


def put_file(path: Path, content: bytes, *, private: bool) -> None:
    """Put a file into a model folder: a kill at any moment leaves the old one or the new.

    Args:
        path: the file.
        content: all of it.
        private: whether only its owner may read it, from its first byte on.

    Raises:
        StateError: it cannot be written; the old one is still there.
    """
    try:
        replace_file(path, content, mode=0o600 if private else 0o644)
    except OSError as error:
        raise StateError(
            f"cannot write {path}: {error.strerror}; free space, or copy the model to a folder of your own"
        ) from None


def load_tokenizer(reference: str | Path) -> Tokenizer:
    """Load the tokenizer of a folder or hub id: ours by its card, else a Hugging Face fast tokenizer.

    Raises:
        StateError: there is none, or its card is broken.
    """
    directory = Path(reference)
    if (directory / TOKENIZER_CARD).is_file():
        return plugins.tokenizer_class(tokenizer_card(directory)["name"]).load(directory)
    return imported(reference)


def load(reference: str | Path, *, domain: str | None = None) -> LoadedModel:
    """Load a model folder, ours or any Hugging Face masked LM with its tokenizer.

    Args:
        reference: a folder, or a Hugging Face hub id.
        domain: needed for a folder without our card; for one with it, must agree.

    Raises:
        UsageError: the domain is missing or another one.
        StateError: the folder is incomplete.
    """
    path = Path(reference)
    card = read_card(path)
    if card is not None and domain is not None and domain != card.domain:
        raise UsageError(f"{reference} is a {card.domain} model; it cannot be used with --domain {domain}")
    name = card.domain if card is not None else domain
    if name is None:
        raise UsageError(f"{reference} has no {CARD}: say what its sequences are with --domain")
    found = plugins.domain(name)
    tokenizer = load_tokenizer(reference)
    model = load_weights(reference, tokenizer.space)
    if card is None:
        limit = min(
            found.defaults.max_length, getattr(model.config, "max_position_embeddings", None) or 10**9
        )
        card = Card(
            domain=name,
            unit=tokenizer.unit,
            tokenizer=tokenizer.name,
            max_length=limit,
            probability="full",
            sensitive=found.sensitive,
        )
    channels = load_channels(reference, model)
    rows = MaskedRows(model, tokenizer.space, probability=card.probability, channels=channels)
    return LoadedModel(rows=rows, tokenizer=tokenizer, domain=found, card=card, path=str(reference))


def load_weights(reference: str | Path, space: TokenSpace) -> PreTrainedModel:
    """The masked LM of a folder or hub id; see `seqmlm.engine.backbones.load`."""
    with _no_bars():
        return load_backbone(str(reference), space)


def load_channels(reference: str | Path, model: PreTrainedModel) -> InputChannels | None:
    """What the further inputs of a saved model add to its embeddings; None where it reads none.

    Raises:
        StateError: its card names channels whose weights are not there.
    """
    card = read_card(Path(reference))
    if card is None or not card.channels:
        return None
    return InputChannels.load(Path(reference), card.channels, model.get_input_embeddings().embedding_dim)


def read_card(folder: Path) -> Card | None:
    """The card of a model folder, or None where it has none (an imported Hugging Face folder).

    Raises:
        StateError: the card is broken.
    """
    path = folder / CARD
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return from_dict(Card, values)
    except (json.JSONDecodeError, UnicodeDecodeError, UsageError, TypeError) as error:
        raise StateError(f"{path} is not a model card ({error}); export the model again") from None


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers' own progress bars off the terminal: they last milliseconds."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# The masker that a card or a config names


def make_masker(config: MaskingConfig, tokenizer: Tokenizer) -> Masker:
    """Construct the masker a config names.

    Any masker's option `words` may hold words as text, and `words_file` names a file with one word a line;
    both are spelled in the tokenizer's ids. What a masker must know of the vocabulary, the tokenizer says.

    Raises:
        UsageError: an unknown masker or option, a word list that cannot be read, or a masker that cannot hide
            what several tokens show.
    """
    options = inline_words(config.options)
    if "words" in options:
        words = options["words"]
        options["words"] = [_spelled(word, tokenizer) if isinstance(word, str) else word for word in words]
    kind = plugins.load("maskers", config.masker)
    _check_overlap(kind, config.masker, tokenizer)
    facts = tokenizer.masking_facts
    known = inspect.signature(kind).parameters
    options = {name: facts[name] for name in known if name in facts} | options
    return base.make_masker(kind, replace(config, options=options), tokenizer.space)


def _check_overlap(kind: type[Masker], name: str, tokenizer: Tokenizer) -> None:
    """Refuse a masker that leaves what it hides visible in neighbouring tokens."""
    if tokenizer.overlap > 1 and not _hides_overlap(kind):
        fit = [one for one in plugins.names("maskers") if _hides_overlap(plugins.load("maskers", one))]
        raise UsageError(
            f"tokenizer {tokenizer.name} shows each {tokenizer.unit} in {tokenizer.overlap} neighbouring "
            f"tokens, and masker {name} would hide only some of them: use --masker {' or '.join(fit)}"
        )


def _hides_overlap(kind: type[Masker]) -> bool:
    return bool(getattr(kind, "hides_overlap", False))


def inline_words(options: Mapping[str, Any]) -> dict[str, Any]:
    """Masker options with the words of `words_file` in `words`, so that a stored config needs no file.

    Raises:
        UsageError: the file cannot be read.
    """
    inlined = dict(options)
    if "words_file" in inlined:
        words = _read_words(inlined.pop("words_file"))
        inlined["words"] = [*inlined.get("words", ()), *words]
    return inlined


def _read_words(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"masking.options.words_file: cannot read {path} ({error}); give one word a line"
        ) from None
    return [line.strip() for line in lines if line.strip() and not line.startswith(("#", ";"))]


def _spelled(word: str, tokenizer: Tokenizer) -> list[int]:
    encoding = tokenizer.encode(word)
    return [int(token) for token in encoding.ids[encoding.groups >= 0]]
