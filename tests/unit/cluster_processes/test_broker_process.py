"""A broker's process is started again and again."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from logstore.cluster_processes.broker_process import BrokerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.system]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_news_of_the_former_process_do_not_end_the_next(tmp_path: Path) -> None:
    broker = BrokerProcess(
        1, {"LOGSTORE_PORT": "0", "LOGSTORE_KAFKA_LISTENERS": ""}, tmp_path / "data", tmp_path / "log"
    )
    first = await broker.start([])
    # asyncio reports the end to waiting tasks only when no process can write to the pipe any more.
    output = os.open(f"/proc/{first.pid}/fd/1", os.O_WRONLY)
    try:
        late = asyncio.create_task(broker.ended())
        await asyncio.sleep(0)
        broker.signal(signal.SIGKILL)
        while broker.is_running:  # noqa: ASYNC110 - what asyncio knows
            await asyncio.sleep(0.01)
        assert await broker.ended() == -signal.SIGKILL
        second = await broker.start([])
        assert not late.done()
    finally:
        os.close(output)
    try:
        assert await late == -signal.SIGKILL
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await broker.ended()
        assert broker.entry == second
    finally:
        await broker.kill()
