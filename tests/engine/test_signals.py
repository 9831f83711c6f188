"""Signals: the first is noted, ends work that may be given up, and a second one ends everything."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from seqmlm.engine.signals import Stopped, StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_ends_only_what_may_be_given_up(number: int) -> None:
    done: list[str] = []
    with StopSignals() as signals:
        with signals.breaking():
            done.append("undisturbed")
        for _ in range(2):  # the second time, because of the first
            with suppress(Stopped), signals.breaking():
                os.kill(os.getpid(), number)
                done.append("never")
            done.append("after")
    assert signals.received == number
    assert done == ["undisturbed", "after", "after"]


def test_outside_of_such_work_a_signal_is_only_noted() -> None:
    with StopSignals() as signals:
        with signals.breaking():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM


def test_nothing_takes_a_stop_for_an_error() -> None:
    assert not issubclass(Stopped, Exception)


def test_a_second_signal_ends_the_program() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received is not None
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
