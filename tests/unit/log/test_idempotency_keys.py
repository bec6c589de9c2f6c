"""The age of idempotency keys while the wall clock steps: exact within a process, bounded after a start."""

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from logstore.journal.frame import FrameLocation
from logstore.log.idempotency_keys import IdempotencyKeys
from logstore.log.partition_log import PartitionLog
from logstore.records.batch_identity import BatchIdentity, RememberedBatch, unpack_batches
from logstore.records.schema import WIRE_SCHEMA
from tests.support.manual_clock import ManualClock

WINDOW_MS = 1_000
EPOCH = -2


@dataclass(frozen=True)
class Stored:
    """A stored key. It is ``age_ms`` old at ``since_ms`` of real time: 0 when stored, later what the last start
    computed.
    """

    append_time_ms: int
    since_ms: int
    age_ms: int = 0


def new_keys(clock: ManualClock, window_ms: int = WINDOW_MS) -> IdempotencyKeys:
    keys = IdempotencyKeys("t-0", clock)
    keys.remembered_ms = window_ms
    keys.keys_max = 10**6
    return keys


elapsed = st.sampled_from([0, 1, 7, 400, 500, 999, 1_000, 1_001])
wall_steps = st.sampled_from([-(10**10), -1_000, -300, 300, 1_000, 10**6, 10**10])
steps = st.one_of(
    st.tuples(st.just("pass"), elapsed),
    st.tuples(st.just("step"), wall_steps),
    st.tuples(st.just("append"), st.integers(0, 3)),
    st.tuples(st.just("start"), st.just(0)),
    st.tuples(st.just("window"), st.sampled_from([1, 500, 1_000, 2_000])),
)


@given(st.lists(steps, max_size=40))
def test_keys_age_by_the_time_that_passes(taken: list[tuple[str, int]]) -> None:
    clock, real_ms, last_append_ms, window_ms = ManualClock(), 0, 0, WINDOW_MS
    keys = new_keys(clock)
    #: Every key that was ever stored, except those that a start forgot.
    model: dict[int, Stored] = {}
    for offset, (what, value) in enumerate(taken):
        if what == "pass":
            clock.advance(value)
            real_ms += value
        elif what == "step":
            clock.step_wall(value)
        elif what == "window":
            # A longer window brings nothing back, so it is set here, where nothing has been forgotten.
            keys.remembered_ms = window_ms = value
        elif what == "append":
            if not keys.check(value, [(5, 1)]):
                last_append_ms = max(last_append_ms, clock.now_ms())
                batch = RememberedBatch(value, EPOCH, 5, 1, offset, last_append_ms)
                keys.begin(batch)
                keys.complete(value, stored=True)
                model[value] = Stored(last_append_ms, real_ms)
        else:
            packed = keys.pack()
            keys = new_keys(clock, window_ms)
            keys.replace(unpack_batches(packed))
            model = {
                key: replace(one, since_ms=real_ms, age_ms=max(0, clock.now_ms() - one.append_time_ms))
                for key, one in model.items()
            }
        keys.expire()
        model = {key: one for key, one in model.items() if one.age_ms + real_ms - one.since_ms < window_ms}
        assert {key for key in range(4) if key in keys} == model.keys()
        assert keys.num_batches == len(keys._since_ms) == len(model)


@given(st.lists(st.one_of(st.tuples(st.just("pass"), elapsed), st.tuples(st.just("step"), wall_steps)), max_size=20))
def test_no_step_makes_a_key_younger_or_older_within_a_process(taken: list[tuple[str, int]]) -> None:
    clock = ManualClock()
    keys = new_keys(clock)
    keys.remember(RememberedBatch(1, EPOCH, 5, 1, 0, clock.now_ms()))
    age_ms = 0
    for what, value in taken:
        if what == "pass":
            clock.advance(value)
            age_ms += value
        else:
            clock.step_wall(value)
        assert bool(keys.check(1, [(5, 1)])) is (age_ms < WINDOW_MS)


@given(st.lists(st.one_of(st.tuples(st.just("pass"), elapsed), st.tuples(st.just("step"), wall_steps)), max_size=20))
def test_a_key_is_over_one_window_behind_a_start_whatever_its_append_time(taken: list[tuple[str, int]]) -> None:
    clock = ManualClock()
    ahead = RememberedBatch(1, EPOCH, 5, 1, 0, clock.now_ms() + 10**10)
    keys = new_keys(clock)
    keys.replace([ahead])
    since_start_ms = 0
    for what, value in taken:
        if what == "pass":
            clock.advance(value)
            since_start_ms += value
        else:
            clock.step_wall(value)
        assert bool(keys.check(1, [(5, 1)])) is (since_start_ms < WINDOW_MS)


def test_a_follower_ages_keys_from_when_it_has_them_by_its_own_clock() -> None:
    """Set the leader's clock a year ahead; the follower's steps after it takes the frame, and when it leads."""

    async def scenario() -> None:
        clocks = ManualClock(wall_ms=10**12 + 10**10), ManualClock(wall_ms=10**12, monotonic_s=5)
        leader, follower = (PartitionLog("t", UUID(int=1), 0, clock=c, producer_id_expiration_ms=1) for c in clocks)
        for log in (leader, follower):
            log.state.idempotency_keys.remembered_ms = WINDOW_MS
        leader.become_leader(1)
        batch = pa.RecordBatch.from_pylist([{}], schema=WIRE_SCHEMA)
        frame = leader.next_frame(
            batch, pa.py_buffer(b"x"), inflated_bytes=1, log_append_time=True, identity=BatchIdentity(7, EPOCH, 5)
        )
        follower.track_replicated([frame])
        follower.stored(frame, FrameLocation(0, 1))
        keys, clock = follower.state.idempotency_keys, clocks[1]
        clock.step_wall(10**11)
        clock.advance(WINDOW_MS // 2)
        follower.become_leader(2)
        clock.step_wall(-(10**11))
        clock.advance(WINDOW_MS // 2 - 1)
        assert keys.check(7, [(5, 1)])
        clock.advance(1)
        assert not keys.check(7, [(5, 1)])

    asyncio.run(scenario())


def test_batches_that_are_truncated_or_forgotten_leave_no_time_behind() -> None:
    clock = ManualClock()
    keys = new_keys(clock)
    for offset, key in enumerate([1, 2, 1, 3]):
        keys.remember(RememberedBatch(key, EPOCH, offset, 1, offset, 0))
        clock.advance(100)
    assert keys.forget_from(2) == [3]
    assert (keys.num_batches, set(keys._since_ms)) == (2, {1, 2})
    clock.advance(WINDOW_MS)
    keys.expire()
    assert (keys.num_batches, keys._since_ms) == (0, {})
