"""From codes to tokens: the spelling of every id, and what a code outside the vocabulary becomes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.tokenizers.events_codes import INTERVALS, SPECIAL, family, spell, vocabulary_of
from seqmlm.tokenizers.events_layout import FIRST_INTERVAL, UNK, Longs
from seqmlm.tokenizers.events_vocabulary import Vocabulary

_REMEMBERED = 1 << 20  # unknown codes, for speed


class _Codes(dict[str, int]):
    """Code to token; one that is not kept is its family's token, else unknown."""

    def __init__(self, families: dict[str, int]) -> None:
        super().__init__()
        self._families = families

    def __missing__(self, code: str) -> int:
        token = self._families.get(family(code), UNK)
        if len(self) < _REMEMBERED:
            self[code] = token
        return token


class Lexicon:
    """The tokens of a vocabulary: special ones, intervals, visit classes, families, codes with their values.

    Args:
        vocabulary: what was learnt.
        prefixed: kept codes are spelled with their family in front.

    Attributes:
        tokens: (V,) spelling of each id.
        codes: code to token, for any code.
        texts: (code, value in words) to token.
        kinds: visit class to token.
        parent: (V,) the family token put in front of each, -1 for none.
        symbol: (V,) number of the family a token is of, -1 for none.
    """

    def __init__(self, vocabulary: Vocabulary, prefixed: bool) -> None:
        self.vocabulary = vocabulary
        tokens = [*SPECIAL, *(f"[{name}]" for name in INTERVALS)]
        homes: list[str] = [""] * len(SPECIAL) + ["interval"] * len(INTERVALS)

        def add(spelling: str, home: str) -> int:
            tokens.append(spelling)
            homes.append(home)
            return len(tokens) - 1

        self.kinds = {kind: add(f"[VT:{spell(kind)}]", "class") for kind in vocabulary.kinds}
        families = {
            name: add(f"[{spell(name)}]", f"family {vocabulary_of(name)}") for name in vocabulary.families
        }
        self.codes = _Codes(families)
        self.texts: dict[tuple[str, str], int] = {}
        owners: dict[int, str] = {token: name for name, token in families.items()}
        self._first_bin: dict[int, int] = {}
        for code in vocabulary.codes:
            home, spelling = f"code {vocabulary_of(code)}", spell(code)
            self.codes[code] = own = add(spelling, home)
            made = [own]
            bins = [add(f"{spelling}//Q{n + 1}", home) for n in self._bins(code)]
            if bins:
                self._first_bin[own] = bins[0]
            for text in vocabulary.texts.get(code, ()):
                self.texts[code, text] = add(f"{spelling}//={spell(text)}", home)
                made.append(self.texts[code, text])
            owners.update(dict.fromkeys([*made, *bins], family(code)))
        self.tokens = tuple(tokens)
        self._homes = homes
        numbers = {name: n for n, name in enumerate(dict.fromkeys(owners.values()))}
        self.symbol = np.full(len(tokens), -1, dtype=np.int64)
        self.symbol[list(owners)] = [numbers[name] for name in owners.values()]
        self.parent = np.full(len(tokens), -1, dtype=np.int64)
        if prefixed:
            spelled = [token for token in owners if token not in families.values()]
            self.parent[spelled] = [families.get(owners[token], -1) for token in spelled]

    def _bins(self, code: str) -> range:
        edges = self.vocabulary.edges.get(code, ())
        return range(len(edges) + 1 if edges else 0)

    def with_values(self, ids: Longs, values: NDArray[np.float64]) -> Longs:
        """(N,) tokens of events, those with a number moved to its bin.

        Args:
            ids: (N,) token of each code.
            values: (N,) NaN for none.
        """
        rows, first, edges = self._binned
        binned = np.flatnonzero((rows[ids] >= 0) & np.isfinite(values))
        row = rows[ids[binned]]
        found = ids.copy()
        found[binned] = first[row] + (values[binned, None] > edges[row]).sum(axis=1)
        return found

    @cached_property
    def _binned(self) -> tuple[Longs, Longs, NDArray[np.float64]]:
        """(V,) row of each code with bins, else -1; (R,) its first bin's token; (R, E) edges, then inf."""
        names = {token: code for code, token in self.codes.items() if token in self._first_bin}
        most = max((len(edges) for edges in self.vocabulary.edges.values()), default=0)
        table = np.full((len(names), most), np.inf)
        rows = np.full(len(self.tokens), -1, dtype=np.int64)
        for row, (token, code) in enumerate(names.items()):
            edges = self.vocabulary.edges[code]
            table[row, : len(edges)], rows[token] = edges, row
        return rows, np.array([self._first_bin[token] for token in names], dtype=np.int64), table

    def pools(self) -> Iterator[list[int]]:
        """Tokens that may stand in for each other: of one vocabulary, and spelled alike."""
        pools: dict[Any, list[int]] = {}
        for token in range(FIRST_INTERVAL, len(self.tokens)):
            pools.setdefault((self._homes[token], bool(self.parent[token] >= 0)), []).append(token)
        yield from pools.values()
