"""A static member of librdkafka whose session ends only by its own clock."""

import asyncio
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message

from logstore.errors import NotEnoughReplicasAfterAppendError
from logstore.records.offset_record import OFFSETS_TOPIC
from tests.support.eventually import eventually
from tests.support.kafka_client import kafka_server
from tests.support.kafka_clients.confluent_client import consumer_config
from tests.support.running_broker import produce

pytestmark = [pytest.mark.system, pytest.mark.long]

#: Long enough that a busy machine does not end the session before the commit.
SESSION_MS = 3_000


def member_that_commits(port: int, commits: threading.Event) -> list[str]:
    """Read a record, set ``commits`` and commit, and poll until the partition is assigned again."""
    told: list[str] = []
    config = consumer_config(
        f"127.0.0.1:{port}",
        "g",
        **{
            "group.instance.id": "i",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": "cooperative-sticky",
        },
    )
    with closing(Consumer(config)) as consumer:
        consumer.subscribe(["t"], on_assign=lambda *_: told.append("assigned"), on_lost=lambda *_: told.append("lost"))

        def polled() -> Message | None:
            message = consumer.poll(0.1)
            assert message is None or message.error() is None, str(message.error())
            return message

        message = eventually(polled)
        commits.set()
        consumer.commit(message, asynchronous=False)
        time.sleep(SESSION_MS / 2000)  # some heartbeats before it polls

        def is_back() -> bool:
            polled()
            return told.count("assigned") > 1

        eventually(is_back)
    return told


def test_a_static_member_whose_commit_waits_longer_than_its_session_joins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold the heartbeats behind the commit, which waits for replicas that do not come. The session ends, librdkafka
    forgets the member id, and sends heartbeats without it until the application polls. Meanwhile the coordinator has
    read its log again and knows the member: it must not answer FENCED_INSTANCE_ID, which is fatal.
    """
    settings = {
        "group_min_session_timeout_ms": 100,
        "group_initial_rebalance_delay_ms": 0,
        "offsets_topic_num_partitions": 1,
    }

    async def scenario() -> None:
        commits, failed = threading.Event(), False
        async with kafka_server(tmp_path, **settings) as server:
            broker = server.store.broker
            await produce(broker, await server.topic(), [b"x"])
            stored = broker.produce

            async def stored_and_not_in_sync(context: Any, topic: Any, *args: Any, **options: Any) -> Any:
                nonlocal failed
                produced = await stored(context, topic, *args, **options)
                if topic.name == OFFSETS_TOPIC and commits.is_set() and not failed:
                    failed = True
                    await asyncio.sleep(2.5 * SESSION_MS / 1000)
                    raise NotEnoughReplicasAfterAppendError("a follower is away")
                return produced

            monkeypatch.setattr(broker, "produce", stored_and_not_in_sync)
            told = await asyncio.to_thread(member_that_commits, server.port, commits)
            assert failed
            assert told[:3] == ["assigned", "lost", "assigned"]

    asyncio.run(scenario())
