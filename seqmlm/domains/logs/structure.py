"""Find which kinds of lines in logs depend on each other, from maps of dependence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.drain import Drain
from seqmlm.domains.logs.values import LogValues
from seqmlm.domains.networks import NetworkDecoder
from seqmlm.domains.samples import read_truth
from seqmlm.domains.structure import Pair, Truth

SCHEMA = "seqmlm.sample.logs.v1"

MOST = 1 << 16
"""Most templates in a network."""


class EventsDecoder(NetworkDecoder):
    """Find lines that depend on each other. Names are template numbers.

    Templates are learned from the mapped lines (`seqmlm.domains.logs.drain`), because maps do not include a
    model's templates.
    """

    lag: ClassVar[str] = "lag_lines"

    def __init__(self) -> None:
        self._values, self._drain = LogValues(), Drain(max_templates=MOST)

    def names(self, record: Record, units: Sequence[str]) -> Sequence[str]:
        """The number of each line's template. In a session file, the name is the event id itself."""
        if getattr(record.raw, "keys", False):
            return units
        return [str(self._drain.add(self._values.words(line))) for line in units]

    def display_name(self, record: Record, name: str) -> str:
        """The template itself, in its present form."""
        if getattr(record.raw, "keys", False):
            return name
        return " ".join(self._drain.form(int(name), ()))

    def times(self, record: Record, names: Sequence[str]) -> Mapping[str, float]:
        """The place of the first line of each template, in lines."""
        return {name: float(place) for place, name in reversed([*enumerate(names)])}

    def near_pairs(self, record: Record, names: Sequence[str]) -> NDArray[np.bool_]:
        """(N, N) whether two lines are neighbours."""
        place = np.arange(len(names))
        near: NDArray[np.bool_] = np.abs(place[:, None] - place[None, :]) == 1
        return near

    def truths(self, path: Path, problems: Problems) -> Callable[[Record, Sequence[str]], Truth | None]:
        """Read the planted links of jobs, and the transitions of normal requests, from `truth.json`.

        In a request, all other pairs depend on each other through the states between them.
        """
        truth = read_truth(path, SCHEMA, ("states", "transitions", "sessions", "job_pairs", "jobs"))
        jobs = {job["session"]: job for job in truth["jobs"]}
        kinds = {(pair["first"], pair["second"]): str(pair["kind"]) for pair in truth["job_pairs"]}
        requests = {
            request["session"]: request
            for request in truth["sessions"]
            if request["kind"] in ("normal", "slow")
        }
        follows = {(a, b) for a, b, _ in truth["transitions"]}
        template = {state["name"]: state["template"] for state in truth["states"]}
        uses = Counter(template.values())
        shared = {name for name, text in template.items() if uses[text] > 1}

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            """The planted pairs of a record; None if nothing is planted in it."""
            job, request = jobs.get(record.id), requests.get(record.id)
            if job is not None and len(job["steps"]) == len(units):
                places = combinations(enumerate(job["steps"]), 2)
                pair_kinds = {(i, j): kinds[a, b] for (i, a), (j, b) in places if (a, b) in kinds}
            elif request is not None and len(request["states"]) == len(units):
                pair_kinds = _kinds(request["states"], follows, shared)
            else:
                return None
            edges = frozenset(pair for pair, kind in pair_kinds.items() if kind != "indirect")
            return Truth(edges=edges, kinds=pair_kinds)

        return truth_of


def _kinds(
    states: Sequence[str], follows: Collection[tuple[str, str]], shared: Collection[str]
) -> dict[Pair, str]:
    """The kind of dependence of each pair of lines in a request, from the transitions.

    A state that shares its template with another is hidden, and is a common cause of its neighbours.
    """
    kinds: dict[Pair, str] = dict.fromkeys(combinations(range(len(states)), 2), "indirect")
    for i in range(len(states) - 1):
        if (states[i], states[i + 1]) in follows:
            kinds[i, i + 1] = "transition"
        if i and states[i] in shared:
            kinds[i - 1, i + 1] = "hidden cause"
    return kinds
