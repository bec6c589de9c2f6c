"""Ctrl-C while a consumer reads ends it between two polls, not in the middle of one."""

import signal
from collections.abc import Callable

import pytest

from logstore.command_line.command_group import waking
from logstore.errors import WakeupError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_wakes_and_the_second_is_raised(number: signal.Signals):
    woken = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), waking(lambda: woken.append(number)):
        _twice(number, lambda: woken == [number])
    assert signal.getsignal(number) == before


def test_it_is_raised_at_the_end_of_the_block_whatever_wakes():
    with pytest.raises(KeyboardInterrupt), waking(lambda: None):
        signal.raise_signal(signal.SIGTERM)

    def wake() -> None:
        raise WakeupError("woken")

    with pytest.raises(KeyboardInterrupt), waking(wake):
        signal.raise_signal(signal.SIGTERM)


def test_it_is_raised_at_once_where_output_may_block():
    with waking(lambda: pytest.fail("woken")) as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.at_once():
            signal.raise_signal(signal.SIGTERM)
        interrupts.asked = False


def test_nothing_is_raised_without_one():
    with waking(lambda: pytest.fail("woken")) as interrupts, interrupts.at_once():
        pass
    assert not interrupts.asked


def _twice(number: signal.Signals, meanwhile: Callable[[], bool]) -> None:
    signal.raise_signal(number)
    assert meanwhile()
    signal.raise_signal(number)
    pytest.fail("not raised")
