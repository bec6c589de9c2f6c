"""Options of the source: which are taken, which take precedence, and the one line for each wrong one."""

import logging
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import LogStoreError
from logstore.spark.source.columns import ALL_COLUMNS
from logstore.spark.source.options import (
    EARLIEST,
    LATEST,
    Offsets,
    ReadOptions,
    Subscription,
    Timestamps,
    check_batch,
    check_stream,
    parse_read_options,
)

NEEDED = {"subscribe": "flights", "bootstrap.servers": "127.0.0.1:8082"}


def parsed(**options) -> ReadOptions:
    return parse_read_options(NEEDED | {name.replace("__", "."): value for name, value in options.items()})


def refused(options) -> str:
    with pytest.raises(LogStoreError) as caught:
        parse_read_options({name: value for name, value in options.items() if value is not None})
    assert "\n" not in caught.value.message
    return caught.value.message


def test_defaults_are_those_of_sparks_kafka_source():
    assert parsed() == ReadOptions(Subscription(topics=("flights",)), bootstrap="127.0.0.1:8082")
    assert parsed().fail_on_data_loss
    assert parsed().max_trigger_delay_ms == 15 * 60_000


def test_every_option_is_taken_whatever_the_case_of_its_name():
    options = {
        "kafka.bootstrap.servers": " https://a:1, b:2 ",
        "subscribe": " b, a,,b ",
        "startingOffsets": '{"a":{"0":-2,"1":5},"topic_ids":{"a":"6c39"}}',
        "endingOffsets": '{"a":{"0":-1,"1":5}}',
        "startingOffsetsByTimestampStrategy": "LATEST",
        "failOnDataLoss": "False",
        "minPartitions": "7",
        "maxRecordsPerPartition": "9223372036854775807",
        "includeHeaders": "TRUE",
        "isolation": "read_uncommitted",
        "kafka.isolation.level": "READ_UNCOMMITTED".lower(),
        "group": "report",
        "groupIdPrefix": "nightly",
        "maxOffsetsPerTrigger": "20",
        "minOffsetsPerTrigger": "20",
        "maxTriggerDelay": "90s",
        "fetchOffset.numRetries": "5",
        "fetchOffset.retryIntervalMs": "500",
        "kafkaConsumer.pollTimeoutMs": "512",
    }
    expected = ReadOptions(
        Subscription(topics=("b", "a")),
        bootstrap="https://a:1, b:2",
        starting=Offsets(by_partition={("a", 0): EARLIEST, ("a", 1): 5}, topic_ids={"a": "6c39"}),
        ending=Offsets(by_partition={("a", 0): LATEST, ("a", 1): 5}),
        starting_timestamp_strategy="latest",
        fail_on_data_loss=False,
        min_partitions=7,
        max_records_per_partition=2**63 - 1,
        columns=ALL_COLUMNS,
        isolation="read_uncommitted",
        group="report",
        client_id="nightly",
        max_offsets_per_trigger=20,
        min_offsets_per_trigger=20,
        max_trigger_delay_ms=90_000,
        retry_seconds=2.5,
        poll_timeout_ms=512,
    )
    for change in (str, str.lower, str.upper, str.swapcase):
        assert parse_read_options({change(name): value for name, value in options.items()}) == expected
    assert pickle.loads(pickle.dumps(expected)) == expected


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("2 min", 120_000), ("1H", 3_600_000), ("500ms", 500), ("250", 250), ("0", 0)]
)
def test_a_delay_is_written_as_spark_writes_durations(text, ms):
    assert parsed(maxTriggerDelay=text).max_trigger_delay_ms == ms


def test_columns_are_those_that_are_named_in_their_order():
    assert parsed(columns="Offset, timestamptype,KEY").columns == ("offset", "timestampType", "key")
    assert parsed(columns="headers", includeHeaders="true").columns == ("headers",)
    for text, message in {
        "offset,value,Offset": "columns: 'offset' is there twice; give some of key, value, topic, partition, offset, ",
        "offset,val": "columns: 'val' is no column of the source; give some of key, .*, headers, each once, separated",
        "": "columns: '' is no column of the source",
    }.items():
        assert re.match(message, refused(NEEDED | {"columns": text}))
    for text, flag in (("key", "true"), ("headers", "false")):
        assert "columns and includeHeaders say different things" in refused(
            NEEDED | {"columns": text, "includeHeaders": flag}
        )


def test_topics_are_named_matched_or_assigned():
    only = {"bootstrap.servers": "a:1"}
    assert parse_read_options(only | {"assign": '{"a":[1,0],"b":[2]}'}).subscription.assigned == {
        "a": (0, 1),
        "b": (2,),
    }
    assert parse_read_options(only | {"subscribePattern": " fl.*|a "}).subscription == Subscription(pattern="fl.*|a")


POSITIONS = {
    "Timestamp": ("17", Timestamps(every=17)),
    "OffsetsByTimestamp": ('{"flights":{"0":18}}', Timestamps(by_partition={("flights", 0): 18})),
    "Offsets": ('{"flights":{"0":19}}', Offsets(by_partition={("flights", 0): 19})),
}


@given(st.sets(st.sampled_from(list(POSITIONS))), st.sets(st.sampled_from(list(POSITIONS))))
def test_a_time_for_all_counts_before_times_by_partition_and_these_before_offsets(starts, ends):
    given_options = {f"starting{name}": POSITIONS[name][0] for name in starts}
    given_options |= {f"ending{name}": POSITIONS[name][0] for name in ends}
    options = parsed(**given_options)
    for names, found in ((starts, options.starting), (ends, options.ending)):
        assert found == next((value for name, (_, value) in POSITIONS.items() if name in names), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"subscribe": None},
            "One of the following options must be specified for the source: subscribe, subscribePattern, assign",
        ),
        (
            {"assign": "{}"},
            "Only one of the following options can be specified for the source: subscribe, subscribePattern, assign",
        ),
        ({"subscribe": " , "}, "No topics to subscribe to as specified value for option 'subscribe' is ','"),
        ({"subscribe": "a b"}, "option subscribe: 'a b' cannot be a topic's name: 1 to 249 of A-Z a-z 0-9 . _ -"),
        (
            {"subscribe": None, "subscribePattern": " "},
            "Pattern to subscribe is empty as specified value for option 'subscribePattern'",
        ),
        (
            {"subscribe": None, "subscribePattern": r"\p{Alpha}+"},
            r"subscribePattern: '\\p\{Alpha\}\+' is not a regular expression that Python can read: bad escape",
        ),
        (
            {"subscribe": None, "subscribePattern": "[a-z&&[^b]]"},
            "is not a regular expression that Python can read: Possible set intersection",
        ),
        (
            {"subscribe": None, "assign": "flights"},
            "No topicpartitions to assign as specified value for option 'assign' is 'flights'",
        ),
        (
            {"subscribe": None, "assign": "{}"},
            "No topicpartitions to assign as specified value for option 'assign' is '{}'",
        ),
        (
            {"subscribe": None, "assign": '{"a":0}'},
            r'assign: Expected e\.g\. \{"topicA":\[0,1\],"topicB":\[0,1\]\}, got \{"a":0\}',
        ),
        ({"subscribe": None, "assign": '{"a/b":[0]}'}, "option assign: 'a/b' cannot be a topic's name"),
        (
            {"bootstrap.servers": None},
            r"Option 'bootstrap.servers' \(or 'kafka.bootstrap.servers'\) must be specified: host:port",
        ),
        ({"bootstrap.servers": " "}, "Option 'bootstrap.servers'.* or the option 'storage', the store's data root"),
        (
            {"bootstrap.servers": "broker"},
            "bootstrap.servers: Address 'broker' has no port.*names the HTTP port of a store .*not a listener",
        ),
        (
            {"bootstrap.servers": None, "kafka.bootstrap.servers": "PLAINTEXT://a:9092"},
            "option kafka.bootstrap.servers: Address 'PLAINTEXT://a:9092' has an unknown scheme",
        ),
        (
            {"kafka.bootstrap.servers": "b:1"},
            "options bootstrap.servers and kafka.bootstrap.servers say different things",
        ),
        (
            {"storage": "/data"},
            "options bootstrap.servers and storage: give a running store or its data root, not both",
        ),
        (
            {"startingOffsets": "first"},
            r'startingOffsets: Expected e\.g\. \{"topicA":\{"0":23,"1":-1\},"topicB":\{"0":-2\}\}, got first',
        ),
        (
            {"startingTimestamp": "yesterday"},
            r"startingTimestamp: Expected a single long value \(ms since 1970\), got yesterday",
        ),
        ({"startingTimestamp": "-1"}, "startingTimestamp: Expected a single long value"),
        ({"endingTimestamp": ""}, "endingTimestamp: Expected a single long value .* got nothing"),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":-1}}'},
            r'startingOffsetsByTimestamp: Expected e\.g\. \{"topicA": \{"0": 123456789',
        ),
        # These are lower in precedence, but still an error.
        ({"startingTimestamp": "1", "startingOffsets": "x"}, "startingOffsets: Expected"),
        (
            {"startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy is error or latest, got 'earliest'",
        ),
        ({"endingOffsets": "Earliest"}, "ending offset can't be earliest for batch queries"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "ending offset for a-0 can't be earliest for batch queries"),
        (
            {"startingOffsets": '{"a":{"0":1}}', "endingOffsets": '{"a":{"1":1}}'},
            "start offset and end offset should have the same topic-partitions. .*: a-0, .*: a-1",
        ),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":1}}', "endingOffsetsByTimestamp": '{"a":{"0":1,"1":1}}'},
            "should have the same topic-partitions",
        ),
        (
            {"startingOffsets": '{"a":{"0":3}}', "endingOffsets": '{"a":{"0":2}}'},
            "The specified start offset 3 is greater than the end offset 2 for topic a partition 0",
        ),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":3}}', "endingOffsetsByTimestamp": '{"a":{"0":2}}'},
            "The specified start timestamp 3 is greater than the end timestamp 2 for topic a partition 0",
        ),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is true or false, got 'no'"),
        ({"includeHeaders": ""}, "includeHeaders is true or false, got ''"),
        ({"minPartitions": "0"}, "minPartitions must be positive: give a whole number from 1, got '0'"),
        ({"minPartitions": "1.5"}, "minPartitions must be positive: give a whole number from 1, got '1.5'"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        ({"maxRecordsPerPartition": "9223372036854775808"}, "maxRecordsPerPartition must be positive"),
        ({"maxOffsetsPerTrigger": "all"}, "maxOffsetsPerTrigger must be positive"),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger must be positive"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            r"The value of minOffsetsPerTrigger\(9\) is higher than the maxOffsetsPerTrigger\(8\)\.",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is a duration such as 15m, 90s or 500ms, got 'soon'"),
        (
            {"fetchOffset.numRetries": "x"},
            "fetchOffset.numRetries must not be negative: give a whole number from 0, got 'x'",
        ),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, "kafkaConsumer.pollTimeoutMs must be positive"),
        ({"isolation": "serializable"}, "isolation is read_uncommitted or read_committed, got 'serializable'"),
        ({"kafka.isolation.level": "x"}, "kafka.isolation.level is read_uncommitted or read_committed, got 'x'"),
        (
            {"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "options isolation and kafka.isolation.level say different things",
        ),
        ({"group": "\ud800"}, r"option group: '\\ud800' cannot be a group's name"),
        ({"group": ""}, "option group: '' cannot be a group's name"),
        (
            {"group": "g", "storage": "/data", "bootstrap.servers": None},
            "option group: offsets are committed through a running store: give bootstrap.servers",
        ),
        (
            {"kafka.auto.offset.reset": "earliest"},
            "'auto.offset.reset' is not supported: instead set the source option startingOffsets to 'earliest'",
        ),
        ({"kafka.key.deserializer": "x"}, "Kafka option 'key.deserializer' is not supported: keys are given as bytes"),
        (
            {"kafka.Value.Deserializer": "x"},
            "Kafka option 'value.deserializer' is not supported: values are given as bytes",
        ),
        ({"kafka.enable.auto.commit": "false"}, "Kafka option 'enable.auto.commit' is not supported: the option group"),
        ({"kafka.interceptor.classes": "x"}, "Kafka option 'interceptor.classes' is not supported"),
        (
            {"kafka.security.protocol": "SASL_SSL"},
            "Kafka option 'security.protocol' is not supported: .* https://host:port",
        ),
        ({"kafka.ssl.truststore.location": "x"}, "Kafka option 'ssl.truststore.location' is not supported"),
        ({"startingOffset": "earliest"}, "The source has no option 'startingoffset': did you mean startingOffsets?"),
        ({"path": "flights"}, "The source has no option 'path': name the topic with the option subscribe"),
        (
            {"checkpointLocation": "x"},
            "The source has no option 'checkpointlocation': the source has subscribe, subscribePattern, assign",
        ),
    ],
)
def test_every_wrong_option_is_reported_in_one_line(options, message):
    assert re.search(message, refused(NEEDED | options)), refused(NEEDED | options)


def test_options_of_streams_are_refused_in_a_batch_or_reported_as_ignored(caplog):
    for starting, message in [
        ("latest", "starting offset can't be latest for batch queries"),
        ('{"flights":{"0":4,"1":-1}}', "startingOffsets for flights-1 can't be latest for batch queries"),
    ]:
        options = parsed(startingOffsets=starting)
        check_stream(options)
        with pytest.raises(LogStoreError, match=message):
            check_batch(options)
    # A time takes precedence, as in Spark's Kafka source.
    check_batch(parsed(startingOffsets="latest", startingTimestamp="1"))
    with pytest.raises(LogStoreError, match="option group is for streaming queries: a batch commits no offsets"):
        check_batch(parsed(group="g"))
    with caplog.at_level(logging.WARNING):
        check_batch(parsed(maxOffsetsPerTrigger="5", minOffsetsPerTrigger="4", maxTriggerDelay="1m"))
    assert [record.message for record in caplog.records] == [
        f"{name} option ignored in batch queries"
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
    ]


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("endingOffsets", "latest", "offset"),
        ("endingOffsetsByTimestamp", '{"a":{"0":1}}', "timestamp"),
        ("endingTimestamp", "1", "timestamp"),
    ],
)
def test_a_stream_has_no_end(option, value, kind):
    options = parsed(**{option: value})
    check_batch(options)
    with pytest.raises(LogStoreError, match=f"ending {kind} not valid in streaming queries"):
        check_stream(options)


def test_a_misspelt_option_of_kafkas_consumer_gets_the_nearest_name_as_a_hint():
    given = {
        "kafka.isolation.levle": "read_committed",
        "kafka.auto.offset.rest": "earliest",
        "kafka.fetch.max.bytes": "1",
    }
    (remark,) = parse_read_options(NEEDED | given).remarks
    assert remark.endswith(
        ": kafka.auto.offset.rest (did you mean kafka.auto.offset.reset?), kafka.fetch.max.bytes, "
        "kafka.isolation.levle (did you mean kafka.isolation.level?)"
    )


def test_options_of_kafkas_consumer_are_ignored_by_name(caplog):
    options = parsed(
        kafka__fetch__min__bytes="1", kafka__security__protocol="plaintext", kafka__group__id="app", groupIdPrefix="x"
    )
    assert (options.client_id, options.group) == ("app", "")
    assert parsed(kafka__client__id="me", kafka__group__id="app").client_id == "me"
    for check in (check_batch, check_stream):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            check(options)
        assert [record.message for record in caplog.records] == [
            "options of Kafka's consumer that have no effect here: kafka.fetch.min.bytes, kafka.security.protocol",
            (
                "option kafka.group.id only names this reader in the store's logs and metrics; the option group "
                "commits the offsets of completed batches of a streaming query"
            ),
            "option groupIdPrefix is ignored, because kafka.group.id is given",
        ]
