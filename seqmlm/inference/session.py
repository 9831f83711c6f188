"""Open a model by its name: the first step of every task.

A session has resolved the reference, loaded the folder, checked what may be shown, and set the precision. It
creates the `Conditionals` of the model once, and remembers scores.

Memory is traded for time. Most log windows and many sequencing reads occur repeatedly, so scores are kept by
the input that the model saw. `forget` discards them, and a run does so at each commit. The reason: the
packing of a batch, and therefore the last bits of its numbers, depend on which sequences are already known. A
resumed run then repeats the numbers of an uninterrupted run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.types import Encoding, Floats, Precision
from seqmlm.engine.units import EXACT, Mode
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.model_folder import Card, LoadedModel
from seqmlm.registry.references import resolve
from seqmlm.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from seqmlm.anomaly.values import ScoredRecord
    from seqmlm.domains.field import Field
    from seqmlm.engine.conditionals import Conditionals
    from seqmlm.inference.embedder import Embedder, Of, Pool
    from seqmlm.inference.record_batches import Budget
    from seqmlm.registry.entries import ModelEntry

ExpertUse = Literal["auto", "counts", "none"]
"""Whether scores mix in counts: if they help, whenever the model has counts, or never."""

CACHED_UNITS = 1 << 18
"""Largest number of remembered units over all sequences. Beyond it, the least recently used are forgotten."""

Key = tuple[bytes, Hashable]

NO_RECORD = Record(id="", raw="", source="", line=0)
NO_ENCODING = Encoding(ids=np.zeros(0, dtype=np.int32), groups=np.zeros(0, dtype=np.int32))
"""Placeholder for a record that is not kept."""


OWN_FILE = "name a file with --out, which only you can read"
"""Advice for cases in which results for single records are not shown on the console."""


class Session:
    """A loaded model.

    Args:
        model: the model.
        tokens_per_batch: number of tokens of a forward pass. None selects it for the device.
        precision: number format of all matrix products. "auto" is resolved here.
        entry: the model's entry in the registry, if it has an entry.
        expert: whether counts are mixed into scores (`seqmlm.inference.expert`).
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        tokens_per_batch: int | None = None,
        precision: Precision = "fp32",
        entry: ModelEntry | None = None,
        expert: ExpertUse = "auto",
    ) -> None:
        from seqmlm.engine.device import resolve_precision

        self.model, self.entry = model, entry
        self.expert_use = expert
        self.precision = resolve_precision(precision)
        self.cache = ScoreCache()
        self._tokens_per_batch = tokens_per_batch
        self._conditionals: Conditionals | None = None
        self._budget = self._forgotten = 0

    @classmethod
    def open(
        cls,
        reference: str,
        *,
        domain: str | None = None,
        tokens_per_batch: int | None = None,
        precision: Precision = "fp32",
        expert: ExpertUse = "auto",
        folder: bool = False,
        replaced: str | None = None,
        shows_records: bool = False,
        remedy: str = OWN_FILE,
        labels: Literal["none", "learnt", "any"] = "none",
    ) -> Session:
        """Find a model and load it.

        Args:
            reference: NAME, NAME@ALIAS, NAME:VERSION, a folder or a hub id.
            domain: needed for a model without a seqmlm card. With a card, it must agree with the card.
            tokens_per_batch, precision, expert: as for the class.
            folder: whether files will be saved with the model, so that it must be a local folder.
            replaced: a file of the model that will be replaced, and therefore may be damaged.
            shows_records: whether results for single records will be shown on the console. Sensitive models
                refuse this.
            remedy: advice in the message of that refusal.
            labels: "none" accepts masked language models, and "learnt" accepts fine-tuned models. "any"
                accepts both, and also encoders without a masked-LM head.

        Raises:
            UsageError: the reference is invalid, the model belongs to another domain, or its results are
                sensitive and would be shown.
            StateError: the model does not exist, is incomplete, or is not in a folder.
        """
        resolved = resolve(reference)
        if folder and resolved.path is None:
            raise StateError(
                f"{reference} is on the Hugging Face hub: download it to a folder, then name that folder"
            )
        head: Literal["needed", "optional"] = "optional" if labels == "any" else "needed"
        model = model_folder.load(resolved.location, domain=domain, replaced=replaced, head=head)
        if model.card.head and labels == "none":
            raise UsageError(
                f"{reference} was fine-tuned and can only predict {model.card.head.get('label')!r}: use "
                f"seqmlm predict {reference}, or the model from which it was made"
            )
        if shows_records and model.card.sensitive:
            raise UsageError(f"scores of sensitive data are not shown on the console: {remedy}")
        how: dict[str, Any] = {"tokens_per_batch": tokens_per_batch, "precision": precision, "expert": expert}
        return cls(model, entry=resolved.entry, **how)

    def check_public(self, kept: str, why: str) -> None:
        """Refuse a model of sensitive data.

        Args:
            kept: the content that would be saved with the model, for the message.
            why: the reason for the refusal, for the message.

        Raises:
            UsageError: the data of the model are sensitive.
        """
        if self.card.sensitive:
            raise UsageError(f"{kept} of sensitive data cannot be saved with a model: {why}")

    def data_rules(self) -> AbstractContextManager[None]:
        """Context with the privacy rules for the model's data (`seqmlm.privacy`).

        Records for the model are processed in it.
        """
        return model_folder.data_rules(self.card)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.model.tokenizer

    @property
    def domain(self) -> Field:
        """The domain of the model."""
        return self.model.domain

    @property
    def mode(self) -> Mode:
        """The default mode: the field's mode if its units have their own tokens, or else exact."""
        return self.domain.defaults.mode if self.tokenizer.units.facts.one_pass else EXACT

    @property
    def card(self) -> Card:
        """The card of the model."""
        return self.model.card

    def reader(
        self, sources: Sequence[str], *, format: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        """A function that reads the records of sources.

        Its argument is the `Problems` that receive bad records.
        """
        reader_options = {**self.model.reading(format), **(options or {})}
        return lambda problems: self.domain.read(
            sources, problems, format=format, scoring=True, **reader_options
        )

    def check_text(self) -> None:
        """Refuse a model whose sequences are not strings (patients, log windows).

        Raises:
            UsageError: the model is such a model.
        """
        if not self.tokenizer.traits.reads(""):
            raise UsageError(
                f"a sequence of the {self.card.domain} domain is not plain text; use seqmlm score on files"
            )

    def conditionals(self) -> Conditionals:
        """The conditional distributions of the model, on the best device."""
        from seqmlm.engine.conditionals import Conditionals
        from seqmlm.engine.device import best_device

        if self._conditionals is None:
            self._conditionals = Conditionals(
                self.model.rows,
                tokens_per_batch=self._tokens_per_batch,
                device=best_device(),
                precision=self.precision,
            )
            self._budget = self._conditionals.tokens_per_batch
        return self._conditionals

    def embedder(self, *, layers: str = "last", of: Of = "record", pool: Pool = "mean") -> Embedder:
        """Create an embedder of records.

        Args:
            layers: "last", "all" (concatenated) or a number. "-4:mean" and "-4:sum" combine the last four
                layers.
            of: the parts that get a vector each.
            pool: see `seqmlm.inference.embedder.Embedder`.

        Raises:
            UsageError: the model does not have the layer, or is linear and has no layers.
        """
        from seqmlm.inference.embedder import Embedder

        if not self.model.rows.has_hidden_states:
            raise UsageError(
                f"{self.model.path} is a linear model, which has no hidden states: embed with a model that "
                "was trained with --size tiny, small or base"
            )
        how: dict[str, Any] = {"layers": layers, "of": of, "pool": pool}
        return Embedder(self.conditionals(), self.tokenizer, self.card.max_length, **how)

    def embed(self, records: Iterable[Record], **how: Any) -> Iterator[tuple[Record, Floats]]:
        """Compute the vectors of records, lazily and in order.

        Args:
            records: the records.
            how: `layers`, `of` (not "span") and `pool`, as in `embedder`.

        Yields:
            Each record with its vectors (T, H) as float32. T is 1, or the number of units or windows. A
            record without units has no vectors.

        Raises:
            DataError: a record cannot be tokenized.
        """
        from seqmlm.inference.record_batches import batches, encoded

        embedder = self.embedder(**how)
        for batch in batches(records):
            sequences = encoded(self.domain, self.tokenizer, batch, Problems())
            items = [[*embedder.items(sequence)] for sequence in sequences]
            vectors = embedder.vectors([part for parts in items for part in parts])
            none = np.zeros((0, embedder.width), dtype=np.float32)
            for sequence, parts in zip(sequences, items, strict=True):
                yield sequence.record, np.concatenate([none, *(next(vectors) for _ in parts)])

    @cached_property
    def budget(self) -> Budget:
        """Forward tokens of a batch and of a part, and the cost of an exact score in forward tokens."""
        from seqmlm.inference.record_batches import Budget

        return Budget.of(self.model)

    def place_of(self, item: Any) -> str:
        """File and line of a record or pair for messages, with its id unless the data are sensitive."""
        place = f"{item.source}:{item.line}"
        return place if self.card.sensitive else f"{place} ({item.id})"

    def tokens(self, raw: Any) -> int:
        """Number of tokens of a sequence. If the tokenizer refuses it, it is the length of a window."""
        try:
            return len(self.tokenizer.encode(raw))
        except DataError:
            return self.card.max_length

    def copy_tokens(self, tokens: int) -> float:
        """Forward tokens of one masked copy with `tokens` tokens, among other copies of the same sequence."""
        window_tokens = min(tokens, self.card.max_length)
        return self.budget.cost(window_tokens) / window_tokens if window_tokens else 0.0

    @property
    def forward_tokens(self) -> int:
        """Number of tokens that the model has processed since `forget`."""
        return self.conditionals().statistics.tokens - self._forgotten

    def forget(self) -> None:
        """Discard scores, release free memory, and restore the batch size, as in a new process."""
        from seqmlm.engine.device import release_memory

        self.cache = ScoreCache()
        if self.conditionals().device.type == "cpu":  # a GPU would wait for its own memory to be freed
            release_memory(self.conditionals().device)
        self._forgotten = self.conditionals().statistics.tokens
        self.conditionals().tokens_per_batch = self._budget


class ScoreCache:
    """Scores by the input that the model saw.

    The cache is exact, limited by the number of units, and independent of the order of the input.
    """

    def __init__(self, units: int = CACHED_UNITS) -> None:
        self._most, self._units = units, 0
        self._known: OrderedDict[Key, ScoredRecord] = OrderedDict()

    def scores(
        self,
        encodings: Sequence[Encoding],
        request: Hashable,
        score: Callable[[list[int]], list[ScoredRecord]],
    ) -> list[ScoredRecord]:
        """Scores of a batch, in order, without record and encoding. Equal sequences get the same object.

        Args:
            encodings: the sequences.
            request: everything else that determines the scores: the mode and the values to read.
            score: scores the sequences with these indices, which are not in the cache.
        """
        keys = [(digest(encoding), request) for encoding in encodings]
        fresh = {key: number for number, key in reversed(list(enumerate(keys))) if key not in self._known}
        missing = sorted(fresh.values())
        scores = score(missing) if missing else []
        fresh_scores = {  # texts are not kept, nor the batch that an encoding is a view of
            keys[number]: replace(unit_scores, record=NO_RECORD, encoding=NO_ENCODING)
            for number, unit_scores in zip(missing, scores, strict=True)
        }
        for key in keys:
            if key not in fresh_scores:
                self._known.move_to_end(key)
        results = [fresh_scores[key] if key in fresh_scores else self._known[key] for key in keys]
        for key, unit_scores in fresh_scores.items():
            self._known[key] = unit_scores
            self._units += len(unit_scores) + 1
            while self._units > self._most:
                self._units -= len(self._known.popitem(last=False)[1]) + 1
        return results


def digest(encoding: Encoding) -> bytes:
    """A hash of 16 bytes that is equal for encodings that a model cannot distinguish."""
    state = blake2b(encoding.ids.tobytes(), digest_size=16)
    state.update(encoding.groups.tobytes())
    if encoding.positions is not None:
        state.update(b"\1" + encoding.positions.tobytes())
    for name in sorted(encoding.channels):
        state.update(name.encode() + b"\0")
        state.update(encoding.channels[name].tobytes())
    return state.digest()
