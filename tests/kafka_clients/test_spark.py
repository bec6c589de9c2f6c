"""Spark's own Kafka source and sink, with their jars from Maven, against the listener."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kafka import find_spark_source
from tests.support.kafka_clients import CONFLUENT, Served
from tests.support.kafka_clients.records import (
    PARTITIONS,
    ReadRecord,
    SentRecord,
    alike_records,
    by_partition,
    peculiar_records,
    sent_by_partition,
)
from tests.support.server_process import ROOT

pytestmark = [pytest.mark.long, pytest.mark.spark]


def test_a_batch_and_a_stream_read_and_write(served: Served, new_topic, tmp_path: Path):
    jars = find_spark_source()
    if isinstance(jars, str):
        pytest.skip(jars)
    topics = {use: new_topic(f"spark-{use}", PARTITIONS) for use in ("read", "batch", "stream")}
    # A header's value cannot be null in Spark's rows.
    sent = [record for record in peculiar_records() if all(value is not None for _, value in record.headers)]
    sent += alike_records(600)
    CONFLUENT.produce(served, topics["read"], sent, "zstd")
    given = {
        **topics,
        "bootstrap": served.bootstrap,
        "jars": [jar.as_uri() for jar in jars],
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kafka_clients.spark_program"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=500,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    read = by_partition(
        map(_record, sorted(json.loads(done.stdout), key=lambda row: (row["partition"], row["offset"])))
    )
    assert {p: [record.sent for record in records] for p, records in read.items()} == sent_by_partition(sent)
    written = CONFLUENT.read(served, {topics["batch"]: PARTITIONS, topics["stream"]: PARTITIONS})
    for use in ("batch", "stream"):
        found = by_partition(written[topics[use]])
        assert {p: [_without_time(record.sent) for record in records] for p, records in found.items()} == {
            p: list(map(_without_time, records)) for p, records in sent_by_partition(sent).items()
        }, use


def _record(row) -> ReadRecord:
    headers = tuple((key, _data(value)) for key, value in row["headers"])
    place = row["partition"], row["offset"]
    return ReadRecord(
        *place, _data(row["key"]), _data(row["value"]), headers, row["timestamp_ms"], row["timestamp_type"]
    )


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _without_time(record: SentRecord) -> SentRecord:
    return record._replace(timestamp_ms=0)
