"""Stores of a cluster in the test's own event loop, on a real ZooKeeper and one data directory."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any

from ingest_api.http_listener import HttpListener
from logstore.broker.authorizer import Authorizer
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.quotas import Quotas
from logstore.cluster.zookeeper_cluster_state import ZooKeeperClusterState
from logstore.errors import LeaderNotAvailableError, UnknownTopicError, ZooKeeperUnavailableError
from logstore.listening_sockets import listening_socket
from logstore.log.topic import Topic
from logstore.node import Store, running_store
from logstore.settings import Settings
from tests.support.coordinators import SESSION_MS, Brokers, expire
from tests.support.data_directory import copy_of_one_moment
from tests.support.eventually import eventually_async


class ClusterStores:
    """Stores by broker id. ``zookeeper`` is their chroot, with a session to look at it. The stores answer each other
    only if they are ``replicated``.
    """

    def __init__(self, zookeeper: Brokers, data: Path, *, replicated: bool = False, **settings: Any) -> None:
        self.zookeeper = zookeeper
        self.data = data
        self._replicated = replicated
        self._settings = {"offsets_topic_num_partitions": 2, **settings}
        self.stores: dict[int, Store] = {}
        self._ends: dict[int, contextlib.AsyncExitStack] = {}

    def settings(self, broker_id: int, **settings: Any) -> Settings:
        return Settings(
            data=self.data,
            broker_id=broker_id,
            zookeeper_connect=self.zookeeper.servers + self.zookeeper.chroot,
            zookeeper_session_timeout_ms=SESSION_MS,
            **{**self._settings, **settings},
        )

    async def start(self, *broker_ids: int, **settings: Any) -> list[Broker]:
        for broker_id in broker_ids:
            end = contextlib.AsyncExitStack()
            wanted = self.settings(broker_id, **settings)
            host = f"h{broker_id}"
            store = running_store(wanted, Authorizer(), Quotas(), url=f"http://{host}", kafka=f"{host}:9092")
            self.stores[broker_id] = opened = await end.enter_async_context(store)
            self._ends[broker_id] = end
            if self._replicated and opened.member is not None:
                http = HttpListener(wanted, Authorizer(), Quotas())
                serving = asyncio.create_task(http.serve(listening_socket("127.0.0.1", 0)))
                end.push_async_callback(_stop_http, http, serving)
                opened.member.open(http, opened.broker, opened.groups)
        return [self.stores[broker_id].broker for broker_id in broker_ids]

    async def stop(self, *broker_ids: int) -> None:
        for broker_id in broker_ids or list(self.stores):
            del self.stores[broker_id]
            await self._ends.pop(broker_id).aclose()
        # asyncio announces an accepted connection two turns of its loop later, to a listener that has stopped by then
        # and aborts it; that closes its transport in another turn.
        for _ in range(4):
            await asyncio.sleep(0)

    async def kill(self, *broker_ids: int) -> None:
        """End brokers, all of them if none is named, as kill -9 does: their log directories and ZooKeeper's nodes of
        the topics keep their state of one moment. Only the sessions end at once.
        """
        killed = broker_ids or tuple(self.stores)
        for broker_id in killed:
            zookeeper = self.coordinator(broker_id).zookeeper
            for change in ("create", "write", "delete", "multi"):
                setattr(zookeeper, change, _refuse)
            self.stores[broker_id].broker._schedule.roll_at_stop = _nothing  # type: ignore[method-assign]
        homes = [self.settings(broker_id).log_directory for broker_id in killed]
        for home in homes:
            copy_of_one_moment(home, home.with_suffix(".killed"))
        await self.stop(*killed)
        for home in homes:
            shutil.rmtree(home)
            home.with_suffix(".killed").rename(home)

    def coordinator(self, broker_id: int) -> ZooKeeperClusterState:
        found = self.stores[broker_id].coordinator
        assert isinstance(found, ZooKeeperClusterState)
        return found

    async def expire(self, broker_id: int) -> None:
        """End the broker's session; if it was the controller, another broker takes over."""
        await expire(self.coordinator(broker_id))

    async def controller(self) -> int:
        def active() -> list[int]:
            return [one for one in self.stores if self.coordinator(one).controller.is_active]

        await eventually_async(lambda: len(active()) == 1, "no controller")
        return active()[0]

    async def making(self) -> Broker:
        """Return the broker of the controller, once it knows of all brokers that run."""
        controller = await self.controller()
        seen = self.coordinator(controller)
        await eventually_async(lambda: len(seen.brokers) == len(self.stores), "the controller does not see all brokers")
        return self.stores[controller].broker

    def topic(self, broker_id: int, name: str) -> Topic | None:
        try:
            return self.stores[broker_id].broker.topics.served.topic(INTERNAL, name)
        except (LeaderNotAvailableError, UnknownTopicError):
            return None

    async def everywhere(self, name: str, partitions: int) -> list[Topic]:
        """Return the topic on each broker, once all of them have this many partitions, each with a leader."""

        def found() -> list[Topic]:
            return [topic for one in self.stores if (topic := self.topic(one, name)) is not None]

        def is_settled() -> bool:
            topics = found()
            return (
                len(topics) == len(self.stores)
                and all(len(topic.partitions) == partitions for topic in topics)
                and all(sum(topic.partitions[p].is_leader for topic in topics) == 1 for p in range(partitions))
            )

        await eventually_async(is_settled, f"{name} is not everywhere")
        return found()

    async def nowhere(self, name: str) -> None:
        await eventually_async(
            lambda: all(self.topic(one, name) is None for one in self.stores), f"{name} is still there"
        )

    def leader(self, name: str, partition: int) -> Broker:
        (found,) = [
            store.broker
            for one, store in self.stores.items()
            if (topic := self.topic(one, name)) is not None and topic.partitions[partition].is_leader
        ]
        return found


async def _stop_http(http: HttpListener, serving: "asyncio.Task[None]") -> None:
    http.stop()
    await serving
    http.close()


async def _refuse(*_: object, **__: object) -> None:
    raise ZooKeeperUnavailableError("The broker was killed.")


async def _nothing() -> None:
    pass
