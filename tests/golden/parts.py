"""Writes parts of a store by themselves (frames, a journal, segments, group offsets), and their content."""

import asyncio
import base64
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pyarrow as pa

from logstore.cluster.embedded_cluster_state import EmbeddedClusterState
from logstore.cluster.registration import write_cluster_file
from logstore.filesystem import FileSystem
from logstore.inspection.journal import DumpRow
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
from logstore.journal.identity import JournalIdentity
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.kafka_batches.header import Compression, with_max_timestamp
from logstore.log.partition_frames import PartitionFrames
from logstore.records.batch import KafkaBatch
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, IdempotencyKey, RememberedBatch
from logstore.records.offset_record import OffsetCommit, OffsetKey, encode_offset_records
from logstore.records.payload import encode_payload
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA
from logstore.records.transactions import ControlType, Marker, OpenTransaction
from logstore.segments import writer as segment_writer
from logstore.segments.footer import SegmentFooter
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.journals import (
    TOPIC,
    control_frame,
    data_frame,
    relocate_oldest,
    running,
    snapshot_frame,
    truncate_frame,
)
from tests.support.kafka_batches import client_batch
from tests.support.manual_clock import ManualClock
from tests.support.records import Row, wire_batch
from tests.support.topics import TIMESTAMP_MS, log_batch

SEGMENT_CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
LARGE_VALUE_BYTES = 9 << 20

_PRODUCERS = (RememberedBatch(5 << 32, 2, 7, 3, 10, 1_000), RememberedBatch(6, 0, 2**31 - 1, 1, 13, 1_001))
_KEYS = (RememberedBatch(2**64 - 1, -(2**15), -(2**63), 1, 14, 1_002),)

_OPEN = (OpenTransaction(5 << 32, 2, 10, 1_000), OpenTransaction(2**63 - 1, 2**15 - 1, 2**63 - 1, 2**63 - 1))
_MARKERS = (Marker(6, 1, 3, 14, 1_002), Marker(7, 0, -(2**31), 0, -(2**63)))


# ---- bytes that are the same each time they are written --------------------------------------------------------------


def frames() -> Iterator[tuple[Frame, dict[str, int]]]:
    """Yield frames with extremes in every field, and their places."""
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
    # These exist since version 3.
    yield Frame(snapshot_frame(7).header, snapshot_with_transactions().encode()), place
    for kind in ControlType:
        yield control_frame(42, kind=kind, producer_id=2**63 - 1, epoch=2**15 - 1), place
    yield truncate_frame(42, leader_epoch=2**31 - 1), place


def frames_of_format_1() -> Iterator[tuple[Frame, dict[str, int]]]:
    """Yield the frames that were written in format 1, in today's terms: their senders have smaller numbers."""
    for number, (frame, place) in enumerate(itertools.islice(frames(), 7)):
        header = frame.header
        if number == 4:
            identity = BatchIdentity(2**63 - 1, 2**15 - 1, 2**31 - 1)
            header = header._replace(identity=identity, inflated_bytes=2**64 - 1)
        if number == 5:
            header = header._replace(identity=BatchIdentity(2**64 - 1, -1, -(2**31)))
        yield frame._replace(header=header), place


def snapshot(keys: Sequence[RememberedBatch] = _KEYS) -> PartitionSnapshot:
    packed = (b"".join(batch.pack() for batch in batches) for batches in (_PRODUCERS, keys))
    return PartitionSnapshot(7, ((0, 0), (3, 5)), 15, *packed, 5)


def snapshot_of_format_1() -> PartitionSnapshot:
    return snapshot((RememberedBatch(2**64 - 1, -1, -(2**31), 1, 14, 1_002),))


def snapshot_with_transactions() -> PartitionSnapshot:
    return dataclasses.replace(snapshot(), open_transactions=_OPEN, markers=_MARKERS)


def encoded_frame(frame: Frame, place: dict[str, int]) -> bytes:
    return encode_frame_header(frame, **place) + bytes(frame.payload)


def deterministic() -> dict[str, str]:
    """Return bytes, by name and in base64, that today's code must write as the golden code did."""
    key = IdempotencyKey.of("a-key", b"a body", bytes(range(32)), "")
    group_offsets = encode_offset_records(
        [
            (OffsetKey("g", "t", 1), OffsetCommit(5, 3, 'ä "', -1, str(TOPIC), TIMESTAMP_MS)),
            (OffsetKey("g", "t", 2), None),
        ]
    )
    found: dict[str, bytes] = {
        "file header": encode_file_header(
            FileHeader(2**64 - 1, 4_711, TIMESTAMP_MS, JournalIdentity(TOPIC, 2**64 - 2))
        ),
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
    """Write files with snapshots, data of three kinds of sender, transaction markers, a truncation and relocated
    frames, followed by marks and reserved zeros.
    """

    def snapshots() -> Sequence[Frame]:
        remembered = snapshot_frame(4, partition=2)
        return [snapshot_frame(2), remembered._replace(payload=snapshot_with_transactions().encode())]

    async def scenario() -> None:
        async with running(directory, file_bytes=2_500, snapshots=snapshots) as (journal, _):
            stamped = data_frame(0, b"stamped", partition=1)
            header = stamped.header._replace(flags=FrameFlags.LOG_APPEND_TIME)
            await journal.append([data_frame(0, bytes(300)), stamped._replace(header=header)])
            for number, sender in enumerate((BatchIdentity(5, 2, 10), BatchIdentity(2**64 - 1, -2, -1))):
                frame = data_frame(1 + number, bytes(700))
                await journal.append([frame._replace(header=frame.header._replace(identity=sender))])
            await journal.append([data_frame(3, b"other", topic=UUID(int=1)), data_frame(0, bytes(900), partition=3)])
            await journal.append([control_frame(3 + kind, kind=kind) for kind in ControlType])
            await journal.append([truncate_frame(4, leader_epoch=1), control_frame(4)])
            await relocate_oldest(journal)

    asyncio.run(scenario())


def write_refused(directory: Path) -> None:
    """Write journals with records that this release does not honour, as a later release may write them."""
    records = encode_payload(pa.RecordBatch.from_pylist([{"value": b"plain"}], schema=WIRE_SCHEMA))
    plain = data_frame(0, bytes(records))
    of_transaction = plain.header._replace(
        base_offset=1, flags=FrameFlags.TRANSACTIONAL, identity=BatchIdentity(5 << 32, 2, 0)
    )

    async def scenario() -> None:
        async with running(directory / "TRANSACTIONAL") as (journal, _):
            await journal.append([plain, Frame(of_transaction, plain.payload), data_frame(2, bytes(records))])

    (directory / "TRANSACTIONAL").mkdir(parents=True)
    asyncio.run(scenario())


def write_record_batches(directory: Path) -> None:
    """Write a journal with record batches of Kafka's clients of every codec, of an idempotent producer, and with the
    append time, between frames of HTTP.
    """
    rows = [
        Row(TIMESTAMP_MS, b"key", b"value", None),
        Row(None, None, b"", (("same", b"1"), ("same", None), ("\u043a\u043b\u044e\u0447", b""))),
        Row(5, b"", None, None),
    ]
    sender = BatchIdentity(5 << 32, 2, 2**31 - 2)
    stamped = with_max_timestamp(client_batch(rows), TIMESTAMP_MS, log_append_time=True)
    payloads = [*(client_batch(rows, compression=kind) for kind in Compression), client_batch(rows, identity=sender)]
    log = PartitionFrames(TOPIC, 0, ManualClock(TIMESTAMP_MS))

    def frame(number: int, payload: bytes, identity: BatchIdentity, log_append_time: bool) -> Frame:
        batch = KafkaBatch(len(rows), 700, 1, TIMESTAMP_MS, (1,), log_append_time=False)
        made = log.kafka_batch(batch, payload, base_offset=3 * number, leader_epoch=number // 4, identity=identity)
        return made._replace(header=made.header._replace(flags=FrameFlags(log_append_time)))

    async def scenario() -> None:
        async with running(directory) as (journal, _):
            await journal.append([frame(at, payload, NO_IDENTITY, False) for at, payload in enumerate(payloads[:-1])])
            await journal.append([frame(5, payloads[-1], sender, False), frame(6, stamped, NO_IDENTITY, True)])
            await journal.append([data_frame(21, encode_payload(wire_batch(rows)).to_pybytes(), count=3)])

    directory.mkdir()
    asyncio.run(scenario())


def write_cluster_files(directory: Path) -> dict[str, Any]:
    """Write the ``cluster.json`` of a store of one node and of a cluster; return their cluster ids by directory."""

    async def of_one_node(data: Path) -> str:
        coordinator = EmbeddedClusterState(data, 0, FileSystem())
        await coordinator.start()
        await coordinator.stop()
        return coordinator.cluster_id

    found = {"one-node": asyncio.run(of_one_node(directory / "one-node")), "cluster": "a-cluster"}
    (directory / "cluster").mkdir()
    write_cluster_file(FileSystem(), directory / "cluster", found["cluster"])
    return found


def frame_rows(rows: Iterator[DumpRow]) -> list[dict[str, Any]]:
    """Return the rows as JSON keeps them."""
    return [_plain({name: getattr(row, name) for name in row.__slots__}) for row in rows]


# ---- segments --------------------------------------------------------------------------------------------------------


def write_segments(directory: Path) -> None:
    """Write a segment of each codec with gaps between offsets, one of two row groups, one without a record, one that a
    job made of others, with append times, and one with transactions in its footer.
    """
    directory.mkdir()
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
        with SegmentWriter(open_table(directory), 5, 0, 30, 1) as writer:
            writer.finish(((1, 0),), producers=_PRODUCERS, append_time_ms=TIMESTAMP_MS)
        with SegmentWriter(open_table(directory), 5, 30, 400, 1) as writer:
            writer.write(log_batch([35, 201]))
            cleanings = ((90, TIMESTAMP_MS), (400, TIMESTAMP_MS + 1))
            append_times = ((30, 90), (201, 400))
            writer.finish(((1, 0),), operation="key-compaction", cleanings=cleanings, log_append_times=append_times)
        with SegmentWriter(open_table(directory), 5, 400, 410, 2) as writer:
            writer.write(log_batch(range(401, 404)))
            writer.finish(((1, 0), (2, 400)), open_transactions=_OPEN, markers=_MARKERS)


def footer_row(footer: SegmentFooter) -> dict[str, Any]:
    """Return the row as JSON keeps it."""
    return dict(_plain(dataclasses.asdict(footer)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, UUID) else value
