"""Spark's statements on the table of a topic that a store serves, and what the log and Spark's readers return then."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from logstore.cli.app import app
from logstore.client.consumer import Consumer
from logstore.spark import read_offsets

pytestmark = pytest.mark.spark

ROWS = 60


_names = itertools.count()
runner = CliRunner()


@pytest.fixture
def topic(store):
    """Seal three segments of 20 records in each of two partitions."""
    name = store.create(f"foreign-{next(_names)}", 2)
    for start in range(0, ROWS, 20):
        for partition in (0, 1):
            store.produce(name, partition, start, start + 20)
        store.roll(name)
    return name


def value_of(offset: int) -> bytes | None:
    return None if offset % 11 == 0 else str(offset).encode()


def path_of(store, topic: str):
    return store.server.data / "topics" / topic


def served(store, topic: str) -> dict[int, list[tuple[int, bytes | None]]]:
    """Return what a consumer reads, by partition."""
    store.post(f"/topics/{topic}/refresh")
    with Consumer(store.url, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        found: dict[int, list[tuple[int, bytes | None]]] = {p.partition: [] for p in partitions}
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(p) < ends[p] for p in partitions):
            for record in consumer.poll():
                found[record.partition].append((record.offset, record.value))
    return found


def problems(store, topic: str) -> set[str]:
    answer = store.http.get(f"{store.url}/health/ready").json()
    return {problem["state"] for problem in answer["problems"] if problem["topic"] == topic}


def everything() -> list[tuple[int, bytes | None]]:
    return [(offset, value_of(offset)) for offset in range(ROWS)]


STATEMENTS: dict[str, tuple[list[str], Callable[[int, bytes | None], Any], set[str]]] = {
    "OPTIMIZE": (["OPTIMIZE {t}"], lambda o, v: v, set()),
    "OPTIMIZE ZORDER BY": (["OPTIMIZE {t} ZORDER BY (`timestamp`)"], lambda o, v: v, set()),
    "DELETE": (
        [
            "DELETE FROM {t} WHERE partition = 0 AND offset % 10 = 3",
            "DELETE FROM {t} WHERE partition = 0 AND offset < 20",
        ],
        lambda o, v: v if o >= 20 and o % 10 != 3 else KeyError,
        set(),
    ),
    "UPDATE": (
        ["UPDATE {t} SET value = CAST('new' AS BINARY) WHERE partition = 0 AND offset IN (3, 44)"],
        lambda o, v: b"new" if o in (3, 44) else v,
        set(),
    ),
    "MERGE": (
        [
            """MERGE INTO {t} t USING (SELECT 5L AS offset, 0 AS partition UNION ALL SELECT 50L, 0) s
               ON s.offset = t.offset AND s.partition = t.partition WHEN MATCHED THEN UPDATE SET value = NULL"""
        ],
        lambda o, v: None if o in (5, 50) else v,
        set(),
    ),
    "RESTORE": (["RESTORE TABLE {t} TO VERSION AS OF 1"], lambda o, v: v, set()),
    "INSERT": (
        ["INSERT INTO {t} SELECT * FROM {t} WHERE offset = 7 AND partition = 0"],
        lambda o, v: v,
        {"foreign_file"},
    ),
    "INSERT OVERWRITE": (
        ["INSERT OVERWRITE {t} SELECT * FROM {t} WHERE offset < 30"],
        lambda o, v: v,
        {"foreign_file"},
    ),
    "ALTER TABLE": (["ALTER TABLE {t} SET TBLPROPERTIES ('team' = 'us')"], lambda o, v: v, set()),
    "VACUUM": (["VACUUM {t}"], lambda o, v: v, set()),
    "TRUNCATE": (["TRUNCATE TABLE {t}"], lambda o, v: KeyError, set()),
}


@pytest.mark.long
@pytest.mark.parametrize("statement", STATEMENTS)
def test_after_a_statement_the_log_and_spark_serve_the_same_records(spark, store, topic, statement):
    texts, left, states = STATEMENTS[statement]
    for text in texts:
        spark.sql(text.format(t=f"delta.`{path_of(store, topic)}`")).collect()
    zero = [(o, left(o, v)) for o, v in everything() if left(o, v) is not KeyError]
    expected = {0: zero, 1: [] if statement == "TRUNCATE" else everything()}
    assert served(store, topic) == expected
    assert problems(store, topic) == states
    store.produce(topic, 0, ROWS, ROWS + 5)
    store.roll(topic)
    expected[0] += [(offset, value_of(offset)) for offset in range(ROWS, ROWS + 5)]
    frame = read_offsets(spark, topic, bootstrap=store.url).select("partition", "offset", "value")
    rows = sorted((r.partition, r.offset, r.value and bytes(r.value)) for r in frame.collect())
    assert rows == [(p, o, v) for p, records in sorted(expected.items()) for o, v in records]
    store.server.kill()
    store.server.start()
    assert served(store, topic) == expected
    if states:
        store.post(f"/topics/{topic}/drop-foreign-files")
        assert problems(store, topic) == set()
        assert served(store, topic) == expected


@pytest.mark.long
def test_one_statement_after_another(spark, store, topic):
    """Run all statements one after another, each on what the one before left."""
    table = f"delta.`{path_of(store, topic)}`"
    records = dict(everything())

    def after(text: str) -> None:
        spark.sql(text.format(t=table)).collect()
        assert served(store, topic) == {0: sorted(records.items()), 1: everything()}, text

    after("OPTIMIZE {t}")
    for offset in [o for o in records if o % 10 == 3]:
        del records[offset]
    after("DELETE FROM {t} WHERE partition = 0 AND offset % 10 = 3")
    records[44] = b"new"
    after("UPDATE {t} SET value = CAST('new' AS BINARY) WHERE partition = 0 AND offset = 44")
    store.produce(topic, 0, ROWS, ROWS + 5)
    store.roll(topic)
    records |= {offset: value_of(offset) for offset in range(ROWS, ROWS + 5)}
    records[61] = records[5] = None
    after(
        "MERGE INTO {t} t USING (SELECT 5L AS offset, 0 AS partition UNION ALL SELECT 61L, 0) s "
        "ON s.offset = t.offset AND s.partition = t.partition WHEN MATCHED THEN UPDATE SET value = NULL"
    )
    after("INSERT INTO {t} SELECT * FROM {t} WHERE offset = 6 AND partition = 0")
    assert problems(store, topic) == {"foreign_file"}
    frame = read_offsets(spark, topic, bootstrap=store.url).where("partition = 0").select("offset", "value")
    assert sorted((r.offset, r.value and bytes(r.value)) for r in frame.collect()) == sorted(records.items())
    store.server.kill()
    store.server.start()
    assert served(store, topic)[0] == sorted(records.items())
    store.post(f"/topics/{topic}/drop-foreign-files")
    records = dict(everything()) | {offset: value_of(offset) for offset in range(ROWS, ROWS + 5)}
    after("RESTORE TABLE {t} TO VERSION AS OF 3")
    assert problems(store, topic) == set()


@pytest.mark.long
def test_statements_with_deletion_vectors(spark, store, topic):
    """Check that the log and Spark's readers return the same; then the feature is removed."""
    table = f"delta.`{path_of(store, topic)}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {table} WHERE offset IN (7, 59)")
    spark.sql(f"UPDATE {table} SET value = CAST('new' AS BINARY) WHERE offset = 8 AND partition = 0")
    assert list(path_of(store, topic).rglob("deletion_vector_*.bin"))
    both = {offset: value for offset, value in everything() if offset not in (7, 59)}
    expected = {0: sorted({**both, 8: b"new"}.items()), 1: sorted(both.items())}

    def check() -> None:
        assert served(store, topic) == expected
        assert problems(store, topic) == set()
        frame = read_offsets(spark, topic, bootstrap=store.url).where("partition = 0").select("offset", "value")
        assert sorted((r.offset, r.value and bytes(r.value)) for r in frame.collect()) == expected[0]
        source = spark.read.format("logstore").option("bootstrap.servers", store.url).option("subscribe", topic).load()
        rows = source.where("partition = 0").select("offset", "value").collect()
        assert sorted((row.offset, row.value and bytes(row.value)) for row in rows) == expected[0]

    check()
    took = runner.invoke(app, ["topic", "take-feature-back", topic, "--data", str(store.server.data), "--json"])
    assert took.exit_code == 0, took.output
    assert json.loads(took.stdout)["features"] == ["deletionVectors"]
    detail = spark.sql(f"DESCRIBE DETAIL {table}").first()
    assert (detail.minReaderVersion, detail.minWriterVersion) == (1, 2)
    check()


#: Statements by which Spark turns on each feature that needs more than its name. Features that Spark cannot turn on for
#: an existing table, or for a partitioned one, are left out.
TURN_ON = {
    "columnMapping": "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "typeWidening": "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
    "rowTracking": "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "inCommitTimestamp": "SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
    "changeDataFeed": "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "checkConstraints": "ADD CONSTRAINT positive CHECK (offset >= 0)",
    "v2Checkpoint": "SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1')",
}
BY_NAME = (
    "allowColumnDefaults",
    "checkpointProtection",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
    "identityColumns",
    "materializePartitionColumns",
    "timestampNtz",
    "typeWidening-preview",
    "vacuumProtocolCheck",
    "variantShredding",
    "variantType",
)


@pytest.mark.long
@pytest.mark.parametrize("feature", [*TURN_ON, *BY_NAME])
def test_each_feature_of_spark_is_taken_back(spark, store, topic, feature):
    """Read the store's commits to a table with the feature with Spark, and write to the table again without it."""
    table = f"delta.`{path_of(store, topic)}`"
    how = TURN_ON.get(feature, f"SET TBLPROPERTIES ('delta.feature.{feature}' = 'supported')")
    spark.sql(f"ALTER TABLE {table} {how}")
    assert served(store, topic) == {0: everything(), 1: everything()}
    store.produce(topic, 0, ROWS, ROWS + 5)
    if feature not in ("checkConstraints", "materializePartitionColumns"):
        store.roll(topic)
        assert spark.sql(f"SELECT count(*) FROM {table}").first()[0] == 2 * ROWS + 5
        spark.sql(f"DELETE FROM {table} WHERE offset = 3 AND partition = 1")
    took = runner.invoke(app, ["topic", "take-feature-back", topic, "--data", str(store.server.data), "--json"])
    assert took.exit_code == 0, took.output
    assert feature in json.loads(took.stdout)["features"]
    detail = spark.sql(f"DESCRIBE DETAIL {table}").first()
    assert (detail.minReaderVersion, detail.minWriterVersion) == (1, 2)
    store.roll(topic)
    spark.sql(f"DELETE FROM {table} WHERE offset = 4 AND partition = 0")
    kept = [record for record in [*everything(), *((o, value_of(o)) for o in range(ROWS, ROWS + 5))] if record[0] != 4]
    assert served(store, topic)[0] == kept
    assert problems(store, topic) == set()
