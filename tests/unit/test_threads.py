"""A store whose threads are replaced starts none, and one thread does all of its work."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.broker.quotas import Quotas
from logstore.disk_thread import DiskThread
from logstore.node import running_store
from logstore.settings import Settings
from logstore.threads import Threads, replaced, threads
from tests.support.running_broker import produce, read_all


class _AtOnce(Executor):
    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the waiter gets it
            future.set_exception(error)
        return future


class _InTheLoop(DiskThread):
    def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        return asyncio.wrap_future(_AtOnce().submit(work, *args, **kwargs))

    def close(self) -> None: ...


class _NoThreads(Threads):
    def pool(self, count: int, name: str, niceness: int = 0) -> Executor:
        return _AtOnce()

    def disk_thread(self, name: str) -> DiskThread:
        return _InTheLoop(name)


def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.run_in_executor = lambda _, work, *args: asyncio.wrap_future(_AtOnce().submit(work, *args), loop=loop)
    return loop


def test_a_store_runs_in_one_thread(tmp_path: Path) -> None:
    there_before = threading.active_count()

    async def scenario() -> None:
        async with running_store(Settings(data=tmp_path), Authorizer(), Quotas()) as store:
            broker = store.broker
            await broker.create_topic(INTERNAL, "t", partitions=1, configs={})
            topic = broker.topic(INTERNAL, "t")
            await produce(broker, topic, [b"a", b"b"])
            await broker.roll(INTERNAL, topic)
            await produce(broker, topic, [b"c"])
            assert await read_all(broker, topic) == [(0, b"a"), (1, b"b"), (2, b"c")]
            assert threading.active_count() == there_before

    with replaced(_NoThreads()), asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


def test_after_that_threads_are_those_of_the_process() -> None:
    before = threads()
    with replaced(_NoThreads()):
        assert threads() is not before
    assert threads() is before
    pool = threads().pool(1, "some")
    assert pool.submit(threading.get_ident).result() != threading.get_ident()
    pool.shutdown()
