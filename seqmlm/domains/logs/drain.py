"""Drain: log templates from a stream of lines, by a tree of fixed depth (He et al., ICWS 2017).

A line is a tuple of words, in which values are already replaced by marks. Its number of words and its first
words lead down a tree to a leaf with few templates. The line joins the most similar template, in which words
that differ become `<*>`, or starts a new template. Lines with different numbers of words never share a
template. Lines that name different exceptions do not either. The frames of their traces are similar and would
outweigh the exception.

`Drain` learns; `Templates` is the frozen result. Matching changes nothing, and ids are indices into a list in
the order of first appearance. The tree is a function of that list, so only the list is stored. The code is
our own, because the `drain3` package cannot be installed together with MLflow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import eq
from typing import Any

from seqmlm.errors import UsageError
from seqmlm.parsing import Share

WILD = "<*>"
_REMEMBERED = 1 << 16

Words = tuple[str, ...]
_Path = tuple[int | str, ...]
# java.io.IOException, [KeyError], java.lang.Error: ... but not only the word Error.
_THROWN = re.compile(r"[(\['\"]*(?:(?:[\w$]+\.)+[\w$]*|[\w$]+)(?:Exception|Error)[])'\":,;.]*")


@dataclass(frozen=True, kw_only=True)
class DrainOptions:
    """The parameters of the method, with the names of the paper.

    Args:
        depth: levels of the tree, root and leaf included. The tree distinguishes depth - 3 leading words.
        similarity: share of a template's words that a line must have in the same places to join it.
        max_children: words that are distinguished at one node; other words share a branch.

    Raises:
        UsageError: a value is out of range.
    """

    depth: int = 4
    similarity: Share = 0.4
    max_children: int = 100

    def __post_init__(self) -> None:
        if self.depth < 3:
            raise UsageError(f"depth must be at least 3, not {self.depth}")
        if not 0 < self.similarity <= 1:
            raise UsageError(f"similarity must be in (0, 1], not {self.similarity}")
        if self.max_children < 2:
            raise UsageError(f"max_children must be at least 2, not {self.max_children}")


def _root(words: Words) -> _Path:
    """The first node of a line's path: its number of words, and each exception with its place.

    Because of the exceptions, no template replaces an exception by `WILD`.
    """
    places = [at for at, word in enumerate(words) if "Exception" in word or "Error" in word]
    thrown = [f"{at} {words[at]}" for at in places if _THROWN.fullmatch(words[at])]
    return len(words), *thrown


class _Tree:
    """Find the leaf of a line. A leaf is a list of templates.

    A node is named by its path from the root. The path is the number of words, the exceptions among them, and
    then the branch at each leading word.
    """

    def __init__(self, options: DrainOptions) -> None:
        self._levels = options.depth - 3
        self._max_children = options.max_children
        self._branches: dict[_Path, set[str]] = {}
        self.all_leaves: dict[_Path, list[int]] = {}

    def leaf(self, words: Words) -> list[int]:
        """The leaf for the line during learning.

        At each node, this is its own branch, or else the shared one.
        """
        path = _root(words)
        for word in self._leading_words(words):
            path = (*path, word if word in self._branches.get(path, ()) else WILD)
        return self.all_leaves.get(path, [])

    def leaves(self, words: Words) -> list[list[int]]:
        """Every leaf that may contain the line's template, its own branches before the shared ones."""
        paths = [_root(words)]
        for word in self._leading_words(words):
            paths = [(*path, branch) for path in paths for branch in dict.fromkeys((word, WILD))]
        return [self.all_leaves[path] for path in paths if path in self.all_leaves]

    def insert(self, words: Words, template: int) -> None:
        """Put a template into its leaf, which is created if missing."""
        path = _root(words)
        for word in self._leading_words(words):
            branches = self._branches.setdefault(path, set())
            branch = self._branch(branches, word)
            branches.add(branch)
            path = (*path, branch)
        self.all_leaves.setdefault(path, []).append(template)

    def _leading_words(self, words: Words) -> Words:
        """The first words of a line, which the tree distinguishes; never the last word."""
        return words[: min(self._levels, len(words) - 1)] if words else words

    def _branch(self, branches: set[str], word: str) -> str:
        """The branch of a word.

        Words with digits share one branch, with words that arrive when a node is full.
        """
        if word in branches:
            return word
        if any(map(str.isdigit, word)):
            return WILD
        # One child is reserved for the shared branch.
        return word if len(branches) + (WILD not in branches) < self._max_children else WILD


class Templates:
    """Frozen templates. The id of a template is its index.

    Args:
        templates: words of each, with `WILD` at variable places, in the order of first appearance.
        options: options of the tree that finds them.
        closed: for some templates, the places whose words are all known. A line may be most similar to such a
            template but have another word at such a place. Then it matches no template.
    """

    def __init__(
        self,
        templates: Sequence[Words],
        options: DrainOptions | None = None,
        closed: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.options = options or DrainOptions()
        self.closed = dict(closed or {})
        self._templates = tuple(templates)
        self._tree = _Tree(self.options)
        for number, words in enumerate(self._templates):
            self._tree.insert(words, number)
        self._matches: dict[Words, int] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def __getitem__(self, template: int) -> Words:
        return self._templates[template]

    def match(self, words: Words) -> int:
        """The id of the template that matches a line best, -1 if none does.

        A template matches if `options.similarity` of its words are in place, or if all its constant words
        are. Without the second rule, a template with few constants would not match its own lines.
        """
        template = self._matches.get(words)
        if template is None:
            template = self._search(words)
            if len(self._matches) >= _REMEMBERED:
                self._matches.clear()
            self._matches[words] = template
        return template

    def _search(self, words: Words) -> int:
        """The match of a line that is not in the cache; see `match`."""
        for leaf in self._tree.leaves(words):
            best, share = _most_similar(leaf, self._templates, words)
            if share >= self.options.similarity:
                return -1 if self._disallowed_words(best, words) else best
        exact = [
            (template.count(WILD), number)
            for leaf in self._tree.leaves(words)
            for number in leaf
            if _has_all_constants(template := self._templates[number], words)
        ]
        return min(exact)[1] if exact else -1

    def _disallowed_words(self, template: int, words: Words) -> tuple[str, ...]:
        """The words of a line that differ from the template at places where it allows no other words."""
        mine = self._templates[template]
        return tuple(words[at] for at in self.closed.get(template, ()) if mine[at] != words[at])

    def unknown_words(self, words: Words) -> tuple[str, ...]:
        """The words of a line without a template that are at places for other, known words, if any."""
        for leaf in self._tree.leaves(words):
            if unknown := self._disallowed_words(_most_similar(leaf, self._templates, words)[0], words):
                return unknown
        return ()


class Drain:
    """Learn templates.

    Args:
        options: options of the method.
        max_templates: number of templates that are kept. Twice as many are tracked; beyond that, the rarest
            are dropped. Memory is therefore bounded, and a noisy beginning does not fill the list.
        min_sources: templates from fewer sources are not frozen.
        most_values: most words at a variable place for which the template is frozen with each word (`Forms`).
            New words must also be very rare there. 0 means `WILD` wherever words differ.
    """

    def __init__(
        self,
        options: DrainOptions | None = None,
        max_templates: int = 4096,
        min_sources: int = 1,
        *,
        most_values: int = 0,
    ) -> None:
        if max_templates < 1:
            raise UsageError(f"max_templates must be at least 1, not {max_templates}")
        self.options = options or DrainOptions()
        self.max_templates, self._min_sources = max_templates, min_sources
        self._templates: list[Words] = []
        self._tallies: list[TemplateCounts] = []
        self._tree = _Tree(self.options)
        self._settled: dict[int, dict[Words, int]] = {}
        self._most_values = most_values
        self._forms: list[Forms] = []

    def __len__(self) -> int:
        return len(self._templates)

    def add(self, words: Words, source: int = 0) -> int:
        """Learn a line.

        Args:
            words: words of the line.
            source: number that identifies its subject.

        Returns:
            Number of the template that it joined. Numbers change only when the rarest templates are dropped.
        """
        number = self._settled.setdefault(len(words), {}).get(words)
        if number is None:
            number = self._learn(words)
        self._tallies[number].add(source)
        if self._most_values:
            self._forms[number].add(words, source)
        return number

    def form(self, number: int, words: Words) -> Words:
        """A line in the present form of its template, with its own words at places that may be frozen."""
        template = self._templates[number]
        if not self._most_values:
            return template
        places = self._forms[number].places
        return tuple(words[at] if at in places else word for at, word in enumerate(template))

    def _learn(self, words: Words) -> int:
        """The number of the template that a line joins or begins."""
        best, share = _most_similar(self._tree.leaf(words), self._templates, words)
        if share < self.options.similarity:
            if len(self._templates) >= 2 * self.max_templates:
                self._forget_rare()
            self._append(words, TemplateCounts(self._min_sources))
            self._settled[len(words)] = {}
            return len(self._templates) - 1
        merged = _merge(self._templates[best], words)
        if merged != self._templates[best]:
            if self._most_values:
                self._forms[best].open(self._templates[best], merged)
            self._templates[best] = merged
            self._settled[len(words)] = {}
        # The same line changes nothing until a template with this number of words changes.
        settled = self._settled[len(words)]
        if len(settled) >= _REMEMBERED:
            settled.clear()
        settled[words] = best
        return best

    def _append(self, words: Words, tally: TemplateCounts, forms: Forms | None = None) -> None:
        """Add a template, its tally and its forms after all others."""
        self._tree.insert(words, len(self._templates))
        self._templates.append(words)
        self._tallies.append(tally)
        if self._most_values:
            self._forms.append(forms or Forms(self._most_values, self._min_sources))

    def _forget_rare(self) -> None:
        """Drop all but the `max_templates` most common templates."""
        frequent = [
            (self._templates[number], self._tallies[number], self._forms[number] if self._forms else None)
            for number in commonest(self._tallies, self.max_templates)
        ]
        self._templates, self._tallies, self._forms = [], [], []
        self._tree, self._settled = _Tree(self.options), {}
        for words, tally, forms in frequent:
            self._append(words, tally, forms)

    def freeze(self, *, min_lines: int = 1) -> Templates:
        """Freeze the learned templates that have at least `min_lines` lines.

        A constant word of a template is in each of its lines. Templates from few sources are left out.
        Therefore the list contains no word that only few sources have.
        """
        frequent = commonest(self._tallies, self.max_templates, min_lines, self._min_sources)
        templates: dict[Words, tuple[int, ...]] = {}
        room = self.max_templates - len(frequent)
        closed = self._closed_places() if self._most_values else {}
        for number in frequent:
            forms: Mapping[Words, tuple[int, ...]] = {}
            if closed:
                forms = self._forms[number].closed_templates(
                    self._templates[number], closed[number], min_lines, self._min_sources
                )
            if not forms or len(forms) - 1 > room:
                forms = {self._templates[number]: ()}
            room -= len(forms) - 1
            for words, places in forms.items():
                templates.setdefault(words, places)
        places_by_number = {number: places for number, places in enumerate(templates.values()) if places}
        return Templates(list(templates), self.options, places_by_number)

    def _closed_places(self) -> dict[int, set[int]]:
        """The closed places of each template.

        A place is closed by the template's own lines, or by the lines of all templates in its leaf. The
        latter applies if the words after the leading words have split the lines into many templates.
        """
        closed: dict[int, set[int]] = {}
        for leaf in self._tree.all_leaves.values():
            open_places = {at for n in leaf for at, word in enumerate(self._templates[n]) if word == WILD}
            for at in sorted(open_places):
                values_by_template = {n: self._values_at(n, at) for n in leaf}
                together = sum_by_key(
                    chain.from_iterable((values or {}).items() for values in values_by_template.values())
                )
                is_leaf_closed = None not in values_by_template.values() and self._is_closed(together)
                for n, values in values_by_template.items():
                    is_name = at and self._templates[n][at - 1].strip("\"'([:").lower() in _WHO
                    if self._templates[n][at] != WILD or values is None or is_name:
                        continue
                    if is_leaf_closed or self._is_closed(values):
                        closed.setdefault(n, set()).add(at)
        return {number: closed.get(number, set()) for number in range(len(self._templates))}

    def _values_at(self, number: int, at: int) -> Mapping[str, TemplateCounts] | None:
        """The words of a template's lines at a place, None if they were too many."""
        word = self._templates[number][at]
        return {word: self._tallies[number]} if word != WILD else self._forms[number].values(at)

    def _is_closed(self, values: Mapping[str, TemplateCounts]) -> bool:
        """Whether a place has few words, each of them often, so that a new word is unlikely."""
        lines = sum(tally.lines for tally in values.values())
        return (
            1 < len(values) <= self._most_values
            and lines >= _OFTEN * len(values)
            and all(map(_is_word, values))
            and all(tally.sources >= self._min_sources for tally in values.values())
            and new_values_are_rare(values.values())
        )


class Forms:
    """The words at the variable places of one template, counted together in bounded memory.

    Drain replaces a word by `WILD` as soon as two lines differ there. Then "status installed" and "status
    half-configured" become one event. Here, the words at such places are counted until there are too many of
    them. A place is closed if a new word is unlikely. It is then frozen with each of its words. According to
    Good and Turing, the share of new words to come equals the share of words that occurred once.

    Args:
        max_values: most different words at one place; a place with more is not counted.
        max_sources: sources are counted up to this number.
    """

    def __init__(self, max_values: int, max_sources: int) -> None:
        self._max_values, self._max_sources = max_values, max_sources
        self.places: tuple[int, ...] = ()
        self._counts: dict[Words, TemplateCounts] = {}

    def add(self, words: Words, source: int) -> None:
        """Count a line of the template."""
        key = tuple(words[at] for at in self.places)
        is_known = key in self._counts
        if not is_known:
            self._counts[key] = TemplateCounts(self._max_sources)
        self._counts[key].add(source)
        if not is_known:
            self._limit_memory()

    def open(self, template: Words, merged: Words) -> None:
        """Begin to count the places that have become `WILD` in `merged`.

        All lines so far had the template's words there.
        """
        for at, (word, merged_word) in enumerate(zip(template, merged, strict=True)):
            if word != merged_word:
                self.places = (*self.places, at)
                self._counts = {(*key, word): tally for key, tally in self._counts.items()}

    def _limit_memory(self) -> None:
        """Stop counting the fullest places until the counts fit into memory."""
        while self.places:
            values = [len({key[at] for key in self._counts}) for at in range(len(self.places))]
            full = [at for at in range(len(values)) if values[at] > self._max_values]
            if not full and len(self._counts) <= _FORMS:
                return
            at = full[0] if full else max(range(len(values)), key=values.__getitem__)
            self.places = (*self.places[:at], *self.places[at + 1 :])
            self._counts = sum_by_key(
                ((*key[:at], *key[at + 1 :]), tally) for key, tally in self._counts.items()
            )

    def values(self, place: int) -> dict[str, TemplateCounts] | None:
        """The words at a place; None if they were too many to be counted."""
        if place not in self.places:
            return None
        at = self.places.index(place)
        return sum_by_key((key[at], tally) for key, tally in self._counts.items())

    def closed_templates(
        self, template: Words, closed: Collection[int], min_lines: int, min_sources: int
    ) -> dict[Words, tuple[int, ...]]:
        """The template with each combination of words at its closed places, and these places."""
        indices = [at for at, place in enumerate(self.places) if place in closed]
        counts = sum_by_key((tuple(key[at] for at in indices), tally) for key, tally in self._counts.items())
        while indices and not new_values_are_rare(counts.values(), min_sources):
            indices.pop()
            counts = sum_by_key((key[:-1], tally) for key, tally in counts.items())
        templates: dict[Words, tuple[int, ...]] = {}
        for key, tally in counts.items():
            if indices and tally.lines >= min_lines and tally.sources >= min_sources:
                words = {self.places[at]: word for at, word in zip(indices, key, strict=True)}
                filled = tuple(words.get(at, word) for at, word in enumerate(template))
                templates[filled] = tuple(sorted(words))
        return templates


_FORMS = 1024  # combinations of words of one template that are counted
_OFTEN = 20  # lines of each value, on average
_WHO = frozenset(("user", "for", "by", "from", "to", "host", "client", "group"))  # a name comes after these
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CALENDAR = frozenset((*_DAYS, *_MONTHS))
_WORD = re.compile(r"[^\w\s<]*[^\W\d]+(?:[-:][^\W\d]+)*[^\w\s>]*")


def sum_by_key(tallies: Iterable[tuple[Any, TemplateCounts]]) -> dict[Any, TemplateCounts]:
    """Counts of lines and sources, added up by key."""
    totals: dict[Any, TemplateCounts] = {}
    for key, tally in tallies:
        totals[key] = totals[key].plus(tally) if key in totals else tally
    return totals


def _is_word(text: str) -> bool:
    """Whether a text may be a state: letters, perhaps joined by hyphens.

    Marks, numbers, days and machine names are excluded. They may have few values in a log, but another one
    may come at any time.
    """
    return _WORD.fullmatch(text) is not None and text.lower().strip(",") not in _CALENDAR


def new_values_are_rare(tallies: Iterable[TemplateCounts], min_sources: int = 1) -> bool:
    """Whether new values are unlikely.

    At most one line in a thousand, plus one line, may have a value that occurred once (Good 1953) or in fewer
    than `min_sources` sources.
    """
    counts = list(tallies)
    rare = sum(count.lines for count in counts if count.lines == 1 or count.sources < min_sources)
    return rare <= 1 + sum(count.lines for count in counts) / 1000


class TemplateCounts:
    """Numbers of lines and of different sources for a template or a word.

    Sources are counted up to `max_sources`, so that only few have to be stored.
    """

    __slots__ = ("_last", "_max_sources", "_sources", "lines")

    def __init__(self, max_sources: int = 1) -> None:
        self.lines, self._max_sources = 0, max_sources
        self._sources: tuple[int, ...] = ()
        self._last: int | None = None

    @property
    def sources(self) -> int:
        """Number of different sources so far, at most `max_sources`."""
        return len(self._sources)

    def add(self, source: int) -> None:
        """Count one line from a source, which is a number."""
        self.lines += 1
        if source != self._last:
            self._last = source
            if len(self._sources) < self._max_sources and source not in self._sources:
                self._sources += (source,)

    def plus(self, counts: TemplateCounts) -> TemplateCounts:
        """The sum of both counts."""
        total = TemplateCounts(self._max_sources)
        total.lines = self.lines + counts.lines
        total._sources = tuple(dict.fromkeys((*self._sources, *counts._sources)))[: self._max_sources]
        return total


class Tallies(dict[Any, TemplateCounts]):
    """Counts by key, which begin at 0. Beyond `max_keys` keys, the rarer half is forgotten."""

    def __init__(self, max_sources: int, max_keys: int) -> None:
        super().__init__()
        self._max_sources, self._max_keys = max_sources, max_keys

    def __missing__(self, key: Any) -> TemplateCounts:
        if len(self) >= self._max_keys:
            by_lines = sorted(self, key=lambda candidate: -self[candidate].lines)
            for rare_key in by_lines[-(self._max_keys // 2) :]:
                del self[rare_key]
        counts = self[key] = TemplateCounts(self._max_sources)
        return counts

    def commonest(self, limit: int, min_lines: int, min_sources: int) -> list[Any]:
        """The `limit` keys with most lines, in the order of first appearance."""
        keys = list(self)
        return [keys[number] for number in commonest(list(self.values()), limit, min_lines, min_sources)]


def commonest(
    tallies: Sequence[TemplateCounts], limit: int, min_lines: int = 1, min_sources: int = 1
) -> list[int]:
    """The `limit` numbers with most lines, ascending; among equals, the smaller ones.

    Numbers with fewer lines than `min_lines`, or fewer sources than `min_sources`, are left out.
    """
    enough = [
        n for n, tally in enumerate(tallies) if tally.lines >= min_lines and tally.sources >= min_sources
    ]
    return sorted(sorted(enough, key=lambda number: (-tallies[number].lines, number))[:limit])


def _most_similar(leaf: Iterable[int], templates: Sequence[Words], words: Words) -> tuple[int, float]:
    """The template with most words in place.

    Among equals, it is the one with more `WILD`, and then the older one.

    Returns:
        Its number and the share of its words that the line has; (-1, -1) if there are no templates.
    """
    best, best_same, wilds = -1, -1, -1
    for number in leaf:
        template = templates[number]
        same = sum(map(eq, template, words))
        if same > best_same or (same == best_same and template.count(WILD) > wilds):
            best, best_same, wilds = number, same, template.count(WILD)
    if best < 0:
        return -1, -1.0
    return best, best_same / len(words) if words else 1.0


def _has_all_constants(template: Words, words: Words) -> bool:
    """Whether a line has all constant words of a template in their places."""
    return all(mine in (WILD, theirs) for mine, theirs in zip(template, words, strict=True))


def _merge(template: Words, words: Words) -> Words:
    """The template with `WILD` wherever the line has another word."""
    return tuple(mine if mine == theirs else WILD for mine, theirs in zip(template, words, strict=True))
