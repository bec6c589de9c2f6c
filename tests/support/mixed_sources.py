"""All forms in which a partition's records can be stored, each written by its real writer."""

import random
from collections.abc import Awaitable, Callable

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.produce.batches import TopicBatches
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import Compression
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords
from logstore.records.batch_identity import ProducerIdentity
from tests.support import foreign_writers as others
from tests.support.kafka_batches import log_batch
from tests.support.records import Row, wire_batch
from tests.support.table_paths import path_of

Write = Callable[[Broker, Topic, random.Random], Awaitable[None]]


def some_rows(rng: random.Random, count: int, *, timed: bool = True) -> list[Row]:
    return [
        Row(
            timestamp=1_700_000_000_000 + rng.randrange(10_000) if timed or rng.random() < 0.5 else None,
            key=rng.choice([None, b"", b"k%d" % n]),
            value=rng.choice([None, b"", bytes(rng.randrange(90)), b"v" * rng.randrange(300)]),
            headers=rng.choice([None, (("h", b"1"), ("h", None)), (("ключ", b""),)]),
        )
        for n in range(count)
    ]


async def data_frames(broker: Broker, topic: Topic, rng: random.Random) -> None:
    for _ in range(4):
        batch = wire_batch(some_rows(rng, rng.randrange(1, 6), timed=False))
        (
            await broker.produce.records.produce(INTERNAL, topic, DecodedRecords(batch, None), partition=0)
        ).require_stored()


async def frames_of_a_producer(broker: Broker, topic: Topic, rng: random.Random) -> None:
    producer = await broker.produce.records.init_producer(INTERNAL)
    sequence = 0
    for _ in range(3):
        batch = wire_batch(some_rows(rng, rng.randrange(1, 6)))
        identity = ProducerIdentity(producer.producer_id, producer.producer_epoch, {0: sequence})
        result = await broker.produce.records.produce(
            INTERNAL, topic, DecodedRecords(batch, None), partition=0, identity=identity
        )
        result.require_stored()
        sequence += batch.num_rows


async def kafka_batches(broker: Broker, topic: Topic, rng: random.Random) -> None:
    for compression in Compression:
        rows = some_rows(rng, rng.randrange(1, 8))
        batch = encode_batch(log_batch(rows, range(len(rows))), leader_epoch=-1, compression=compression)
        produced = await broker.produce.batches.produce(
            INTERNAL, [TopicBatches(topic.name, [(0, batch)])], acks=-1, timeout_ms=10_000
        )
        assert produced.outcomes[0][0].error is None


async def rolled(broker: Broker, topic: Topic, rng: random.Random) -> None:
    await data_frames(broker, topic, rng)
    await broker.topics.tables.roll(INTERNAL, topic)


async def rewritten(broker: Broker, topic: Topic, rng: random.Random) -> None:
    """Let another writer write a file with rows of several segments."""
    await rolled(broker, topic, rng)
    await rolled(broker, topic, rng)
    others.z_order(path_of(topic.table))
    await broker.topics.tables.refresh(INTERNAL, topic)


async def deleted(broker: Broker, topic: Topic, rng: random.Random) -> None:
    """Delete within a segment, a whole segment, and at the end of the history."""
    begin = topic.partition(0).high_watermark
    for _ in range(4):
        await rolled(broker, topic, rng)
    end = topic.partition(0).high_watermark
    middle = (begin + end) // 2
    others.delete(
        path_of(topic.table),
        f'("offset" > {begin} AND "offset" % 3 = 1) OR ("offset" >= {middle} AND "offset" < {middle + 8}) '
        f'OR "offset" >= {end - 4}',
    )
    await broker.topics.tables.refresh(INTERNAL, topic)


SOURCES: dict[str, tuple[Write, ...]] = {
    "data frames": (data_frames,),
    "frames of a producer": (frames_of_a_producer,),
    "Kafka's batches": (kafka_batches,),
    "history": (rolled,),
    "another writer's file": (rewritten,),
    "gaps": (deleted,),
    "all of them": (
        rolled,
        rewritten,
        deleted,
        data_frames,
        kafka_batches,
        frames_of_a_producer,
        data_frames,
        kafka_batches,
    ),
}
