"""``keyed_records.py ADDRESS TOPIC RECORDS SEED`` fills a compacted topic of Kafka, so that its cleaner begins at once.

The topic is not compacted while the records come. Then one more record each closes its segments, and compaction is
switched on: the cleaner finds all of them at once. Needs confluent-kafka.
"""

import sys
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks.compaction import PARTITIONS, blocks

_SEGMENT_MS = 200


def main() -> None:
    address, topic, records, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    admin = AdminClient({"bootstrap.servers": address})
    alter(admin, topic, {"cleanup.policy": "delete", "segment.ms": str(7 * 86_400_000)})
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 20,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for partition in range(PARTITIONS):
        for keys, values in blocks(records // PARTITIONS, seed + partition):
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
                send(producer, topic, partition, key, value)
    producer.flush()
    alter(admin, topic, {"segment.ms": str(_SEGMENT_MS)})
    time.sleep(10 * _SEGMENT_MS / 1000)
    for partition in range(PARTITIONS):
        send(producer, topic, partition, b"last", b"")
    producer.flush()
    alter(admin, topic, {"cleanup.policy": "compact"})


def send(producer: Producer, topic: str, partition: int, key: bytes, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
        except BufferError:
            producer.poll(0.1)
        else:
            return


def alter(admin: AdminClient, topic: str, configs: dict[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


if __name__ == "__main__":
    main()
