"""Identities of batches, which distinguish a new batch from a repetition: a producer and a sequence number, or a
request's key.

Owns the identities of requests (``ProducerIdentity``, ``IdempotencyKey``), the identity of a batch in a journal frame
(``BatchIdentity``), and the form in which a partition's state remembers and stores batches (``RememberedBatch``).
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Self

import numpy as np

from logstore.records.murmur2 import murmur2

#: Sequence numbers are int32 and continue at 0 after this one, like Kafka's.
SEQUENCE_MAX = 2**31 - 1
# The epochs of keys are -2 and below.
_KEY_EPOCHS = 2**15 - 1

_ROW = struct.Struct("<Qhqiqq")


class BatchIdentity(NamedTuple):
    """The sender of a batch, in a frame's header. A batch with ``NO_IDENTITY`` is stored again when it is repeated.

    A producer has an ``epoch`` from 0 on; then ``owner`` is its id and ``sequence`` the number of the first record.
    With an idempotency key they are that key's ``hash`` and ``epoch``, and the batch's ``fingerprint``. The epoch of a
    key that a release without secrets stored is -1, and its hash is not 0.
    """

    owner: int = 0
    epoch: int = -1
    sequence: int = 0

    @property
    def is_producers(self) -> bool:
        return self.epoch >= 0

    @property
    def is_keys(self) -> bool:
        return self.epoch < 0 and self != NO_IDENTITY


NO_IDENTITY = BatchIdentity()


class RememberedBatch(NamedTuple):
    """A batch as a partition remembers it; ``owner``, ``epoch`` and ``sequence`` are those of its ``BatchIdentity``."""

    owner: int
    epoch: int
    sequence: int
    record_count: int
    base_offset: int
    append_time_ms: int

    def pack(self) -> bytes:
        return _ROW.pack(*self)


PACKED_BYTES = _ROW.size
# The append time comes last, the base offset before it; the epoch follows the owner.
_TIME_BYTES = 8
_BASE_OFFSET = struct.Struct("<q")
_BASE_OFFSET_AT = PACKED_BYTES - 2 * _TIME_BYTES
_EPOCH = struct.Struct("<h")
_EPOCH_AT = 8


def unpack_batches(packed: bytes | bytearray) -> Iterator[RememberedBatch]:
    """Return the batches whose ``pack`` were joined. Raises ValueError if these bytes are anything else."""
    if len(packed) % PACKED_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a whole number of remembered batches")
    return map(RememberedBatch._make, _ROW.iter_unpack(packed))


def last_append_ms(packed: bytes | bytearray) -> int:
    """Return the append time of the last of packed batches, at least one."""
    return int.from_bytes(packed[-_TIME_BYTES:], "little", signed=True)


def last_epoch(packed: bytes | bytearray) -> int:
    """Return the epoch of the last of packed batches, at least one."""
    epoch: int = _EPOCH.unpack_from(packed, len(packed) - PACKED_BYTES + _EPOCH_AT)[0]
    return epoch


def packed_below(packed: bytes | bytearray, offset: int) -> int:
    """Return the number of bytes of the packed batches, which rise by offset, that begin below ``offset``."""
    rows = range(_BASE_OFFSET_AT, len(packed), PACKED_BYTES)
    return bisect_left(rows, offset, key=lambda at: _BASE_OFFSET.unpack_from(packed, at)[0]) * PACKED_BYTES


def batches_from_rows(rows: Iterable[Iterable[int]]) -> tuple[RememberedBatch, ...]:
    """Return batches that were stored as JSON lists. Raises ValueError and TypeError if they are anything else."""
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
    """A name that a client gave to a request, and a digest that distinguishes the request from others.

    ``hash`` (64 bits, unsigned) and ``digest`` (32 bytes, of name and body) are made with a secret of the store, so
    that nobody can make another request that looks the same. ``epoch`` is below -1, and differs for another secret.
    ``partition_hash``, modulo the number of partitions, is the partition of records without a key, so that a retry
    meets its first try there.
    """

    hash: int
    epoch: int
    digest: bytes
    partition_hash: int

    @classmethod
    def of(cls, text: str, body: bytes, secret: bytes, form: str = "") -> Self:
        """Make the key of a request. ``body`` is inflated; ``form`` says how the request wants it to be read."""
        name = text.encode()
        epoch = int.from_bytes(blake2b(key=secret, person=b"secret", digest_size=2).digest(), "little")
        of_request = blake2b(len(name).to_bytes(2, "little") + name, key=secret, person=b"request", digest_size=32)
        of_request.update(len(form).to_bytes(2, "little") + form.encode())
        of_request.update(body)
        return cls(
            int.from_bytes(blake2b(name, key=secret, person=b"name", digest_size=8).digest(), "little"),
            -2 - epoch % _KEY_EPOCHS,
            of_request.digest(),
            murmur2(name) & 0x7FFFFFFF,
        )

    def fingerprint(self, rows: np.ndarray | None) -> int:
        """Return an int64 that is equal for batches with the same records of the same request. ``rows`` as in
        PartitionBatch.
        """
        positions = b"" if rows is None else np.ascontiguousarray(rows, "<i8").tobytes()
        of_batch = blake2b(positions, key=self.digest, person=b"batch", digest_size=8)
        return int.from_bytes(of_batch.digest(), "little", signed=True)


def next_sequence(sequence: int, count: int) -> int:
    """Return the sequence number of the record that is ``count`` after the one with ``sequence``."""
    return (sequence + count) & SEQUENCE_MAX


def first_producer_id(leader_epoch: int) -> int:
    """Return the first of the ids that a leader issues. Ids are unique for ever, rise, and need no separate write."""
    return leader_epoch << 32
