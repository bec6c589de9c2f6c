"""Topics in SQL: the table function, views, values as JSON, and versions of a topic's table."""

import logging
import time

import pytest
from pyspark.errors import AnalysisException, PythonException

from compaction_jobs.jobs import run_job, topics_of
from logstore.errors import InvalidRequestError
from logstore.spark import parse_json, register
from logstore.spark.json_values import LONE_SURROGATE, NO_VARIANT, NOT_JSON, NOT_TEXT, TOO_MANY_DIGITS
from logstore.spark.json_values import NOT_OF_THE_SCHEMA as MISFIT
from logstore.spark.registration import FILTER_PUSHDOWN_KEY
from logstore.table_root import open_root
from tests.spark.conftest import EPOCH_MS
from tests.support.job_context import job_context
from tests.support.table_paths import path_of

pytestmark = pytest.mark.spark


def offsets(frame) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return found


@pytest.fixture(scope="module")
def flights(store):
    """Create two partitions, each with a history of 40 records and a tail of 20."""
    store.create("flights", 2)
    for partition in range(2):
        store.produce("flights", partition, 0, 40)
    store.roll("flights")
    for partition in range(2):
        store.produce("flights", partition, 40, 60)
    return "flights"


def test_the_table_function_reads_history_and_tail(spark, store, flights, monkeypatch):
    monkeypatch.setenv("LOGSTORE_URL", store.url)
    register(spark)
    whole = spark.sql("SELECT * FROM logstore_topic('flights')")
    assert whole.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert offsets(whole) == {0: [*range(60)], 1: [*range(60)]}, "each partition by rising offset"
    row = whole.where("partition = 1 AND offset = 52").selectExpr("*", "unix_millis(timestamp) AS ms").first()
    assert (bytes(row.key), bytes(row.value), row.topic, row.ms, row.timestampType) == (
        b"k52",
        b"52",
        "flights",
        EPOCH_MS + 52,
        0,
    )
    # Ranges cross the border of history and tail, and are given by words, by times, and by a query.
    for start, end, wanted in (
        ("""'{"0": 30, "1": "latest"}'""", "'latest'", {0: [*range(30, 60)]}),
        ("""'{"0": -2, "1": 50}'""", """'{"0": 1, "1": -1}'""", {0: [0], 1: [*range(50, 60)]}),
        (f"timestamp_millis({EPOCH_MS + 39})", """'{"0": 41, "1": 40}'""", {0: [39, 40], 1: [39]}),
        ('(SELECT \'{"0": 58, "1": 60}\')', "DATE '2026-01-01'", {0: [58, 59]}),
        ("'earliest'", "'2020-01-01'", {}),
    ):
        frame = spark.sql(f"SELECT * FROM logstore_topic('flights', starting => {start}, ending => {end})")
        assert offsets(frame) == wanted, start
    store.produce("flights", 0, 60, 61)
    assert offsets(whole)[0] == [*range(61)], "latest is decided by each run"
    assert len(spark.sql("SELECT * FROM logstore_topic(topic => 'flights') LIMIT 3").collect()) == 3


def test_the_table_function_reads_sealed_history_without_a_store(spark, topic):
    t = topic(1)
    t.roll(0, 0, 250)
    frame = spark.sql(f"SELECT * FROM logstore_topic('{t.name}', '{{\"0\": 120}}', storage => '{t.data}')")
    assert offsets(frame) == {0: [*range(120, 250)]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'none'", "UnknownTopicError: "),
        ("'flights', starting => 7", 'starting => 7: give "earliest", "latest", a time, or JSON that names every'),
        ("'flights', starting => '{0: 1}'", "starting => '{0: 1}': give"),
        ("'flights', starting => NULL", "starting => None: give"),
        ("'flights', TIMESTAMP_NTZ '2026-11-21 08:00:00'", "2026-11-21 08:00:00' has no time zone: give TIMESTAMP"),
        ("'flights', ending => 'soon'", "ending: 'soon' is not an offset"),
        ("'flights', starting => '{\"0\": 1}'", "starting leaves out partition 1 of topic flights"),
        ("'flights', ending => '{\"0\": 1, \"1\": 999}'", "ending: offset 999 of topic flights, partition 1 is out of"),
        ("'flights', storage => '/nowhere'", "give bootstrap (a running store) or storage (its data root), not both"),
        ("5", "topic => 5: give text"),
        (
            "'flights', start => 'latest'",
            "There is no argument 'start': did you mean starting? The function has topic, ",
        ),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(spark, store, flights, arguments, message):
    with pytest.raises(PythonException) as caught:
        spark.sql(f"SELECT * FROM logstore_topic({arguments}, bootstrap => '{store.url}')").collect()
    first, line, *rest = str(caught.value).strip().splitlines()
    assert first == "An exception was thrown from the Python worker:"
    assert message in line
    assert not "".join(rest).strip(), "no traceback"


def test_a_view_reads_in_parallel_and_stays_as_it_was_first_read(spark, store):
    topic = store.create("viewed", 2)
    for partition in range(2):
        store.produce(topic, partition, 0, 40)
    store.roll(topic)
    for partition in range(2):
        store.produce(topic, partition, 40, 60)
    view = (
        f"CREATE OR REPLACE TEMPORARY VIEW viewed USING logstore OPTIONS (`kafka.bootstrap.servers` '{store.url}', "
        "subscribe 'viewed', includeHeaders 'true')"
    )
    spark.sql(view)
    frame = spark.sql("SELECT * FROM viewed")
    assert frame.rdd.getNumPartitions() == 4, "history and tail of each partition"
    assert {p: sorted(o) for p, o in offsets(frame).items()} == {p: [*range(60)] for p in range(2)}
    store.produce(topic, 0, 60, 61)
    assert spark.sql("SELECT * FROM viewed").count() == 120, "Spark plans the reads of a view once"
    spark.sql(view)
    assert spark.sql("SELECT * FROM viewed").count() == 121


def test_registering_again_changes_nothing_and_a_users_false_stays(spark, caplog):
    register(spark)
    assert spark.conf.get(FILTER_PUSHDOWN_KEY) == "true"
    assert not caplog.records
    spark.conf.set(FILTER_PUSHDOWN_KEY, "false")
    try:
        with caplog.at_level(logging.WARNING):
            register(spark)
        assert spark.conf.get(FILTER_PUSHDOWN_KEY) == "false"
        assert FILTER_PUSHDOWN_KEY in caplog.text
    finally:
        spark.conf.set(FILTER_PUSHDOWN_KEY, "true")
    with pytest.raises(InvalidRequestError, match="give a Spark session"):
        register("spark")


JSON = [
    (0, b'{"a": 1, "b": "x"}'),
    (1, None),
    (2, b'{"a": "one"}'),
    (3, b'{"a": 1'),
    (4, b""),
    (5, b'{"b": "\xff"}'),
    (6, b"[1, 2]"),
]


def test_json_becomes_variant_or_columns_and_what_is_broken_is_kept(spark):
    frame = spark.createDataFrame(JSON, "offset int, value binary")
    variant = parse_json(frame)
    corrupt = [("_corrupt_record", "string"), ("_corrupt_reason", "string")]
    assert variant.dtypes == [("offset", "int"), ("value", "variant"), *corrupt]
    rows = variant.selectExpr(
        "to_json(value) AS json", "_corrupt_record AS corrupt", "_corrupt_reason AS why"
    ).collect()
    assert [row.json for row in rows] == ['{"a":1,"b":"x"}', None, '{"a":"one"}', None, None, None, "[1,2]"]
    assert [row.corrupt for row in rows] == [None, None, None, '{"a": 1', "", '{"b": "\ufffd"}', None]
    assert [row.why for row in rows] == [None, None, None, NOT_JSON, NOT_JSON, NOT_TEXT, None]
    typed = parse_json(frame, "a int, b string")
    rows = typed.select("value.*", "_corrupt_record", "_corrupt_reason", "value").collect()
    assert [(row.a, row.b) for row in rows] == [(1, "x"), *[(None, None)] * 6]
    assert [row._corrupt_record for row in rows] == [None, None, *[v.decode(errors="replace") for _, v in JSON[2:]]]
    assert [row._corrupt_reason for row in rows][2:] == [MISFIT, NOT_JSON, NOT_JSON, NOT_TEXT, MISFIT]
    assert [row.value is None for row in rows] == [False, *[True] * 6]


#: Each document with the reason why it is refused as VARIANT, and as a struct with a text column; None if it is parsed.
DOCUMENTS = {
    ' {"a": 1}\n ': (None, None),
    "null": (None, MISFIT),
    # There is text behind the document, in some cases text that closes what this package puts around it.
    '{"a": 1} x': (NOT_JSON, NOT_JSON),
    '{"a": 1}{"a": 2}': (NOT_JSON, NOT_JSON),
    '{"a": 1}, {"a": 2}': (NOT_JSON, NOT_JSON),
    '{"a": 1}, "z": 2': (NOT_JSON, NOT_JSON),
    '{"a": 1}] x': (NOT_JSON, NOT_JSON),
    '{"a": 1}], "z": [2': (NOT_JSON, NOT_JSON),
    # Spark's JSON source accepts these, but they are not JSON.
    "{'a': 1}": (NOT_JSON, NOT_JSON),
    '{"a": NaN}': (NOT_JSON, NOT_JSON),
    '{"a": -Infinity}': (NOT_JSON, NOT_JSON),
    '{"a": 1, "a": 2}': (NO_VARIANT, None),
    '{"a": "\\ud800"}': (NO_VARIANT, LONE_SURROGATE),
    '{"a": "\\uDC00\\ud83d"}': (NO_VARIANT, LONE_SURROGATE),
    '{"a": "\\\\\\ud800"}': (NO_VARIANT, LONE_SURROGATE),
    '{"a": "\\\\ud800 \\ud83d\\uDE00"}': (None, None),
    # Numbers have many digits.
    '{"a": 1.2345678901234567890123}': (None, None),
    '{"a": [12345678901234567890123456789012345678]}': (None, None),
    '{"a": 123456789012345678901234567890123456789}': (TOO_MANY_DIGITS, None),
    '{"a": "\\"123456789012345678901234567890123456789"}': (None, None),
}


def test_a_value_is_one_document_of_json(spark):
    frame = spark.createDataFrame([(text,) for text in DOCUMENTS], "value string").coalesce(1)
    for place, schema in enumerate((None, "a string")):
        expected = [(reason[place] and text, reason[place]) for text, reason in DOCUMENTS.items()]
        assert parse_json(frame, schema).select("_corrupt_record", "_corrupt_reason").collect() == expected


def test_digits_stay_in_columns_of_text_wherever_they_are(spark):
    schema = "a struct<b: string, n: int>, c array<string>, d map<string, string>, e decimal(38,22), f double, g string"
    number = "1234567890123456.7890123456789012345678"
    text = (
        f'{{"a": {{"b": {number}, "n": 3}}, "c": ["x", {number}, null], "d": {{"k": {number}}}, '
        f'"e": {number}, "f": {number}, "g": "plain, \\"quoted\\""}}'
    )
    frame = spark.createDataFrame([(text,)], "value string")
    [row] = parse_json(frame, schema).select("value.*", "_corrupt_record").collect()
    assert (row.a.b, row.a.n, row.c, row.d) == (number, 3, ["x", number, None], {"k": number})
    assert (str(row.e), row.f, row.g, row._corrupt_record) == (number, float(number), 'plain, "quoted"', None)
    [row] = (
        parse_json(frame)
        .selectExpr("variant_get(value, '$.a.b', 'decimal(38,22)') AS b", "string(value) AS all")
        .collect()
    )
    assert (str(row.b), row.all.count(number)) == (number, 5)


@pytest.mark.parametrize("schema", [None, "a int"])
def test_strictly_a_broken_value_ends_the_query(spark, schema):
    frame = spark.createDataFrame(JSON[:2], "offset int, value binary")
    whole = parse_json(frame, schema, strict=True)
    assert whole.columns == ["offset", "value"]
    assert [row.value is None for row in whole.collect()] == [False, True]
    broken = [(JSON[3], NOT_JSON), (JSON[5], NOT_TEXT), ((7, b'{"a": 1} x'), rf"{NOT_JSON}\): \{{\"a\": 1\}} x")]
    for row, message in broken:
        with pytest.raises(Exception, match=rf"parse_json: cannot parse a value \({message}"):
            parse_json(spark.createDataFrame([row], "offset int, value binary"), schema, strict=True).collect()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"column": "key"}, "column 'key' is not one of offset, value; name one of bytes or text"),
        ({"column": "offset"}, "column 'offset' is int; name one of bytes or text"),
        ({"schema": "a b c"}, "schema='a b c' is not a schema: give columns"),
        ({"schema": "array<int>"}, "schema='array<int>' is not a schema: give columns"),
    ],
)
def test_bad_columns_and_schemas_are_refused(spark, arguments, message):
    with pytest.raises(InvalidRequestError, match=message):
        parse_json(spark.createDataFrame(JSON, "offset int, value binary"), **arguments)


@pytest.mark.long
def test_a_version_is_the_history_at_a_roll_until_vacuum_has_deleted_its_files(spark, topic):
    t = topic(1)
    t.roll(0, 0, 200)
    first = t.table.snapshot().version
    t.roll(0, 200, 300)
    path = path_of(t.table)

    def at(version: int) -> list[int]:
        by_option = spark.read.format("delta").option("versionAsOf", version).load(str(path))
        by_sql = spark.sql(f"SELECT * FROM delta.`{path}` VERSION AS OF {version}")
        found = offsets(by_option)
        assert offsets(by_sql) == found
        return sorted(found.get(0, []))

    assert at(first) == [*range(200)]
    assert at(first + 1) == [*range(300)]
    assert at(first - 1) == []
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where(f"version = {first}").first()
    at_time = spark.sql(f"SELECT * FROM delta.`{path}` TIMESTAMP AS OF '{history.timestamp}'")
    assert sorted(offsets(at_time)[0]) == [*range(200)]
    with pytest.raises(AnalysisException, match=f"{first + 5}"):
        at(first + 5)
    t.table.advance_log_start({0: 100}, {0: 1})
    with job_context(EPOCH_MS) as context:
        run_job("retention", topics_of("retention", open_root(t.data), [t.name], {}), context)
    latest = t.table.snapshot().version
    assert at(latest) == [*range(100, 300)]
    assert at(first) == [*range(200)], "removed records are in older versions"
    with job_context(int(1000 * time.time()) + 8 * 86_400_000) as context:
        (report,) = run_job("vacuum", topics_of("vacuum", open_root(t.data), [t.name], {}), context).topics
    assert report.deleted_files == 1, "the file of offsets 0 to 99"
    with pytest.raises(Exception, match=r"FAILED_READ_FILE|does not exist"):
        at(first)
    assert at(latest) == [*range(100, 300)]
