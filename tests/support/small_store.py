"""A small data directory with history and tail, as a kill leaves it, and its records."""

from pathlib import Path

from logstore.broker.context import INTERNAL
from tests.support.data_directory import copy_of_one_moment
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.virtual_time import run

TOPIC = "events"
#: (offset, value) by partition.
Records = dict[int, list[tuple[int, bytes | None]]]


def small_store(data: Path, *, rolls: int = 3, tail: bool = True, **configs: str) -> Records:
    """Write two partitions of ``events``: a segment of each per roll, and with ``tail`` records in the journal only."""

    async def fill() -> Records:
        async with running_broker(data.with_name(f"{data.name}.live")) as broker:
            topic = await broker.topics.changes.create(INTERNAL, TOPIC, partitions=2, configs=configs)
            for number in range(rolls + tail):
                for partition in (0, 1):
                    values: list[bytes | None] = [
                        b"%d of %d" % (at, partition) * 20 for at in range(10 * number, 10 * number + 10)
                    ]
                    await produce(broker, topic, values[:5], partition=partition)
                    await produce(broker, topic, values[5:], partition=partition)
                if number < rolls:
                    await broker.topics.tables.roll(INTERNAL, topic)
            found = {partition: await read_all(broker, topic, partition) for partition in (0, 1)}
            copy_of_one_moment(data.with_name(f"{data.name}.live"), data)
            return found

    return run(fill())


def stored(data: Path, name: str = TOPIC) -> Records:
    """Return all records of a topic as a store that starts on ``data`` serves them. Raises QuarantinedError."""

    async def read() -> Records:
        async with running_broker(data) as broker:
            topic = broker.topics.served.topic(INTERNAL, name)
            return {log.partition: await read_all(broker, topic, log.partition) for log in topic.partitions}

    return run(read())
