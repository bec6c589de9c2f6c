"""Batches of ``__consumer_offsets`` for Kafka's clients: the same offsets and times, keys and values in Kafka's form.

The topic's own records are JSON: the table, HTTP and the store's jobs read those.
"""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from consumer_offsets.kafka_records import kafka_record
from logstore.filesystem import Buffer
from logstore.kafka_batches.decoding import decode_batches
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import BatchHeader, bytes_of
from logstore.kafka_batches.records import COLUMN_BYTES_MAX
from logstore.limits import MIB
from logstore.records.schema import LOG_SCHEMA, null_headers

#: A response has at most this much of a partition, or one batch: the records are encoded again, one by one.
PARTITION_BYTES_MAX: Final = 1 * MIB


def in_kafkas_form(batches: Iterable[Buffer]) -> list[Buffer]:
    """Return one batch for each, in a few milliseconds for a thousand records. Records without a form of Kafka's are
    left out, as compaction leaves some out; a batch may have none then.
    """
    return [encoded for stored in batches for encoded in _batches(bytes_of(stored))]


def _batches(view: memoryview) -> Iterable[Buffer]:
    """Yield the batches in a buffer of whole batches."""
    at = 0
    while at < len(view):
        header = BatchHeader.read(view, at)
        batch = view[at : at + header.size]
        yield batch if header.is_control else _batch(header, batch)
        at += header.size


def _batch(header: BatchHeader, batch: Buffer) -> Buffer:
    records, deltas = decode_batches([batch], inflated_bytes_max=COLUMN_BYTES_MAX)
    texts = zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)
    found = [kafka_record(key, value) for key, value in texts]
    kept = [one is not None for one in found]
    rows: Sequence[tuple[bytes, bytes | None]] = list(compress(found, kept))  # type: ignore[arg-type]
    columns = [
        pa.array(deltas, pa.int64()).filter(pa.array(kept, pa.bool_())),
        records.column("timestamp").filter(pa.array(kept, pa.bool_())),
    ]
    log = pa.RecordBatch.from_arrays(
        [
            pc.add(columns[0], header.base_offset),
            columns[1],
            pa.array([key for key, _ in rows], pa.binary()),
            pa.array([value for _, value in rows], pa.binary()),
            null_headers(len(rows)),
        ],
        schema=LOG_SCHEMA,
    )
    return encode_batch(
        log,
        leader_epoch=header.leader_epoch,
        base_offset=header.base_offset,
        end_offset=header.last_offset + 1,
        log_append_time=header.is_log_append_time and bool(rows),
    )
