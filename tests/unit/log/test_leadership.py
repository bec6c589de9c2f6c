"""A leader's role: permission to append, the waits of appends, and their end when another broker leads."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa
import pytest

from logstore.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    RequestTimedOutError,
    StorageFullError,
)
from logstore.journal.frame import Frame, FrameLocation
from logstore.log.acknowledgements import Acknowledgement, AcknowledgementQueue
from logstore.log.high_watermark import HighWatermark
from logstore.log.in_sync_replicas import InSyncReplicas
from logstore.log.partition_log import PartitionLog
from logstore.records.schema import WIRE_SCHEMA
from tests.support.manual_clock import ManualClock


def new_log(epoch: int | None = 1) -> PartitionLog:
    log = PartitionLog("t", UUID(int=1), 0, clock=ManualClock(), producer_id_expiration_ms=1)
    if epoch is not None:
        log.become_leader(epoch)
    return log


def append(log: PartitionLog, count: int = 1) -> Frame:
    batch = pa.RecordBatch.from_pylist([{}] * count, schema=WIRE_SCHEMA)
    frame = log.next_frame(batch, pa.py_buffer(b"x"), inflated_bytes=1, log_append_time=False)
    log.track(frame)
    return frame


def in_loop(scenario: Callable[[], None]) -> None:
    async def run() -> None:
        scenario()

    asyncio.run(run())


def test_only_a_leader_appends_and_only_with_a_higher_epoch() -> None:
    log = new_log(None)
    with pytest.raises(NotLeaderOrFollowerError, match="does not lead t-0"):
        append(log)
    log.become_leader(3)
    assert append(log).header.leader_epoch == 3
    for epoch in (3, 2):
        with pytest.raises(FencedLeaderEpochError):
            log.become_leader(epoch)
    log.resign(5)
    assert (log.is_leader, log.leader_epoch) == (False, 5)
    with pytest.raises(FencedLeaderEpochError):
        log.become_leader(5)
    log.become_leader(6)
    assert log.is_leader


def test_durable_log_end_high_watermark_and_acknowledgement_are_one_step() -> None:
    def scenario() -> None:
        log = new_log()
        frames = [append(log, 2), append(log, 3)]
        all_, local = Acknowledgement(2), Acknowledgement(1)
        for frame in frames:
            log.require_leader().acknowledge(frame.header.end_offset, -1, all_)
        log.require_leader().acknowledge(2, 1, local)
        log.stored(frames[0], FrameLocation(0, 1))
        assert (log.log_end_offset, log.high_watermark, log.next_offset) == (2, 2, 5)
        assert (local.future.done(), all_.future.done()) == (True, False)
        log.stored(frames[1], FrameLocation(1, 1))
        assert all_.future.done()
        assert log.high_watermark == 5

    in_loop(scenario)


def test_acks_all_waits_for_the_high_watermark_and_acks_1_for_the_log_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the high watermark back, as another in-sync replica without records does."""

    def scenario() -> None:
        log = new_log()
        frame = append(log)
        all_, local = Acknowledgement(1), Acknowledgement(1)
        log.require_leader().acknowledge(1, -1, all_)
        log.require_leader().acknowledge(1, 1, local)
        with monkeypatch.context() as patch:
            patch.setattr(HighWatermark, "advance", lambda *_: None)
            log.stored(frame, FrameLocation(0, 1))
        assert (local.future.done(), all_.future.done(), log.high_watermark) == (True, False, 0)
        late = Acknowledgement(1)
        log.require_leader().acknowledge(1, 1, late)
        assert late.future.done(), "it is durable already"
        log.require_leader().advance(log.log_end_offset)
        assert all_.future.done()

    in_loop(scenario)


def test_a_failed_append_fails_its_waiters_and_its_offsets_are_given_again() -> None:
    def scenario() -> None:
        log = new_log()
        stored, failed = append(log), append(log)
        waits = [Acknowledgement(1), Acknowledgement(1)]
        for end, wait in enumerate(waits, 1):
            log.require_leader().acknowledge(end, -1, wait)
        log.stored(stored, FrameLocation(0, 1))
        error = StorageFullError("full")
        log.failed(failed, error)
        assert (waits[0].future.exception(), waits[1].future.exception()) == (None, error)
        assert append(log).header.base_offset == 1

    in_loop(scenario)


def test_when_another_broker_leads_waits_end_with_an_unknown_outcome() -> None:
    def scenario() -> None:
        log = new_log()
        frame = append(log)
        wait = Acknowledgement(1)
        log.require_leader().acknowledge(1, -1, wait)
        log.resign(2)
        assert isinstance(wait.future.exception(), RequestTimedOutError)
        # The frame is on its way to the disk, and becomes part of the log.
        log.stored(frame, FrameLocation(0, 1))
        assert (log.log_end_offset, log.high_watermark) == (1, 0)

    in_loop(scenario)


def test_acknowledgements_are_reached_by_rising_offset_whenever_they_came() -> None:
    def scenario() -> None:
        queue = AcknowledgementQueue()
        waits = {end: Acknowledgement(1) for end in (5, 9, 3, 7)}
        for end, wait in waits.items():
            queue.add(end, wait)
        queue.reach(5)
        assert [end for end, wait in waits.items() if wait.future.done()] == [5, 3]
        queue.fail_above(7, StorageFullError(""))
        assert waits[9].future.exception() is not None
        assert not waits[7].future.done()

    in_loop(scenario)


def test_a_wait_that_was_given_up_disturbs_nobody() -> None:
    def scenario() -> None:
        for end in (Acknowledgement.reached, lambda wait: wait.fail(StorageFullError(""))):
            wait = Acknowledgement(1)
            wait.future.cancel()
            end(wait)

    in_loop(scenario)


def test_a_role_that_has_ended_moves_no_high_watermark() -> None:
    """End an ISR change of the former leader after its role: its replicas belong to another leader by then."""

    def scenario() -> None:
        log = new_log(None)
        replicas = InSyncReplicas(1, (1, 2), (1, 2), min_in_sync=lambda: 1, now=0.0)
        log.become_leader(1, replicas)
        log.stored(append(log), FrameLocation(0, 1))
        role = log.require_leader()
        role.propose((1,))
        role.fetched(2, 7, 0, now=0.0)
        log.resign(2)
        replicas.followers[2].position = 1
        role.end_proposal()
        role.commit((1,), (1,), now=0.0)
        assert log.high_watermark == 0

    in_loop(scenario)


def test_an_append_that_waits_for_followers_alone_outlives_a_failed_group() -> None:
    """Keep the append waiting: it is durable here, so an error that says "not stored" would be wrong."""

    def scenario() -> None:
        log = new_log(None)
        log.become_leader(1, InSyncReplicas(1, (1, 2), (1, 2), min_in_sync=lambda: 1, now=0.0))
        durable, failed = append(log), append(log)
        waits = [Acknowledgement(1), Acknowledgement(1)]
        for end, wait in enumerate(waits, 1):
            log.require_leader().acknowledge(end, -1, wait)
        log.stored(durable, FrameLocation(0, 1))
        log.failed(failed, StorageFullError("full"))
        assert isinstance(waits[1].future.exception(), StorageFullError)
        assert not waits[0].future.done()
        log.require_leader().fetched(2, 1, 1, 0.0)
        assert waits[0].future.result() is None
        late = append(log)
        unknown = Acknowledgement(1)
        log.require_leader().acknowledge(late.header.end_offset, -1, unknown)
        log.stored(late, FrameLocation(1, 1))
        log.resign(2)
        assert isinstance(unknown.future.exception(), RequestTimedOutError)


# ---- a leader with followers ----


def replicated_log(*in_sync: int, min_in_sync: int = 1, has_lease: Callable[[], bool] = lambda: True) -> PartitionLog:
    log = new_log(None)
    replicas = InSyncReplicas(1, (1, 2, 3), in_sync, min_in_sync=lambda: min_in_sync, now=0.0)
    log.become_leader(1, replicas, has_lease)
    return log


def store(log: PartitionLog, count: int = 1) -> None:
    log.stored(append(log, count), FrameLocation(log.log_end_offset, 1))


def test_acks_all_waits_for_all_replicas_in_sync_and_acks_1_does_not() -> None:
    def scenario() -> None:
        log = replicated_log(1, 2)
        frame = append(log)
        all_, local = Acknowledgement(1), Acknowledgement(1)
        log.require_leader().acknowledge(1, -1, all_)
        log.require_leader().acknowledge(1, 1, local)
        log.stored(frame, FrameLocation(0, 1))
        assert (local.future.done(), all_.future.done(), log.high_watermark) == (True, False, 0)
        log.require_leader().fetched(3, 7, 1, 0.0)
        assert not all_.future.done(), "it is not in sync"
        log.require_leader().fetched(2, 7, 1, 0.0)
        assert (all_.future.done(), log.high_watermark) == (True, 1)

    in_loop(scenario)


def test_a_new_leader_is_settled_when_its_followers_have_what_it_began_with() -> None:
    def scenario() -> None:
        log = new_log(1)
        store(log, 2)
        log.resign(2)
        log._high_watermark.offset = 0  # as after a restart
        log.become_leader(3, InSyncReplicas(1, (1, 2), (1, 2), min_in_sync=lambda: 1, now=0.0))
        role = log.require_leader()
        role.fetched(2, 7, 1, 0.0)
        with pytest.raises(OffsetNotAvailableError):
            role.require_settled()
        assert (log.high_watermark, log.rollable_end, log.has_unsealed) == (1, 0, False)
        role.fetched(2, 7, 2, 0.0)
        role.require_settled()
        assert (log.rollable_end, log.has_unsealed) == (2, True)

    in_loop(scenario)


def test_too_few_replicas_in_sync_refuse_acks_all_and_leave_waits_unknown() -> None:
    def scenario() -> None:
        log = replicated_log(1, 2, min_in_sync=2)
        role = log.require_leader()
        assert log.append_refusal(-1) is None
        store(log)
        wait = Acknowledgement(1)
        role.acknowledge(1, -1, wait)
        role.commit((1, 2, 3), (1,), 0.0)
        assert isinstance(wait.future.exception(), NotEnoughReplicasAfterAppendError)
        refusal = log.append_refusal(-1)
        assert isinstance(refusal, NotEnoughReplicasError)
        assert refusal.message.startswith("1 replica is in sync, and min.insync.replicas is 2: nothing was stored.")
        assert log.append_refusal(1) is None
        assert log.high_watermark == 0, "KIP-966"
        role.commit((1, 2, 3), (1, 3), 0.0)
        role.fetched(3, 7, 1, 0.0)
        assert log.high_watermark == 1

    in_loop(scenario)


def test_acks_1_needs_a_lease_at_the_append_and_at_the_acknowledgement() -> None:
    def scenario() -> None:
        lease = [True]
        log = replicated_log(1, 2, has_lease=lambda: lease[0])
        frame = append(log)
        wait = Acknowledgement(1)
        log.require_leader().acknowledge(1, 1, wait)
        lease[0] = False
        assert isinstance(log.append_refusal(1), NotLeaderOrFollowerError)
        assert log.append_refusal(-1) is None, "acks=all needs none"
        log.stored(frame, FrameLocation(0, 1))
        assert isinstance(wait.future.exception(), NotEnoughReplicasAfterAppendError)

    in_loop(scenario)


def test_requests_that_need_a_lease_are_refused_without_one() -> None:
    async def scenario() -> None:
        lease = [True]
        log = replicated_log(1, 2, has_lease=lambda: lease[0])
        log.require_leader().require_lease()
        lease[0] = False
        with pytest.raises(NotLeaderOrFollowerError, match="ZooKeeper"):
            log.require_leader().require_lease()
        log.become_leader(2, None, lambda: lease[0])
        log.require_leader().require_lease()

    asyncio.run(scenario())


def test_acks_1_of_the_only_replica_needs_no_lease() -> None:
    def scenario() -> None:
        lease = [True]
        log = new_log(None)
        log.become_leader(1, None, lambda: lease[0])
        for has_lease in (True, False, False):
            lease[0] = has_lease
            assert log.append_refusal(1) is None
            frame = append(log)
            wait = Acknowledgement(1)
            log.require_leader().acknowledge(frame.header.end_offset, 1, wait)
            log.stored(frame, FrameLocation(0, 1))
            assert wait.future.result() is None

    in_loop(scenario)


def test_positions_of_strangers_and_of_former_registrations_do_not_count() -> None:
    def scenario() -> None:
        log = replicated_log(1, 2)
        store(log)
        role = log.require_leader()
        for broker, broker_epoch in ((9, 1), (2, 6)):
            role.fetched(2, 7, 0, 0.0)
            with pytest.raises(NotLeaderOrFollowerError):
                role.fetched(broker, broker_epoch, 1, 0.0)
        assert log.high_watermark == 0
        role.fetched(2, 8, 1, 0.0)
        assert log.high_watermark == 1

    in_loop(scenario)
