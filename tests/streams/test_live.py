"""Reading ahead: order, back-pressure, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from seqmlm.errors import DataError
from seqmlm.streams.live import ReadAhead


def test_all_items_come_in_order_and_the_reader_waits() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    ahead = ReadAhead(numbers(), capacity=10)
    time.sleep(0.2)
    assert len(taken) <= 12, "it must wait while nobody takes anything"
    found = [item for batch in ahead.batches(7) for item in batch]
    assert found == list(range(1000))


def test_batches_grow_with_what_waits_and_do_not_wait_for_more() -> None:
    more = threading.Event()

    def slow() -> Iterator[int]:
        yield from range(20)
        more.wait(10)
        yield 20

    ahead = ReadAhead(slow(), capacity=100)
    time.sleep(0.2)
    batches = ahead.batches(16)
    assert next(batches) == list(range(16))
    assert next(batches) == [16, 17, 18, 19]
    more.set()
    assert list(batches) == [[20]]


def test_an_error_comes_after_the_items_before_it() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise DataError("no")

    batches = ReadAhead(broken(), capacity=4).batches(4)
    assert next(batches) == [1]
    with pytest.raises(DataError, match="no"):
        next(batches)


def test_closing_lets_a_waiting_reader_go() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    ahead = ReadAhead(endless(), capacity=2)
    looks: list[int] = []
    next(ahead.batches(1, meanwhile=lambda: looks.append(1)))
    ahead.close()
    assert looks
    assert not ahead._thread.is_alive()
