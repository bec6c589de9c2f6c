"""Decodes stored record batches to columns. They were checked when they came in, and their bytes were checked since."""

from collections.abc import Sequence

import pyarrow as pa

from logstore.errors import InvalidRecordBatchError
from logstore.filesystem import Buffer
from logstore.kafka_batches.codec import CODEC
from logstore.kafka_batches.compression import inflate
from logstore.kafka_batches.header import HEADER_BYTES, BatchHeader, bytes_of
from logstore.kafka_batches.records import COLUMN_BYTES_MAX, DecodedBatches, RecordCodec
from logstore.kafka_batches.validation import batch_records


def decode_batches(
    batches: Sequence[Buffer | pa.Buffer], *, inflated_bytes_max: int, codec: RecordCodec = CODEC
) -> DecodedBatches:
    """Decode the records of all ``batches``, at least one, each a whole batch; small ones cost little more than their
    bytes.

    The offset deltas of a batch rise, and may leave gaps, for example after compaction. A batch may have no record. The
    CRC is not checked. Memory is bounded by a few times ``inflated_bytes_max``, the inflated bytes of all batches.
    Raises InvalidRecordBatchError, and its subclasses.
    """
    left = min(inflated_bytes_max, COLUMN_BYTES_MAX)
    records = []
    for batch in batches:
        view = bytes_of(batch)
        header = BatchHeader.read(view)
        if header.size != len(view) or header.record_count < 0:
            raise InvalidRecordBatchError(
                f"A record batch of {len(view)} bytes has {header.size} bytes and {header.record_count} records by its "
                "header"
            )
        inflated = inflate(header.compression, view[HEADER_BYTES:], left)
        left -= len(inflated)
        records.append(batch_records(header, inflated))
    return codec.decode(records)
