import re
from math import inf

import pytest

from logstore.client.consumer import Consumer
from logstore.errors import InvalidConfigError, InvalidGroupError

CONSUMER = {"group_protocol": "consumer"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bootstrap_servers": "h:1"}, "A consumer has no option bootstrap_servers: did you mean bootstrap?"),
        ({"group.id": "g"}, "no option group.id: did you mean group_id?"),
        ({"isolation": "read_committed"}, "no option isolation: it has bootstrap, group_id, client_id, "),
        ({"auto_offset_reset": "smallest"}, "auto_offset_reset = 'smallest': give 'earliest', 'latest', 'none'"),
        ({"enable_auto_commit": True}, "enable_auto_commit needs a group: give group_id"),
        ({"enable_auto_commit": "no", "group_id": "g"}, "enable_auto_commit = 'no': give None, True, False"),
        ({"key_deserializer": "json"}, "key_deserializer is not callable: give a function from bytes to an object"),
        ({"value_deserializer": 1}, "value_deserializer is not callable"),
        ({"auto_commit_interval_ms": -1}, "auto_commit_interval_ms = -1: give a number from 0"),
        ({"fetch_min_bytes": -1}, "fetch_min_bytes = -1"),
        ({"fetch_max_wait_ms": 0.5}, "fetch_max_wait_ms = 0.5: give a whole number from 0"),
        ({"fetch_max_bytes": 0}, "fetch_max_bytes = 0: give a number from 1"),
        ({"max_partition_fetch_bytes": 0}, "max_partition_fetch_bytes = 0"),
        ({"max_poll_records": 0}, "max_poll_records = 0"),
        ({"max_poll_records": True}, "max_poll_records = True: give a whole number"),
        ({"consumer_timeout_ms": -1}, "consumer_timeout_ms = -1"),
        ({"consumer_timeout_ms": 0.5}, "consumer_timeout_ms = 0.5"),
        ({"request_timeout_ms": 0}, "request_timeout_ms = 0"),
        ({"default_api_timeout_ms": "1"}, "default_api_timeout_ms = '1'"),
        ({"metadata_max_age_ms": -1}, "metadata_max_age_ms = -1"),
        ({"max_poll_interval_ms": 0}, "max_poll_interval_ms = 0"),
        ({"session_timeout_ms": 0}, "session_timeout_ms = 0"),
        ({"heartbeat_interval_ms": 0.5}, "heartbeat_interval_ms = 0.5"),
        ({"heartbeat_interval_ms": 45_000}, "heartbeat_interval_ms = 45000: give less than session_timeout_ms = 45000"),
        ({"group_instance_id": "a b", "group_id": "g"}, "group_instance_id = 'a b': give 1 to 249 of"),
        ({"group_instance_id": 1, "group_id": "g"}, "group_instance_id = 1"),
        ({"group_instance_id": "a"}, "group_instance_id needs a group: give group_id"),
        ({"partition_assignment_strategy": []}, "partition_assignment_strategy = []: give one or several of 'range', "),
        ({"partition_assignment_strategy": 5}, "partition_assignment_strategy = 5"),
        (
            {"partition_assignment_strategy": ["range", "even"]},
            "partition_assignment_strategy = 'even': give 'range', ",
        ),
        ({"group_protocol": "new"}, "group_protocol = 'new': give 'classic', 'consumer'"),
        ({"group_remote_assignor": "uniform"}, "group_remote_assignor does not go with group_protocol = 'classic'"),
        (CONSUMER | {"group_remote_assignor": "sticky"}, "group_remote_assignor = 'sticky': give 'uniform', 'range'"),
        (CONSUMER | {"session_timeout_ms": 9_000}, "session_timeout_ms does not go with group_protocol = 'consumer'"),
        (CONSUMER | {"heartbeat_interval_ms": 9}, "the store's group_consumer_heartbeat_interval_ms counts"),
        (CONSUMER | {"partition_assignment_strategy": "range"}, "the store assigns, give group_remote_assignor"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_takes(options, says):
    with pytest.raises(InvalidConfigError, match=re.escape(says)):
        Consumer("127.0.0.1:1", **options)


def test_more_than_a_store_takes_and_waits_without_end_are_fine():
    Consumer("127.0.0.1:1", fetch_max_bytes=2**40, fetch_max_wait_ms=10**9, consumer_timeout_ms=inf).close()


@pytest.mark.parametrize("name", ["", "x" * 32_768, "\ud800"])
def test_a_group_that_cannot_be_is_refused_before_anything_is_read(name):
    with pytest.raises(InvalidGroupError, match="group_id"):
        Consumer("127.0.0.1:1", group_id=name)
