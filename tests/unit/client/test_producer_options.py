import re

import pytest

from logstore.client.producer import Producer
from logstore.client.producer_options import ProducerOptions
from logstore.errors import InvalidConfigError, InvalidRequestError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acks": 2}, "acks = 2: give 'all', 1, 0"),
        ({"acks": True}, "acks = True"),
        ({"acks": "1"}, "acks = '1'"),
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
    defaults = {name: kind.default for name, kind in _parameters().items()}
    assert ProducerOptions(**{**defaults, **options}).idempotent is idempotent


def _parameters():
    import inspect

    parameters = dict(inspect.signature(Producer).parameters)
    del parameters["bootstrap"]
    return parameters
