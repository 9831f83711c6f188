"""From the name of a model to something that can be asked: what every task does first, in one place.

A session has resolved the reference, loaded the folder, checked what may be shown, and settled the precision.
It makes one `Conditionals` for the model, and remembers scores.

The trade-off: memory for time. Most log windows and many reads occur again and again, so scores are kept by
what the model saw; `forget` gives them up. A run does so at each commit, because the packing of a batch, and
with it the last bits of its numbers, depends on which of its sequences are known already: a resumed run then
repeats what an undisturbed one computes.
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
"""Whether scores mix counts in: where they help, wherever there are any, or never."""

CACHED_UNITS = 1 << 18
"""Most units remembered, over all sequences; beyond it those not asked for longest are forgotten."""

Key = tuple[bytes, Hashable]

NO_RECORD = Record(id="", raw="", source="", line=0)
NO_ENCODING = Encoding(ids=np.zeros(0, dtype=np.int32), groups=np.zeros(0, dtype=np.int32))
"""Of a record that is not kept."""


OWN_FILE = "name a file with --out, which only you can read"
"""What to do where results for single records are not shown on the console."""


class Session:
    """A model ready to be asked.

    Args:
        model: the model.
        tokens_per_batch: budget of a forward pass; None for what suits the device.
        precision: of the matrix products, for all that is asked; "auto" is resolved here.
        entry: the model's entry in the registry, where it has one.
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
            domain: needed for a model without our card; for one with it, must agree.
            folder: something is to be kept with the model, so that it must be a folder here.
            replaced: a file of the model that will be replaced, so that it may be damaged.
            shows_records: results for single records will be shown on the console: a sensitive model refuses.
            remedy: what to do instead, for the message of that refusal.
            labels: "none" takes masked language models, "learnt" those that are fine-tuned, "any" both, and
                encoders without a masked-LM head.

        Raises:
            UsageError: the reference cannot be one, a model of another domain, or a sensitive one whose
                results would be shown.
            StateError: no such model, or it is incomplete or not in a folder.
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
                f"{reference} was fine-tuned to predict {model.card.head.get('label')!r}, and answers "
                f"nothing else: use seqmlm predict {reference}, or the model it was made from"
            )
        if shows_records and model.card.sensitive:
            raise UsageError(f"scores of sensitive data are not shown on the console: {remedy}")
        how: dict[str, Any] = {"tokens_per_batch": tokens_per_batch, "precision": precision, "expert": expert}
        return cls(model, entry=resolved.entry, **how)

    def check_public(self, kept: str, why: str) -> None:
        """Refuse a model of sensitive data.

        Args:
            kept: what would be kept with the model.

        Raises:
            UsageError: the model is such a one.
        """
        if self.card.sensitive:
            raise UsageError(f"{kept} of sensitive data are not kept with a model: {why}")

    def data_rules(self) -> AbstractContextManager[None]:
        """Context in which records for the model are handled: what leaves the process obeys the rules for its
        data (`seqmlm.privacy`)."""
        return model_folder.data_rules(self.card)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    @property
    def domain(self) -> Field:
        """The model's domain."""
        return self.model.domain

    @property
    def mode(self) -> Mode:
        """How records are scored where nobody says: the field's way, where units have tokens of their own."""
        return self.domain.defaults.mode if self.tokenizer.units.facts.one_pass else EXACT

    @property
    def card(self) -> Card:
        """The model's card."""
        return self.model.card

    def reader(
        self, sources: Sequence[str], *, format: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        """Function that reads the records of some sources, given the `Problems` that receive bad ones."""
        reader_options = {**self.model.reading(format), **(options or {})}
        return lambda problems: self.domain.read(
            sources, problems, format=format, scoring=True, **reader_options
        )

    def check_text(self) -> None:
        """Refuse a model whose sequences are no strings (patients, log windows).

        Raises:
            UsageError: it is one.
        """
        if not self.tokenizer.traits.reads(""):
            raise UsageError(
                f"a sequence of the {self.card.domain} domain is no plain text; use seqmlm score on files"
            )

    def conditionals(self) -> Conditionals:
        """Conditional distributions of the model, on the best device."""
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
        """Embedder of records.

        Args:
            layers: last, a number, -4:mean or -4:sum of the last four, or all, one behind the other.
            of: what has a vector. pool: see `seqmlm.inference.embedder.Embedder`.

        Raises:
            UsageError: a layer that is not there, or a linear model, which has none.
        """
        from seqmlm.inference.embedder import Embedder

        if not self.model.rows.has_hidden_states:
            raise UsageError(
                f"{self.model.path} is a linear model, which has no hidden states: embed with one that was "
                "trained with --size tiny, small or base"
            )
        how: dict[str, Any] = {"layers": layers, "of": of, "pool": pool}
        return Embedder(self.conditionals(), self.tokenizer, self.card.max_length, **how)

    def embed(self, records: Iterable[Record], **how: Any) -> Iterator[tuple[Record, Floats]]:
        """Vectors of records, lazily and in order: a record, and (T, H) float32 of it, one, or one for each
        unit or window; none of a record without a unit. `how`: layers, of (not "span"), pool, as of
        `embedder`.

        Raises:
            DataError: a record that cannot be spelled in the model's units.
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
        """Forward tokens of a batch and of a part, and what an exact score takes of them."""
        from seqmlm.inference.record_batches import Budget

        return Budget.of(self.model)

    def place_of(self, item: Any) -> str:
        """File and line of a record or pair for a message, and its id unless the data are sensitive."""
        place = f"{item.source}:{item.line}"
        return place if self.card.sensitive else f"{place} ({item.id})"

    def tokens(self, raw: Any) -> int:
        """Tokens of a sequence; of one that the tokenizer refuses, a window of the model."""
        try:
            return len(self.tokenizer.encode(raw))
        except DataError:
            return self.card.max_length

    def copy_tokens(self, tokens: int) -> float:
        """Forward tokens of one masked copy of so many tokens, among others of the same sequence."""
        window_tokens = min(tokens, self.card.max_length)
        return self.budget.cost(window_tokens) / window_tokens if window_tokens else 0.0

    @property
    def forward_tokens(self) -> int:
        """Tokens that went through the model since `forget`."""
        return self.conditionals().statistics.tokens - self._forgotten

    def forget(self) -> None:
        """Keep no score, no free memory and no budget that was halved for want of it: as in a new process."""
        from seqmlm.engine.device import release_memory

        self.cache = ScoreCache()
        if self.conditionals().device.type == "cpu":  # a GPU would wait for its own to be freed
            release_memory(self.conditionals().device)
        self._forgotten = self.conditionals().statistics.tokens
        self.conditionals().tokens_per_batch = self._budget


class ScoreCache:
    """Scores by what the model saw; bounded (units over all sequences), exact, the same for any order of the
    input."""

    def __init__(self, units: int = CACHED_UNITS) -> None:
        self._most, self._units = units, 0
        self._known: OrderedDict[Key, ScoredRecord] = OrderedDict()

    def scores(
        self,
        encodings: Sequence[Encoding],
        request: Hashable,
        score: Callable[[list[int]], list[ScoredRecord]],
    ) -> list[ScoredRecord]:
        """Scores of a batch, one each, without record and encoding; of equal sequences the same object.

        Args:
            request: whatever else decides the answer (mode, what is read of it).
            score: scores the sequences with these indices, those that are not known.
        """
        keys = [(digest(encoding), request) for encoding in encodings]
        fresh = {key: number for number, key in reversed(list(enumerate(keys))) if key not in self._known}
        missing = sorted(fresh.values())
        scores = score(missing) if missing else []
        fresh_scores = {  # neither texts nor the batch that an encoding is a view of are kept
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
    """16 bytes that are equal for encodings a model cannot tell apart."""
    state = blake2b(encoding.ids.tobytes(), digest_size=16)
    state.update(encoding.groups.tobytes())
    if encoding.positions is not None:
        state.update(b"\1" + encoding.positions.tobytes())
    for name in sorted(encoding.channels):
        state.update(name.encode() + b"\0")
        state.update(encoding.channels[name].tobytes())
    return state.digest()
