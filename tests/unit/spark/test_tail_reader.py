"""The tail reader without Spark, and its errors for a store that is away, busy, or no longer has the records."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import logstore.client.fetch
from logstore import errors
from logstore.client.fetch import FetchRequest
from logstore.client.transport import Transport
from logstore.errors import LogStoreError
from logstore.protocol.fetch_response import PartitionData, encode_fetch_response, read_fetch_response
from logstore.protocol.record_batch import RecordBatch, encode_batches
from logstore.records.schema import WIRE_SCHEMA
from logstore.spark import tail_reader, worker
from logstore.spark.tail_reader import TailReadError

URL = "http://127.0.0.1:9"
Answer = PartitionData | LogStoreError | None


def records(base_offset: int, count: int) -> PartitionData:
    values = [b"%d" % offset for offset in range(base_offset, base_offset + count)]
    columns = [pa.nulls(count, field.type) for field in WIRE_SCHEMA]
    columns[2] = pa.array(values, pa.binary())
    payload = pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA).serialize()
    end = base_offset + count
    content = encode_batches([RecordBatch(base_offset, 7, count, 0, payload)])
    encoded = encode_fetch_response([PartitionData(0, 0, 0, 1_000, 1_000, end, content)])
    (response,) = read_fetch_response(pa.py_buffer(b"".join(map(bytes, encoded))))
    return response


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Return ``asked(*answers)``: the store gives these answers, the last one repeatedly. It returns the requested
    offsets.
    """
    return lambda *answers: answering(monkeypatch, answers)[0]


@pytest.fixture
def waited_for(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[int, int]]]:
    """Return a function like ``asked`` that returns ``min_bytes`` and ``max_wait_ms`` of the requests."""
    return lambda *answers: answering(monkeypatch, answers)[1]


def answering(monkeypatch: pytest.MonkeyPatch, answers: Sequence[Answer]) -> tuple[list[int], list[tuple[int, int]]]:
    monkeypatch.setattr(tail_reader, "RETRY_SECONDS", 0.3)
    offsets: list[int] = []
    waits: list[tuple[int, int]] = []

    def fetch(_: Transport, request: FetchRequest, __: float, at: str | None) -> list[PartitionData]:
        assert at is None  # of one node
        (wanted,) = request.partitions
        assert (wanted.topic, wanted.partition, wanted.topic_id) == ("t", 3, "the-id")
        answer = answers[min(len(offsets), len(answers) - 1)]
        offsets.append(wanted.offset)
        waits.append((request.min_bytes, request.max_wait_ms))
        if isinstance(answer, LogStoreError):
            raise answer
        return [] if answer is None else [answer]

    monkeypatch.setattr(logstore.client.fetch, "fetch", fetch)
    return offsets, waits


def read(start: int, end: int) -> list[tuple[int, int, bytes]]:
    task = tail_reader.tail_reader([URL], "t", "the-id", [(3, start, end)], "spark")
    rows: list[tuple[int, int, bytes]] = []
    for batch in task(iter([pa.RecordBatch.from_pydict({"id": [0]})])):
        columns: Sequence[pa.Array] = [batch.column(name) for name in ("partition", "offset", "value")]
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return rows


def test_a_range_comes_whole_and_no_further(asked):
    offsets = asked(records(5, 3), None, errors.ThrottledError("busy"), records(8, 3))
    assert read(6, 10) == [(3, offset, b"%d" % offset) for offset in range(6, 10)]
    assert offsets == [6, 8, 8, 8]


def test_small_pieces_come_together_once_the_size_of_records_is_known(waited_for):
    requests = waited_for(records(0, 10), None, records(10, 90))
    assert len(read(0, 100)) == 100
    first, second, third = requests
    assert first == third == (1, tail_reader.FETCH_WAIT_MS)
    min_bytes, wait_ms = second
    assert 90 * len("10") < min_bytes < 90 * 200
    assert wait_ms == 0, "they are there, or they are fewer"


def test_offsets_without_a_record_are_passed_over(asked):
    """Skip offsets of aborted transactions: between records, alone in an answer, and at the end of the range."""
    nothing = [PartitionData(0, 0, 0, 1_000, 1_000, end, [pa.py_buffer(b"")]) for end in (12, 30)]
    offsets = asked(records(5, 3), nothing[0], records(14, 3), nothing[1])
    assert [offset for _, offset, _ in read(6, 25)] == [6, 7, 14, 15, 16]
    assert offsets == [6, 8, 12, 17]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (errors.StoreUnreachableError("nobody there"), "gave no answer in 0 s .*nobody there.*Can this executor reach"),
        (
            errors.UnknownTopicIdError("another id"),
            "made again since this DataFrame was made; make the DataFrame again",
        ),
        (errors.OffsetOutOfRangeError("gone", log_start_offset=9, high_watermark=10), "gone Retention or delete-rec"),
        (errors.QuarantinedError("broken"), "topic t: broken"),
        (None, "partition 3 ends at 6, before the end of the range 6 to 10"),
        (PartitionData.of_error(0, errors.MissingRecordsError("taken out")), "topic t: taken out"),
    ],
    ids=["away", "made again", "overtaken", "quarantined", "at the end", "of the partition"],
)
def test_a_task_fails_with_the_reason(asked, answer: Answer, says: str):
    if isinstance(answer, PartitionData):
        encoded = encode_fetch_response([answer])
        (answer,) = read_fetch_response(pa.py_buffer(b"".join(map(bytes, encoded))))
    asked(answer)
    with pytest.raises(TailReadError, match=says):
        read(6, 10)


def test_the_modules_sent_to_the_executors_are_small():
    for module in (tail_reader, worker):
        cloudpickle.register_pickle_by_value(module)
    try:
        task = tail_reader.tail_reader([URL], "t", "the-id", [(p, 0, 10**9) for p in range(100)], "spark")
        assert len(cloudpickle.dumps(task)) < 20_000
    finally:
        for module in (tail_reader, worker):
            cloudpickle.unregister_pickle_by_value(module)


def test_an_executor_without_the_client_says_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "logstore.client.transport", None)
    with pytest.raises(TailReadError, match="pip install delta-logstore where executors run"):
        read(6, 10)
