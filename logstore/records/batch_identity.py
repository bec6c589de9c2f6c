"""What tells a batch of records from a repetition of it: its producer and sequence number, or a key of the request.

Owns the identities that a request brings (``ProducerIdentity``, ``IdempotencyKey``), the one that a batch of it has in
a journal frame (``BatchIdentity``), and the form in which the state of a partition remembers batches and is stored
(``RememberedBatch``).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from logstore.crc32c import crc32c
from logstore.records.partitioner import murmur2

#: Sequence numbers are int32 and go on at 0 after this one, as Kafka's do.
SEQUENCE_MAX = 2**31 - 1
PRODUCER_EPOCH_MAX = 2**15 - 1

_ROW = struct.Struct("<Qhiiqq")


class BatchIdentity(NamedTuple):
    """The fields of a frame's header, in their order. ``NOBODY`` is a batch that may be repeated.

    With an idempotency key ``base_sequence`` is the batch's fingerprint, see ``IdempotencyKey``.
    """

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    idempotency_key_hash: int = 0


NOBODY = BatchIdentity()


class RememberedBatch(NamedTuple):
    """``owner`` is a producer id, or the hash of an idempotency key; then ``epoch`` is -1 and ``sequence`` the batch's
    fingerprint.
    """

    owner: int
    epoch: int
    sequence: int
    record_count: int
    base_offset: int
    append_time_ms: int

    def pack(self) -> bytes:
        return _ROW.pack(*self)


PACKED_BYTES = _ROW.size


def unpack_batches(packed: bytes) -> Iterator[RememberedBatch]:
    """The batches whose ``pack`` were joined. ValueError if these bytes are no such thing."""
    if len(packed) % PACKED_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a whole number of remembered batches")
    return map(RememberedBatch._make, _ROW.iter_unpack(packed))


def batches_from_rows(rows: Iterable[Iterable[int]]) -> tuple[RememberedBatch, ...]:
    """Batches that were stored as JSON lists. ValueError, TypeError if they are no such thing."""
    batches = tuple(RememberedBatch(*map(int, row)) for row in rows)
    for batch in batches:
        try:
            batch.pack()
        except struct.error as error:
            raise ValueError(f"{batch} is not a remembered batch: {error}") from error
    return batches


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """An idempotent producer (KIP-98) and, by partition, the sequence number of a request's first record there."""

    producer_id: int
    producer_epoch: int
    base_sequences: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A name that a client gave to a request, and the CRC-32C of the request's body."""

    text: str
    body_crc: int

    @property
    def hash(self) -> int:
        """64 bits, never 0."""
        return int.from_bytes(blake2b(self.text.encode(), digest_size=8).digest(), "little") or 1

    @property
    def partition_hash(self) -> int:
        """Where records without a key go, modulo the number of partitions: a retry meets its first try there."""
        return murmur2(self.text.encode()) & 0x7FFFFFFF

    def fingerprint(self, rows: np.ndarray | None) -> int:
        """int32, equal for the batches that hold the same records of the same body; ``rows`` as in PartitionBatch."""
        crc = self.body_crc if rows is None else crc32c(np.ascontiguousarray(rows, "<i8").tobytes(), self.body_crc)
        return crc - (1 << 32) if crc >> 31 else crc


def next_sequence(sequence: int, count: int) -> int:
    """The sequence number of the record that is ``count`` after the one with ``sequence``."""
    return (sequence + count) & SEQUENCE_MAX


def first_producer_id(leader_epoch: int) -> int:
    """Of those that a leader hands out: ids are unique for ever, and rise, without a write of their own."""
    return leader_epoch << 32
