"""The bench of a cluster reads the journals of stopped brokers: truncated frames, and frames that are in the table."""

import asyncio
from pathlib import Path

import pyarrow as pa

from logstore.journal.frame import Frame
from logstore.records.payload import encode_payload
from logstore.records.schema import WIRE_SCHEMA
from tests.faults.bench.history import Recorder
from tests.faults.cluster.journals import tell_replicas
from tests.support.journals import TOPIC, data_frame, running, snapshot_frame, truncate_frame


def record(offset: int) -> Frame:
    columns = [pa.nulls(1, field.type) for field in WIRE_SCHEMA]
    batch = pa.RecordBatch.from_arrays([*columns[:2], pa.array([b"%d" % offset]), *columns[3:]], schema=WIRE_SCHEMA)
    return data_frame(offset, encode_payload(batch).to_pybytes())


def truncated(tmp_path: Path, *frames: Frame) -> list[int]:
    """Return the offsets of the frames that the bench takes for truncated."""
    directory = tmp_path / "journal" / "0"
    directory.mkdir(parents=True)

    async def write() -> None:
        async with running(directory) as (journal, _):
            for frame in frames:
                await journal.append([frame])

    asyncio.run(write())
    told: list[dict[str, object]] = []
    recorder = Recorder(tmp_path / "history")
    recorder.tell = lambda *_, **fields: told.append(fields)  # type: ignore[method-assign]
    tell_replicas({1: tmp_path}, {TOPIC: "t"}, {}, recorder)
    recorder.close()
    (replica,) = told
    removed = replica["removed"]
    assert isinstance(removed, list)
    return [base for base, *_ in removed]


def test_truncations_of_a_leader_count(tmp_path: Path) -> None:
    assert truncated(tmp_path, record(0), record(1), record(2), truncate_frame(1), record(1)) == [1, 2]


def test_a_log_that_begins_again_at_the_end_of_the_table_has_lost_nothing_below(tmp_path: Path) -> None:
    begun_anew = [truncate_frame(0), snapshot_frame(2)]
    assert truncated(tmp_path, record(0), record(1), record(2), *begun_anew, record(2)) == [2]
