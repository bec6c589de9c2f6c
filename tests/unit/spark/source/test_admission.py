"""The size of a batch, and when a trigger waits."""

from logstore.spark.source.admission import TriggerDelay, admitted
from logstore.spark.source.unread import Unread
from tests.support.manual_clock import ManualClock


def test_a_limit_is_divided_in_proportion_to_what_there_is_and_starves_no_partition():
    unread = {("a", 0): Unread(10, 910), ("a", 1): Unread(0, 100), ("b", 0): Unread(5, 5), ("b", 1): Unread(5, 6)}
    assert admitted(unread, None) == {("a", 0): 910, ("a", 1): 100, ("b", 0): 5, ("b", 1): 6}
    assert admitted(unread, 100) == {("a", 0): 99, ("a", 1): 9, ("b", 0): 5, ("b", 1): 6}
    assert admitted(unread, 10_000) == admitted(unread, None)
    assert admitted({}, 5) == {}


def test_a_trigger_waits_for_enough_offsets_or_the_delay():
    clock = ManualClock()
    delay = TriggerDelay(10, 60_000, clock)
    few, enough, nothing = {("a", 0): Unread(0, 9)}, {("a", 0): Unread(0, 9), ("a", 1): Unread(0, 1)}, {}
    assert not delay.holds(few)
    assert delay.holds(few)
    assert not delay.holds(enough)
    clock.advance(59_000)
    assert delay.holds(few)
    clock.advance(1_000)
    # The delay passes without a batch.
    assert not delay.holds(nothing)
    assert not delay.holds(few)
    assert delay.holds(few)


def test_without_a_minimum_nothing_waits():
    delay = TriggerDelay(None, 60_000, ManualClock())
    assert not any(delay.holds({("a", 0): Unread(0, 1)}) for _ in range(3))
