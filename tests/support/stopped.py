"""A command that ends in the middle of its work, so that a test can see it go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from seqmlm.rows.file import Rows


@contextmanager
def stopped_by_rows() -> Iterator[list[int]]:
    """After each rows that are written comes a polite signal; how many items they were of."""
    write, written = Rows.write, list[int]()

    def interrupted(rows: Rows, items: Any) -> None:
        write(rows, items)
        written.append(len(items))
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "write", interrupted)
        yield written


def stop_at(
    patched: pytest.MonkeyPatch, owner: type, name: str, number: int, error: BaseException | None
) -> list[tuple[Any, ...]]:
    """End a run in the n-th call of a method: by an error that kills it, or by a polite signal.

    Returns:
        What the method is called with, this call and later ones included.
    """
    method, calls = getattr(owner, name), list[tuple[Any, ...]]()

    def call(self: Any, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == number:
            if error is not None:
                raise error
            os.kill(os.getpid(), signal.SIGTERM)
        return method(self, *given)

    patched.setattr(owner, name, call)
    return calls
