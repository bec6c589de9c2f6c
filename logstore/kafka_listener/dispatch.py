"""Requests to handlers, and their answers. ``HANDLERS`` is the one table of what the listener serves."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from logstore.broker.context import RequestContext
from logstore.kafka_listener.api_versions import api_versions
from logstore.kafka_listener.fetch import fetch
from logstore.kafka_listener.list_offsets import list_offsets
from logstore.kafka_listener.offset_for_leader_epoch import offset_for_leader_epoch
from logstore.kafka_listener.store import KafkaStore

#: Store, context, the message of the request, its version; the message of the answer, or None for no answer.
Handler = Callable[[KafkaStore, RequestContext, Any, int], Awaitable[Any]]

HANDLERS: Final[Mapping[int, Handler]] = {
    1: fetch,
    2: list_offsets,
    18: api_versions,
    23: offset_for_leader_epoch,
}
