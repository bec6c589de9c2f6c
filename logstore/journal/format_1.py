"""Converts format 1 of the journal to later formats: the sender of a frame, and the rows of a snapshot.

All other fields have the layout of later formats. The numbers of an idempotency key were made without a secret, so no
present request has the same numbers. Such a key has the epoch -1, which no secret has; a header without an owner has no
identity. So the key is remembered for its window, and new keys are refused until its end: see
``IdempotencyKeys.require_one_secret``.
"""

import struct
from typing import Final

import msgspec

from logstore.errors import CorruptionError
from logstore.filesystem import Buffer
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, RememberedBatch

VERSION: Final = 1
# Producer id (all ones: none), hash of an idempotency key (0: none), base sequence or fingerprint, producer epoch,
# inflated bytes.
_SENDER: Final = struct.Struct("<QQihQ")
_SENDER_AT: Final = 96
# A row like ``RememberedBatch``, with a sequence of four bytes.
_ROW: Final = struct.Struct("<Qhiiqq")


def sender(data: Buffer, at: int) -> tuple[BatchIdentity, int]:
    """Return the identity and the inflated bytes in the frame header at ``data[at:]``."""
    producer_id, key_hash, sequence, epoch, inflated_bytes = _SENDER.unpack_from(data, at + _SENDER_AT)
    if key_hash:
        return BatchIdentity(key_hash, -1, sequence), inflated_bytes
    return BatchIdentity(producer_id, epoch, sequence) if epoch >= 0 else NO_IDENTITY, inflated_bytes


class _SnapshotState(msgspec.Struct):
    """The fields of a snapshot in format 1. Unknown fields are skipped. Packed batches may be split into any number of
    strings.
    """

    sealed_offset: int
    leader_epochs: list[tuple[int, int]]
    producers: list[bytes] = []
    idempotency_keys: list[bytes] = []
    log_end_offset: int = 0
    producers_forgotten_up_to: int = -1


_snapshot_decoder = msgspec.msgpack.Decoder(_SnapshotState)


def snapshot_payload(payload: bytes) -> bytes:
    """Return the payload of a snapshot frame in the form of later formats. Raises CorruptionError."""
    try:
        state = _snapshot_decoder.decode(payload)
        producers, keys = (_repacked(b"".join(rows)) for rows in (state.producers, state.idempotency_keys))
    except (msgspec.DecodeError, struct.error, RecursionError) as error:
        raise CorruptionError(f"a journal snapshot frame passed its CRC but does not parse: {error}") from error
    return PartitionSnapshot(
        state.sealed_offset,
        tuple(state.leader_epochs),
        state.log_end_offset,
        producers,
        keys,
        state.producers_forgotten_up_to,
    ).encode()


def _repacked(rows: bytes) -> bytes:
    return b"".join(RememberedBatch(*row).pack() for row in _ROW.iter_unpack(rows))
