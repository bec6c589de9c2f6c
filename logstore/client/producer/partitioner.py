"""The producer's ``partitioner`` chooses a partition for each record of a batch, unless the record names one.

- ``murmur2``: Kafka's default, its hash of the key bytes; the records of a batch without a key share one partition.
- ``sticky``: all records of a batch share one partition, whatever their keys (Kafka's ``partitioner.ignore.keys``).
- ``round_robin``: record by record, whatever their keys (Kafka's RoundRobinPartitioner).
- a function: called with each key (None if there is none) and the number of partitions.
"""

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from logstore.client.producer.options import PartitionerFunction, PartitionerOption
from logstore.errors import InvalidRecordError
from logstore.records.batch import DecodedRecords
from logstore.records.partitioner import choose_partitions


class Partitioner:
    """The partitioner of one producer. Safe from several threads, but then its spread may be a little uneven."""

    def __init__(self, option: PartitionerOption) -> None:
        self._option = option
        # The next partition by topic. It begins at random, so that many producers of few records do not all begin with
        # the same.
        self._next: defaultdict[str, int] = defaultdict(lambda: random.randrange(2**31))  # noqa: S311 (not a secret)

    def partition(self, topic: str, batch: pa.RecordBatch, named: np.ndarray | None, count: int) -> np.ndarray:
        """Return an int32 for each row, from 0 to ``count`` - 1. ``named`` (-1: none) is below ``count``.

        Raises InvalidRecordError if a custom partitioner fails.
        """
        rows = batch.num_rows
        if self._option == "murmur2":
            return choose_partitions(DecodedRecords(batch, named), count, self._stick(topic, count))
        if self._option == "sticky":
            chosen = np.full(rows, self._stick(topic, count), np.int32)
        elif self._option == "round_robin":
            chosen = ((self._next[topic] + np.arange(rows)) % count).astype(np.int32)
            self._next[topic] = (self._next[topic] + rows) % 2**31
        else:
            keys = batch.column("key").to_pylist()
            chosen = np.array([_ask(self._option, key, count) for key in keys], np.int32)
        return chosen if named is None else np.where(named >= 0, named, chosen)

    def _stick(self, topic: str, count: int) -> int:
        self._next[topic] += 1
        return self._next[topic] % count


def _ask(function: PartitionerFunction, key: bytes | None, count: int) -> int:
    try:
        partition: Any = function(key, count)
    except Exception as error:
        raise InvalidRecordError(f"The partitioner failed on key {key!r}: {error!r}") from error
    if not isinstance(partition, (int, np.integer)) or not 0 <= partition < count:
        raise InvalidRecordError(
            f"The partitioner gave {partition!r} for key {key!r}: it must be a number from 0 to {count - 1}"
        )
    return int(partition)
