"""Spark reads declared columns and skips files by them, and its statements on the table leave a log that goes on."""

import itertools
import json

import pytest
from deltalake import DeltaTable

from logstore.client.admin import Admin
from tests.spark.test_foreign_writers import path_of, problems, served

pytestmark = pytest.mark.spark

_names = itertools.count()
COLUMNS = (
    "carrier STRING, delay DOUBLE, day DATE, seen TIMESTAMP, price DECIMAL(12,2), airport STRING FROM from.airport"
)


def value(n: int) -> bytes:
    fields = {
        "carrier": f"C{n // 10}",
        "delay": n / 4,
        "day": f"2024-01-{1 + n // 10:02}",
        "seen": f"2024-01-{1 + n // 10:02}T00:00:00.{n:06}Z",
        "price": n + 0.25,
        "from": {"airport": f"A{n % 3}"},
    }
    return json.dumps(fields).encode() if n % 10 != 9 else b'{"carrier": 5}'


@pytest.fixture
def topic(store):
    """Roll four files of ten records each; the last record of each does not fit."""
    name = store.create(f"columns-{next(_names)}", 1)
    with Admin(store.url) as admin:
        admin.add_columns(name, COLUMNS)
    for start in range(0, 40, 10):
        send(store, name, range(start, start + 10))
    return name


def send(store, topic, numbers):
    records = [{"value": json.loads(value(n))} for n in numbers]
    store.post(f"/topics/{topic}/partitions/0", records=records)
    store.roll(topic)


def table_of(spark, store, topic):
    return spark.read.format("delta").load(str(path_of(store, topic)))


def test_columns_are_read_and_prune_files(spark, store, topic):
    table = table_of(spark, store, topic)
    rows = {row.offset: row for row in table.collect()}
    assert len(rows) == 40
    for n, row in rows.items():
        told = json.loads(row.value)
        if n % 10 == 9:
            assert (row.carrier, row.value_error) == (None, "$.carrier: expected a string, got a number")
            continue
        assert (row.carrier, row.delay, str(row.day)) == (told["carrier"], told["delay"], told["day"])
        assert (float(row.price), row.airport, row.value_error) == (told["price"], told["from"]["airport"], None)
        assert row.seen.microsecond == n
    for condition in (
        "carrier = 'C2'",
        "delay >= 5 AND delay < 7",
        "day = '2024-01-03'",
        "seen > '2024-01-03' AND seen < '2024-01-04'",
        "price = 25.25",
    ):
        found = table.where(condition)
        assert {row.offset // 10 for row in found.collect()} == {2}, condition
        files = found.select("_metadata.file_path").distinct().count()
        assert files == 1
        scanned = found._jdf.queryExecution().executedPlan().execute().getNumPartitions()
        assert scanned == 1, condition


@pytest.mark.long
def test_statements_of_spark_leave_a_log_that_continues(spark, store, topic):
    path = path_of(store, topic)
    table = f"delta.`{path}`"
    before = served(store, topic)
    version = DeltaTable(str(path)).version()
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note STRING")
    spark.sql(f"UPDATE {table} SET note = 'seen', delay = 1000 WHERE carrier = 'C1'")
    spark.sql(f"OPTIMIZE {table}")
    send(store, topic, range(40, 50))
    assert served(store, topic)[0][:40] == before[0]
    assert problems(store, topic) == set()
    with Admin(store.url) as admin:
        found = admin.columns(topic)
        assert (found.ddl, found.unfilled_files) == (COLUMNS, 1)
        with pytest.raises(Exception, match="declare value_note STRING FROM note"):
            admin.add_columns(topic, "note STRING")
        admin.add_columns(topic, "more BOOLEAN")
    rows = {row.offset: row for row in table_of(spark, store, topic).collect()}
    assert [rows[n].note for n in (9, 10, 18, 19, 45)] == [None, "seen", "seen", None, None]
    assert (rows[10].delay, rows[20].delay, rows[45].carrier) == (1000.0, 5.0, "C4")

    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
    send(store, topic, range(50, 60))
    rows = {row.offset: row for row in table_of(spark, store, topic).collect()}
    assert sorted(rows) == list(range(60))
    assert (rows[10].delay, rows[55].carrier) == (2.5, "C5")
    assert len(served(store, topic)[0]) == 60


@pytest.mark.long
def test_renamed_and_dropped_columns_are_followed(spark, store, topic):
    table = f"delta.`{path_of(store, topic)}`"
    spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
        "'delta.minWriterVersion' = '5')"
    )
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN carrier TO airline")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN price")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note STRING")
    spark.sql(f"UPDATE {table} SET note = 'seen' WHERE airline = 'C1'")
    store.post(f"/topics/{topic}/refresh")
    send(store, topic, range(40, 50))
    rows = {row.offset: row for row in table_of(spark, store, topic).collect()}
    assert (rows[10].airline, rows[10].note, rows[45].airline, rows[45].note) == ("C1", "seen", "C4", None)
    assert table_of(spark, store, topic).where("airline = 'C4'").count() == 9
    assert problems(store, topic) == set()
    with Admin(store.url) as admin, pytest.raises(Exception, match="take-feature-back"):
        admin.add_columns(topic, "more BOOLEAN")
