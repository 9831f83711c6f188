"""Drain: log templates from a stream of lines, by a tree of fixed depth (He et al., ICWS 2017).

A line is a tuple of words, its values already replaced by marks. It goes down a tree by its number of words
and its first words, and meets the few templates kept in that leaf; it joins the most similar one, whose words
become `<*>` where they differ, or starts a new one. Lines of other lengths never share a template.

`Drain` learns; `Templates` is the frozen result: matching changes nothing, ids are indices of a list in the
order of first appearance, and the tree is a function of that list, so only the list is stored. Own code,
because the `drain3` package cannot be installed together with MLflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import eq

from seqmlm.errors import UsageError

WILD = "<*>"
_REMEMBERED = 1 << 16

Words = tuple[str, ...]
_Path = tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class DrainOptions:
    """The parameters of the method, named as in the paper.

    Args:
        depth: levels of the tree, root and leaf included: depth - 3 leading words are distinguished.
        similarity: share of a template's words that a line must have in the same places to join it.
        max_children: words distinguished at one node; further ones share a branch.

    Raises:
        UsageError: a value out of range.
    """

    depth: int = 4
    similarity: float = 0.4
    max_children: int = 100

    def __post_init__(self) -> None:
        if self.depth < 3:
            raise UsageError(f"depth must be at least 3, not {self.depth}")
        if not 0 < self.similarity <= 1:
            raise UsageError(f"similarity must lie in (0, 1], not {self.similarity}")
        if self.max_children < 2:
            raise UsageError(f"max_children must be at least 2, not {self.max_children}")


class _Tree:
    """Finds the leaf of a line; a leaf is a list of templates.

    A node is named by its path from the root: the number of words, then the branch at each leading word.
    """

    def __init__(self, options: DrainOptions) -> None:
        self._levels = options.depth - 3
        self._most = options.max_children
        self._branches: dict[_Path, set[str]] = {}
        self._leaves: dict[_Path, list[int]] = {}

    def leaf(self, words: Words) -> list[int]:
        """The one leaf for the line while learning: at each node its own branch, else the shared one."""
        path: _Path = (len(words),)
        for word in self._leading(words):
            path = (*path, word if word in self._branches.get(path, ()) else WILD)
        return self._leaves.get(path, [])

    def leaves(self, words: Words) -> list[list[int]]:
        """Every leaf that may contain the line's template, its own branches before the shared ones."""
        paths: list[_Path] = [(len(words),)]
        for word in self._leading(words):
            paths = [(*path, branch) for path in paths for branch in dict.fromkeys((word, WILD))]
        return [self._leaves[path] for path in paths if path in self._leaves]

    def insert(self, words: Words, template: int) -> None:
        """Put a template into its leaf, created if missing."""
        path: _Path = (len(words),)
        for word in self._leading(words):
            branches = self._branches.setdefault(path, set())
            branch = self._branch(branches, word)
            branches.add(branch)
            path = (*path, branch)
        self._leaves.setdefault(path, []).append(template)

    def _leading(self, words: Words) -> Words:
        return words[: min(self._levels, len(words) - 1)] if words else words

    def _branch(self, branches: set[str], word: str) -> str:
        """Words with digits, and words that arrive when a node is full, share a branch."""
        if word in branches:
            return word
        if any(map(str.isdigit, word)):
            return WILD
        # One child is reserved for the shared branch.
        return word if len(branches) + (WILD not in branches) < self._most else WILD


class Templates:
    """Frozen templates; the id of one is its place.

    Args:
        templates: words of each, `WILD` where they vary, in the order of first appearance.
        options: of the tree they are found in.
        similarity: share of a template's words a line must have to be one of its lines; None for that of the
            options, 1 for lines that would not have changed the template.
    """

    def __init__(
        self,
        templates: Sequence[Words],
        options: DrainOptions | None = None,
        similarity: float | None = None,
    ) -> None:
        self.options = options or DrainOptions()
        self.similarity = self.options.similarity if similarity is None else similarity
        self._templates = tuple(templates)
        self._tree = _Tree(self.options)
        for number, words in enumerate(self._templates):
            self._tree.insert(words, number)
        self._known: dict[Words, int] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def __getitem__(self, template: int) -> Words:
        return self._templates[template]

    def match(self, words: Words) -> int:
        """The id of the template that matches a line best, -1 if none does.

        A template matches if `similarity` of its words are in place, or all its constant words (a template
        of few constants would otherwise not match its own lines).
        """
        found = self._known.get(words)
        if found is None:
            found = self._search(words)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[words] = found
        return found

    def _search(self, words: Words) -> int:
        for leaf in self._tree.leaves(words):
            best, share = _most_similar(leaf, self._templates, words)
            if share >= self.similarity:
                return best
        exact = [
            (template.count(WILD), number)
            for leaf in self._tree.leaves(words)
            for number in leaf
            if _all_constants(template := self._templates[number], words)
        ]
        return min(exact)[1] if exact else -1


class Drain:
    """Learns templates.

    Args:
        options: of the method.
        max_templates: number kept. Twice as many are tracked; beyond that the rarest are dropped, so that
            memory is bounded and a noisy beginning does not fill the list.
        min_sources: templates seen in fewer sources are not frozen.
    """

    def __init__(
        self, options: DrainOptions | None = None, max_templates: int = 4096, min_sources: int = 1
    ) -> None:
        if max_templates < 1:
            raise UsageError(f"max_templates must be at least 1, not {max_templates}")
        self.options = options or DrainOptions()
        self.max_templates, self._min_sources = max_templates, min_sources
        self._templates: list[Words] = []
        self._tallies: list[TemplateCounts] = []
        self._tree = _Tree(self.options)
        self._settled: dict[int, dict[Words, int]] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def add(self, words: Words, source: int = 0) -> int:
        """Learn a line.

        Args:
            words: of the line.
            source: number that stands for its subject.

        Returns:
            Number of the template it joined; numbers change only when the rarest are dropped.
        """
        number = self._settled.setdefault(len(words), {}).get(words)
        if number is None:
            number = self._learn(words)
        self._tallies[number].add(source)
        return number

    def _learn(self, words: Words) -> int:
        best, share = _most_similar(self._tree.leaf(words), self._templates, words)
        if share < self.options.similarity:
            if len(self._templates) >= 2 * self.max_templates:
                self._forget_rare()
            self._append(words, TemplateCounts(self._min_sources))
            self._settled[len(words)] = {}
            return len(self._templates) - 1
        merged = _merged(self._templates[best], words)
        if merged != self._templates[best]:
            self._templates[best] = merged
            self._settled[len(words)] = {}
        # Until some template of this length changes, the same line changes nothing.
        settled = self._settled[len(words)]
        if len(settled) >= _REMEMBERED:
            settled.clear()
        settled[words] = best
        return best

    def _append(self, words: Words, tally: TemplateCounts) -> None:
        self._tree.insert(words, len(self._templates))
        self._templates.append(words)
        self._tallies.append(tally)

    def _forget_rare(self) -> None:
        kept = [
            (self._templates[number], self._tallies[number])
            for number in commonest(self._tallies, self.max_templates)
        ]
        self._templates, self._tallies = [], []
        self._tree, self._settled = _Tree(self.options), {}
        for words, tally in kept:
            self._append(words, tally)

    def freeze(self, *, min_lines: int = 1, similarity: float | None = None) -> Templates:
        """The learnt templates, frozen.

        A constant word of a template is in every line of it. So without templates of few sources, the list
        contains no word that only few sources have.

        Args:
            min_lines: templates of fewer lines are left out.
            similarity: of the frozen templates.
        """
        kept = commonest(self._tallies, self.max_templates, min_lines, self._min_sources)
        different = dict.fromkeys(self._templates[number] for number in kept)
        return Templates(list(different), self.options, similarity)


class TemplateCounts:
    """Numbers of lines and of different sources of a template or a word.

    Args:
        enough: sources are counted up to this number, so that few have to be remembered.
    """

    __slots__ = ("_enough", "_known", "_last", "lines")

    def __init__(self, enough: int = 1) -> None:
        self.lines, self._enough = 0, enough
        self._known: tuple[int, ...] = ()
        self._last: int | None = None

    @property
    def sources(self) -> int:
        """Different sources so far, at most `enough`."""
        return len(self._known)

    def add(self, source: int) -> None:
        """Count one line of a source, given by a number."""
        self.lines += 1
        if source != self._last:
            self._last = source
            if len(self._known) < self._enough and source not in self._known:
                self._known += (source,)


def commonest(
    tallies: Sequence[TemplateCounts], most: int, min_lines: int = 1, min_sources: int = 1
) -> list[int]:
    """The `most` numbers with most lines (of equals the smaller), ascending; rarer ones than asked left
    out."""
    enough = [n for n, one in enumerate(tallies) if one.lines >= min_lines and one.sources >= min_sources]
    return sorted(sorted(enough, key=lambda number: (-tallies[number].lines, number))[:most])


def _most_similar(leaf: Iterable[int], templates: Sequence[Words], words: Words) -> tuple[int, float]:
    """The template with most words in place; among equals the one with more `WILD`, then the older.

    Returns:
        Its number and the share of its words that are the line's; (-1, -1) where there are no templates.
    """
    best, most, wilds = -1, -1, -1
    for number in leaf:
        template = templates[number]
        same = sum(map(eq, template, words))
        if same > most or (same == most and template.count(WILD) > wilds):
            best, most, wilds = number, same, template.count(WILD)
    if best < 0:
        return -1, -1.0
    return best, most / len(words) if words else 1.0


def _all_constants(template: Words, words: Words) -> bool:
    return all(mine in (WILD, theirs) for mine, theirs in zip(template, words, strict=True))


def _merged(template: Words, words: Words) -> Words:
    return tuple(mine if mine == theirs else WILD for mine, theirs in zip(template, words, strict=True))
