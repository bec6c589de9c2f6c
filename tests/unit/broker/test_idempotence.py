"""A retry is not stored again: not after restarts, lost journals or failed disks, nor after partitions were added."""

import asyncio
import errno
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.produce.result import NO_OFFSET
from logstore.errors import (
    DuplicateSequenceError,
    IdempotencyKeyReusedError,
    InvalidProducerEpochError,
    InvalidProducerRequestError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    QuarantinedError,
    RecordTooLargeError,
    StorageFullError,
    ThrottledError,
)
from logstore.inspection.journal import dump
from logstore.log import producer_state
from logstore.log.relocation import relocate_oldest
from logstore.log.topic import Topic
from logstore.observability import PRODUCERS_FORGOTTEN
from logstore.records.batch import DecodedRecords, PartitionBatch, SplitRecords
from logstore.records.batch_identity import IdempotencyKey, ProducerIdentity
from tests.support import foreign_writers as others
from tests.support.data_directory import copy_of_one_moment, lose_journal
from tests.support.eventually import loop_turns
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import read_all, records, running_broker
from tests.support.table_paths import read_footer
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}
WINDOW_MS = 600_000
YEAR_MS = 365 * 24 * 3_600_000


async def new_topic(broker: Broker, partitions: int = 1, **configs: str) -> Topic:
    given = {key.replace("_", "."): value for key, value in configs.items()}
    topic = await broker.topics.changes.create(INTERNAL, "t", partitions=partitions, configs={**NEVER, **given})
    assert topic is not None
    return topic


def key(text: str, values: list[bytes | None] | None = None, secret: bytes = b"secret") -> IdempotencyKey:
    return IdempotencyKey.of(text, b"|".join(value or b"" for value in values or ()), secret)


async def put(broker: Broker, name: str, values: list[bytes | None], **options: object) -> list[tuple[int, int, int]]:
    """Produce with an idempotency key, to the partitions that the keys or its name choose. Raises the first error."""
    keys = [value[:1] if value and value[:1] != b"-" else None for value in values]
    identity = key(name, values, broker.idempotency_secret)
    result = await broker.produce.records.produce(
        INTERNAL, broker.topics.served.topic(INTERNAL, "t"), records(values, keys=keys), identity=identity, **options
    )
    result.require_stored()
    return [(r.partition, r.base_offset, r.count) for r in result.partitions]


async def send(
    broker: Broker, producer: tuple[int, int], sequence: int, values: list[bytes | None], partition: int = 0
) -> int:
    """Produce to one partition and return the base offset. Raises the partition's error."""
    identity = ProducerIdentity(*producer, {partition: sequence})
    result = await broker.produce.records.produce(
        INTERNAL, broker.topics.served.topic(INTERNAL, "t"), records(values), partition=partition, identity=identity
    )
    result.require_stored()
    return result.partitions[0].base_offset


async def stored(broker: Broker) -> list[list[bytes | None]]:
    topic = broker.topics.served.topic(INTERNAL, "t")
    return [[value for _, value in await read_all(broker, topic, p.partition)] for p in topic.partitions]


def in_partitions(*partitions: int) -> SplitRecords:
    """Return a batch of one record for each of ``partitions``, as an Arrow stream has them."""
    batches = [PartitionBatch(p, records([b"%d" % at]).batch, np.array([at]), None) for at, p in enumerate(partitions)]
    return SplitRecords(tuple(batches))


def segments_of(data: Path) -> list[Path]:
    return sorted(data.glob("topics/t/*/*.parquet"))


#: After these, only footers of segments that the table no longer names remember the batches.
REWRITTEN = {
    "journal lost, optimized": others.optimize,
    "journal lost, z-ordered": others.z_order,
    "journal lost, all deleted": lambda table: others.delete(table, '"offset" >= 0'),
}


def test_a_partition_that_takes_nothing_says_so_for_any_sequence_number(tmp_path: Path) -> None:
    """Expect the quarantine's error and not a missing batch: its table may be older than the producer's sequence
    numbers.
    """

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=2)
            producer_id, _ = await broker.produce.records.init_producer(INTERNAL)
            stored = await broker.produce.records.produce(
                INTERNAL, topic, in_partitions(0, 1), identity=ProducerIdentity(producer_id, 0, {0: 0, 1: 0})
            )
            stored.require_stored()
            topic.partitions[1].quarantine("older than the journal", "")
            for sequence, base_offset in ((1, NO_OFFSET), (7, NO_OFFSET), (0, 0)):
                result = await broker.produce.records.produce(
                    INTERNAL, topic, in_partitions(1), identity=ProducerIdentity(producer_id, 0, {1: sequence})
                )
                (found,) = result.partitions
                assert found.base_offset == base_offset
                assert isinstance(found.error, QuarantinedError) is (base_offset == NO_OFFSET), found.error

    run(scenario())


# ---- producer ids ---------------------------------------------------------------------------------------------------


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        seen = []
        for _ in range(3):
            async with running_broker(tmp_path) as broker:
                seen += [await broker.produce.records.init_producer(INTERNAL) for _ in range(3)]
                bumped = await broker.produce.records.init_producer(INTERNAL, *seen[0])
                assert bumped == (seen[0].producer_id, 1)
        assert len({producer_id for producer_id, _ in seen}) == 9
        assert all(epoch == 0 for _, epoch in seen)

    run(scenario())


def test_without_journal_and_segments_nothing_is_remembered(tmp_path: Path) -> None:
    """Check docs/journal-format.md: in this case a retry is stored again, and no producer is held up."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker)
            producer = await broker.produce.records.init_producer(INTERNAL)
            await send(broker, producer, 0, [b"a", b"b"])
            await put(broker, "k", [b"c"])
        lose_journal(tmp_path)
        DeltaTable(tmp_path / "topics" / "t").delete()
        for segment in (tmp_path / "topics" / "t").rglob("*.parquet"):
            segment.unlink()  # the footers of removed files would remember
        async with running_broker(tmp_path) as broker:
            assert await stored(broker) == [[]]
            assert await send(broker, producer, 2, [b"d"]) == 3
            assert await put(broker, "k", [b"c"]) == [(0, 4, 1)]

    run(scenario())


def test_epochs_end_at_32767_and_a_new_id_follows(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            producer_id, _ = await broker.produce.records.init_producer(INTERNAL)
            assert await broker.produce.records.init_producer(INTERNAL, producer_id, 32766) == (producer_id, 32767)
            after = await broker.produce.records.init_producer(INTERNAL, producer_id, 32767)
            assert after.producer_epoch == 0
            assert after.producer_id > producer_id

    run(scenario())


def test_ids_that_nobody_has_are_refused_before_somebody_gets_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker)
            producer_id, _ = await broker.produce.records.init_producer(INTERNAL)
            with pytest.raises(InvalidProducerRequestError, match="not issued"):
                await send(broker, (producer_id + 1, 0), 0, [b"a"])
            with pytest.raises(InvalidProducerRequestError, match="not issued"):
                await broker.produce.records.init_producer(INTERNAL, producer_id + 1, 0)
            assert await stored(broker) == [[]]

    run(scenario())


# ---- producers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "crash", "journal lost", "stop twice", *REWRITTEN])
def test_batches_of_a_producer_are_known_after_a_start(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        data = tmp_path / "0"
        async with running_broker(data) as broker:
            await new_topic(broker)
            fenced = await broker.produce.records.init_producer(INTERNAL)
            for n in range(7):
                assert await send(broker, fenced, 2 * n, [b"%d" % n, b"."]) == 2 * n
            moved = await broker.produce.records.init_producer(
                INTERNAL, *await broker.produce.records.init_producer(INTERNAL)
            )
            assert await send(broker, moved, 0, [b"m"]) == 14
            if how == "crash":
                copy_of_one_moment(data, tmp_path / "1")
        if how == "crash":
            data = tmp_path / "1"
        if how in REWRITTEN:
            REWRITTEN[how](data / "topics" / "t")
        if how == "journal lost" or how in REWRITTEN:
            lose_journal(data)
        if how == "stop twice":
            async with running_broker(data):
                pass
        async with running_broker(data) as broker:
            assert await send(broker, fenced, 12, [b"6", b"."]) == 12
            assert await send(broker, fenced, 4, [b"2", b"."]) == 4, "the fifth from the end"
            lost = how == "journal lost" or how in REWRITTEN
            too_old = OutOfOrderSequenceError if lost else DuplicateSequenceError
            with pytest.raises(too_old):
                await send(broker, fenced, 2, [b"1", b"."])
            with pytest.raises(OutOfOrderSequenceError, match="14 is next"):
                await send(broker, fenced, 15, [b"x"])
            with pytest.raises(InvalidProducerEpochError, match="the epoch is 1"):
                await send(broker, (moved.producer_id, 0), 0, [b"x"])
            assert await send(broker, moved, 0, [b"m"]) == 14
            assert await send(broker, fenced, 14, [b"new"]) == 15
            assert len((await stored(broker))[0]) == (1 if how == "journal lost, all deleted" else 16)

    run(scenario())


def test_some_partitions_of_a_request_may_be_repetitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=3)
            producer = await broker.produce.records.init_producer(INTERNAL)
            await send(broker, producer, 0, [b"0"], partition=1)
            identity = ProducerIdentity(*producer, {0: 0, 1: 0, 2: 0})
            named = DecodedRecords(records([b"2", b"0", b"1"]).batch, np.array([2, 1, 0], np.int32))
            result = await broker.produce.records.produce(INTERNAL, topic, named, identity=identity)
            assert [(r.partition, r.base_offset, r.rows.tolist()) for r in result.partitions] == [
                (0, 0, [2]),
                (1, 0, [1]),
                (2, 0, [0]),
            ]
            assert not result.replayed
            assert (await broker.produce.records.produce(INTERNAL, topic, named, identity=identity)).replayed
            assert await stored(broker) == [[b"1"], [b"0"], [b"2"]]

    run(scenario())


def test_several_batches_for_a_partition_have_sequences_that_follow_each_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=2)
            producer = await broker.produce.records.init_producer(INTERNAL)
            first = ProducerIdentity(*producer, {0: 0, 1: 0})
            sent = in_partitions(0, 1, 0)
            result = await broker.produce.records.produce(INTERNAL, topic, sent, identity=first)
            assert [r.base_offset for r in result.partitions] == [0, 0, 1]
            # The first batch for partition 0 is known, the third is not.
            longer = in_partitions(0, 1, 0, 0)
            again = await broker.produce.records.produce(INTERNAL, topic, longer, identity=first)
            assert [r.base_offset for r in again.partitions] == [0, 0, 1, 2]
            assert await send(broker, producer, 3, [b"next"]) == 3
            with pytest.raises(InvalidProducerRequestError, match="5 batches"):
                await broker.produce.records.produce(
                    INTERNAL, topic, in_partitions(*[0] * 6), identity=ProducerIdentity(*producer, {0: 4})
                )

    run(scenario())


def test_a_partition_that_does_not_follow_keeps_no_other_from_its_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=2)
            producer = await broker.produce.records.init_producer(INTERNAL)
            await send(broker, producer, 0, [b"a"])
            await send(broker, producer, 0, [b"a"], partition=1)
            identity = ProducerIdentity(*producer, {0: 1, 1: 5})
            for times in (1, 2):
                result = await broker.produce.records.produce(INTERNAL, topic, in_partitions(0, 1), identity=identity)
                taken, refused = result.partitions
                assert (taken.partition, taken.base_offset, taken.count, taken.error) == (0, 1, 1, None)
                assert (refused.partition, refused.base_offset, refused.count) == (1, -1, 1)
                assert isinstance(refused.error, OutOfOrderSequenceError)
                assert "in t-1 sent sequence 5 (1 records), and 1 is next" in refused.error.message
                assert not result.replayed
                assert result.places().offsets.tolist() == [1, -1]
                assert [len(values) for values in await stored(broker)] == [2, 1], times
            for wrong in ({0: 1}, {0: 1, 1: 0, 7: 0}):
                with pytest.raises(InvalidProducerRequestError, match="one base sequence for each partition"):
                    await broker.produce.records.produce(
                        INTERNAL, topic, in_partitions(0, 1), identity=ProducerIdentity(*producer, wrong)
                    )
            with pytest.raises(InvalidProducerRequestError, match="where each record goes"):
                await broker.produce.records.produce(
                    INTERNAL, topic, records([b"a"]), identity=ProducerIdentity(*producer, {0: 1})
                )
            assert [len(values) for values in await stored(broker)] == [2, 1]
            # The producer continues at its next sequence numbers.
            again = ProducerIdentity(*producer, {0: 2, 1: 1})
            result = await broker.produce.records.produce(INTERNAL, topic, in_partitions(0, 1), identity=again)
            assert [(r.partition, r.base_offset) for r in result.partitions] == [(0, 2), (1, 1)]

    run(scenario())


def test_batches_on_their_way_count_until_they_fail(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=disk) as broker:
            await new_topic(broker)
            producer = await broker.produce.records.init_producer(INTERNAL)
            await send(broker, producer, 0, [b"a"])
            disk.fail("journal.write_at", errno.ENOSPC, times=100)
            tries = [send(broker, producer, sequence, [b"x", b"x"]) for sequence in (1, 1, 3)]
            failed = await asyncio.gather(*tries, return_exceptions=True)
            assert [type(error) for error in failed] == [StorageFullError] * 3
            disk.heal()
            with pytest.raises(OutOfOrderSequenceError, match="and 1 is next"):
                await send(broker, producer, 3, [b"x", b"x"])
            assert await send(broker, producer, 1, [b"b"]) == 1

    run(scenario())


def test_a_producer_that_appends_nothing_for_long_is_forgotten_and_may_continue(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock, producer_id_expiration_ms=1000) as broker:
            await new_topic(broker)
            producer = await broker.produce.records.init_producer(INTERNAL)
            await send(broker, producer, 0, [b"a"])
            clock.advance(999)
            assert await send(broker, producer, 0, [b"a"]) == 0
            clock.advance(1)
            assert await send(broker, producer, 1, [b"b"]) == 1
            with pytest.raises(OutOfOrderSequenceError):  # the store no longer knows whether it stored this batch
                await send(broker, producer, 0, [b"a"])

    run(scenario())


def test_past_the_bound_the_producer_goes_that_has_not_appended_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(producer_state, "PRODUCERS_PER_PARTITION_MAX", 2)
        before = PRODUCERS_FORGOTTEN._value.get()
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            a, b, c = [await broker.produce.records.init_producer(INTERNAL) for _ in range(3)]
            for producer in (a, b):
                await send(broker, producer, 0, [b"0"])
            await send(broker, a, 1, [b"1"])
            await send(broker, c, 0, [b"0"])
            assert PRODUCERS_FORGOTTEN._value.get() == before + 1
            log = topic.partition(0)
            assert [producer.producer_id in log.state.producers for producer in (a, b, c)] == [True, False, True]

    run(scenario())


# ---- idempotency keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "crash", "journal lost", "journal lost, optimized"])
def test_a_key_is_known_after_a_start(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        data = tmp_path / "0"
        async with running_broker(data) as broker:
            topic = await new_topic(broker, partitions=4)
            first = await put(broker, "early", [b"a", b"b", b"-", b"c"])
            await broker.topics.tables.roll(INTERNAL, topic)
            second = await put(broker, "late", [b"-", b"a"])
            if how == "crash":
                copy_of_one_moment(data, tmp_path / "1")
        if how == "crash":
            data = tmp_path / "1"
        if how in REWRITTEN:
            REWRITTEN[how](data / "topics" / "t")
        if how == "journal lost" or how in REWRITTEN:
            lose_journal(data)
        async with running_broker(data) as broker:
            before = await stored(broker)
            assert await put(broker, "early", [b"a", b"b", b"-", b"c"]) == first
            assert await put(broker, "late", [b"-", b"a"]) == second
            assert await stored(broker) == before
            with pytest.raises(IdempotencyKeyReusedError, match="was used for another request"):
                await put(broker, "early", [b"x", b"y"])
            assert await stored(broker) == before

    run(scenario())


def test_records_without_a_key_go_where_kafka_would_send_the_idempotency_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker, partitions=7)
            # murmur2("21") = -973932308 (Kafka's UtilsTest).
            assert await put(broker, "21", [b"-", b"-"]) == [((-973932308 & 0x7FFFFFFF) % 7, 0, 2)]

    run(scenario())


def test_two_tries_at_once_are_stored_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=4, max_message_bytes=str(2 << 20))
            for size in (1, 1 << 20):
                values: list[bytes | None] = [b"%d" % n + bytes(size) for n in range(3)]
                before = sum(p.log_end_offset for p in topic.partitions)
                found = await asyncio.gather(*(put(broker, f"k{size}", values) for _ in range(5)))
                assert found == [found[0]] * 5
                assert sum(p.log_end_offset for p in topic.partitions) == before + 3

    run(scenario())


def test_a_repetition_waits_for_the_first_try_and_fails_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker)
            disk.fail("journal.write_at", errno.ENOSPC, times=100)
            tries = await asyncio.gather(*(put(broker, "k", [b"a"]) for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in tries] == [StorageFullError] * 3
            disk.heal()
            assert await put(broker, "k", [b"a"]) == [(0, 0, 1)]
            assert topic.partition(0).next_offset == 1
            disk.slow("journal.fdatasync", 0.2)
            first = asyncio.create_task(put(broker, "slow", [b"s"]))
            await loop_turns()
            assert await put(broker, "slow", [b"s"]) == [(0, 1, 1)]
            assert topic.partition(0).high_watermark == 2, "told before it was durable"
            assert await first == [(0, 1, 1)]

    run(scenario())


@pytest.mark.parametrize("frames_stored", [1, 2])
def test_a_retry_stores_the_batches_that_a_crash_lost(tmp_path: Path, frames_stored: int) -> None:
    async def scenario() -> None:
        data = tmp_path / "0"
        sent, name = in_partitions(1, 0, 1), key("k")
        async with running_broker(data) as broker:
            topic = await new_topic(broker, partitions=2)
            first = await broker.produce.records.produce(INTERNAL, topic, sent, identity=name)
            copy_of_one_moment(data, tmp_path / "1")
        data = tmp_path / "1"
        journal = data / "brokers" / "0" / "journal" / "0"
        torn = [row for row in dump(journal) if row.type == "DATA"][frames_stored]
        path = journal / torn.file
        with path.open("r+b") as file:
            file.truncate(torn.position - int(path.stem) + 100)
        async with running_broker(data) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert sum(p.next_offset for p in topic.partitions) == frames_stored
            # Another producer is faster.
            await broker.produce.records.produce(INTERNAL, topic, records([b"other"]), partition=1)
            result = await broker.produce.records.produce(INTERNAL, topic, sent, identity=name)
            assert not result.replayed
            assert [r.base_offset for r in result.partitions] == [0, 0, 2]
            assert [r.base_offset for r in first.partitions] == [0, 0, 1]
            again = await broker.produce.records.produce(INTERNAL, topic, sent, identity=name)
            assert (again.replayed, again.partitions) == (True, again.partitions)
            assert [r.base_offset for r in again.partitions] == [0, 0, 2]
            assert await stored(broker) == [[b"1"], [b"0", b"other", b"2"]]

    run(scenario())


def test_partitions_that_were_added_do_not_make_another_request_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker, partitions=2)
            names = [f"k{n}" for n in range(20)]
            for name in names:
                await put(broker, name, [b"-"])
                await put(broker, f"{name}-two", [name[-1:].encode(), b"-"])
            before = await stored(broker)
            await broker.topics.changes.add_partitions(INTERNAL, "t", 3)
            moved = 0
            for name in names:
                for text, values in ((name, [b"-"]), (f"{name}-two", [name[-1:].encode(), b"-"])):
                    try:
                        await put(broker, text, values)
                    except IdempotencyKeyReusedError:
                        moved += 1
            assert moved > 10
            assert await stored(broker) == [*before, []]

    run(scenario())


def test_records_that_change_places_are_another_request(tmp_path: Path) -> None:
    """Swap two records: each partition has as many as before, but the first answer has the offsets of other records."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=2)
            first, swapped = (
                DecodedRecords(records([b"a", b"b"]).batch, np.array(p, np.int32)) for p in ([0, 1], [1, 0])
            )
            await broker.produce.records.produce(INTERNAL, topic, first, identity=key("k"))
            with pytest.raises(IdempotencyKeyReusedError):
                await broker.produce.records.produce(INTERNAL, topic, swapped, identity=key("k"))

    run(scenario())


def test_beyond_the_bound_new_keys_wait_until_old_ones_are_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker, partitions=2, idempotency_keys_max="3")
            for n in range(3):
                await broker.produce.records.produce(
                    INTERNAL, topic, records([b"x"]), partition=0, identity=key(f"k{n}")
                )
                clock.advance(10_000)
            with pytest.raises(ThrottledError, match=r"idempotency\.keys\.max is 3") as refused:
                await broker.produce.records.produce(INTERNAL, topic, in_partitions(1, 0), identity=key("new"))
            assert refused.value.retry_after_s == 60, "at most"
            assert [p.next_offset for p in topic.partitions] == [3, 0], "nothing, also where there is room"
            known = await broker.produce.records.produce(
                INTERNAL, topic, records([b"x"]), partition=0, identity=key("k0")
            )
            assert known.replayed
            assert known.partitions[0].base_offset == 0
            clock.advance(WINDOW_MS - 30_000 - 2_500)
            with pytest.raises(ThrottledError) as refused:
                await broker.produce.records.produce(INTERNAL, topic, records([b"x"]), partition=0, identity=key("new"))
            assert refused.value.retry_after_s == 3
            clock.advance(2_500)
            assert not (
                await broker.produce.records.produce(INTERNAL, topic, records([b"x"]), partition=0, identity=key("new"))
            ).replayed
            with pytest.raises(ThrottledError):
                await broker.produce.records.produce(INTERNAL, topic, records([b"x"]), partition=0, identity=key("k0"))

    run(scenario())


@pytest.mark.parametrize("journal_lost", [True, False])
def test_a_key_means_nothing_when_its_window_is_over_also_after_a_start(tmp_path: Path, journal_lost: bool) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker)
            await put(broker, "old", [b"a"])
            await broker.topics.tables.roll(INTERNAL, topic)
            clock.advance(1000)
            await put(broker, "young", [b"a"])
        if journal_lost:
            lose_journal(tmp_path)
        clock.advance(WINDOW_MS - 1000)
        async with running_broker(tmp_path, clock=clock) as broker:
            assert await put(broker, "young", [b"a"]) == [(0, 1, 1)]
            assert await put(broker, "old", [b"a"]) == [(0, 2, 1)]
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"idempotency.window.ms": "0"})
            assert await put(broker, "young", [b"a"]) == [(0, 3, 1)]

    run(scenario())


@pytest.mark.parametrize("restarted", [False, True])
def test_an_append_while_the_clock_was_a_year_ahead_keeps_no_key_beyond_its_window(
    tmp_path: Path, restarted: bool
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker, idempotency_keys_max="2")
            clock.step_wall(YEAR_MS)
            await put(broker, "ahead", [b"a"])
            clock.step_wall(-YEAR_MS)
            await put(broker, "now", [b"a"])
            with pytest.raises(ThrottledError):
                await put(broker, "more", [b"a"])
            if not restarted:
                clock.advance(WINDOW_MS - 1)
                assert await put(broker, "ahead", [b"a"]) == [(0, 0, 1)]
                with pytest.raises(ThrottledError) as refused:
                    await put(broker, "more", [b"a"])
                assert refused.value.retry_after_s == 1
                clock.advance(1)
                assert await put(broker, "more", [b"a"]) == [(0, 2, 1)]
                assert await put(broker, "now", [b"a"]) == [(0, 3, 1)]
                clock.advance(1_000)
                with pytest.raises(ThrottledError):
                    await put(broker, "another", [b"a"])
                # The operations page names this remedy.
                await broker.topics.changes.alter_configs(INTERNAL, "t", {"idempotency.window.ms": "1s"})
                assert await put(broker, "another", [b"a"]) == [(0, 4, 1)]
                return
            await broker.topics.tables.roll(INTERNAL, topic)
        async with running_broker(tmp_path, clock=clock) as broker:
            clock.advance(WINDOW_MS - 1)
            for name, offset in (("ahead", 0), ("now", 1)):
                assert await put(broker, name, [b"a"]) == [(0, offset, 1)]
            clock.advance(1)
            assert await put(broker, "more", [b"a"]) == [(0, 2, 1)]
            assert await put(broker, "now", [b"a"]) == [(0, 3, 1)]

    run(scenario())


def test_a_step_of_the_clock_forgets_no_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker)
            await put(broker, "k", [b"a"])
            for step_ms in (WINDOW_MS, YEAR_MS, -2 * YEAR_MS):
                clock.step_wall(step_ms)
                await put(broker, f"after {step_ms}", [b"a"])
                await broker.topics.tables.roll(INTERNAL, topic)
                assert await put(broker, "k", [b"a"]) == [(0, 0, 1)]
            clock.advance(WINDOW_MS - 1)
            assert await put(broker, "k", [b"a"]) == [(0, 0, 1)]
            clock.advance(1)
            assert await put(broker, "k", [b"a"]) == [(0, 4, 1)]

    run(scenario())


def test_a_lost_secret_keeps_new_keys_waiting_for_one_window_whatever_the_clock_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            await new_topic(broker)
            clock.step_wall(YEAR_MS)
            await put(broker, "k", [b"-"])
            clock.step_wall(-YEAR_MS)
        (tmp_path / "brokers" / "0" / "secret").unlink()
        async with running_broker(tmp_path, clock=clock) as broker:
            for step_ms in (0, WINDOW_MS, YEAR_MS):
                clock.step_wall(step_ms)
                with pytest.raises(ThrottledError, match="secret was lost"):
                    await put(broker, "k", [b"-"])
            clock.advance(WINDOW_MS - 1)
            with pytest.raises(ThrottledError, match="secret was lost"):
                await put(broker, "k", [b"-"])
            clock.advance(1)
            assert await put(broker, "k", [b"-"]) == [(0, 1, 1)]

    run(scenario())


@pytest.mark.parametrize("journal_lost", [True, False])
def test_without_the_secret_new_keys_wait_until_the_old_ones_are_over(tmp_path: Path, journal_lost: bool) -> None:
    """Refuse all keys: any may be a repetition, so the store neither stores it again nor answers it as one."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            await new_topic(broker, partitions=4)
            lost = broker.idempotency_secret
            (first,) = await put(broker, "k", [b"-"])
        (tmp_path / "brokers" / "0" / "secret").unlink()
        if journal_lost:
            lose_journal(tmp_path)
        for waited_ms in (0, WINDOW_MS - 1):
            clock.advance(waited_ms)
            async with running_broker(tmp_path, clock=clock) as broker:
                assert broker.idempotency_secret != lost
                before = await stored(broker)
                for name in ("k", "a", "b", "c", "d"):
                    with pytest.raises(ThrottledError, match="secret was lost") as refused:
                        await put(broker, name, [b"-"])
                    assert refused.value.retry_after_s == (60 if not waited_ms else 1)
                topic = broker.topics.served.topic(INTERNAL, "t")
                other = (first[0] + 1) % 4
                with pytest.raises(ThrottledError):  # also in another partition, as that of the first try is unknown
                    await broker.produce.records.produce(
                        INTERNAL, topic, records([b"x"]), partition=other, identity=key("k")
                    )
                await broker.produce.records.produce(INTERNAL, topic, records([b"plain"]), partition=first[0])
                assert (
                    await send(
                        broker, await broker.produce.records.init_producer(INTERNAL), 0, [b"p"], partition=first[0]
                    )
                    > first[1]
                )
                assert sum(map(len, await stored(broker))) == sum(map(len, before)) + 2
        clock.advance(1)
        async with running_broker(tmp_path, clock=clock) as broker:
            again = await put(broker, "k", [b"-"])
            assert again != [first]
            assert await put(broker, "k", [b"-"]) == again

    run(scenario())


def test_stored_batches_need_not_meet_a_later_configuration(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock, journal_max_bytes=32 << 20) as broker:
            topic = await new_topic(broker, partitions=2)
            producer = await broker.produce.records.init_producer(INTERNAL)
            both = ProducerIdentity(*producer, {0: 0, 1: 0})
            named = DecodedRecords(records([b"a" * 100, b"b"]).batch, np.array([0, 1], np.int32))

            async def again(expected: list[int]) -> None:
                assert await send(broker, producer, 1, [b"c" * 100]) == 1
                assert await put(broker, "k", [b"-" * 100]) == first
                result = await broker.produce.records.produce(INTERNAL, topic, named, identity=both)
                assert ([r.base_offset for r in result.partitions], result.replayed) == (expected, True)

            await broker.produce.records.produce(INTERNAL, topic, named, identity=both)
            await send(broker, producer, 1, [b"c" * 100])
            first = await put(broker, "k", [b"-" * 100])
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"max.message.bytes": "10"})
            await again([0, 0])
            for refused in (send(broker, producer, 2, [b"d" * 11]), put(broker, "new", [b"-" * 11])):
                with pytest.raises(RecordTooLargeError, match="Record 0 of the request has 11 bytes"):
                    await refused
            # Partition 0's batch is known, and larger than the limit.
            more = DecodedRecords(records([b"c" * 100, b"e" * 11]).batch, np.array([0, 1], np.int32))
            with pytest.raises(RecordTooLargeError, match="Record 1 of the request has 11 bytes"):
                await broker.produce.records.produce(
                    INTERNAL, topic, more, identity=ProducerIdentity(*producer, {0: 1, 1: 1})
                )
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"cleanup.policy": "compact"})
            await again([0, 0])
            for refused in (send(broker, producer, 2, [b"d"]), put(broker, "new", [b"-"])):
                with pytest.raises(InvalidRecordError, match="Record 0 has no key"):
                    await refused
            before = await stored(broker)
            broker.settings = broker.settings.model_copy(update={"journal_max_bytes": 1})
            await again([0, 0])
            assert await stored(broker) == before

    run(scenario())


def test_acks_0_is_also_stored_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker)
            producer = await broker.produce.records.init_producer(INTERNAL)
            identity = ProducerIdentity(*producer, {0: 0})
            for _ in range(3):
                await put(broker, "k", [b"a"], acks=0)
                await broker.produce.records.produce(
                    INTERNAL,
                    broker.topics.served.topic(INTERNAL, "t"),
                    records([b"p"]),
                    partition=0,
                    acks=0,
                    identity=identity,
                )
            await put(broker, "last", [b"b"])
            assert await stored(broker) == [[b"a", b"p", b"b"]]

    run(scenario())


def test_a_topic_of_the_same_name_knows_nothing_of_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        for _ in range(2):
            async with running_broker(tmp_path) as broker:
                await new_topic(broker)
                assert await put(broker, "k", [b"a"]) == [(0, 0, 1)]
                assert await send(broker, await broker.produce.records.init_producer(INTERNAL), 0, [b"b"]) == 1
                await broker.topics.changes.delete(INTERNAL, "t")

    run(scenario())


def test_journal_files_come_and_go_and_frames_are_copied_forward(tmp_path: Path) -> None:
    """Copy a slow topic's frames from file to file while a busy one rolls; both are known at the end."""

    async def scenario() -> None:
        async with running_broker(tmp_path / "0", journal_max_bytes=32 << 20) as broker:
            await new_topic(broker, partitions=2)
            busy = await broker.topics.changes.create(INTERNAL, "busy")
            assert busy
            producer = await broker.produce.records.init_producer(INTERNAL)
            first = await put(broker, "slow", [b"a", b"b", b"-"])
            await send(broker, producer, 0, [b"x"], partition=1)
            journal = broker.journal
            oldest, _ = journal.files[0]
            copied = 0
            while journal.files[0][0] == oldest:
                await broker.produce.records.produce(INTERNAL, busy, records([bytes(500_000)]), partition=0)
                await broker.topics.tables.roll(INTERNAL, busy)
                copied += len(await relocate_oldest(journal, broker._schedule.keepers(), 1 << 20))
                await asyncio.sleep(0)
            assert copied
            copy_of_one_moment(tmp_path / "0", tmp_path / "1")
        async with running_broker(tmp_path / "1") as broker:
            before = await stored(broker)
            assert await put(broker, "slow", [b"a", b"b", b"-"]) == first
            await send(broker, producer, 0, [b"x"], partition=1)
            assert await stored(broker) == before

    run(scenario())


def test_segments_show_their_own_keys_and_all_producers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            producer = await broker.produce.records.init_producer(INTERNAL)
            for n in range(2):
                await send(broker, producer, n, [b"p"])
                await put(broker, f"k{n}", [b"a"])
                await broker.topics.tables.roll(INTERNAL, topic)
        footers = [read_footer(path) for path in segments_of(tmp_path)]
        assert [[b.base_offset for b in f.producers] for f in footers] == [[0], [0, 2]]
        assert [[(b.owner, b.base_offset) for b in f.idempotency_keys] for f in footers] == [
            [(key("k0", secret=broker.idempotency_secret).hash, 1)],
            [(key("k1", secret=broker.idempotency_secret).hash, 3)],
        ]

    run(scenario())
