"""Kafka's requests to the handlers of a real broker in the test's own event loop, through the codecs both ways."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from consumer_offsets.group_coordinator import GroupCoordinator
from logstore.broker.authorizer import Authorizer
from logstore.broker.broker import Broker
from logstore.broker.context import ANONYMOUS, Forwarding, RequestContext
from logstore.filesystem import Buffer, FileSystem
from logstore.kafka_listener.dispatch import HANDLERS
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.requests import read_request, write_request
from logstore.kafka_protocol.responses import read_response, write_response
from logstore.settings import Settings
from tests.support.running_broker import start_broker, stop_broker
from tests.support.virtual_time import clock_of_loop

#: The context of a Kafka client.
KAFKA_CLIENT = RequestContext("1", "test", "KAFKA", "127.0.0.1", None, ANONYMOUS, Forwarding.REFUSED)


class Handlers:
    def __init__(self, broker: Broker, groups: GroupCoordinator) -> None:
        self.broker = broker
        self.store = KafkaStore(broker.settings, broker, groups, broker._cluster_state, ("127.0.0.1", 9092))

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        """Return the response, as a client decodes it."""
        request = read_request(_frame(write_request(api_key, version, 7, "test", message)))
        answer = await HANDLERS[api_key](self.store, KAFKA_CLIENT, request.message, version)
        correlation_id, found = read_response(api_key, version, _frame(write_response(api_key, version, 7, answer)))
        assert correlation_id == 7
        return found


@contextlib.asynccontextmanager
async def kafka_handlers(
    data: Path, *, authorizer: Authorizer | None = None, filesystem: FileSystem | None = None, **settings: Any
) -> AsyncIterator[Handlers]:
    broker = await start_broker(Settings(data=data, **settings), authorizer=authorizer, filesystem=filesystem)
    try:
        async with GroupCoordinator.running(broker, clock=clock_of_loop()) as groups:
            yield Handlers(broker, groups)
    finally:
        await stop_broker(broker)


def _frame(buffers: Sequence[Buffer]) -> bytes:
    """Join the buffers without the leading length."""
    return b"".join(bytes(buffer) for buffer in buffers)[4:]
