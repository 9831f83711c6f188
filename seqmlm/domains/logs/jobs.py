"""The second file of the log sample: jobs whose lines depend on each other, directly and indirectly.

The service's requests leave so little to chance that the neighbours of a line determine it. A determined line
has no conditional mutual information with any other line. Jobs are different: four steps of a job each write
one of four lines. The lines of the broker and the cache follow a trigger that is not logged (a hidden common
cause). The worker's line follows the cache's, and the writer's line follows the worker's (transitions).

Lines that follow nothing are between them. Every job has the same steps in the same order, because a variable
order would also depend on the other steps. The steps therefore form a Markov chain, and their information is
known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FILE = "jobs.trace"
"""Name of the file. Readers of a folder do not know its ending, so they read only the service's requests."""

KEPT = 0.85
"""Probability that a step makes the choice of the step that it follows, and not one of the other three."""

TRIGGER, FREE = "trigger", "nothing"


class Step(NamedTuple):
    """A line of a job: one of several texts, selected by another step, by the trigger, or by chance."""

    name: str
    component: str
    follows: str
    texts: tuple[str, ...]


_BEGIN = Step("begin", "runner", FREE, ("job {number} was picked up",))
_DONE = Step("done", "runner", FREE, ("finished, exit status zero",))
STEPS = (
    Step(
        *("broker", "broker", TRIGGER),
        (
            "lease opened on queue {number}",
            "order bought outright by {user}",
            "trial of plan {number} has {small} days left for {user}",
            "invoice {number} waits until the quarter ends",
        ),
    ),
    Step(
        *("cache", "cache", TRIGGER),
        (
            "cold start, nothing kept from earlier runs",
            "{small} pages came back warm",
            "evicting {number} stale entries before use",
            "mirror of {address} is read instead of the primary",
        ),
    ),
    Step(
        *("worker", "worker", "cache"),
        (
            "spawned {small} threads",
            "falls back to a single process with {number} slots",
            "resumes at checkpoint {hex} of the earlier attempt",
            "sleeps {millis} ms because its peers are slow",
        ),
    ),
    Step(
        *("writer", "writer", "worker"),
        (
            "flushed {number} rows",
            "compressed everything into {small} archives of equal size",
            "skipped the journal",
            "uploads parts to {address} in reverse order today",
        ),
    ),
)
NOISE = Step(
    *("noise", "monitor", FREE),
    (
        "heartbeat after {millis} ms",
        "clock differs by {small} microseconds from the reference",
        "memory use is at {small} percent of its limit now",
    ),
)
_CHOICES = len(STEPS[0].texts)
# Seconds between jobs and before a line, and the spread of the logarithm of the latter.
_BETWEEN, _PAUSE, _SPREAD = 0.2, 0.05, 0.3


def channel() -> NDArray[np.float64]:
    """(4, 4) probability of each choice, given the choice that it follows."""
    change_share = (1 - KEPT) / (_CHOICES - 1)
    table: NDArray[np.float64] = np.where(np.eye(_CHOICES, dtype=np.bool_), KEPT, change_share)
    return table


def joint() -> NDArray[np.float64]:
    """(4, 4, 4, 4) exact probability of the choices of the four steps, the trigger summed out."""
    step = channel()
    table: NDArray[np.float64] = np.einsum("ta,tb,bc,cd->abcd", step, step, step, step) / _CHOICES
    return table


def information(first: int, second: int, *, conditional: bool) -> float:
    """Exact mutual information of two steps in bits, `conditional` on the other two steps or not."""
    table = joint()
    other_steps = [axis for axis in range(len(STEPS)) if axis not in (first, second)]
    if not conditional:
        table = table.sum(axis=tuple(other_steps), keepdims=True)
    without_first, without_second = (
        table.sum(axis=first, keepdims=True),
        table.sum(axis=second, keepdims=True),
    )
    neither = table.sum(axis=(first, second), keepdims=True)
    return float((table * np.log2(table * neither / (without_first * without_second))).sum())


def links() -> dict[tuple[str, str], str]:
    """Every pair of steps, in the order of a job: "hidden cause", "transition" or "indirect"."""
    kinds = {}
    for first, second in combinations(STEPS, 2):
        hidden = first.follows == second.follows == TRIGGER
        kind = "hidden cause" if hidden else "transition" if second.follows == first.name else "indirect"
        kinds[first.name, second.name] = kind
    return kinds


@dataclass(slots=True)
class Job:
    """One job: its session, the step and choice of each line, its times in seconds, and its 1-based lines.

    The lines are known once they are written.
    """

    session: str
    steps: list[Step]
    choices: list[int]
    times: list[float]
    lines: list[int] = field(default_factory=list)

    def truth(self) -> dict[str, Any]:
        """The job as written to `truth.json`."""
        places = {step.name: line for step, line in zip(self.steps, self.lines, strict=True)}
        pairs = [(places[a], places[b], kind) for (a, b), kind in links().items()]
        return {
            "session": self.session,
            "lines": self.lines,
            "steps": [step.name for step in self.steps],
            "choices": self.choices,
            "direct": [[a, b] for a, b, kind in pairs if kind != "indirect"],
            "indirect": [[a, b] for a, b, kind in pairs if kind == "indirect"],
        }


class Line(NamedTuple):
    """One line of the file, with its random fields in braces."""

    time: float
    component: str
    text: str
    session: str


def draw(n: int, seed: int) -> tuple[list[Job], list[Line]]:
    """`n` jobs in the order in which they begin, and all lines of the file."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 1]))
    begins = np.cumsum(rng.exponential(_BETWEEN, n)).tolist()
    jobs = [_job(begin, rng) for begin in begins]
    written = sorted(
        (time, number, at) for number, job in enumerate(jobs) for at, time in enumerate(job.times)
    )
    lines: list[Line] = []
    for time, number, at in written:
        job = jobs[number]
        step = job.steps[at]
        lines.append(Line(time, step.component, step.texts[job.choices[at]], job.session))
        job.lines.append(len(lines))
    return jobs, lines


def _job(begin: float, rng: np.random.Generator) -> Job:
    """A job that begins at a time: its steps, its choices and their times."""
    chosen = {TRIGGER: int(rng.integers(_CHOICES))}
    steps, choices = [_BEGIN], [0]
    for step in STEPS:
        follows = rng.random() < KEPT
        shift = 1 + int(rng.integers(_CHOICES - 1))
        chosen[step.name] = (chosen[step.follows] + (0 if follows else shift)) % _CHOICES
        steps.append(step)
        choices.append(chosen[step.name])
        if step.name != "worker":  # no noise between worker and writer, the only linked neighbours
            steps.append(NOISE)
            choices.append(int(rng.integers(len(NOISE.texts))))
    steps.append(_DONE)
    choices.append(0)
    pauses = _PAUSE * rng.lognormal(0.0, _SPREAD, len(steps))
    return Job(
        session=f"{int(rng.integers(1 << 48)):012x}",
        steps=steps,
        choices=choices,
        times=(begin + np.cumsum(pauses)).tolist(),
    )


def jobs_truth(jobs: list[Job]) -> dict[str, Any]:
    """The planted jobs as written to `truth.json` (docs/reference/samples.md)."""
    place = {step.name: at for at, step in enumerate(STEPS)}
    described = [_BEGIN, *STEPS, NOISE, _DONE]
    return {
        "jobs_file": FILE,
        "job_steps": [{**step._asdict(), "texts": list(step.texts)} for step in described],
        "job_pairs": [
            {
                "first": a,
                "second": b,
                "kind": kind,
                "information_bits": round(information(place[a], place[b], conditional=False), 4),
                "conditional_bits": round(information(place[a], place[b], conditional=True), 4) + 0.0,
            }
            for (a, b), kind in links().items()
        ],
        "jobs": [job.truth() for job in jobs],
    }
