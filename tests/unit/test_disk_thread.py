"""The thread does its work in order and reports each outcome; one that could not be started is started later."""

import asyncio
import threading

import pytest

from logstore.disk_thread import DiskThread
from tests.support.virtual_time import run


def test_work_is_done_in_order_and_its_errors_are_reported() -> None:
    async def scenario() -> None:
        thread = DiskThread("test")
        done: list[int] = []

        def fail() -> None:
            raise OSError("broken")

        results = [thread.run(done.append, n) for n in range(3)]
        failed = thread.run(fail)
        last = thread.run(threading.current_thread)
        assert (await last).name == "test"
        with pytest.raises(OSError, match="broken"):
            await failed
        await asyncio.gather(*results)
        assert done == [0, 1, 2]
        thread.close()
        thread.close()

    run(scenario())


def test_work_whose_waiter_has_gone_is_done() -> None:
    async def scenario() -> None:
        thread = DiskThread("test")
        going_on = threading.Event()
        done: list[int] = []
        thread.run(going_on.wait)
        thread.run(done.append, 1).cancel()
        going_on.set()
        await thread.run(done.append, 2)
        assert done == [1, 2]
        thread.close()

    run(scenario())


def test_a_thread_that_could_not_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        thread = DiskThread("test")

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                thread.run(int)
            thread.close()
        assert await asyncio.wait_for(thread.run(int, "7"), 30) == 7
        thread.close()

    run(scenario())
