"""Writes parts of a store by themselves (frames, a journal, segments, group offsets), and what they say."""

import asyncio
import base64
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pyarrow as pa

from logstore.journal.frame import (
    FileHeader,
    Frame,
    FrameFlags,
    FrameHeader,
    FrameType,
    encode_file_header,
    encode_frame_header,
    encode_mark,
)
from logstore.journal.inspect import DumpRow
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.records.batch_identity import BatchIdentity, IdempotencyKey, RememberedBatch
from logstore.records.offset_record import OffsetCommit, OffsetKey, encode_offset_records
from logstore.records.schema import LOG_SCHEMA
from logstore.segments import writer as segment_writer
from logstore.segments.footer import SegmentFooter
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.journals import TOPIC, data_frame, running, snapshot_frame
from tests.support.topics import TIMESTAMP_MS, log_batch

SEGMENT_CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
LARGE_VALUE_BYTES = 9 << 20

_PRODUCERS = (RememberedBatch(5 << 32, 2, 7, 3, 10, 1_000), RememberedBatch(6, 0, 2**31 - 1, 1, 13, 1_001))
_KEYS = (RememberedBatch(2**64 - 1, -(2**15), -(2**63), 1, 14, 1_002),)


# ---- bytes that are the same each time they are written --------------------------------------------------------------


def frames() -> Iterator[tuple[Frame, dict[str, int]]]:
    """Frames with extremes in every field, and where they stand."""
    place = {"position": 1_000, "durable_end": 900, "file_id": 2**64 - 1}
    least, greatest = -(2**63), 2**63 - 1
    for flags in range(4):
        header = FrameHeader(FrameType.DATA, FrameFlags(flags), TOPIC, 3, 42, 2, 1, TIMESTAMP_MS, TIMESTAMP_MS + 5, 16)
        yield Frame(header, b"an Arrow message"), place
    largest = BatchIdentity(2**64 - 1, 2**15 - 1, greatest)
    header = FrameHeader(
        FrameType.DATA, FrameFlags(0), TOPIC, 2**31 - 1, greatest, 2**31 - 1, 2**31 - 1, greatest, greatest, 0, largest
    )
    yield Frame(header, b""), {"position": 2**63, "durable_end": 2**63, "file_id": 0}
    lowest = header._replace(identity=BatchIdentity(0, -(2**15), least), append_time_ms=least, max_timestamp_ms=least)
    yield Frame(lowest, b"\x00"), place
    yield Frame(snapshot_frame(7).header, snapshot().encode()), place


def snapshot() -> PartitionSnapshot:
    packed = (b"".join(batch.pack() for batch in batches) for batches in (_PRODUCERS, _KEYS))
    return PartitionSnapshot(7, ((0, 0), (3, 5)), 15, *packed, 5)


def encoded_frame(frame: Frame, place: dict[str, int]) -> bytes:
    return encode_frame_header(frame, **place) + bytes(frame.payload)


def deterministic() -> dict[str, str]:
    """By name, bytes that today's code must write as the golden code did. In base64."""
    key = IdempotencyKey.of("a-key", b"a body", bytes(range(32)), "")
    group_offsets = encode_offset_records(
        [
            (OffsetKey("g", "t", 1), OffsetCommit(5, 3, 'ä "', -1, TOPIC, TIMESTAMP_MS)),
            (OffsetKey("g", "t", 2), None),
        ]
    )
    found: dict[str, bytes] = {
        "file header": encode_file_header(FileHeader(2**64 - 1, 4_711, TIMESTAMP_MS)),
        "mark": encode_mark(durable_end=4_711, file_id=7),
        "idempotency key": repr((key.hash, key.epoch, key.digest.hex(), key.partition_hash)).encode(),
        "fingerprint": repr(key.fingerprint(None)).encode(),
        "group offset key": group_offsets["key"][0].as_py(),
        "group offset value": group_offsets["value"][0].as_py(),
    }
    found |= {f"frame {number}": encoded_frame(*given) for number, given in enumerate(frames())}
    return {name: base64.b64encode(data).decode() for name, data in found.items()}


# ---- a journal -------------------------------------------------------------------------------------------------------


def write_journal(directory: Path) -> None:
    """Three files: snapshots, data of three kinds of sender, relocated frames; behind it marks and reserved zeros."""

    def snapshots() -> Sequence[Frame]:
        remembered = snapshot_frame(4, partition=2)
        return [snapshot_frame(2), remembered._replace(payload=snapshot().encode())]

    async def scenario() -> None:
        async with running(directory, file_bytes=2_500, snapshots=snapshots) as (journal, _):
            stamped = data_frame(0, b"stamped", partition=1)
            header = stamped.header._replace(flags=FrameFlags.LOG_APPEND_TIME)
            await journal.append([data_frame(0, bytes(300)), stamped._replace(header=header)])
            for number, sender in enumerate((BatchIdentity(5, 2, 10), BatchIdentity(2**64 - 1, -2, -1))):
                frame = data_frame(1 + number, bytes(700))
                await journal.append([frame._replace(header=frame.header._replace(identity=sender))])
            await journal.append([data_frame(3, b"other", topic=UUID(int=1)), data_frame(0, bytes(900), partition=3)])
            await journal.relocate_oldest()

    asyncio.run(scenario())


def frame_rows(rows: Iterator[DumpRow]) -> list[dict[str, Any]]:
    """As JSON keeps them."""
    return [_plain({name: getattr(row, name) for name in row.__slots__}) for row in rows]


# ---- segments --------------------------------------------------------------------------------------------------------


def write_segments(directory: Path) -> None:
    """One of each codec with gaps between offsets, and one of two row groups."""
    with mock.patch.object(segment_writer, "new_unique", return_value="0" * 32):
        for number, codec in enumerate(SEGMENT_CODECS):
            with SegmentWriter(open_table(directory), 3, number * 1_000, number * 1_000 + 180, 7, codec) as writer:
                writer.write(log_batch(range(number * 1_000, number * 1_000 + 50)))
                writer.write(log_batch([number * 1_000 + 55, number * 1_000 + 170]))
                writer.finish(((5, 0), (7, 120)), producers=_PRODUCERS, idempotency_keys=_KEYS)
        with SegmentWriter(open_table(directory), 4, 0, 2, 0) as writer:
            for offset in range(2):
                values = {"offset": [offset], "timestamp": [TIMESTAMP_MS], "key": [b"large"], "headers": [None]}
                values["value"] = [bytes(LARGE_VALUE_BYTES)]
                writer.write(pa.RecordBatch.from_pydict(values, schema=LOG_SCHEMA))
            writer.finish()


def footer_row(footer: SegmentFooter) -> dict[str, Any]:
    """As JSON keeps it."""
    return dict(_plain(dataclasses.asdict(footer)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, UUID) else value
