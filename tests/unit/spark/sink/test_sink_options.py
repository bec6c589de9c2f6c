"""Options of the sink are taken, refused with a reason, or ignored with a line in the log."""

import pytest

from logstore.errors import InvalidRequestError
from logstore.spark.sink.sink_options import SinkOptions, parse_sink_options

WHERE = {"bootstrap.servers": "store:8082"}


def test_options_are_taken_by_kafkas_names_in_any_spelling():
    assert parse_sink_options(WHERE) == SinkOptions("http://store:8082")
    options = parse_sink_options(
        {
            "KAFKA.bootstrap.servers": "a:1, b:2",
            "Topic": " flights ",
            "kafka.acks": "-1",
            "kafka.client.id": "job",
            "kafka.compression.type": "ZSTD",
            "kafka.enable.idempotence": "false",
            "kafka.max.request.size": "1048576",
            "kafka.delivery.timeout.ms": "5000",
            "kafka.security.protocol": "PLAINTEXT",
            "includeHeaders": "true",
            "checkpointLocation": "/cp",
            "mergeSchema": "false",
            "txnAppId": "report",
            "txnVersion": "17",
        }
    )
    assert options == SinkOptions(
        "http://a:1,http://b:2",
        topic="flights",
        client_id="job",
        codec="zstd",
        idempotent=False,
        max_request_size=1048576,
        delivery_timeout_ms=5000,
        txn_app_id="report",
        txn_version=17,
    )


def test_kafkas_own_configurations_are_ignored_by_name(caplog):
    parse_sink_options({**WHERE, "kafka.linger.ms": "5", "kafka.batch.size": "1", "queryName": "q"})
    parse_sink_options({**WHERE, "topic": "t", "path": "x"})
    assert caplog.messages == [
        "options of Kafka's producer that have no effect here: kafka.batch.size, kafka.linger.ms"
    ]


def test_a_misspelt_configuration_gets_the_nearest_name_as_a_hint(caplog):
    given = {"kafka.enable.idempotance": "false", "kafka.securty.protocol": "SSL", "kafka.session.timeout.ms": "9"}
    parse_sink_options(WHERE | given)
    assert caplog.messages[0].endswith(
        ": kafka.enable.idempotance (did you mean kafka.enable.idempotence?), kafka.securty.protocol (did you mean "
        "kafka.security.protocol?), kafka.session.timeout.ms"
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({**WHERE, "path": "out"}, "The sink writes to a topic, not to the path 'out': name the topic with the option"),
        ({}, "Option 'bootstrap.servers' (or 'kafka.bootstrap.servers') must be specified"),
        ({"bootstrap.servers": "store"}, "option bootstrap.servers: Address 'store' has no port"),
        ({**WHERE, "kafka.bootstrap.servers": "other:1"}, "options bootstrap.servers and kafka.bootstrap.servers"),
        ({**WHERE, "topic": " "}, "topic is empty: give a topic's name"),
        ({**WHERE, "includeHeaders": "yes"}, "includeHeaders is true or false, got 'yes'"),
        ({**WHERE, "kafka.acks": "0"}, "kafka.acks is all or -1 or 1, got '0'"),
        ({**WHERE, "kafka.compression.type": "gzip"}, "kafka.compression.type is none or lz4 or zstd, got 'gzip'"),
        ({**WHERE, "kafka.max.request.size": "4m"}, "kafka.max.request.size must be positive: give a whole"),
        ({**WHERE, "kafka.max.request.size": "9999999999"}, "kafka.max.request.size is at most 1073741824, got"),
        ({**WHERE, "kafka.key.serializer": "x"}, "Kafka option 'key.serializer' is not supported: keys and values are"),
        ({**WHERE, "kafka.value.serializer": "x"}, "Kafka option 'value.serializer' is not supported"),
        ({**WHERE, "kafka.partitioner.class": "x"}, "Kafka option 'partitioner.class' is not supported: keys are hash"),
        ({**WHERE, "kafka.transactional.id": "x"}, "Kafka option 'transactional.id' is not supported"),
        ({**WHERE, "kafka.sasl.mechanism": "x"}, "Kafka option 'sasl.mechanism' is not supported: the store is"),
        ({**WHERE, "kafka.security.protocol": "SSL"}, "Kafka option 'security.protocol' is not supported"),
        ({**WHERE, "includeHeader": "true"}, "The sink has no option 'includeheader': did you mean includeHeaders?"),
        ({**WHERE, "subscribe": "t"}, "The sink has no option 'subscribe': the sink has bootstrap.servers, kafka.boo"),
        ({**WHERE, "txnAppId": "a"}, "options txnAppId and txnVersion belong together"),
        ({**WHERE, "txnAppId": "a b", "txnVersion": "1"}, "txnAppId is 1 to 180 printable ASCII characters without"),
    ],
)
def test_a_wrong_option_is_named(options, line):
    with pytest.raises(InvalidRequestError) as raised:
        parse_sink_options(options)
    assert str(raised.value).startswith(line)
