"""Encodes the state of a partition in a snapshot frame: a msgpack map, see ``docs/journal-format.md``.

Invariant: a field that a release must not ignore comes with a new format version of the journal. Other fields may be
added without one.
"""

from dataclasses import dataclass

import msgspec

from logstore.errors import CorruptionError
from logstore.filesystem import Buffer
from logstore.records.batch_identity import unpack_batches
from logstore.records.transactions import Marker, OpenTransaction, markers_from_rows, open_transactions_from_rows


class _SnapshotState(msgspec.Struct):
    """The fields of a snapshot, as msgpack has them. Unknown fields are skipped."""

    sealed_offset: int
    leader_epochs: list[tuple[int, int]]
    # The packed batches, in one string or none.
    producers: list[bytes] = []
    open_transactions: list[list[int]] = []
    idempotency_keys: list[bytes] = []
    log_end_offset: int = 0
    producers_forgotten_up_to: int = -1
    markers: list[list[int]] = []
    producers_whole_from: int | msgspec.UnsetType = msgspec.UNSET


_snapshot_decoder = msgspec.msgpack.Decoder(_SnapshotState)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition's state at the beginning of a journal file.

    ``producers`` and ``idempotency_keys`` are the remembered batches below ``log_end_offset``, packed
    (``unpack_batches``); batches of producers up to ``producers_forgotten_up_to`` may be missing. After a truncation to
    ``producers_whole_from`` (None: ``log_end_offset``) or above, they also give the state at the new end.
    ``open_transactions`` and ``markers``, at most one for each producer, are also those below ``log_end_offset``.
    """

    sealed_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    """(leader epoch, its start offset), rising."""
    log_end_offset: int = 0
    producers: bytes = b""
    idempotency_keys: bytes = b""
    producers_forgotten_up_to: int = -1
    open_transactions: tuple[OpenTransaction, ...] = ()
    markers: tuple[Marker, ...] = ()
    producers_whole_from: int | None = None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(
            _SnapshotState(
                self.sealed_offset,
                list(self.leader_epochs),
                [self.producers] if self.producers else [],
                [list(row) for row in self.open_transactions],
                [self.idempotency_keys] if self.idempotency_keys else [],
                self.log_end_offset,
                self.producers_forgotten_up_to,
                [list(row) for row in self.markers],
                msgspec.UNSET if self.producers_whole_from is None else self.producers_whole_from,
            )
        )

    @classmethod
    def decode(cls, payload: Buffer) -> "PartitionSnapshot":
        """Decode a payload. Raises CorruptionError."""
        try:
            state = _snapshot_decoder.decode(payload)
            packed = b"".join(state.producers), b"".join(state.idempotency_keys)
            for batches in packed:
                unpack_batches(batches)
            open_transactions = open_transactions_from_rows(state.open_transactions)
            markers = markers_from_rows(state.markers)
        except (msgspec.DecodeError, ValueError, RecursionError) as e:
            raise CorruptionError(f"a journal snapshot frame passed its CRC but does not parse: {e}") from e
        return cls(
            state.sealed_offset,
            tuple(state.leader_epochs),
            state.log_end_offset,
            *packed,
            state.producers_forgotten_up_to,
            open_transactions,
            markers,
            None if state.producers_whole_from is msgspec.UNSET else state.producers_whole_from,
        )
