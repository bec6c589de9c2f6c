"""A network of the simulated world: connections between the processes of its nodes, in memory.

``Network`` has the listeners, the connections and the faults; ``of`` gives a process its way to it
(``logstore.replication.peer_network.PeerNetwork``). A connection delivers bytes in their order, in chunks that are
split at random places at times. Faults: ``cut`` one direction between two nodes or both, ``heal``,
``break_connections``. When a process is killed its connections end: the other ends see a reset, or nothing if the
machine has gone with it. A port is enough to find who listens: hosts are not looked at.
"""

import asyncio
import errno
import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

from logstore.listening_sockets import SocketBuffers
from logstore.replication.peer_network import PeerNetwork
from tests.simulation.loop import PROCESS, PlayedProcess, SimulatedLoop
from tests.simulation.pipe import Pipe

_HOST = "127.0.0.1"
_FIRST_PORT = 20_000
#: Bytes of a connection that are on their way or wait at the receiver before the sender has to wait.
_KERNEL_BYTES = 128 * 1024
_HIGH_BYTES = 64 * 1024
_SPLITS = 0.1
#: A client sends again what is not acknowledged, at least so often.
_SENT_AGAIN_S = 0.4
#: A connection attempt gets no answer: it is repeated after such pauses, and fails in the end.
_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
#: The share of killed processes of which the other ends see nothing.
_VANISHES = 0.3


@dataclass(slots=True)
class _Listening:
    name: str
    process: PlayedProcess | None
    make_protocol: Callable[[], asyncio.BaseProtocol]
    context: Context
    ports: "dict[int, _Listening]"
    port: int

    def close(self) -> None:
        self.ports.pop(self.port, None)


class Network:
    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.listening: dict[int, _Listening] = {}
        self._ports = itertools.count(_FIRST_PORT)
        self._cuts: set[tuple[str, str]] = set()
        self._ends: dict[PlayedTransport, None] = {}

    def of(self, name: str) -> "NodeNetwork":
        """Return the network as the current process sees it, on the node ``name``.

        It knows nothing of connections of clients to the process before, which was gone without a word: they are reset.
        """
        for end in list(self._ends):
            if end.process is None and end.peer.name == name and end.peer.is_dead:
                self.loop.call_later(self.rng.uniform(0, _SENT_AGAIN_S), end.was_reset)
        return NodeNetwork(self, name)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        """Let nothing pass from ``one`` to ``other``, and back."""
        self._cuts.add((one, other))
        if both_ways:
            self._cuts.add((other, one))

    def heal(self) -> None:
        """End all cuts. What was sent meanwhile arrives, as far as its connection has not ended."""
        self._cuts.clear()
        for end in list(self._ends):
            end.pipe.resume()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def break_connections(self, one: str, other: str) -> None:
        """Reset all connections between two nodes; parts of what is on the way are lost."""
        for end in list(self._ends):
            if {end.name, end.peer.name} == {one, other}:
                end.break_off()

    def break_clients(self, name: str) -> None:
        """Reset the connections between a node and clients, in the middle of what is on the way."""
        for end in list(self._ends):
            if end.name == name and end.peer.process is None:
                end.break_off()
                end.peer.break_off()

    def process_died(self, process: PlayedProcess) -> None:
        is_silent = self.rng.random() < _VANISHES
        for port, listening in list(self.listening.items()):
            if listening.process is process:
                del self.listening[port]
        for end in list(self._ends):
            if end.process is process:
                end.die(is_silent=is_silent)

    # ---- connections ------------------------------------------------------------------------------------------------

    def new_port(self) -> int:
        return next(self._ports)

    def join(self, client: "PlayedTransport", server: "PlayedTransport") -> None:
        for end, peer in ((client, server), (server, client)):
            end.peer = peer
            end.pipe = Pipe(self.loop, self.rng, lambda a=end, b=peer: self.is_cut(a.name, b.name), peer.context)  # type: ignore[misc]
            self._ends[end] = None

    def forget(self, *ends: "PlayedTransport") -> None:
        for end in ends:
            self._ends.pop(end, None)

    def way_s(self) -> float:
        return self.rng.expovariate(1 / 0.0005)


class NodeNetwork(PeerNetwork):
    """The network for one process."""

    def __init__(self, network: Network, name: str) -> None:
        self._network, self._name = network, name
        self._process = PROCESS.get()
        if self._process is not None:
            self._process.at_death.append(network.process_died)

    async def connect(
        self,
        host: str,
        port: str,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        buffers: SocketBuffers,
    ) -> None:
        network = self._network
        for pause in _AGAIN_S:
            await asyncio.sleep(network.way_s())
            if self._process is not None and self._process.is_dead:
                raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
            listening = network.listening.get(int(port))
            if listening is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            if not (network.is_cut(self._name, listening.name) or network.is_cut(listening.name, self._name)):
                break
            await asyncio.sleep(pause)
        else:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        client = PlayedTransport(network, self._name, self._process, (_HOST, network.new_port()), (_HOST, int(port)))
        server = PlayedTransport(network, listening.name, listening.process, client.remote, client.local)
        server.context = listening.context.copy()
        network.join(client, server)
        client.begin(make_protocol())
        client.pipe.send(lambda: server.accept(listening.make_protocol))

    async def listen(
        self,
        host: str,
        port: int,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        buffers: SocketBuffers,
    ) -> tuple[_Listening, int]:
        network = self._network
        port = port or network.new_port()
        if port in network.listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listening = _Listening(self._name, self._process, make_protocol, copy_context(), network.listening, port)
        network.listening[port] = listening
        return listening, port


class PlayedTransport(asyncio.Transport):
    """One end of a connection."""

    peer: "PlayedTransport"
    #: To the other end.
    pipe: Pipe

    def __init__(
        self,
        network: Network,
        name: str,
        process: PlayedProcess | None,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self.name, self.process, self.local, self.remote = name, process, local, remote
        self.context = copy_context()
        self._network, self._loop = network, network.loop
        self._protocol: asyncio.BaseProtocol | None = None
        self._high = _HIGH_BYTES
        self._low = _HIGH_BYTES // 4
        #: Bytes that the other end has not taken.
        self._outstanding = 0
        self._is_writing_paused = False
        self._is_reading_paused = False
        #: What has come while reading was paused; None is the end.
        self._inbox: deque[bytes | None] = deque()
        self._is_closing = False
        self._is_lost = False
        self._has_sent_end = False

    # ---- begin and end ----------------------------------------------------------------------------------------------

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def accept(self, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Be accepted, in the context of the process that listens."""
        if not self.is_dead:
            self.begin(make_protocol())

    @property
    def is_dead(self) -> bool:
        return self.process is not None and self.process.is_dead

    def close(self) -> None:
        """Send what was written, and the end."""
        if self._is_closing or self.is_dead:
            return
        self._is_closing = True
        self.write_eof()
        if self.get_write_buffer_size() == 0:
            self._lose(None)

    def abort(self) -> None:
        if self._is_lost or self.is_dead:
            return
        self._is_closing = True
        self.pipe.lose_rest()
        self.pipe.send(self.peer.was_reset)
        self._lose(None)

    def break_off(self) -> None:
        """The connection ends for a reason that is nobody's."""
        self.pipe.lose_rest()
        self.pipe.send(self.peer.was_reset)

    def was_reset(self) -> None:
        self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def die(self, *, is_silent: bool) -> None:
        """The process has ended; what it has sent still arrives unless the machine has gone."""
        self._is_lost = self._is_closing = True
        self._forget()
        if is_silent:
            self.pipe.close()
        else:
            self.pipe.lose_rest()
            self.pipe.send(self.peer.was_reset)
        if self._protocol is not None:  # tasks of the process may wait for that before they end
            self._loop.call_soon(self._protocol.connection_lost, None, context=self.context)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost or self.is_dead:
            return
        self._is_lost = self._is_closing = True
        self._inbox.clear()
        self._loop.call_soon(self._tell_lost, error, context=self.context)

    def _tell_lost(self, error: Exception | None) -> None:
        self._forget()
        if self._protocol is not None and not self.is_dead:
            self._protocol.connection_lost(error)

    def _forget(self) -> None:
        if self.peer._is_lost:  # nothing is on the way any more that somebody would see
            self._network.forget(self, self.peer)

    # ---- writing ----------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._has_sent_end or self._is_lost or self.is_dead:
            return
        chunk = bytes(data)
        if not chunk:
            return
        self._outstanding += len(chunk)
        rng = self._network.rng
        while len(chunk) > 1 and rng.random() < _SPLITS:
            at = rng.randrange(1, len(chunk))
            self._send(chunk[:at])
            chunk = chunk[at:]
        self._send(chunk)
        if not self._is_writing_paused and self.get_write_buffer_size() > self._high:
            self._is_writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def _send(self, chunk: bytes) -> None:
        self.pipe.send(lambda: self.peer.arrive(chunk))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._has_sent_end and not self.is_dead:
            self._has_sent_end = True
            self.pipe.send(lambda: self.peer.arrive(None))

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return max(0, self._outstanding - _KERNEL_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def _taken(self, count: int) -> None:
        """The other end has taken so many bytes."""
        self._outstanding -= count
        if self._is_lost or self.is_dead:
            return
        if self._is_writing_paused and self.get_write_buffer_size() <= self._low:
            self._is_writing_paused = False
            self._loop.call_soon(self._resume_writing, context=self.context)
        if self._is_closing and self.get_write_buffer_size() == 0:
            self._lose(None)

    def _resume_writing(self) -> None:
        if not (self._is_lost or self.is_dead or self._is_writing_paused) and self._protocol is not None:
            self._protocol.resume_writing()

    # ---- reading ----------------------------------------------------------------------------------------------------

    def arrive(self, chunk: bytes | None) -> None:
        """Bytes, or the end, have come."""
        if self.is_dead or self._is_lost:
            if chunk is not None and not self.is_dead:
                self.pipe.send(self.peer.was_reset)
            return
        self._inbox.append(chunk)
        self._read()

    def _read(self) -> None:
        while self._inbox and not self._is_reading_paused and not self._is_closing:
            chunk = self._inbox.popleft()
            if chunk is None:
                assert self._protocol is not None
                if not self._protocol.eof_received():  # type: ignore[attr-defined]
                    self.close()
                return
            self.peer._taken(self._feed(chunk))

    def _feed(self, chunk: bytes) -> int:
        """Give it to the protocol, and return how many bytes that has taken; the rest comes first next time."""
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(chunk)
            return len(chunk)
        buffer = protocol.get_buffer(len(chunk))
        count = min(len(buffer), len(chunk))
        memoryview(buffer)[:count] = chunk[:count]
        if count < len(chunk):
            self._inbox.appendleft(chunk[count:])
        protocol.buffer_updated(count)
        return count

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            if self._inbox:
                self._loop.call_soon(self._read_on, context=self.context)

    def _read_on(self) -> None:
        if not (self.is_dead or self._is_lost):
            self._read()

    def is_reading(self) -> bool:
        return not self._is_reading_paused and not self._is_closing

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol
