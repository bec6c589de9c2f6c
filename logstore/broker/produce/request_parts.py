"""A produce request by partition: the records of each partition, and the topic's refusals."""

import numpy as np
import pyarrow as pa

from logstore.errors import (
    InvalidRecordError,
    InvalidRequestError,
    LogStoreError,
    RecordTooLargeError,
    RefusedRecords,
    UnknownPartitionError,
)
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords, KafkaBatch, PartitionBatch, Records, SplitRecords, partition_batches
from logstore.records.partitioner import choose_partitions
from logstore.records.scanned import ScannedRecords


def check_keys(topic: Topic, records: Records) -> None:
    """Raise InvalidRecordError if a compacted topic gets a record without a key."""
    if not topic.config.compacted or (isinstance(records, DecodedRecords) and not records.null_keys):
        return
    row = 0
    for batch in [part.batch for part in records.parts] if isinstance(records, SplitRecords) else [records.batch]:
        check_batch_keys(topic, batch, range(row, row + batch.num_rows))
        row += batch.num_rows


def check_batch_keys(topic: Topic, batch: pa.RecordBatch, rows: np.ndarray | range) -> None:
    """Check one batch as ``check_keys`` does; its records are ``rows`` of the request."""
    keys = batch.column("key")
    if topic.config.compacted and keys.null_count:
        first = rows[int(np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))[0])]
        raise InvalidRecordError(f"Record {first} {_no_key(topic)}.")


def batch_refusal(topic: Topic, batch: KafkaBatch, num_bytes: int) -> LogStoreError | None:
    """Return the reason why the topic refuses a new record batch of a Kafka client, of ``num_bytes`` as sent; else
    None.
    """
    if num_bytes > topic.config.max_message_bytes:
        return RecordTooLargeError(
            f"The record batch has {num_bytes} bytes, max.message.bytes allows {topic.config.max_message_bytes}: send "
            "smaller batches or raise the topic's max.message.bytes"
        )
    if topic.config.compacted and batch.null_keys:
        refused = RefusedRecords(batch.null_keys, f"The record {_no_key(topic)}.")
        return InvalidRecordError(f"Record {batch.null_keys[0]} {_no_key(topic)}.", refused)
    return None


def _no_key(topic: Topic) -> str:
    return f"has no key, and topic '{topic.name}' is compacted (cleanup.policy=compact): send a key"


def sticky_partition(topic: Topic, turn: int) -> int:
    """Return the partition for records whose producer leaves it open: one that is served, if there is any.

    Do not use it for requests with an idempotency key: a retry must go where the first try went.
    """
    partition = turn % len(topic.partitions)
    if topic.partitions[partition].quarantined is None:
        return partition
    served = [p.partition for p in topic.partitions if p.quarantined is None] or [0]
    return served[turn % len(served)]


def split(topic: Topic, records: Records, partition: int | None, sticky: int) -> list[PartitionBatch]:
    """Split the records by partition. A record may name a partition that the topic does not have.

    ``partition`` is the one that the request is for. Raises UnknownPartitionError if it does not exist, and
    InvalidRequestError if a record names another one.
    """
    if isinstance(records, SplitRecords):
        for part in records.parts:
            if partition is not None and part.partition != partition:
                raise InvalidRequestError(
                    f"An Arrow batch names partition {part.partition} in its metadata, but the path names {partition}: "
                    "leave it out of the metadata, or post to the topic."
                )
        return list(records.parts)
    if partition is None:
        count = len(topic.partitions)
        parts = records.split(count, sticky % count) if isinstance(records, ScannedRecords) else None
        return parts or partition_batches(records, choose_partitions(records, count, sticky % count))
    topic.partition(partition)
    if records.partitions is not None:
        others = np.flatnonzero((records.partitions != partition) & (records.partitions != -1))
        if len(others):
            raise InvalidRequestError(
                f"Record {int(others[0])} names partition {int(records.partitions[others[0]])}, but the path names "
                f"{partition}: leave it out of the record, or post to the topic."
            )
    return [PartitionBatch(partition, records.batch, None, records.verbatim)]


def refusal_of(topic: Topic, part: PartitionBatch, acks: int) -> LogStoreError | None:
    """Return the reason why nothing can be appended to the partition of ``part`` with ``acks``, else None: it does not
    exist, is quarantined or not led here, or has too few replicas, or the topic is gone.
    """
    if not 0 <= part.partition < len(topic.partitions):
        row = 0 if part.rows is None else int(part.rows[0])
        return UnknownPartitionError(
            f"Record {row} of the request names partition {part.partition}; the topic has {len(topic.partitions)}, "
            "from 0"
        )
    log = topic.partitions[part.partition]
    return log.closed or log.quarantined or log.append_refusal(acks)
