"""Records what ZooKeeper holds for all topics, read from ZooKeeper itself and not from a broker."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from logstore.cluster import znodes
from logstore.cluster.znodes import TopicRegistration
from tests.faults.bench.history import MACHINE, Recorder, RegisteredPartition
from tests.faults.cluster.brokers import QUIET, SESSION_MS
from tests.support.background_load import BackgroundLoad

_POLL_S: Final = 0.1
_RECONNECT: Final = {"max_tries": -1, "delay": 0.1, "backoff": 1, "max_delay": 0.3}
_UNREACHABLE: Final = (KazooException, KazooTimeoutError, OSError)


class Registrations(BackgroundLoad):
    """Records documents as long as its block runs.

    Invariant: a document is recorded when it was read after a ``sync``, so a later ``seen_until`` proves that it was
    the newest then.
    """

    def __init__(self, zookeeper: str, recorder: Recorder) -> None:
        self._zookeeper = zookeeper
        self._recorder = recorder
        #: By topic: the document's mzxid and content, and when the last read that showed it began.
        self._known: dict[str, tuple[int, list[RegisteredPartition], int]] = {}
        self._polling = threading.Lock()
        #: By broker: the epoch of its registration.
        self._brokers: dict[str, int] = {}
        super().__init__([self._poll_for_ever])

    def in_sync_replicas(self) -> dict[tuple[str, int], list[int]]:
        """Return the in-sync replicas that were recorded last."""
        return {
            (topic, number): isr
            for topic, (_, partitions, _) in list(self._known.items())
            for number, (_, _, isr, _) in enumerate(partitions)
        }

    def _poll_for_ever(self) -> None:
        client = KazooClient(self._zookeeper, timeout=4, connection_retry=dict(_RECONNECT), logger=QUIET)
        client.start_async()
        try:
            while not self._stop.wait(_POLL_S):
                if client.connected:
                    with contextlib.suppress(*_UNREACHABLE):
                        self._poll(client)
            for topic, (mzxid, partitions, seen) in self._known.items():
                self._tell(topic, mzxid, partitions, seen)
        finally:
            client.stop()
            client.close()

    def _poll(self, client: Any) -> None:
        begun = time.monotonic_ns()
        client.sync(znodes.TOPICS)
        self._tell_lost_sessions(client, begun)
        for topic, data, mzxid in _documents(client):
            document = znodes.decode(topic, data, TopicRegistration)
            if "." in topic:  # the topic is created and deleted again, with another id each time
                topic = f"{topic} {document.topic_id}"  # noqa: PLW2901
            known = self._known.get(topic)
            if known is not None and known[0] == mzxid:
                self._known[topic] = (*known[:2], begun)
                continue
            partitions: list[RegisteredPartition] = [
                (row.leader, row.leader_epoch, list(row.isr), list(row.replicas)) for row in document.partitions
            ]
            self._tell(topic, mzxid, partitions, known[2] if known else 0)
            self._known[topic] = mzxid, partitions, begun

    def _tell_lost_sessions(self, client: Any, begun: int) -> None:
        """Record a ``Stall`` of all if a session was lost: a very busy machine may stop one broker for longer than
        that.
        """
        found = {}
        for broker in client.get_children(znodes.BROKER_IDS):
            if (status := client.exists(znodes.broker_path(int(broker)))) is not None:
                found[broker] = status.czxid
        if any(found.get(broker) != epoch for broker, epoch in self._brokers.items()):
            self._recorder.tell(MACHINE, "stall", since=begun - SESSION_MS * 10**6)
        self._brokers = found

    def _tell(self, topic: str, mzxid: int, partitions: list[RegisteredPartition], seen_until: int) -> None:
        told = {"mzxid": mzxid, "partitions": partitions, "seen_until": seen_until}
        self._recorder.tell("zookeeper", "registered", topic=topic, **told)


def _documents(client: Any) -> Iterator[tuple[str, bytes, int]]:
    for topic in client.get_children(znodes.TOPICS):
        with contextlib.suppress(NoNodeError):
            data, stat = client.get(znodes.topic_path(topic))
            yield topic, data, stat.mzxid
