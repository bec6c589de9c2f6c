"""The codec of Kafka's record batches, in C and in numpy: ``python -m benchmarks.kafka_batches``.

Rounds alternate between the two, and between the operations; a figure is the best round's, in million records per
second of CPU and microseconds of CPU per batch. ``validate`` includes the CRC and all checks, ``decode`` makes columns,
``encode`` makes a batch with its CRC.
"""

import time
from collections.abc import Callable
from random import Random

import pyarrow as pa

from logstore.kafka_batches.decoding import decode_batches
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import Compression
from logstore.kafka_batches.native import NativeCodec
from logstore.kafka_batches.numpy_codec import NumpyCodec
from logstore.kafka_batches.records import RecordCodec
from logstore.kafka_batches.validation import validate
from logstore.records.schema import HEADERS_TYPE, LOG_SCHEMA, null_headers

_ROUNDS = 7
_ROUND_S = 0.03
_LIMIT = 1 << 26
#: The bytes of a value, the number of records, whether sizes vary, whether there are headers, the compression.
CASES = [
    (100, 1, False, False, Compression.NONE),
    (100, 10, False, False, Compression.NONE),
    (100, 150, False, False, Compression.NONE),
    (100, 2_000, False, False, Compression.NONE),
    (100, 8_000, True, False, Compression.NONE),
    (100, 2_000, True, True, Compression.NONE),
    (1_024, 16, False, False, Compression.NONE),
    (1_024, 1_000, True, False, Compression.NONE),
    (100, 2_000, True, False, Compression.LZ4),
    (100, 2_000, True, False, Compression.ZSTD),
]


def records_of(size: int, count: int, *, varied: bool, headers: bool) -> pa.RecordBatch:
    random = Random(1)
    # Half of it is random and half is text, which compresses to about 60 %.
    values = [
        random.randbytes(length // 2) + b"a" * (length - length // 2)
        for length in (random.randint(size // 2, size * 3 // 2) if varied else size for _ in range(count))
    ]
    keys = [b"key-%06d" % random.randrange(5_000) for _ in range(count)]
    columns = [
        pa.array(range(count), pa.int64()),
        pa.array([1_700_000_000_000 + number // 50 for number in range(count)], LOG_SCHEMA.field("timestamp").type),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([[("trace", b"0123456789abcdef")]] * count, HEADERS_TYPE) if headers else null_headers(count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)


def works(
    records: pa.RecordBatch, batch: memoryview, compression: Compression, codec: RecordCodec
) -> dict[str, Callable[[], object]]:
    return {
        "validate": lambda: validate(batch, inflated_bytes_max=_LIMIT, codec=codec),
        "decode": lambda: decode_batches([batch], inflated_bytes_max=_LIMIT, codec=codec),
        "encode": lambda: encode_batch(records, leader_epoch=0, compression=compression, codec=codec),
    }


def seconds(work: Callable[[], object], repetitions: int) -> float:
    started = time.thread_time()
    for _ in range(repetitions):
        work()
    return (time.thread_time() - started) / repetitions


def main() -> None:
    codecs: dict[str, RecordCodec] = {"C": NativeCodec(), "numpy": NumpyCodec()}
    for size, count, varied, headers, compression in CASES:
        records = records_of(size, count, varied=varied, headers=headers)
        batch = encode_batch(records, leader_epoch=0, compression=compression)
        all_works = {
            (name, operation): work
            for name, codec in codecs.items()
            for operation, work in works(records, batch, compression, codec).items()
        }
        repetitions = {key: max(1, int(_ROUND_S / seconds(work, 1))) for key, work in all_works.items()}
        best = dict.fromkeys(all_works, float("inf"))
        for _ in range(_ROUNDS):
            for key, work in all_works.items():
                best[key] = min(best[key], seconds(work, repetitions[key]))
        print(
            f"{size} B{' varied' if varied else ''}{' headers' if headers else ''} x {count} {compression.name.lower()}"
        )
        for operation in ("validate", "decode", "encode"):
            figures = (
                f"{name} {count / best[name, operation] / 1e6:7.2f} M/s {best[name, operation] * 1e6:9.1f} us"
                for name in codecs
            )
            print(f"    {operation:9}", "   ".join(figures), flush=True)


if __name__ == "__main__":
    main()
