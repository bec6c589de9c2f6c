"""Requests to handlers, and their answers. ``HANDLERS`` is the one table of what the listener serves."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from logstore.broker.context import RequestContext
from logstore.kafka_listener.api_versions import api_versions
from logstore.kafka_listener.classic_groups import heartbeat, join_group, leave_group, sync_group
from logstore.kafka_listener.consumer_groups import consumer_group_describe, consumer_group_heartbeat
from logstore.kafka_listener.find_coordinator import find_coordinator
from logstore.kafka_listener.group_admin import delete_groups, describe_groups, list_groups
from logstore.kafka_listener.group_offsets import offset_commit, offset_delete, offset_fetch
from logstore.kafka_listener.store import KafkaStore

#: Store, context, the message of the request, its version; the message of the answer, or None for no answer.
Handler = Callable[[KafkaStore, RequestContext, Any, int], Awaitable[Any]]

HANDLERS: Final[Mapping[int, Handler]] = {
    8: offset_commit,
    9: offset_fetch,
    10: find_coordinator,
    11: join_group,
    12: heartbeat,
    13: leave_group,
    14: sync_group,
    15: describe_groups,
    16: list_groups,
    18: api_versions,
    42: delete_groups,
    47: offset_delete,
    68: consumer_group_heartbeat,
    69: consumer_group_describe,
}
