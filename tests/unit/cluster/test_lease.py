"""The lease (C14), and what an answered renewal proves."""

from logstore.cluster.lease import RENEWAL, Lease
from tests.support.manual_clock import ManualClock

TIMEOUT_S = 18.0


def lease_at(seconds: float) -> tuple[Lease, ManualClock]:
    clock = ManualClock(monotonic_s=seconds)
    lease = Lease(clock)
    return lease, clock


def test_it_begins_with_the_session_and_not_with_the_node():
    lease, clock = lease_at(100.0)
    assert not lease.is_held
    lease.begin(97.0, TIMEOUT_S)
    assert lease.is_held
    clock.monotonic_s = 97.0 + TIMEOUT_S
    assert not lease.is_held


def test_a_renewal_proves_what_was_reported_at_the_one_before():
    lease, clock = lease_at(0.0)
    lease.begin(0.0, TIMEOUT_S)
    lease.renewed(6.0, TIMEOUT_S)
    lease.renewed(12.0, TIMEOUT_S)
    clock.monotonic_s = 6.0 + TIMEOUT_S - 0.001
    assert lease.is_held
    clock.monotonic_s = 6.0 + TIMEOUT_S
    assert not lease.is_held, (
        "the renewal sent at 12 may be known to a server that has lost its leader, and to no other"
    )


def test_renewals_too_close_to_each_other_prove_nothing():
    lease, clock = lease_at(0.0)
    lease.begin(0.0, TIMEOUT_S)
    for sent in (4.0, 4.1, 4.2, TIMEOUT_S * RENEWAL - 0.001):
        lease.renewed(sent, TIMEOUT_S)
    clock.monotonic_s = TIMEOUT_S
    assert not lease.is_held


def test_regular_renewals_hold_it():
    lease, clock = lease_at(0.0)
    lease.begin(0.0, TIMEOUT_S)
    for _ in range(100):
        sent = clock.monotonic_s
        clock.advance(1_000)
        lease.renewed(sent, TIMEOUT_S)
        assert lease.is_held
        clock.advance(TIMEOUT_S * RENEWAL * 1_010 - 1_000)
        assert lease.is_held


def test_a_late_answer_does_not_bring_it_back_for_long_ago():
    lease, clock = lease_at(0.0)
    lease.begin(0.0, TIMEOUT_S)
    clock.monotonic_s = 40.0  # the process was stopped, with a renewal under way
    lease.renewed(5.0, TIMEOUT_S)
    assert not lease.is_held
    lease.renewed(40.0, TIMEOUT_S)
    assert not lease.is_held
    lease.renewed(45.0, TIMEOUT_S)
    assert lease.is_held


def test_it_ends_at_once_with_the_session():
    lease, _ = lease_at(0.0)
    lease.begin(0.0, TIMEOUT_S)
    lease.end()
    assert not lease.is_held
