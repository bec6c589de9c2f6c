"""The loop of tests that wait (``tests.support.virtual_time``)."""

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.clock import SystemClock
from logstore.disk_thread import DiskThread
from tests.support.virtual_time import StuckError, VirtualTimeLoop, clock_of_loop, run

HOUR_S = 3600.0


def test_an_hour_passes_in_no_time():
    async def sleep() -> None:
        loop, clock = asyncio.get_running_loop(), clock_of_loop()
        began, mark, wall_ms = loop.time(), clock.monotonic(), clock.now_ms()
        await asyncio.sleep(HOUR_S)
        assert loop.time() - began == clock.monotonic() - mark == pytest.approx(HOUR_S, abs=0.001)
        assert HOUR_S <= (clock.now_ms() - wall_ms) / 1000 < HOUR_S + 60

    began = time.monotonic()
    run(sleep())
    assert time.monotonic() - began < 60


def test_the_wall_clock_begins_at_the_real_one():
    async def now_ms() -> int:
        return clock_of_loop().now_ms()

    before = SystemClock().now_ms()
    assert before <= run(now_ms()) <= SystemClock().now_ms()


def test_a_loop_on_real_time_has_the_clock_of_the_system():
    async def clock() -> object:
        return clock_of_loop()

    assert isinstance(asyncio.run(clock()), SystemClock)


def test_timers_are_due_by_time_and_then_in_the_order_in_which_they_were_set():
    async def order() -> list[int]:
        loop, due = asyncio.get_running_loop(), []
        for number in range(200):
            loop.call_later(number * 7 % 3, due.append, number)
        await asyncio.sleep(10)
        return due

    assert run(order()) == sorted(range(200), key=lambda number: number * 7 % 3)


def test_ready_callbacks_run_before_the_next_timer():
    async def turns() -> bool:
        timer = asyncio.get_running_loop().call_later(0.1, int)
        for _ in range(1000):
            await asyncio.sleep(0)
        return timer.when() > asyncio.get_running_loop().time()

    assert run(turns())


def test_a_task_that_asks_without_a_wait_until_its_time_is_over_ends():
    async def ask() -> int:
        loop, asked = asyncio.get_running_loop(), 0
        end = loop.time() + 0.01
        while loop.time() < end:
            asked += 1
            await asyncio.sleep(0)
        return asked

    assert 100 < run(ask()) < 10_000


@pytest.mark.parametrize("executor", ["default", "own", "disk"])
def test_time_stands_still_while_a_thread_works(executor: str):
    async def work() -> str:
        loop = asyncio.get_running_loop()
        own, disk, goes_on = ThreadPoolExecutor(1), DiskThread("disk"), threading.Event()
        began, timer = loop.time(), loop.call_later(0.01, int)
        # This timer uses real time, in a thread that the loop does not know.
        threading.Timer(0.2, goes_on.set).start()
        try:
            if executor == "disk":
                future = disk.run(goes_on.wait, 60)
            else:
                future = loop.run_in_executor(own if executor == "own" else None, goes_on.wait, 60)
            async with asyncio.timeout(0.01):
                assert await future
        finally:
            timer.cancel()
            own.shutdown()
            disk.close()
        assert loop.time() < began + 0.01
        async with asyncio.timeout(HOUR_S):
            await asyncio.sleep(HOUR_S / 2)
        return "time goes on afterwards"

    assert run(work())


@pytest.mark.parametrize("executor", ["own", "disk"])
def test_cancelled_work_of_a_thread_holds_time_up_until_it_ends(executor: str):
    async def work() -> bool:
        loop = asyncio.get_running_loop()
        own, disk, goes_on = ThreadPoolExecutor(1), DiskThread("disk"), threading.Event()
        done: list[bool] = []

        def wait() -> None:
            done.append(goes_on.wait(60))

        future = disk.run(wait) if executor == "disk" else loop.run_in_executor(own, wait)
        future.cancel()
        threading.Timer(0.1, goes_on.set).start()
        await asyncio.sleep(0.001)
        own.shutdown()
        disk.close()
        return bool(done)

    # An executor skips work that had not begun when it was cancelled.
    assert run(work()) or executor == "own"


def test_bytes_in_a_socket_come_before_the_next_timer():
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with asyncio.timeout(0.1):
            reader, writer = await asyncio.open_connection(host, port)
            for number in range(500):
                writer.write(b"%d\n" % number)
                assert await reader.readline() == b"%d\n" % number
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        server.close()

    run(ask())


def test_bytes_that_the_kernel_holds_back_come_before_the_next_timer():
    """Send a small piece, which Nagle's algorithm holds back until the previous one is acknowledged.

    A peer that answers delays that by 40 ms.
    """

    async def ask() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
            client.connect(listening.getsockname())
            accepted, _ = listening.accept()
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            requests, answers = await asyncio.open_connection(sock=accepted)
            received, sent = await asyncio.open_connection(sock=client)
            for _ in range(10):
                async with asyncio.timeout(0.02):
                    sent.write(b"a")
                    await asyncio.sleep(0.001)
                    sent.write(b"b")
                    assert await requests.readexactly(2) == b"ab"
                    answers.write(b"c")
                    assert await received.readexactly(1) == b"c"
            sent.close()
            answers.close()

    run(ask())


def test_a_peer_that_does_not_read_holds_no_time_up():
    async def fill() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
            client.connect(listening.getsockname())
            accepted, _ = listening.accept()
            _, writer = await asyncio.open_connection(sock=client)
            writer.write(bytes(50_000_000))
            for _ in range(200):
                await asyncio.sleep(1)
            writer.transport.abort()
            accepted.close()

    began = time.monotonic()
    run(fill())
    assert time.monotonic() - began < 30


def test_a_loop_where_nothing_can_happen_reports_where_its_tasks_wait():
    async def waits_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.gather(waits_for_nothing(), waits_for_nothing())

    loop = VirtualTimeLoop(watchdog_s=0.05)
    with pytest.raises(StuckError, match=r"no timer(?s:.*)waits_for_nothing"):
        loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_test_that_only_waits_for_time_to_pass_ends():
    async def wait_for_ever() -> None:
        while True:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(1)

    with pytest.raises(StuckError, match=r"time of the test is over(?s:.*)wait_for_ever"):
        run(wait_for_ever())
