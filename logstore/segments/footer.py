"""A segment's description of itself: the key-value metadata of its Parquet footer.

It suffices to commit the file again (rule R7). Its producers and idempotency keys outlive the journal, as long as the
file exists. All values are text; lists are JSON. The keys are part of the format, see ``docs/table-format.md``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from logstore.errors import CorruptionError, NewerFormatError
from logstore.records.batch_identity import RememberedBatch, batches_from_rows
from logstore.records.transactions import Marker, OpenTransaction, markers_from_rows, open_transactions_from_rows
from logstore.segments.offset_ranges import OffsetRanges, join_ranges

#: The format of a footer without transactions, which earlier releases read, and of one with open transactions or
#: markers.
FORMAT_VERSION, FORMAT_WITH_TRANSACTIONS = 2, 3
_FORMATS = (FORMAT_VERSION, FORMAT_WITH_TRANSACTIONS)
_PREFIX = "logstore."
_FORGOTTEN = "producers_forgotten_up_to"
_LOG_APPEND_TIMES = "log_append_times"
_COLUMNS = "columns"

#: The ``operation`` of a segment that a roll writes from the journal; jobs have other names.
ROLL = "roll"

# Python's JSON reads Infinity as a number, and deep nesting does not raise ValueError.
_MALFORMED = (KeyError, ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class SegmentFooter:
    """The state that a segment's footer has. ``leader_epochs`` is the history up to ``end_offset``: (epoch, its start
    offset), rising.

    ``producers`` are the remembered batches of producers at ``end_offset``. ``idempotency_keys`` are those of requests
    with a key in the range of the file whose window was open at its end. ``operation`` wrote the file. ``cleanings``
    say when offsets were first compacted: rising (end offset, time in ms). ``append_time_ms`` is the time of the last
    append in this file or an earlier one; 0 if it is not known. ``open_transactions`` and ``markers``, at most one of a
    producer, are those at ``end_offset``.

    ``log_append_times`` has the offsets of records whose timestamps are append times (message.timestamp.type was
    LogAppendTime); other records have their producers' timestamps. ``producers_forgotten_up_to`` is the highest id of a
    producer that was forgotten by then, or did not begin at sequence 0 (-1: none was); None if the file does not have
    it. ``columns`` is the fingerprint of the schema whose columns the file has; None without declared columns.
    """

    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    leader_epochs: tuple[tuple[int, int], ...]
    producers: tuple[RememberedBatch, ...]
    idempotency_keys: tuple[RememberedBatch, ...]
    operation: str = ROLL
    cleanings: tuple[tuple[int, int], ...] = ()
    append_time_ms: int = 0
    open_transactions: tuple[OpenTransaction, ...] = ()
    markers: tuple[Marker, ...] = ()
    producers_forgotten_up_to: int | None = None
    log_append_times: OffsetRanges = ()
    columns: str | None = None


def encode_footer(footer: SegmentFooter) -> dict[str, str]:
    transactions = {
        f"{_PREFIX}open_transactions": json.dumps(footer.open_transactions),
        f"{_PREFIX}markers": json.dumps(footer.markers),
    }
    has_transactions = bool(footer.open_transactions or footer.markers)
    forgotten = footer.producers_forgotten_up_to
    return {
        f"{_PREFIX}format": str(FORMAT_WITH_TRANSACTIONS if has_transactions else FORMAT_VERSION),
        f"{_PREFIX}partition": str(footer.partition),
        f"{_PREFIX}base_offset": str(footer.base_offset),
        f"{_PREFIX}end_offset": str(footer.end_offset),
        f"{_PREFIX}leader_epoch": str(footer.leader_epoch),
        f"{_PREFIX}leader_epochs": json.dumps(footer.leader_epochs),
        f"{_PREFIX}producers": json.dumps(footer.producers),
        f"{_PREFIX}idempotency_keys": json.dumps(footer.idempotency_keys),
        f"{_PREFIX}operation": footer.operation,
        f"{_PREFIX}cleanings": json.dumps(footer.cleanings),
        f"{_PREFIX}append_time_ms": str(footer.append_time_ms),
        **(transactions if has_transactions else {}),
        **({f"{_PREFIX}{_LOG_APPEND_TIMES}": json.dumps(times)} if (times := footer.log_append_times) else {}),
        **({} if forgotten is None else {f"{_PREFIX}{_FORGOTTEN}": str(forgotten)}),
        **({} if footer.columns is None else {f"{_PREFIX}{_COLUMNS}": footer.columns}),
    }


def is_segment(metadata: Mapping[bytes, bytes], path: str) -> bool:
    """Return False for a file of another writer. Raises NewerFormatError, naming ``path``, for an unknown segment
    format.
    """
    text = metadata.get(f"{_PREFIX}format".encode())
    if text is None:
        return False
    if not text.isdigit():
        raise CorruptionError(f"{path} has no valid segment format ({text!r})")
    if int(text) not in _FORMATS:
        raise NewerFormatError(
            f"{path} has segment format {int(text)}, and this release knows {_FORMATS}: read it with the release "
            "that wrote it"
        )
    return True


def decode_footer(metadata: Mapping[bytes, bytes], path: str) -> SegmentFooter:
    """Decode a footer. Raises CorruptionError, naming ``path``, if the metadata is missing, malformed or of another
    format.
    """
    if not is_segment(metadata, path):
        raise CorruptionError(f"{path} has no segment footer: not written by logstore")
    try:
        text = {
            key.decode().removeprefix(_PREFIX): value.decode()
            for key, value in metadata.items()
            if key.startswith(_PREFIX.encode())
        }
        with_transactions = int(text["format"]) == FORMAT_WITH_TRANSACTIONS
        rows = (text["open_transactions"], text["markers"]) if with_transactions else ("[]", "[]")
        return SegmentFooter(
            partition=int(text["partition"]),
            base_offset=int(text["base_offset"]),
            end_offset=int(text["end_offset"]),
            leader_epoch=int(text["leader_epoch"]),
            leader_epochs=tuple((int(epoch), int(start)) for epoch, start in json.loads(text["leader_epochs"])),
            producers=batches_from_rows(json.loads(text["producers"])),
            idempotency_keys=batches_from_rows(json.loads(text["idempotency_keys"])),
            operation=text["operation"],
            cleanings=tuple((int(end), int(time_ms)) for end, time_ms in json.loads(text["cleanings"])),
            append_time_ms=int(text["append_time_ms"]),
            open_transactions=open_transactions_from_rows(json.loads(rows[0])),
            markers=markers_from_rows(json.loads(rows[1])),
            log_append_times=_offset_ranges(text.get(_LOG_APPEND_TIMES)),
            producers_forgotten_up_to=int(forgotten) if (forgotten := text.get(_FORGOTTEN)) is not None else None,
            columns=text.get(_COLUMNS),
        )
    except _MALFORMED as error:
        raise CorruptionError(f"{path} has no valid segment footer ({error!r})") from error


def log_append_times(metadata: Mapping[bytes, bytes], path: str) -> OffsetRanges:
    """Decode only ``SegmentFooter.log_append_times``. Raises CorruptionError, naming ``path``, if it is malformed."""
    text = metadata.get(f"{_PREFIX}{_LOG_APPEND_TIMES}".encode())
    try:
        return _offset_ranges(text)
    except _MALFORMED as error:
        raise CorruptionError(f"{path} has no valid segment footer ({error!r})") from error


def _offset_ranges(text: str | bytes | None) -> OffsetRanges:
    return () if text is None else join_ranges((int(start), int(end)) for start, end in json.loads(text))
