"""Global batches in planned order, each with the planner's position after it: what a checkpoint must hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from seqmlm.engine.packing import PackedBatch
from seqmlm.engine.planning import Row, RowPlanner
from seqmlm.engine.signals import ignore_in_worker


class Rows(Protocol):
    """Makes planned rows into batches; picklable where loader workers are spawned."""

    def __getitem__(self, row: Row) -> PackedBatch: ...


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """The rows of one optimizer step.

    Args:
        rows: all of them, whichever process computes them.
        mine: the packed batches of this process, on the CPU.
        idle: True where this process has none: `mine` is then a row of another one, to count for nothing.
        position: `planner.state_dict()` after these rows.
    """

    rows: tuple[Row, ...]
    mine: list[PackedBatch]
    idle: bool
    position: dict[str, Any]

    @property
    def tokens(self) -> int:
        """Tokens of all rows; there is no padding, so all of them are useful."""
        return sum(row.tokens for row in self.rows)


class Feed:
    """Global batches of `rows_per_batch` consecutive rows; process r of w computes rows r, r + w, ...

    Loader workers plan ahead of what is consumed. The position of every batch is therefore taken when it
    is planned and handed out with it.
    """

    def __init__(
        self,
        dataset: Rows,
        planner: RowPlanner,
        *,
        rows_per_batch: int,
        rank: int,
        world: int,
        workers: int,
        pin_memory: bool,
    ) -> None:
        self._planner, self._rows_per_batch = planner, rows_per_batch
        self._rank, self._world = rank, world
        self._plans: deque[tuple[tuple[Row, ...], dict[str, Any]]] = deque()
        loader: DataLoader[PackedBatch] = DataLoader(
            dataset,  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._plan(),  # type: ignore[arg-type]
            num_workers=workers,
            worker_init_fn=ignore_in_worker if workers else None,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # else the loader's seed is drawn from the stream of dropout
        )
        self._batches: Iterator[PackedBatch] | None = iter(loader)

    def _plan(self) -> Iterator[Row]:
        while True:
            rows = tuple(self._planner.next_row() for _ in range(self._rows_per_batch))
            self._plans.append((rows, self._planner.state_dict()))
            yield from self._own(rows)

    def _own(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        return rows[self._rank :: self._world] or rows[:1]

    def next(self) -> GlobalBatch:
        """The next global batch."""
        assert self._batches is not None, "the feed is closed"
        first = next(self._batches)
        rows, position = self._plans.popleft()
        mine = [first, *(next(self._batches) for _ in self._own(rows)[1:])]
        return GlobalBatch(rows=rows, mine=mine, idle=self._rank >= len(rows), position=position)

    def close(self) -> None:
        """End the loader's workers."""
        self._batches = None

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rows_per_epoch(planner: RowPlanner, planned: int = 1_000) -> int:
    """Rows of the planner's next epoch: counted up to `planned`, beyond that extrapolated from the tokens.

    The planner stays where it is.
    """
    position, epoch, rows, tokens = planner.state_dict(), planner.epoch, 0, 0
    while planner.epoch == epoch and rows < planned:
        rows, tokens = rows + 1, tokens + planner.next_row().tokens
    whole = planner.epoch != epoch
    planner.load_state_dict(position)
    return rows if whole else round(rows * planner.tokens_per_epoch / tokens)
