"""Passes requests to handlers, and encodes their responses. ``HANDLERS`` is the one table of what the listener
serves.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from logstore.broker.context import RequestContext
from logstore.broker.quotas import QuotaKind
from logstore.filesystem import Buffer
from logstore.kafka_listener.alter_configs import alter_configs, incremental_alter_configs
from logstore.kafka_listener.api_versions import api_versions
from logstore.kafka_listener.classic_groups import heartbeat, join_group, leave_group, sync_group
from logstore.kafka_listener.consumer_groups import consumer_group_describe, consumer_group_heartbeat
from logstore.kafka_listener.create_partitions import create_partitions
from logstore.kafka_listener.create_topics import create_topics
from logstore.kafka_listener.delete_records import delete_records
from logstore.kafka_listener.delete_topics import delete_topics
from logstore.kafka_listener.describe_cluster import describe_cluster
from logstore.kafka_listener.describe_configs import describe_configs
from logstore.kafka_listener.describe_log_dirs import describe_log_dirs
from logstore.kafka_listener.describe_topic_partitions import describe_topic_partitions
from logstore.kafka_listener.fetch import fetch
from logstore.kafka_listener.fetch_sessions import Fetching
from logstore.kafka_listener.find_coordinator import find_coordinator
from logstore.kafka_listener.group_admin import delete_groups, describe_groups, list_groups
from logstore.kafka_listener.group_offsets import offset_commit, offset_delete, offset_fetch
from logstore.kafka_listener.held import Held
from logstore.kafka_listener.init_producer_id import init_producer_id
from logstore.kafka_listener.list_offsets import list_offsets
from logstore.kafka_listener.metadata import metadata
from logstore.kafka_listener.offset_for_leader_epoch import offset_for_leader_epoch
from logstore.kafka_listener.produce import Turn, produce
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.requests import Request
from logstore.kafka_protocol.responses import write_response

#: Takes the store, the context, the request's message and version; returns the response's message, or None for none.
Handler = Callable[[KafkaStore, RequestContext, Any, int], Awaitable[Any]]

HANDLERS: Final[Mapping[int, Handler]] = {
    0: produce,
    1: fetch,
    2: list_offsets,
    3: metadata,
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
    19: create_topics,
    20: delete_topics,
    21: delete_records,
    22: init_producer_id,
    23: offset_for_leader_epoch,
    32: describe_configs,
    33: alter_configs,
    35: describe_log_dirs,
    37: create_partitions,
    42: delete_groups,
    44: incremental_alter_configs,
    47: offset_delete,
    60: describe_cluster,
    68: consumer_group_heartbeat,
    69: consumer_group_describe,
    75: describe_topic_partitions,
}

PRODUCE: Final = 0
FETCH: Final = 1
#: Requests that wait for something to happen, and are cut when the listener stops: Fetch, JoinGroup, SyncGroup.
WAITING: Final = frozenset((FETCH, 11, 14))


class Response(NamedTuple):
    """``buffers`` are the frame, to be sent one after the other; empty for no response. Nothing is read for
    ``throttle_ms``. ``release`` is called once the response is sent.
    """

    buffers: list[Buffer]
    throttle_ms: int
    release: Callable[[], None] | None


async def response_to(
    store: KafkaStore, context: RequestContext, request: Request, turn: Turn, fetching: Fetching | None = None
) -> Response:
    """Handle a request. ``turn`` is that of the connection's Produce requests; ``fetching`` is a fetch that has waited.

    An exception means that there is no response, and that the connection ends.
    """
    over_quota = store.broker.quotas.charge(context, QuotaKind.REQUESTS, 1)
    release = None
    message: Any
    if request.api_key == PRODUCE:
        message = await produce(store, context, request.message, request.api_version, turn)
    elif fetching is not None:
        message = await fetch(store, context, request.message, request.api_version, fetching)
    else:
        message = await HANDLERS[request.api_key](store, context, request.message, request.api_version)
    if isinstance(message, Held):
        message, release = message
    try:
        return _response(request, message, over_quota, release)
    except BaseException:
        if release is not None:
            release()
        raise


def response_to_idle_fetch(
    store: KafkaStore, context: RequestContext, request: Request, fetching: Fetching
) -> Response:
    """Return the response to a fetch that has waited, and has nothing to report."""
    over_quota = store.broker.quotas.charge(context, QuotaKind.REQUESTS, 1)
    throttle_ms = store.broker.admission.charge(context, QuotaKind.FETCHED_BYTES, 0)
    return _response(request, fetching.response((), throttle_ms), over_quota, None)


def _response(request: Request, message: Any, over_quota: float, release: Callable[[], None] | None) -> Response:
    throttle_ms = max(math.ceil(over_quota * 1000), getattr(message, "throttle_time_ms", 0))
    if message is None:
        return Response([], throttle_ms, None)
    if over_quota > 0 and hasattr(message, "throttle_time_ms"):
        message = msgspec.structs.replace(message, throttle_time_ms=throttle_ms)
    buffers = write_response(request.api_key, request.response_version, request.correlation_id, message)
    return Response(buffers, throttle_ms, release)
