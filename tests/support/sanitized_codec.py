"""Runs in a separate process, with the codecs that were compiled with sanitizers: ``test_sanitized.py``.

    python -m tests.support.sanitized_codec DIRECTORY fuzz     # prints how many batches were taken and refused
    python -m tests.support.sanitized_codec DIRECTORY pages    # prints how many pages were taken and refused
    python -m tests.support.sanitized_codec DIRECTORY read     # reads behind the end of a batch; "read a page" also
    python -m tests.support.sanitized_codec DIRECTORY write    # writes behind the end of a column; "write a page" also

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
from logstore.kafka_batches import native, plain_pages
from logstore.kafka_batches.compression import inflate
from logstore.kafka_batches.header import HEADER_BYTES, BatchHeader
from logstore.kafka_batches.native import NativeCodec, RecordColumns
from logstore.kafka_batches.plain_pages import PageCodec
from logstore.kafka_batches.records import BatchRecords
from logstore.kafka_batches.validation import batch_records
from logstore.records.log_batches import Origin, with_origins
from tests.support.kafka_batches import log_batch, mutations, raw_records, seeds
from tests.support.plain_pages import levels_of, page_of
from tests.support.records import Row

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
                codec.encode(log.slice(rows // 2, rows), 0, 0)
    return taken, refused


def pages(codec: PageCodec) -> tuple[int, int]:
    taken = refused = 0
    chance = Random(7)
    for number in range(_MUTATIONS):
        values = random_values(chance)
        page_bytes = bytearray(page_of(values, levels_of(values, chance)))
        for _ in range(number % 4):
            page_bytes[chance.randrange(len(page_bytes))] ^= 1 << chance.randrange(8)
        rows = len(values) + (number % 50 == 0)
        page = codec.read(copied(bytes(page_bytes[: chance.choice([None, None, -1])])), rows)
        if page is None:
            refused += 1
            continue
        taken += 1
        kept = np.array([chance.random() < 0.7 for _ in range(rows)])
        out = exact(codec.copied_size(page, kept))
        codec.copy(page, kept, out, 0)
        records = log_batch([Row(0, None, b"", None)] * rows, range(rows)).drop_columns(["value"])
        out = exact(chance.randrange(2 * page.data.size + 10))
        packed = RecordColumns(records).packed(0, rows, page.values_from(0), kept, 0, 0)
        done, size = codec.records.encode_into(out, 0, packed)
        assert 0 <= done <= rows
        assert size <= out.size
    return taken, refused


def random_values(chance: Random) -> list[bytes | None]:
    return [chance.choice([None, b"", chance.randbytes(chance.randrange(1, 20))]) for _ in range(chance.randint(1, 40))]


def read_a_page_too_far(codec: PageCodec) -> None:
    data = page_of([b"value"], b"\2\1")
    good = copied(data[:-1])
    # The last byte of the length is outside, too.
    codec.read(pa.foreign_buffer(good.address, len(data), base=good), 1)
    page = codec.read(copied(data), 1)
    assert page is not None
    short = page._replace(data=copied(data[:-1]))
    codec.copy(short, np.array([True]), exact(len(data)), 0)


def write_a_page_too_far(codec: PageCodec) -> None:
    page = codec.read(copied(page_of([b"value"], b"\2\1")), 1)
    assert page is not None
    out = exact(codec.copied_size(page, np.array([True])) - 1)
    lying = pa.foreign_buffer(out.address, out.size + 1, base=out)
    codec.copy(page, np.array([True]), lying, 0)


def read_too_far(codec: NativeCodec) -> None:
    data = raw_records(1)
    good = copied(data[:-1])
    lying = pa.foreign_buffer(good.address, len(data), base=good)
    codec.scan([BatchRecords(lying, 1, 0, None)], contiguous=True)


def write_too_far(codec: NativeCodec) -> None:
    records = BatchRecords(copied(raw_records(1)), 1, 0, None)
    timestamps, deltas = exact(7), exact(4)
    key, value = native._Column(1, 1, 0), native._Column(1, 1, 0)
    columns = 1, 0, timestamps.address, 0, deltas.address, *key.target, *value.target, *native._NO_HEADER_COLUMNS
    codec._decode(native._packed([records]), 1, native._RISING, native._COLUMNS.pack(*columns))


def main(directory: str, what: str) -> None:
    corpus = seeds()
    native._allocate = plain_pages._allocate = exact
    codec = NativeCodec(Path(directory, native.LIBRARY.name))
    page_codec = PageCodec(codec, Path(directory, plain_pages.LIBRARY.name))
    if what == "fuzz":
        print(*fuzz(codec, corpus))
    elif what == "pages":
        print(*pages(page_codec))
    elif what.endswith("a page"):
        {"read a page": read_a_page_too_far, "write a page": write_a_page_too_far}[what](page_codec)
    else:
        {"read": read_too_far, "write": write_too_far}[what](codec)


if __name__ == "__main__":
    main(*sys.argv[1:])
