"""The loop that simulates time, threads and processes."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.simulation.loop import PlayedDiskThread, PlayedProcess, PlayedWorkers, SimulatedLoop
from tests.support.faulty_filesystem import CrashedError


def play(work: Any, seed: int = 1) -> Any:
    loop = SimulatedLoop(random.Random(seed))
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_an_hour_passes_at_once_and_timers_keep_their_order() -> None:
    async def scenario() -> list[str]:
        told: list[str] = []

        async def later(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            told.append(f"{name} {asyncio.get_running_loop().time():.0f}")

        await asyncio.gather(later("hour", 3600), later("minute", 60), later("second", 1))
        return told

    assert play(scenario()) == ["second 1", "minute 60", "hour 3600"]


def test_work_of_threads_runs_on_the_loop_and_takes_time() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        with ThreadPoolExecutor(1) as never_started:
            assert await loop.run_in_executor(never_started, lambda: 7) == 7
        assert loop.time() > before
        with pytest.raises(KeyError):
            await asyncio.to_thread({}.__getitem__, "missing")

    play(scenario())


def test_threads_of_one_keep_their_order_and_others_do_not() -> None:
    async def order(seed_of_work: Any) -> list[int]:
        told: list[int] = []
        await asyncio.gather(*(seed_of_work(told.append, n) for n in range(20)))
        return told

    async def of_disk() -> list[int]:
        return await order(PlayedDiskThread("test").run)

    async def of_pool() -> list[int]:
        loop = asyncio.get_running_loop()
        return await order(lambda work, n: loop.run_in_executor(PlayedWorkers(4), work, n))

    async def of_one() -> list[int]:
        loop, one = asyncio.get_running_loop(), PlayedWorkers(1)
        return await order(lambda work, n: loop.run_in_executor(one, work, n))

    rising = list(range(20))
    assert play(of_disk()) == rising
    assert play(of_one()) == rising
    assert sorted(play(of_pool())) == rising
    assert play(of_pool()) != rising
    assert play(of_pool(), seed=1) == play(of_pool(), seed=1)
    assert play(of_pool(), seed=1) != play(of_pool(), seed=2)


def test_nothing_of_a_killed_process_continues() -> None:
    async def scenario() -> None:
        process, told = PlayedProcess("one"), []

        async def main() -> None:
            try:
                await asyncio.sleep(10)
                told.append("slept")
            except asyncio.CancelledError:
                with pytest.raises(CrashedError):
                    await asyncio.to_thread(told.append, "written")
                raise

        task = process.run(asyncio.get_running_loop().create_task, main())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.wait([task])
        assert task.cancelled()
        assert told == []

    play(scenario())


def test_a_scenario_that_waits_for_ever_fails() -> None:
    async def scenario() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="waits for ever"):
        play(scenario())
