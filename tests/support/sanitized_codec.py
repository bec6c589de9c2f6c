"""Runs in a separate process, with the codec that was compiled with sanitizers: ``tests/unit/test_sanitized.py``.

    python -m tests.support.sanitized_codec LIBRARY fuzz     # prints how many batches were taken and refused
    python -m tests.support.sanitized_codec LIBRARY read     # reads behind the end of a batch
    python -m tests.support.sanitized_codec LIBRARY write    # writes behind the end of a column

All memory of the codec comes from malloc, each buffer alone and of its exact size: an access one byte too far is
detected.
"""

import ctypes
import sys
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRecordBatchError
from logstore.kafka_batches import native
from logstore.kafka_batches.compression import inflate
from logstore.kafka_batches.header import HEADER_BYTES, BatchHeader
from logstore.kafka_batches.native import NativeCodec, RecordColumns
from logstore.kafka_batches.records import BatchRecords
from logstore.kafka_batches.validation import batch_records
from logstore.records import column_memory
from logstore.records.column_memory import ByteColumn
from logstore.records.log_batches import Origin, with_origins
from tests.support.kafka_batches import mutations, raw_records, seeds

_LIMIT = 1 << 20
_MUTATIONS = 4_000
_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


class _Owner:
    def __init__(self, size: int) -> None:
        self.address = _libc.malloc(size)

    def __del__(self) -> None:
        _libc.free(self.address)


def exact(size: int) -> pa.Buffer:
    """Allocate writable memory; even an empty buffer has its own address."""
    owner = _Owner(size)
    return pa.foreign_buffer(owner.address, size, base=owner)


def copied(data: bytes) -> pa.Buffer:
    buffer = exact(len(data))
    ctypes.memmove(buffer.address, data, len(data))
    return buffer


def fuzz(codec: NativeCodec, corpus: list[bytes]) -> tuple[int, int]:
    taken = refused = 0
    chance = Random(1)
    for number, seed in enumerate(corpus):
        for batch in mutations(seed, Random(number), _MUTATIONS):
            try:
                view = memoryview(batch)
                header = BatchHeader.read(view)
                records = batch_records(header, copied(bytes(inflate(header.compression, view[HEADER_BYTES:], _LIMIT))))
                if header.record_count < 0:
                    continue
                records = records._replace(data=copied(records.data.to_pybytes()))
                for contiguous in (True, False):
                    codec.scan([records], contiguous=contiguous)
                found = codec.decode([records, records])
                found.records.validate(full=True)
                taken += 1
            except InvalidRecordBatchError:
                refused += 1
                continue
            rows = found.records.num_rows // 2
            log = with_origins(found.records, [Origin(2 * rows, 5, 7, False)])
            if rows:
                part = log.slice(rows // 2, rows)
                codec.encode(part, 0, 0)
                kept = np.array([chance.random() < 0.7 for _ in range(rows)])
                packed = RecordColumns(part).packed(0, rows, native._source(part.column("value")), kept, 0, 0)
                codec.encode_into(exact(chance.randrange(codec.encoded_size(packed) + 10)), 0, packed)
    return taken, refused


def read_too_far(codec: NativeCodec) -> None:
    data = raw_records(1)
    good = copied(data[:-1])
    lying = pa.foreign_buffer(good.address, len(data), base=good)
    codec.scan([BatchRecords(lying, 1, 0, None)], contiguous=True)


def write_too_far(codec: NativeCodec) -> None:
    records = BatchRecords(copied(raw_records(1)), 1, 0, None)
    timestamps, deltas = exact(7), exact(4)
    key, value = ByteColumn(1, 1, 0), ByteColumn(1, 1, 0)
    columns = 1, 0, timestamps.address, 0, deltas.address, *key.target, *value.target, *native._NO_HEADER_COLUMNS
    codec._decode(native._packed([records]), 1, native._RISING, native._COLUMNS.pack(*columns))


def main(library: str, what: str) -> None:
    corpus = seeds()
    column_memory.allocate = exact
    codec = NativeCodec(Path(library))
    if what == "fuzz":
        print(*fuzz(codec, corpus))
    else:
        {"read": read_too_far, "write": write_too_far}[what](codec)


if __name__ == "__main__":
    main(*sys.argv[1:])
