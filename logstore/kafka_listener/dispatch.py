"""Requests to handlers, and their answers. ``HANDLERS`` is the one table of what the listener serves."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from logstore.broker.context import RequestContext
from logstore.kafka_listener.alter_configs import alter_configs, incremental_alter_configs
from logstore.kafka_listener.api_versions import api_versions
from logstore.kafka_listener.create_partitions import create_partitions
from logstore.kafka_listener.create_topics import create_topics
from logstore.kafka_listener.delete_records import delete_records
from logstore.kafka_listener.delete_topics import delete_topics
from logstore.kafka_listener.describe_configs import describe_configs
from logstore.kafka_listener.describe_log_dirs import describe_log_dirs
from logstore.kafka_listener.describe_topic_partitions import describe_topic_partitions
from logstore.kafka_listener.store import KafkaStore

#: Store, context, the message of the request, its version; the message of the answer, or None for no answer.
Handler = Callable[[KafkaStore, RequestContext, Any, int], Awaitable[Any]]

HANDLERS: Final[Mapping[int, Handler]] = {
    18: api_versions,
    19: create_topics,
    20: delete_topics,
    21: delete_records,
    32: describe_configs,
    33: alter_configs,
    35: describe_log_dirs,
    37: create_partitions,
    44: incremental_alter_configs,
    75: describe_topic_partitions,
}
