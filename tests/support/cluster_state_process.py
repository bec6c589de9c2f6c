"""A broker's cluster state in a separate process, to be stopped and killed.

``python -m tests.support.cluster_state_process CONNECT DIRECTORY ID SESSION_MS [TOPIC_ID]``; with the id of a topic,
there is a table t with four partitions and two replicas of each.

It writes a JSON line for each event: its registration, a change of its lease, and after a stop of more than a fifth of
a second its first belief about the lease.
"""

import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import structlog

from logstore.cluster.cluster_state import KnownTopic
from logstore.cluster.zookeeper_cluster_state import ZooKeeperClusterState
from logstore.filesystem import FileSystem
from logstore.journal.identity import FoundJournal

ROOT = Path(__file__).parents[2]


class ClusterStateProcess:
    def __init__(
        self, connect: str, directory: Path, broker_id: int, session_timeout_ms: int, topic_id: UUID | None = None
    ) -> None:
        command = [sys.executable, "-m", "tests.support.cluster_state_process", connect, str(directory)]
        topics = [] if topic_id is None else [str(topic_id)]
        self.process = subprocess.Popen(
            [*command, str(broker_id), str(session_timeout_ms), *topics],
            stdout=subprocess.PIPE,
            bufsize=0,  # so that `select` sees every line
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def line(self, kind: str, *, seconds: float = 60) -> dict[str, Any]:
        """Return the next line of ``kind``; others are skipped."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                found = json.loads(self.process.stdout.readline())
                if found["kind"] == kind:
                    return found
        raise AssertionError(f"no line of {kind}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _say(kind: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, "at": time.time(), **facts}) + "\n")
    sys.stdout.flush()


def table(topic_id: UUID) -> KnownTopic:
    return KnownTopic("t", topic_id, (0,) * 4, replication_factor=2)


async def _run(
    connect: str, directory: Path, broker_id: int, session_timeout_ms: int, tables: list[KnownTopic]
) -> None:
    cluster_state = ZooKeeperClusterState(
        connect,
        directory / "data",
        directory / f"broker-{broker_id}",
        broker_id,
        FileSystem(),
        url=f"http://h{broker_id}",
        peer=f"h{broker_id}:1",
        session_timeout_ms=session_timeout_ms,
    )
    await cluster_state.start(lambda _: FoundJournal(Path(), 0, None, is_empty=True))
    await cluster_state.find_leaders(tables)
    epoch, lease, last = -1, False, time.monotonic()
    while True:
        now, held = time.monotonic(), cluster_state.has_lease
        if now - last > 0.2:
            _say("stopped", seconds=now - last, lease=held, state=cluster_state.zookeeper.state.value)
        if held != lease:
            _say("lease", held=held)
        if cluster_state.registration.broker_epoch not in {epoch, -1}:
            epoch = cluster_state.registration.broker_epoch
            _say("registered", epoch=epoch)
        lease, last = held, now
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    known = [table(UUID(topic_id)) for topic_id in sys.argv[5:]]
    asyncio.run(_run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), known))
