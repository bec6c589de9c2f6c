"""A process that is a member of a group, and writes down what it does. Processes share the clock of the lines.

    python -m tests.support.group_worker URL GROUP TOPIC LOG OPTIONS

A line is an event: ``assigned``, ``revoked`` or ``lost`` with partitions, ``done`` with a partition and its offsets,
``committed`` with the time before the commit and the offsets by partition.
"""

import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from logstore import Consumer, ConsumerRebalanceListener, TopicPartition
from logstore.errors import CommitFailedError, WakeupError

_SECONDS_A_BATCH = 0.01


class _Writes(ConsumerRebalanceListener):
    def __init__(self, log: Path) -> None:
        self._file = log.open("a", buffering=1)

    def write(self, event: str, *what: object) -> None:
        self._file.write(json.dumps([event, time.monotonic(), *what]) + "\n")

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.write("assigned", [partition.partition for partition in partitions])

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.write("revoked", [partition.partition for partition in partitions])

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.write("lost", [partition.partition for partition in partitions])


def main(url: str, group: str, topic: str, log: str, options: dict[str, Any]) -> None:
    written = _Writes(Path(log))
    stopping = False

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        consumer.wakeup()

    with Consumer(
        url, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=100, **options
    ) as consumer:
        signal.signal(signal.SIGTERM, stop)
        consumer.subscribe([topic], written)
        while not stopping:
            try:
                records = consumer.poll(timeout_s=0.2)
            except WakeupError:
                break
            if not records:
                continue
            done: dict[int, list[int]] = {}
            for record in records:
                done.setdefault(record.partition, []).append(record.offset)
            time.sleep(_SECONDS_A_BATCH)
            for partition, offsets in done.items():
                written.write("done", partition, offsets)
            commits = {partition: offsets[-1] + 1 for partition, offsets in done.items()}
            sent = time.monotonic()
            try:
                consumer.commit({TopicPartition(topic, partition): at for partition, at in commits.items()})
            except CommitFailedError:
                continue
            written.write("committed", sent, commits)


if __name__ == "__main__":
    main(*sys.argv[1:5], json.loads(sys.argv[5]))
