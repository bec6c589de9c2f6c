"""Transactions as a partition remembers and stores them (KIP-98, KIP-890): the open ones, and the newest marker of each
producer.

Owns the rows that journal snapshots and segment footers share, and the key and value of a marker, which are those of
Kafka's control records. A marker raises the producer's epoch in the partition: from then on batches and markers with a
lower epoch are fenced, even if the producer has sent no batch with the new one.
"""

import struct
from enum import IntEnum
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from logstore.errors import CorruptionError, DataDirectoryError
from logstore.filesystem import Buffer

#: The sequence number of a marker, which is not part of its producer's sequence.
NO_SEQUENCE = -1

PRODUCER_ID_MAX = OFFSET_MAX = 2**63 - 1

_Id = Annotated[int, msgspec.Meta(ge=0, le=PRODUCER_ID_MAX)]
_ProducerEpoch = Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
_Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class OpenTransaction(NamedTuple):
    """A transaction that no marker has ended; a producer has one at most. The last stable offset of the partition is
    at most its ``first_offset``.
    """

    producer_id: _Id
    producer_epoch: _ProducerEpoch
    first_offset: _Offset
    last_append_time_ms: _Time


class Marker(NamedTuple):
    """The newest transaction marker of a producer: at ``offset``, from the coordinator with ``coordinator_epoch``."""

    producer_id: _Id
    producer_epoch: _ProducerEpoch
    coordinator_epoch: _Int32
    offset: _Offset
    append_time_ms: _Time


_Row = TypeVar("_Row", OpenTransaction, Marker)


def open_transactions_from_rows(rows: object) -> tuple[OpenTransaction, ...]:
    """Return open transactions that were stored as lists of four numbers. Raises ValueError if ``rows`` is anything
    else.
    """
    return _from_rows(rows, tuple[OpenTransaction, ...], "open transactions")


def markers_from_rows(rows: object) -> tuple[Marker, ...]:
    """Return markers that were stored as lists of five numbers. Raises ValueError if ``rows`` is anything else."""
    return _from_rows(rows, tuple[Marker, ...], "markers")


def _from_rows(rows: object, kind: type[tuple[_Row, ...]], what: str) -> tuple[_Row, ...]:
    try:
        found = msgspec.convert(rows, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"these are no {what}: {error}") from error
    if len({row.producer_id for row in found}) != len(found):
        raise ValueError(f"these are no {what}: a producer has two")
    return found


# ---- control records ------------------------------------------------------------------------------------------------


class ControlType(IntEnum):
    """The ``org.apache.kafka.common.record.ControlRecordType``; Kafka's further types belong to its metadata log."""

    ABORT = 0
    COMMIT = 1


# These are Kafka's, big-endian. ControlRecordType: version 0 and the type; EndTxnMarker.json: version 0 and the
# coordinator's epoch.
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_KEY_LENGTH = struct.Struct("<H")
_VERSION = 0


class EndTransactionMarker(NamedTuple):
    """The contents of a control record; its producer id and epoch are those of its batch, here of its frame."""

    type: ControlType
    coordinator_epoch: int

    def encode(self) -> bytes:
        """Return the payload of a CONTROL frame: the length of Kafka's key, that key, and Kafka's value."""
        key = _KEY.pack(_VERSION, self.type)
        return _KEY_LENGTH.pack(len(key)) + key + _VALUE.pack(_VERSION, self.coordinator_epoch)

    @classmethod
    def decode(cls, payload: Buffer, where: str) -> "EndTransactionMarker":
        """Decode the payload of the frame that ``where`` names. Raises CorruptionError if it is not a control record,
        and DataDirectoryError if this release does not know its kind or version.
        """
        data = bytes(payload)
        try:
            (key_length,) = _KEY_LENGTH.unpack_from(data)
            key = data[_KEY_LENGTH.size :][:key_length]
            value = data[_KEY_LENGTH.size + key_length :]
            key_version, kind = _KEY.unpack_from(key)
            value_version, coordinator_epoch = _VALUE.unpack_from(value)
        except struct.error as error:
            raise CorruptionError(f"{where} is no control record: {len(data)} bytes ({error})") from error
        if key_version != _VERSION or value_version != _VERSION or kind not in (ControlType.ABORT, ControlType.COMMIT):
            raise DataDirectoryError(
                f"{where} is a control record of type {kind} (version {key_version}, value {value_version}), and this "
                "release knows ABORT (0) and COMMIT (1) of version 0: start the release that wrote it"
            )
        if (len(key), len(value)) != (_KEY.size, _VALUE.size):
            raise CorruptionError(f"{where} is no control record: {len(data)} bytes")
        return cls(ControlType(kind), coordinator_epoch)
