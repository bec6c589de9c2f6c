"""Records as they are sent and as they are read, in a form common to all clients, and records that reveal how a client
or a store treats nulls, empty bytes, repeated headers and times.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
CREATE_TIME, LOG_APPEND_TIME = 0, 1


class SentRecord(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class ReadRecord(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    #: None if the client does not get it (HTTP).
    timestamp_type: int | None

    @property
    def sent(self) -> SentRecord:
        return SentRecord(self.partition, self.key, self.value, self.headers, self.timestamp_ms)


#: The time is long past, because a record keeps the time of its producer.
_BEGAN_MS: Final = 1_600_000_000_000
PARTITIONS: Final = 2


def peculiar_records() -> list[SentRecord]:
    """Return every pair of null, empty and filled keys and values, with headers of every kind, and decreasing times."""
    pairs = [(key, value) for key in (None, b"", b"key") for value in (None, b"", b"value", b"\x00\xff" * 700)]
    headers: list[Headers] = [
        (),
        (("one", b"1"),),
        (("same", b"first"), ("same", b"second"), ("same", b"first")),
        (("null", None), ("empty", b"")),
        (("ключ 𝄞", "значение".encode()), ("", b"no name")),
    ]
    records = []
    for number, (key, value) in enumerate(pairs * len(headers)):
        at = _BEGAN_MS + (number * 7_919) % 1_000 * 86_400
        records.append(SentRecord(number % PARTITIONS, key, value, headers[number // len(pairs)], at))
    return records


def alike_records(count: int, *, mark: str = "") -> list[SentRecord]:
    """Return many records that compress well, enough for several batches."""
    return [
        SentRecord(
            number % PARTITIONS, b"key-%d" % (number % 13), f"{mark}{number:08d}".encode() + b" again" * 20, (), at
        )
        for number in range(count)
        for at in (_BEGAN_MS + number,)
    ]


def by_partition(records: Iterable[ReadRecord]) -> dict[int, list[ReadRecord]]:
    """Group records by partition, in the order in which they were read. Fails if offsets do not rise."""
    found: dict[int, list[ReadRecord]] = {}
    for record in records:
        before = found.setdefault(record.partition, [])
        assert not before or before[-1].offset < record.offset, (before[-1], record)
        before.append(record)
    return dict(sorted(found.items()))


def sent_by_partition(records: Sequence[SentRecord]) -> dict[int, list[SentRecord]]:
    found: dict[int, list[SentRecord]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return dict(sorted(found.items()))
