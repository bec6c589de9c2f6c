import inspect
import re
from dataclasses import fields

import pytest

from logstore.client.producer import Producer
from logstore.client.producer.options import ProducerOptions
from logstore.errors import InvalidConfigError, InvalidRequestError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acks": 2}, "acks = 2: give 'all', 1, 0"),
        ({"acks": True}, "acks = True"),
        ({"acks": "2"}, "acks = '2'"),
        ({"acks": [1]}, "acks = [1]"),
        ({"bootstrap_servers": "h:1"}, "no option bootstrap_servers: did you mean bootstrap?"),
        ({"bootstrap.servers": "h:1"}, "no option bootstrap.servers: did you mean bootstrap?"),
        ({"linger": 5}, "no option linger: did you mean linger_ms?"),
        ({"transactional_id": "t"}, "no option transactional_id: it has bootstrap, client_id, acks, "),
        ({"compression_type": "gzip"}, "compression_type = 'gzip': give None, 'none', 'lz4', 'zstd'"),
        ({"partitioner": "random"}, "partitioner = 'random': give 'murmur2', 'sticky', 'round_robin' or a function"),
        ({"key_serializer": "json"}, "key_serializer is not callable"),
        ({"linger_ms": -1}, "linger_ms = -1: give a number from 0"),
        ({"linger_ms": "5"}, "linger_ms = '5': give a number"),
        ({"batch_size": 1.5}, "batch_size = 1.5: give a whole number"),
        ({"retries": True}, "retries = True: give a whole number"),
        ({"max_in_flight_requests_per_connection": 0}, "max_in_flight_requests_per_connection = 0"),
        ({"batch_size": 5 << 20}, "batch_size = 5242880 is more than max_request_size = 4194304"),
        ({"delivery_timeout_ms": 1_000}, "make it at least linger_ms + request_timeout_ms = 30005"),
        ({"enable_idempotence": True, "acks": 1}, "enable_idempotence needs acks='all', not 1"),
        ({"enable_idempotence": True, "retries": 0}, "enable_idempotence needs retries"),
        ({"enable_idempotence": "yes"}, "enable_idempotence = 'yes'"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_takes(options, says):
    with pytest.raises(InvalidConfigError, match=re.escape(says)):
        Producer("127.0.0.1:1", **options)


def test_options_are_keyword_arguments():
    with pytest.raises(InvalidConfigError, match="Options are keyword arguments"):
        Producer({"bootstrap.servers": "127.0.0.1:1"})


@pytest.mark.parametrize(("spelling", "acks"), [(-1, "all"), ("-1", "all"), ("1", 1), ("0", 0)])
def test_acks_may_be_spelled_as_for_kafka(spelling, acks):
    options = _options(acks=spelling)
    assert (options.acks, options.idempotent) == (acks, acks == "all")


def test_an_address_that_is_none_is_refused():
    with pytest.raises(InvalidRequestError, match="no port"):
        Producer("localhost")


@pytest.mark.parametrize(
    ("options", "idempotent"),
    [
        ({}, True),
        ({"acks": 1}, False),
        ({"acks": 0}, False),
        ({"retries": 0}, False),
        ({"enable_idempotence": False}, False),
        ({"enable_idempotence": True, "retries": 1}, True),
    ],
)
def test_idempotence_is_on_unless_another_option_speaks_against_it(options, idempotent):
    assert _options(**options).idempotent is idempotent


def _options(**given):
    parameters = inspect.signature(Producer).parameters
    defaults = {field.name: parameters[field.name].default for field in fields(ProducerOptions)}
    return ProducerOptions(**{**defaults, **given})
