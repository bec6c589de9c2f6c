"""The ZooKeeper of a cluster on one machine: one server, restarted with the same port and data."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Final

import msgspec

from logstore.cluster.zookeeper_server import Ports, ZooKeeperServer, ZooKeeperServerError

#: Seconds before each restart in turn. The first ones are short enough for a broker's session to survive.
_PAUSES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0)
#: A process that served for longer than this begins with the first pause again.
_STEADY_S: Final = 60.0


class ZooKeeperEntry(msgspec.Struct, frozen=True):
    """A running ZooKeeper, as reported to programs. ``zookeeper`` is for ``zookeeper.connect``."""

    zookeeper: str
    pid: int


class ZooKeeperProcess:
    """A ZooKeeper that can be started again and again with the same port and ``directory``."""

    def __init__(self, directory: Path, port: int) -> None:
        # A single server uses only the port for clients.
        self._server = ZooKeeperServer(directory, 1, [Ports(port, 0, 0)])
        #: The task that starts the server holds it.
        self.changing = asyncio.Lock()

    @property
    def entry(self) -> ZooKeeperEntry:
        """The address and pid. Raises ZooKeeperServerError if it does not run."""
        return ZooKeeperEntry(self._server.address, self._server.pid)

    @property
    def is_running(self) -> bool:
        return self._server.is_running

    async def start(self) -> ZooKeeperEntry:
        """Start it; return when it serves. After ZooKeeperServerError, OSError and a cancelled call it does not run."""
        starting = asyncio.create_task(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(ZooKeeperServerError):
                self._server.signal(signal.SIGKILL)  # the thread then ends at once
            await asyncio.gather(starting, return_exceptions=True)
            self._server.kill()  # there was no process when the signal was sent
            raise
        return self.entry

    def _start(self) -> None:
        self._server.start()
        self._server.wait_until_serving()

    async def ended(self) -> int:
        """Wait for the end of the process. Return its exit code, negative for a signal. ``stop`` ends the wait."""
        return await asyncio.to_thread(self._server.wait_until_ended)

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)


class Restarts:
    """Decides how often, and after which pauses, a process that ends is started again."""

    def __init__(self) -> None:
        self._pauses = iter(_PAUSES_S)

    def pause(self, served_s: float) -> float | None:
        """Return the pause before the next start of a process that served for ``served_s`` seconds; None if it ended
        too often in a row.
        """
        if served_s > _STEADY_S:
            self._pauses = iter(_PAUSES_S)
        return next(self._pauses, None)
