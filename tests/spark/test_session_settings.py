"""A user's session settings change no read and no write: each way of reading, with each setting, in one session."""

import itertools
from contextlib import contextmanager

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType, TimestampType

from logstore.client.consumer import Consumer
from logstore.spark import group_read, parse_json, read_offsets, register
from tests.spark.store import EPOCH_MS

pytestmark = pytest.mark.spark

SEALED, END = 30, 40
ROWS = [
    (
        n,
        (EPOCH_MS + n) * 1000,
        None if n % 7 == 0 else f"k{n}".encode(),
        None if n % 11 == 0 else str(n).encode(),
        [("h", str(n).encode()), ("n", None)] if n % 5 == 0 else None,
    )
    for n in range(END)
]

#: Settings that are turned on together. Delta parses the names of the columns with statistics as SQL, where ``offset``
#: is a reserved word under ``spark.sql.ansi.enforceReservedKeywords``: such a session cannot read our tables.
SETTINGS = {
    "types, names and batches": {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    },
    "the parser": {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.variable.substitute": "false",
        "spark.sql.legacy.setopsPrecedence.enabled": "true",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.legacy.charVarcharAsString": "true",
        "spark.sql.legacy.literal.pickMinimumPrecision": "false",
        "spark.sql.legacy.sizeOfNull": "true",
        "spark.sql.legacy.json.allowEmptyString.enabled": "true",
    },
    "plans and workers": {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.crossJoin.enabled": "false",
        "spark.sql.unionOutputPartitioning": "false",
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PushDownPredicates",
        "spark.sql.datetime.java8API.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.pythonUDF.arrow.enabled": "true",
        "spark.sql.execution.pythonUDTF.arrow.enabled": "true",
    },
    "files and Delta": {
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.sources.useV1SourceList": "",
        "spark.databricks.delta.optimizeMetadataQuery.enabled": "false",
        "spark.databricks.delta.stats.skipping": "false",
        "spark.databricks.delta.formatCheck.enabled": "false",
        "spark.databricks.delta.schema.autoMerge.enabled": "true",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
        "spark.databricks.delta.properties.defaults.columnMapping.mode": "name",
    },
}
TYPES, *OTHERS = SETTINGS


@contextmanager
def settings(spark, given: dict[str, str]):
    before = {key: spark.conf.get(key, None) for key in given}
    for key, value in given.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


@pytest.fixture(scope="module")
def topic(spark, store):
    """Create a topic with sealed records and a tail."""
    register(spark)
    name = store.create("settings", 2)
    store.produce(name, 0, 0, SEALED)
    store.roll(name)
    store.produce(name, 0, SEALED, END)
    return name


_names = itertools.count()


def rows_of(frame, *, headers: bool = True) -> list[tuple]:
    """Return the records of a DataFrame by offset, as in ``ROWS``; the time is in µs in any time zone."""
    columns = ["`offset`", "unix_micros(`timestamp`) us", "`key`", "`value`", *(["`headers`"] if headers else [])]
    found = sorted(frame.selectExpr(*columns).collect(), key=lambda row: row.offset)
    return [
        (
            row.offset,
            row.us,
            row.key and bytes(row.key),
            None if row.value is None else bytes(row.value),
            None if not headers or row.headers is None else [(h.key, h.value and bytes(h.value)) for h in row.headers],
        )
        for row in found
    ]


def source(reader, store, topic, **options):
    return reader.format("logstore").options(subscribe=topic, includeHeaders="true", **options).load()


def batch(spark, store, topic, path):
    assert rows_of(source(spark.read, store, topic, **{"bootstrap.servers": store.url})) == ROWS


def storage(spark, store, topic, path):
    assert rows_of(source(spark.read, store, topic, storage=str(store.server.data))) == ROWS[:SEALED]


def stream(spark, store, topic, path):
    found = []

    def keep(frame, batch_id):
        found.extend(rows_of(frame))

    options = {"bootstrap.servers": store.url, "startingOffsets": "earliest"}
    write = source(spark.readStream, store, topic, **options).writeStream.foreachBatch(keep)
    write.option("checkpointLocation", str(path / "stream")).trigger(availableNow=True).start().awaitTermination()
    assert found == ROWS


def view(spark, store, topic, path):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW settings_view USING logstore OPTIONS (`kafka.bootstrap.servers` "
        f"'{store.url}', subscribe '{topic}', includeHeaders 'true')"
    )
    assert rows_of(spark.table("settings_view")) == ROWS


def table_function(spark, store, topic, path):
    frame = spark.sql(f"SELECT * FROM logstore_topic('{topic}', bootstrap => '{store.url}')")
    assert rows_of(frame, headers=False) == [(*row[:4], None) for row in ROWS]


def read_offsets_of_storage(spark, store, topic, path):
    frame = read_offsets(spark, topic, storage=store.server.data)
    assert rows_of(frame) == ROWS[:SEALED]
    assert frame.where("`partition` = 0 AND `offset` >= 20").count() == SEALED - 20
    assert rows_of(read_offsets(spark, topic, {0: 3, 1: 0}, {0: 9, 1: 0}, storage=store.server.data)) == ROWS[3:9]


def read_offsets_of_store(spark, store, topic, path):
    assert rows_of(read_offsets(spark, topic, bootstrap=store.url)) == ROWS
    assert read_offsets(spark, topic, "latest", bootstrap=store.url).collect() == []


def group(spark, store, topic, path):
    with group_read(spark, topic, f"settings-{next(_names)}", bootstrap=store.url) as batch:
        assert rows_of(batch.df) == ROWS
    with group_read(spark, topic, f"settings-{next(_names)}", bootstrap=store.url, sink=str(path / "sink")) as batch:
        assert batch.write_delta()
    assert rows_of(spark.read.format("delta").load(str(path / "sink"))) == ROWS


def sink(spark, store, topic, path):
    copy = store.create(f"settings-copy-{next(_names)}")
    records = source(spark.read, store, topic, **{"bootstrap.servers": store.url}).drop("topic", "partition")
    write = records.sortWithinPartitions("`offset`").write.format("logstore").mode("append")
    # Without mergeSchema, Spark 4.2 itself fails where Delta's autoMerge is on.
    write.options(topic=copy, mergeSchema="false", **{"bootstrap.servers": store.url}).save()
    with Consumer(store.url, auto_offset_reset="earliest") as consumer:
        [place] = consumer.partitions_for(copy)
        consumer.assign([place])
        found = []
        while consumer.position(place) < END:
            found += [(r.timestamp_ms * 1000, r.key, r.value, r.headers) for r in consumer.poll()]
    assert sorted(row[:3] for row in found if row[1]) == sorted(row[1:4] for row in ROWS if row[2])
    assert len(found) == END


def json(spark, store, topic, path):
    frame = read_offsets(spark, topic, storage=store.server.data).where("`value` IS NOT NULL")
    parsed = parse_json(frame).selectExpr("CAST(`value` AS INT) n", "_corrupt_record AS bad")
    assert sorted((row.n, row.bad) for row in parsed.collect()) == [(n, None) for n in range(SEALED) if n % 11]
    texts = spark.createDataFrame([('{"t": "2026-11-21 08:00:00Z", "n": 3}',), ('{"n": "x"}',)], "`value` string")
    schema = StructType([StructField("t", TimestampType()), StructField("n", IntegerType())])
    rows = parse_json(texts, schema).selectExpr("`value`.n", "_corrupt_record AS bad").collect()
    assert [(row.n, row.bad) for row in rows] == [(3, None), (None, '{"n": "x"}')]


WAYS = [batch, storage, stream, view, table_function, read_offsets_of_storage, read_offsets_of_store, group, sink, json]
#: One for each kind of code in the way: the store, its table, a stream, a sink, and JSON.
SHORT = (batch, storage, stream, sink, json)


@pytest.mark.parametrize(
    "way",
    [way if way in SHORT else pytest.param(way, marks=pytest.mark.long) for way in WAYS],
    ids=lambda way: way.__name__,
)
@pytest.mark.parametrize("together", [TYPES, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_each_way_is_the_same_whatever_the_session_says(spark, store, topic, tmp_path, together, way):
    with settings(spark, SETTINGS[together]):
        way(spark, store, topic, tmp_path)


#: With these settings a scan leaves out records without an error.
LOSSY = {
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "TRUE",
    "spark.databricks.delta.stalenessLimit": "1h",
}


@pytest.mark.parametrize("setting", LOSSY)
def test_a_scan_that_would_leave_records_out_in_silence_is_refused(spark, store, topic, tmp_path, setting):
    frame = read_offsets(spark, topic, storage=store.server.data)
    with settings(spark, {setting: LOSSY[setting]}):
        with pytest.raises(
            Exception, match=rf"{setting} is .*: Spark would silently leave out records of the topic"
        ) as told:
            frame.count()
        assert "Traceback" not in str(told.value)
        storage(spark, store, topic, tmp_path)
    assert frame.count() == SEALED
    with settings(spark, dict.fromkeys([setting], "0" if "Limit" in setting else "false")):
        assert frame.count() == SEALED
