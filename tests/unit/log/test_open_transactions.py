"""Open transactions of a partition: their begin and end, and the offset where readers and rolls stop meanwhile."""

from pathlib import Path
from uuid import UUID

import pytest

from logstore.broker.context import INTERNAL
from logstore.errors import OffsetOutOfRangeError
from logstore.journal.frame import Frame, FrameFlags, FrameHeader, FrameLocation, FrameType
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.journal.scan import RecoveredFrame
from logstore.log.isolation import Isolation
from logstore.log.journal_tail import JournalTail
from logstore.log.partition_log import PartitionLog
from logstore.records.batch_identity import BatchIdentity
from logstore.records.transactions import NO_SEQUENCE, ControlType, EndTransactionMarker, Marker, OpenTransaction
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.virtual_time import run

TOPIC = UUID(int=1)
NOW = ManualClock().wall_ms


def new_log(clock: ManualClock | None = None) -> PartitionLog:
    return PartitionLog("t", TOPIC, 0, clock=clock or ManualClock(), producer_id_expiration_ms=1_000)


def header(
    kind: FrameType, offset: int, producer_id: int, sequence: int, *, count: int = 1, flags: int = 0
) -> FrameHeader:
    identity = BatchIdentity(producer_id, 0, sequence)
    return FrameHeader(kind, FrameFlags(flags), TOPIC, 0, offset, count, 1, NOW, NOW, 1, identity)


def data(offset: int, producer_id: int, sequence: int, count: int = 1) -> Frame:
    flags = FrameFlags.TRANSACTIONAL
    return Frame(header(FrameType.DATA, offset, producer_id, sequence, count=count, flags=flags), b"")


def marker(offset: int, producer_id: int, coordinator_epoch: int = 5) -> Frame:
    payload = EndTransactionMarker(ControlType.COMMIT, coordinator_epoch).encode()
    return Frame(header(FrameType.CONTROL, offset, producer_id, NO_SEQUENCE), payload)


FRAMES = [data(0, 7, 0, 2), data(2, 8, 0), marker(3, 7), data(4, 7, 2), marker(5, 8), data(6, 9, 0)]
#: The last stable offset after each of the frames.
STABLE = [0, 0, 2, 2, 4, 4]


def stored(log: PartitionLog, frames: list[Frame]) -> None:
    for at, frame in enumerate(frames):
        log.track(frame)
        log.stored(frame, FrameLocation(at, 1))


def test_the_first_open_transaction_holds_the_last_stable_offset_and_a_marker_ends_it() -> None:
    log = new_log()
    log.become_leader(1)
    found = []
    for frame in FRAMES:
        stored(log, [frame])
        log.check()
        found.append(log.readable_end(Isolation.READ_COMMITTED))
        assert log.readable_end(Isolation.READ_UNCOMMITTED) == log.high_watermark == frame.header.end_offset
    assert found == STABLE
    assert log.state.open_transactions.entries == (OpenTransaction(7, 0, 4, NOW), OpenTransaction(9, 0, 6, NOW))
    assert log.state.producers.markers == (Marker(7, 0, 5, 3, NOW), Marker(8, 0, 5, 5, NOW))


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    clock = ManualClock()
    log = new_log(clock)
    log.become_leader(1)
    stored(log, FRAMES)
    clock.advance(2_000)
    log.state.producers.expire(log.now_ms())
    assert [owner in log.state.producers for owner in (7, 8, 9)] == [True, False, True]


@pytest.mark.parametrize("begin", range(len(FRAMES) + 1))
def test_a_start_finds_the_same_open_transactions_and_markers(begin: int) -> None:
    """Start from frames, and from a snapshot before any of them: the frames of open transactions are there in both
    cases.
    """
    before = new_log()
    before.become_leader(1)
    tail = JournalTail()
    for at, frame in enumerate(FRAMES):
        if at == begin:
            snapshot = before.snapshot_frame()
            tail.add(RecoveredFrame(snapshot.header, FrameLocation(100 * at, 1), bytes(snapshot.payload)))
        stored(before, [frame])
        payload = bytes(frame.payload) if frame.header.type is FrameType.CONTROL else None
        tail.add(RecoveredFrame(frame.header, FrameLocation(100 * at + 1, 1), payload))
    tail.settle()
    after = new_log()
    after.recover(tail, known_sealed=0, sealed_offset=0, leader_epochs=())
    after.finish_recovery()
    after.become_leader(2)
    assert (after.state.open_transactions.entries, after.state.producers.markers, after.state.producers.pack()) == (
        before.state.open_transactions.entries,
        before.state.producers.markers,
        before.state.producers.pack(),
    )
    assert after.last_stable_offset == 4


def test_a_truncation_drops_later_transactions_and_markers() -> None:
    log = new_log()
    stored(log, FRAMES)
    frame = log.truncation(5, 2)
    log.track(frame)
    log.stored(frame, FrameLocation(99, 1))
    assert log.state.open_transactions.entries == (OpenTransaction(7, 0, 4, NOW),)
    assert log.state.producers.markers == (Marker(7, 0, 5, 3, NOW),)


def test_a_snapshot_has_both() -> None:
    log = new_log()
    log.become_leader(1)
    stored(log, FRAMES)
    snapshot = PartitionSnapshot.decode(log.snapshot_frame().payload)
    assert (snapshot.open_transactions, snapshot.markers) == (
        log.state.open_transactions.entries,
        log.state.producers.markers,
    )


def test_rolls_and_delete_records_stop_at_the_last_stable_offset_and_readers_at_the_high_watermark(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            assert topic
            for value in (b"a", b"b", b"c"):
                await produce(broker, topic, [value])
            log = topic.partition(0)
            log.state.open_transactions.replace([OpenTransaction(7, 0, 2, 0)])
            assert (await broker.topics.tables.roll(INTERNAL, topic)).sealed == {0: 2}
            assert len(await read_all(broker, topic)) == 3
            with pytest.raises(OffsetOutOfRangeError, match="0 to 2, or -1"):
                await broker.topics.tables.delete_records(INTERNAL, topic, 0, 3)
            assert await broker.topics.tables.delete_records(INTERNAL, topic, 0, -1) == 2
            result = await broker.fetch.partition(INTERNAL, topic, 0, 2, max_bytes=1, min_bytes=1, max_wait_ms=0)
            assert (result.high_watermark, result.last_stable_offset) == (3, 2)
            assert not topic.has_unsealed
            log.state.open_transactions.end(7)
            assert (await broker.topics.tables.roll(INTERNAL, topic)).sealed == {0: 3}

    run(scenario())


def test_the_plans_of_one_roll_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append while the segments are written: such records of any partition belong to another roll."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=3)
            assert topic
            for partition in range(3):
                await produce(broker, topic, [b"x"] * (partition + 1), partition=partition)
            steps: list[str] = []
            asked = topic.partitions[0].now_ms

            def planned() -> int:
                steps.append("plan")
                return asked()

            for log in topic.partitions:
                monkeypatch.setattr(log, "now_ms", planned)
            rolling = broker._roller._write_new(topic, topic.partitions)
            # Run it to its first wait: all plans exist by then, and the loop had no turn.
            rolling.send(None)
            assert steps == ["plan"] * 3
            rolling.close()
            monkeypatch.undo()

    run(scenario())
