"""Kafka's record batches for tests: random rows, batches written field by field, mutations of them."""

import contextlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import pyarrow as pa
import zstandard
from hypothesis import strategies as st

from logstore.crc32c import crc32c
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, Compression
from logstore.kafka_batches.native import NativeCodec
from logstore.kafka_batches.numpy_codec import NumpyCodec
from logstore.kafka_batches.records import RecordCodec
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity
from logstore.records.log_batches import Origin, with_origins
from tests.support.records import Row, small_bytes, timestamps, wire_batch

HEADER = struct.Struct(">qiibIhiqqqhii")


def codecs() -> dict[str, RecordCodec]:
    """Return codecs by name; the one in C is missing if it was not compiled."""
    found: dict[str, RecordCodec] = {"numpy": NumpyCodec()}
    with contextlib.suppress(OSError):
        found["native"] = NativeCodec()
    return found


CODECS = codecs()

#: Lengths around those where varints become longer.
sized_bytes = small_bytes | st.sampled_from([63, 64, 65, 200, 8_191, 8_192, 9_000]).map(lambda size: b"v" * size)
#: A record that Kafka can hold unchanged: without headers it has null there.
kafka_rows = st.builds(
    Row,
    timestamp=timestamps | st.integers(1_700_000_000_000, 1_700_000_000_200),
    key=st.none() | sized_bytes,
    value=st.none() | sized_bytes,
    headers=st.none()
    | st.lists(
        st.tuples(st.text(max_size=4) | st.sampled_from(["same", "ключ", "𝄞" * 20]), st.none() | small_bytes),
        min_size=1,
        max_size=4,
    ).map(tuple),
)


def log_batch(rows: Sequence[Row], offsets: Sequence[int]) -> pa.RecordBatch:
    """Return a LOG_SCHEMA batch; rows without a timestamp have 7."""
    batch = with_origins(wire_batch(list(rows)), [Origin(len(rows), 0, 7, False)])
    return batch.set_column(0, batch.schema.field(0), pa.array(offsets, pa.int64()))


def varint(number: int, *, padding: int = 0) -> bytes:
    """Encode a number in zigzag, with ``padding`` more bytes than necessary."""
    raw = (number << 1) ^ (number >> 63)
    found = bytearray()
    while raw >= 128 or padding > len(found):
        found.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*found, raw])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


@dataclass(frozen=True)
class RawRecord:
    """A record whose fields are bytes as they are written, valid or not."""

    timestamp_delta: bytes = varint(0)
    offset_delta: bytes = varint(0)
    key: bytes = sized(b"k")
    value: bytes = sized(b"v")
    header_count: bytes = varint(0)
    headers: bytes = b""
    rest: bytes = b""
    length: bytes | None = None

    def written(self) -> bytes:
        fields = self.timestamp_delta, self.offset_delta, self.key, self.value, self.header_count, self.headers
        body = b"".join((b"\0", *fields, self.rest))
        return (varint(len(body)) if self.length is None else self.length) + body


def raw_records(count: int, **fields: bytes) -> bytes:
    """Return ``count`` records, valid except for ``fields`` of the last one."""
    records = [RawRecord(offset_delta=varint(number)) for number in range(count)]
    records[-1] = replace(records[-1], **fields)
    return b"".join(record.written() for record in records)


def raw_batch(records: bytes, count: int, *, compression: Compression = Compression.NONE, **fields: int) -> bytes:
    """Return a batch around ``records``, already compressed, with a valid CRC unless ``fields`` has one."""
    values = {
        "base_offset": 0,
        "length": HEADER_BYTES - 12 + len(records),
        "leader_epoch": -1,
        "magic": 2,
        "crc": 0,
        "attributes": int(compression),
        "last_offset_delta": count - 1,
        "base_timestamp": 1_000,
        "max_timestamp": 1_000,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": count,
    } | fields
    batch = HEADER.pack(*values.values()) + records
    return batch if "crc" in fields else sealed(batch)


def sealed(batch: bytes) -> bytes:
    """Return the batch with a valid CRC."""
    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def header_of(batch: bytes) -> BatchHeader:
    return BatchHeader.read(memoryview(batch))


def deflated(compression: Compression, data: bytes) -> bytes:
    """Compress as other libraries do: zlib, and zstandard without the size in the frame."""
    if compression is Compression.GZIP:
        deflate = zlib.compressobj(wbits=31)
        return deflate.compress(data) + deflate.flush()
    if compression is Compression.ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    raise AssertionError(compression)


def seeds() -> list[bytes]:
    """Return small batches of every kind."""
    rows = [
        Row(1_000, b"key", b"value", None),
        Row(1_000 + 2**33, None, b"", (("same", b"1"), ("same", None), ("ключ", b""))),
        Row(0, b"", None, (("", b"x" * 70),)),
        Row(5, b"k" * 130, b"v" * 300, None),
    ]
    found = [bytes(encode_batch(log_batch(rows, range(4)), leader_epoch=0, compression=kind)) for kind in Compression]
    found += [bytes(encode_batch(log_batch(rows[:1] * n, range(n)), leader_epoch=0)) for n in (1, 2, 70)]
    return found


def mutations(batch: bytes, random: Random, count: int) -> Iterator[bytes]:
    """Yield ``batch`` with bytes changed, removed, inserted or doubled, each with a valid CRC and length."""
    interesting = (0, 1, 2, 0x7F, 0x80, 0xFF, 0xFE, 3, 0x0F, 0x10)
    for _ in range(count):
        mutant = bytearray(batch)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            # Mutations are in the fields of the records, and in the header's count, times and attributes.
            at = random.randrange(21, len(mutant))
            kind = random.randrange(5)
            if kind == 0:
                mutant[at] = random.choice(interesting)
            elif kind == 1:
                mutant[at] ^= 1 << random.randrange(8)
            elif kind == 2:
                del mutant[max(at, HEADER_BYTES) : at + random.randrange(1, 9)]
            elif kind == 3:
                mutant[max(at, HEADER_BYTES) : max(at, HEADER_BYTES)] = bytes(random.choices(interesting, k=2))
            else:
                mutant[max(at, HEADER_BYTES) :] = mutant[max(at, HEADER_BYTES) :] * 2
        mutant[8:12] = (len(mutant) - 12).to_bytes(4, "big")
        yield sealed(bytes(mutant))


def client_batch(
    rows: Sequence[Row],
    *,
    compression: Compression = Compression.NONE,
    identity: BatchIdentity = NO_IDENTITY,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Return the record batch in which a Kafka client sends ``rows``; a row without a timestamp has -1."""
    records = with_origins(wire_batch(list(rows)), [Origin(len(rows), 0, NO_TIMESTAMP, False)])
    batch = encode_batch(
        records,
        leader_epoch=-1,
        identity=identity,
        compression=compression,
        transactional=transactional,
        control=control,
    )
    return bytes(batch)
