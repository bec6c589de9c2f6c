"""The ZooKeeper of a cluster on one machine: one server, started again with the same port and the same data."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Final

import msgspec

from logstore.cluster.zookeeper_server import Ports, ZooKeeperServer, ZooKeeperServerError

#: The pauses before it is started again, one after the other. A session of a broker is to outlive the first ones.
_PAUSES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0)
#: One that has served for so long begins with the first pause.
_STEADY_S: Final = 60.0


class ZooKeeperEntry(msgspec.Struct, frozen=True):
    """A ZooKeeper that runs, as programs are told of it. ``zookeeper`` is for ``zookeeper.connect``."""

    zookeeper: str
    pid: int


class ZooKeeperProcess:
    """Started again and again with the same port and ``directory``."""

    def __init__(self, directory: Path, port: int) -> None:
        # Alone it uses the port for clients only.
        self._server = ZooKeeperServer(directory, 1, [Ports(port, 0, 0)])
        #: Held by who starts it.
        self.changing = asyncio.Lock()

    @property
    def entry(self) -> ZooKeeperEntry:
        """ZooKeeperServerError if it does not run."""
        return ZooKeeperEntry(self._server.address, self._server.pid)

    @property
    def is_running(self) -> bool:
        return self._server.is_running

    async def start(self) -> ZooKeeperEntry:
        """Return when it serves. After ZooKeeperServerError, OSError and a cancelled call it does not run."""
        starting = asyncio.create_task(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(ZooKeeperServerError):
                self._server.signal(signal.SIGKILL)  # then the thread ends at once
            await asyncio.gather(starting, return_exceptions=True)
            self._server.kill()  # it had no process yet
            raise
        return self.entry

    def _start(self) -> None:
        self._server.start()
        self._server.wait_until_serving()

    async def ended(self) -> int:
        """Wait for the end of the process that runs now; its exit code, negative for a signal. ``stop`` ends this."""
        return await asyncio.to_thread(self._server.wait_until_ended)

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)


class Restarts:
    """How often, and after which pauses, a process that ends is started again."""

    def __init__(self) -> None:
        self._pauses = iter(_PAUSES_S)

    def pause(self, served_s: float) -> float | None:
        """Return the pause before the next start of one that has served for ``served_s`` seconds; None if it has ended
        too often in a row.
        """
        if served_s > _STEADY_S:
            self._pauses = iter(_PAUSES_S)
        return next(self._pauses, None)
