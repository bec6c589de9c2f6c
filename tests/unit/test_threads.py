"""A store with replaced threads starts none, and one thread does all of its work."""

import asyncio
import random
import threading
from pathlib import Path

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.broker.quotas import Quotas
from logstore.node import running_store
from logstore.settings import Settings
from logstore.threads import replaced, threads
from tests.simulation.loop import PlayedThreads, SimulatedLoop
from tests.support.running_broker import produce, read_all


def test_a_store_runs_in_one_thread(tmp_path: Path) -> None:
    there_before = threading.active_count()

    async def scenario() -> None:
        async with running_store(Settings(data=tmp_path), Authorizer(), Quotas()) as store:
            broker = store.broker
            await broker.topics.changes.create(INTERNAL, "t", partitions=1, configs={})
            topic = broker.topics.served.topic(INTERNAL, "t")
            await produce(broker, topic, [b"a", b"b"])
            await broker.topics.tables.roll(INTERNAL, topic)
            await produce(broker, topic, [b"c"])
            assert await read_all(broker, topic) == [(0, b"a"), (1, b"b"), (2, b"c")]
            assert threading.active_count() == there_before

    with replaced(PlayedThreads()), asyncio.Runner(loop_factory=lambda: SimulatedLoop(random.Random(1))) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


def test_after_that_threads_are_those_of_the_process() -> None:
    before = threads()
    with replaced(PlayedThreads()):
        assert threads() is not before
    assert threads() is before
    pool = threads().pool(1, "some")
    assert pool.submit(threading.get_ident).result() != threading.get_ident()
    pool.shutdown()
