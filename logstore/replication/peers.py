"""Connections from this broker to the others, opened when needed and used again.

Each broker has a connection for each kind of message, so that a quick response does not wait behind large requests.
Invariant: requests of one kind go to a broker in the order of the calls.
"""

import asyncio
from collections.abc import Callable

from logstore.errors import LogStoreError, PeerUnavailableError
from logstore.filesystem import Buffer
from logstore.replication.peer_connection import PeerConnection
from logstore.replication.peer_options import LocalBroker, PeerOptions
from logstore.replication.protocol import Body, MessageType

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Peers:
    """Sends requests to other brokers. ``address_of`` returns the host:port of a broker's peer listener; None if the
    broker is not registered.
    """

    def __init__(self, local: LocalBroker, options: PeerOptions, address_of: Callable[[int], str | None]) -> None:
        self._local = local
        self._options = options
        self._address_of = address_of
        self._connections: dict[tuple[int, MessageType], PeerConnection] = {}
        # Connections that are being opened; all callers that need one wait for the same task.
        self._connecting: dict[tuple[int, MessageType], asyncio.Task[PeerConnection]] = {}
        self._is_closed = False

    async def request(self, broker_id: int, message_type: MessageType, body: Body, *, timeout_s: float) -> Buffer:
        """Return the body of the response. Raises PeerUnavailableError, or the error with which the other broker
        answers.
        """
        key = broker_id, message_type
        connection = self._connections.get(key)
        if connection is None or connection.is_closed or connection.local_epoch != self._local.broker_epoch:
            connection = await self._connected(key, timeout_s)
        return await connection.request(message_type, body, timeout_s)

    async def connect(self, broker_id: int) -> PeerConnection:
        """Open a separate connection, which the caller has to close. Raises PeerUnavailableError."""
        return await self._connect(broker_id)

    async def open_http(self, broker_id: int) -> Streams:
        """Open a separate connection that continues as HTTP/1.1. Raises PeerUnavailableError, with nothing sent."""
        connection = await self._connect(broker_id)
        try:
            return await connection.become_http()
        except LogStoreError as error:
            connection.close()
            raise PeerUnavailableError(error.message, nothing_sent=True) from error

    async def _connected(self, key: tuple[int, MessageType], timeout_s: float) -> PeerConnection:
        connecting = self._connecting.get(key)
        if connecting is None:
            connecting = self._connecting[key] = asyncio.create_task(self._connect(key[0]))
            connecting.add_done_callback(lambda done: self._keep(key, done))
        try:
            return await asyncio.wait_for(asyncio.shield(connecting), timeout_s)
        except TimeoutError:
            raise PeerUnavailableError(
                f"broker {key[0]} takes no connection within {timeout_s:g} s", nothing_sent=True
            ) from None

    def _keep(self, key: tuple[int, MessageType], done: "asyncio.Task[PeerConnection]") -> None:
        del self._connecting[key]
        if done.cancelled() or done.exception() is not None:
            return
        if (before := self._connections.get(key)) is not None:
            before.close()
        if self._is_closed:
            done.result().close()
        else:
            self._connections[key] = done.result()

    async def _connect(self, broker_id: int) -> PeerConnection:
        address = None if self._is_closed else self._address_of(broker_id)
        if address is None:
            raise PeerUnavailableError(f"broker {broker_id} is not there", nothing_sent=True)
        return await PeerConnection.connect(address, broker_id, self._local, self._options)

    def close(self) -> None:
        """Close all connections; requests that wait for a response fail."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
