"""A node of the simulated world: the process of a store, the disk below it, and the way to it."""

import asyncio
import contextlib
import errno
import random
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from logstore.broker.authorizer import Authorizer
from logstore.broker.quotas import Quotas
from logstore.errors import LogStoreError
from logstore.node import Store, running_store
from logstore.settings import Settings
from tests.simulation.listeners import listening_store
from tests.simulation.loop import PlayedProcess, SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.process_disk import ProcessDisk
from tests.simulation.zookeeper import Ensemble
from tests.support.faulty_filesystem import CrashedError, FaultyFileSystem

T = TypeVar("T")

#: Seconds that a request or an answer is on its way.
_WAY_S = 0.0003
#: A start that takes longer will not end.
START_S = 120.0
_BEGIN_MS = 1_700_000_000_000
#: How much faster or slower the clocks of a node run than time passes.
_RATE = 0.0005


class NoConnectionError(Exception):
    """The node could not be reached: the request was not sent."""


class ConnectionLostError(Exception):
    """The node has gone with the request: what became of it is not known."""


class PlayedClock:
    """A node's clocks: they run at a rate of their own, and its wall clock is ``offset_ms`` away from the true time."""

    def __init__(self, loop: SimulatedLoop, rate: float = 1.0) -> None:
        self._loop = loop
        self.offset_ms = 0
        #: What the monotonic clock showed when its rate changed last, and when that was.
        self._shown_s, self._since, self._rate = loop.time(), loop.time(), rate

    def now_ms(self) -> int:
        return _BEGIN_MS + self.offset_ms + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return self._shown_s + (self._loop.time() - self._since) * self._rate

    def drift(self, rate: float) -> None:
        """Run at ``rate`` from now on."""
        self._shown_s, self._since, self._rate = self.monotonic(), self._loop.time(), rate

    def sleep(self, seconds: float) -> None:
        """The loop cannot go on while a thread sleeps: the node's clocks alone do."""
        self._shown_s += seconds


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's place in a cluster: its brokers share a data directory and a ZooKeeper."""

    broker_id: int
    zookeeper: Ensemble


class Node:
    def __init__(
        self,
        loop: SimulatedLoop,
        directory: Path,
        rng: random.Random,
        settings: dict[str, object],
        note: Callable[..., None],
        network: Network,
        member: Membership | None = None,
    ) -> None:
        """``note`` is told of each call of the disk. ``directory`` is shared by the ``member``s of a cluster; it
        listens on ``network``.
        """
        directory.mkdir(parents=True, exist_ok=member is not None)
        self.data = directory / "data"
        self.clock = PlayedClock(loop, rng.uniform(1 - _RATE, 1 + _RATE))
        self.name = directory.name if member is None else str(member.broker_id)
        self.disk = FaultyFileSystem(directory, "" if member is None else self.name)
        #: The name of its directory among those of brokers.
        self.broker = "0" if member is None else self.name
        if member is not None:
            own = self.data / "brokers" / self.name
            self.disk.of_others = lambda path: path.parent == own.parent and path != own
            settings = {"broker_id": member.broker_id, "zookeeper_connect": "zookeeper:2181", **settings}
        self._network, self._member = network, member
        self.store: Store | None = None
        #: The share of answers that do not arrive.
        self.lost_answers = 0.005
        self._loop = loop
        self._rng = rng
        self._note = note
        self._settings = Settings(data=self.data, **settings)  # type: ignore[arg-type]
        self._process: PlayedProcess | None = None
        self._process_disk: ProcessDisk | None = None
        self._main: asyncio.Task[None] | None = None
        self._stopping: asyncio.Event | None = None
        self._on_the_way: dict[asyncio.Future[object], None] = {}
        self._starts = 0

    @property
    def is_up(self) -> bool:
        return self.store is not None

    @property
    def process(self) -> PlayedProcess:
        assert self._process is not None
        return self._process

    # ---- its process ------------------------------------------------------------------------------------------------

    async def start(self) -> LogStoreError | OSError | None:
        """Start the store; why it could not, or None once it serves."""
        self._starts += 1
        process = self._process = PlayedProcess(f"{self.name}.{self._starts}")
        disk = self._process_disk = ProcessDisk(self.disk, process, self.data.parent, self._note)
        ready: asyncio.Future[Store] = self._loop.create_future()
        stopping = self._stopping = asyncio.Event()

        async def main() -> None:
            try:
                async with self._running_store(disk) as store:
                    ready.set_result(store)
                    await stopping.wait()
                    self.store = None
            except BaseException as error:
                if not ready.done():
                    dead = CrashedError(errno.EIO, "the process was killed")
                    ready.set_exception(dead if isinstance(error, asyncio.CancelledError) else error)
                    return
                raise

        self._main = process.run(self._loop.create_task, main())
        try:
            store = await asyncio.wait_for(asyncio.shield(ready), START_S)
        except (LogStoreError, OSError) as error:
            self.kill()
            return error
        if not process.is_dead:
            self.store = store
        return None

    def _running_store(self, disk: ProcessDisk) -> AbstractAsyncContextManager[Store]:
        network = self._network.of(self.name)
        given: dict[str, Any] = {"clock": self.clock, "filesystem": disk}
        if self._member is not None:
            given |= {"network": network, "zookeeper": self._member.zookeeper.client_of(self.name)}

        def make_store(
            authorizer: Authorizer, quotas: Quotas, url: str, kafka: str
        ) -> AbstractAsyncContextManager[Store]:
            return running_store(self._settings, authorizer, quotas, url=url, kafka=kafka, **given)

        return listening_store(self._settings, network, make_store)

    async def stop(self) -> BaseException | None:
        """SIGTERM; with what error it ended, if with one."""
        main, stopping = self._main, self._stopping
        assert main is not None
        assert stopping is not None
        self.store = None
        stopping.set()
        try:
            await asyncio.wait_for(asyncio.shield(main), START_S)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is told
            return error
        finally:
            self.kill()
        return None

    def kill(self) -> None:
        """kill -9: the page cache stays."""
        self.store = None
        if self._process is not None:
            self._process.kill()
        for answer in self._on_the_way:
            if not answer.done():
                answer.set_exception(ConnectionLostError())
        self._on_the_way.clear()
        if self._process_disk is not None:
            self._process_disk.release()
        self.disk.restart()

    def power_cut(self, *, strict: bool) -> None:
        """The node loses what was not synced, or parts of it."""
        self.kill()
        self.disk.power_cut(self._rng, strict=strict)
        self.disk.restart()

    # ---- the way to it ----------------------------------------------------------------------------------------------

    async def call(self, work: Callable[[Store], Awaitable[T]], timeout_s: float = 40.0) -> T:
        """Have ``work`` done in the node's process, as by a request.

        NoConnectionError, ConnectionLostError (also if there is no answer within ``timeout_s``), and as ``work``.
        """
        await self._travel()
        store = self.store
        if store is None:
            raise NoConnectionError
        answer: asyncio.Future[T] = self._loop.create_future()
        self._on_the_way[answer] = None  # type: ignore[index]

        async def serve() -> None:
            try:
                result = await work(store)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the client is told
                if not answer.done():
                    answer.set_exception(error if isinstance(error, Exception) else ConnectionLostError())
            else:
                if not answer.done():
                    answer.set_result(result)

        self.process.run(self._loop.create_task, serve())
        try:
            async with asyncio.timeout(timeout_s):
                result = await answer
        except TimeoutError:
            raise ConnectionLostError from None
        except CrashedError:
            raise ConnectionLostError from None
        finally:
            self._on_the_way.pop(answer, None)  # type: ignore[call-overload]
        await self._travel()
        if self._rng.random() < self.lost_answers:
            raise ConnectionLostError  # the answer is lost
        return result

    async def _travel(self) -> None:
        await asyncio.sleep(self._rng.expovariate(1 / _WAY_S))

    def remove(self) -> None:
        """Remove all that it has on the machine that simulates it."""
        for path in self.data.parent.parent.glob(f"{self.data.parent.name}*"):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
