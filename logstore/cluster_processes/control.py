"""How another command asks a running cluster's process, which owns the others, to start a broker or ZooKeeper.

They talk over a Unix socket in the data directory, for its owner alone: a line of JSON each way.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from logstore.cluster_processes.broker_process import START_S, BrokerEntry
from logstore.cluster_processes.record import ClusterProcessesError, Directory
from logstore.cluster_processes.zookeeper_process import ZooKeeperEntry
from logstore.errors import LogStoreError

#: Longer than the start of a broker may take.
_RESPONSE_S: Final = START_S + 20.0
_REQUEST_S: Final = 10.0


class _Request(msgspec.Struct, frozen=True):
    """The id of a broker; None asks for ZooKeeper."""

    start_broker: int | None


class _Response(msgspec.Struct, frozen=True):
    """Exactly one field is set."""

    broker: BrokerEntry | None = None
    zookeeper: ZooKeeperEntry | None = None
    error: str | None = None


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield a short name of the socket: the name of a Unix socket has at most 107 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@contextlib.asynccontextmanager
async def controlled(
    path: Path,
    start_broker: Callable[[int], Awaitable[BrokerEntry]],
    start_zookeeper: Callable[[], Awaitable[ZooKeeperEntry]],
) -> AsyncIterator[None]:
    """Answer requests as long as the block lasts. The caller holds a lock, so nobody else listens at ``path``."""
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - at once, as what follows
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        with _address(path) as address:
            listener.bind(address)
    finally:
        os.umask(mask)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_REQUEST_S):
                line = await reader.readline()
            try:
                request = msgspec.json.decode(line, type=_Request)
                if request.start_broker is None:
                    found = _Response(zookeeper=await start_zookeeper())
                else:
                    found = _Response(broker=await start_broker(request.start_broker))
            except (LogStoreError, OSError, msgspec.DecodeError) as error:
                found = _Response(error=str(error))
            writer.write(msgspec.json.encode(found) + b"\n")
            await writer.drain()

    answering: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(answer(reader, writer))
        answering.add(task)
        task.add_done_callback(answering.discard)

    server = await asyncio.start_unix_server(begin, sock=listener)
    try:
        yield
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        path.unlink(missing_ok=True)  # noqa: ASYNC240


def ask_to_start(directory: Directory, broker_id: int) -> BrokerEntry:
    """Ask the running cluster to start a broker that has ended; return when it is ready. Raises
    ClusterProcessesError.
    """
    late = f"Broker {broker_id} is not ready after {_RESPONSE_S:.0f} seconds: see {directory.log(broker_id)}."
    response = _ask(directory, _Request(broker_id), late)
    if response.broker is None:
        raise ClusterProcessesError(response.error or "no reason was given")
    return response.broker


def ask_to_start_zookeeper(directory: Directory) -> ZooKeeperEntry:
    """Ask the running cluster to start its ended ZooKeeper; return when it serves. Raises ClusterProcessesError."""
    late = f"ZooKeeper does not serve after {_RESPONSE_S:.0f} seconds: see {directory.zookeeper}."
    response = _ask(directory, _Request(None), late)
    if response.zookeeper is None:
        raise ClusterProcessesError(response.error or "no reason was given")
    return response.zookeeper


def _ask(directory: Directory, request: _Request, late: str) -> _Response:
    """Send a request and return the response. ``late`` is the error message if none comes."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_RESPONSE_S)
        try:
            with _address(directory.control) as address:
                asking.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            raise ClusterProcessesError(
                f"No cluster runs on {directory.data}: start it with logstore cluster start --data {directory.data}"
            ) from None
        try:
            asking.sendall(msgspec.json.encode(request) + b"\n")
            line = b"".join(iter(lambda: asking.recv(1 << 16), b""))
        except TimeoutError:
            raise ClusterProcessesError(late) from None
    if not line:
        raise ClusterProcessesError(f"The cluster on {directory.data} was stopped meanwhile.")
    return msgspec.json.decode(line, type=_Response)
