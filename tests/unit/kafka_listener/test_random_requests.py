"""Random messages of every API and version, and mutations of them, at the socket: each gets an answer or a closed
connection, and the log has no error.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.definitions import request_and_response
from logstore.kafka_protocol.messages import MetadataRequest
from logstore.kafka_protocol.requests import write_request
from logstore.kafka_protocol.responses import read_response
from tests.support.captured_logs import captured_logs
from tests.support.kafka_client import METADATA, KafkaConnection, KafkaServer, kafka_server
from tests.support.kafka_messages import random_message
from tests.support.virtual_time import run

# Longer waits are the client's wish, as in Fetch, JoinGroup, and admin requests that wait for others.
_PATIENCE_S = 0.05


async def try_one(
    server: KafkaServer, connection: KafkaConnection | None, frame: bytes
) -> tuple[KafkaConnection | None, bytes]:
    """Send ``frame``; return the connection for the next frame, or None if this one ended or waits, and the answer."""
    connection = connection or await server.connect()
    connection.writer.write(frame)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            size = int.from_bytes(await connection.reader.readexactly(4))
            return connection, await connection.reader.readexactly(size)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        await connection.close()
        return None, b""


def error_codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        yield from (code for name, code in value.items() if name == "error_code")
        yield from (code for each in value.values() for code in error_codes(each))
    elif isinstance(value, (list, tuple)):
        yield from (code for each in value for code in error_codes(each))


@pytest.mark.parametrize("mutated", [False, True])
@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_no_request_is_an_error_of_the_store(tmp_path: Path, key: int, *, mutated: bool):
    chance = random.Random(key)
    request, _ = request_and_response(key)

    async def ask() -> None:
        with captured_logs() as logs:
            async with kafka_server(tmp_path, auto_create_topics_enable=True) as server:
                await server.topic()
                connection: KafkaConnection | None = None
                for version in range(APIS[key].version_min, APIS[key].version_max + 1):
                    for _ in range(6):
                        message = random_message(request, version, chance)
                        frame = bytearray(b"".join(map(bytes, write_request(key, version, 1, "c", message))))
                        if mutated:
                            for _ in range(chance.randint(1, 4)):
                                # The length and the kind of the request stay.
                                frame[chance.randrange(12, len(frame))] = chance.choice((0, 1, 127, 128, 255))
                        connection, answer = await try_one(server, connection, bytes(frame))
                        if answer:
                            _, told = read_response(key, version, answer)
                            # UNKNOWN_SERVER_ERROR is a bug in our code.
                            assert -1 not in error_codes(msgspec.to_builtins(told))
                client = await server.connect()
                assert (await client.ask(METADATA, 13, MetadataRequest(topics=None))).error_code == 0
        assert [one for one in logs if one["log_level"] in ("error", "critical")] == []

    run(ask())
