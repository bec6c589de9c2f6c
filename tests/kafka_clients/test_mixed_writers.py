"""Several clients write to one topic at once: all readers see one order, in which each writer's order is kept, and no
record is there twice.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.kafka_clients import CLIENTS, HTTP, Served
from tests.support.kafka_clients.records import PARTITIONS, alike_records, by_partition

pytestmark = pytest.mark.system

RECORDS = 2_000


@pytest.mark.parametrize("timestamp_type", ["CreateTime", pytest.param("LogAppendTime", marks=pytest.mark.long)])
def test_writers_of_all_kinds_share_a_topic(served: Served, new_topic, timestamp_type: str):
    topic = new_topic("mixed", PARTITIONS, message_timestamp_type=timestamp_type)
    writers = [(client, codec) for client in CLIENTS for codec in ("none", "lz4") if client is not HTTP or served.url]
    with ThreadPoolExecutor(len(writers)) as pool:
        sending = [
            pool.submit(client.produce, served, topic, alike_records(RECORDS, mark=f"{client.name}-{codec}:"), codec)
            for client, codec in writers
        ]
        acknowledged = sum(len(each.result(120)) for each in sending)
    assert acknowledged == len(writers) * RECORDS
    readings = {
        client.name: by_partition(client.read(served, {topic: PARTITIONS})[topic])
        for client in CLIENTS
        if client is not HTTP or served.url
    }
    first = readings[CLIENTS[0].name]
    for name, reading in readings.items():
        assert _without_type(reading) == _without_type(first), f"{name} and {CLIENTS[0].name} read different records"
    for partition, records in first.items():
        assert [record.offset for record in records] == list(range(len(records)))
        for client, codec in writers:
            mark = f"{client.name}-{codec}:".encode()
            own = [record.value for record in records if record.value.startswith(mark)]
            assert own == [
                record.value for record in alike_records(RECORDS, mark=mark.decode()) if record.partition == partition
            ]


def _without_type(reading):
    """Remove the timestamp type, which HTTP does not return."""
    return {
        partition: [record._replace(timestamp_type=None) for record in records]
        for partition, records in reading.items()
    }
