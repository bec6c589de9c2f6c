"""Members of a consumer group in the simulated world, with Kafka's ``consumer`` protocol (KIP-848).

A member owns partitions from ``assigned`` to ``revoked`` or ``lost``; it processes their records, and commits its
positions. Its events are those of the fault bench's members, so that the checker judges them (G1 to G5, G7). The
checker
allows much while a fault lasts. ``Group`` is stricter: it knows that a member is in its group for a session timeout
after
it sent a heartbeat that succeeded.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from logstore.errors import FencedMemberEpochError, LogStoreError, UnknownMemberIdError
from logstore.kafka_protocol import messages
from logstore.node import Store
from tests.simulation.clients import _AGAIN_S as AGAIN_S
from tests.simulation.clients import CLIENT, TopicSpec
from tests.simulation.history import History
from tests.simulation.kafka_clients import CONSUMER_HEARTBEAT, KafkaReader, KafkaSite, Link, require
from tests.simulation.node import ConnectionLostError, NoConnectionError
from tests.simulation.site import GroupName, Log, Site

SESSION_S = 8.0
#: The session timeout less a margin, because the clocks of nodes run a little fast.
_SURELY_S = SESSION_S - 1
#: Settings of the stores.
GROUP_SETTINGS: dict[str, object] = {
    "group_consumer_session_timeout_ms": int(SESSION_S * 1000),
    "group_consumer_heartbeat_interval_ms": 1_000,
    "group_initial_rebalance_delay_ms": 500,
}
#: The request timeout of a member, short enough to keep its session.
PATIENCE_S = 3.0
_LEAVING_EPOCH = -1
_REBALANCE_TIMEOUT_MS = 60_000


class Group:
    """A group of the world, whose members read one topic."""

    def __init__(self, name: str, topic: TopicSpec, site: Site, history: History) -> None:
        self.name, self.topic, self._site, self._history = name, topic, site, history
        self.members: list[KafkaMember] = []
        #: True if members neither die nor leave any more.
        self.is_ending = False
        #: The offset of the next record to process.
        self.processed: dict[Log, int] = {}
        self._owners: dict[Log, KafkaMember] = {}
        history.tell("bench", "group", group=name, topics=[topic.name], session_ms=int(SESSION_S * 1000))

    def take(self, log: Log, member: "KafkaMember") -> None:
        """Note the owner of a partition, and report it if the former owner is surely still in the group."""
        before, now = self._owners.get(log), asyncio.get_running_loop().time()
        if before is not None and before is not member and log in before.owned and now < before.heard_s + _SURELY_S:
            self._site.unforeseen.append(
                f"G1 {log.topic}-{log.partition} is given to {member.process} at {now:.3f}, and {before.process} owns "
                f"it, whose heartbeat of {before.heard_s:.3f} was answered"
            )
        self._owners[log] = member

    async def is_settled(self) -> bool:
        """Return True if all records are processed and the group matches its members; then note it in the history."""
        for log in self.logs():

            async def end(store: Store, of: Log = log) -> int:
                return store.broker.topics.served.topic(CLIENT, of.topic).partition(of.partition).high_watermark

            if self.processed.get(log, 0) < await self._site.call(end, log):
                return False

        async def describe(store: Store) -> Any:
            return store.groups.describe(CLIENT, self.name)

        described = await self._site.call(describe, GroupName(self.name))
        members = {
            one.client_id: [(each.topic, each.partition) for each in one.assignment] for one in described.members
        }
        live = [member.process for member in self.members]
        if described.state != "Stable" or sorted(members) != sorted(live):
            return False
        told = {"state": described.state, "generation": described.generation, "members": members, "live": live}
        self._history.tell("bench", "described", group=self.name, **told)
        return True

    def logs(self) -> list[Log]:
        return [Log(self.topic.name, partition) for partition in range(self.topic.partitions)]


class KafkaMember(KafkaReader):
    """Dies or leaves at times, and comes back as another member."""

    def __init__(self, site: KafkaSite, history: History, name: str, rng: random.Random, group: Group) -> None:
        super().__init__(site, history, name, rng)
        self._group, self._place = group, GroupName(group.name)
        group.members.append(self)
        #: The positions in its partitions; None until the committed offset is known.
        self.owned: dict[Log, int | None] = {}
        self._has_changed = False
        #: When it sent the last heartbeat that succeeded.
        self.heard_s = float("-inf")

    async def run(self, topics: Sequence[TopicSpec] = (), group: str = "") -> None:
        loop = asyncio.get_running_loop()
        for life in itertools.count():
            self.process = self.site.name = f"{self._name}.{life}"
            self._begin_sessions()
            self._member_id = f"{self.rng.getrandbits(128):032x}"
            self._begin_to_join()
            ends_s = loop.time() + self.rng.expovariate(1 / 15)
            while self._group.is_ending or loop.time() < ends_s:
                if loop.time() >= self._due_s:
                    await self._heartbeat()
                await self._work()
                await asyncio.sleep(self.rng.uniform(0.05, 0.3))
            if self.rng.random() < 0.5:
                await self._leave()
            else:
                self.history.tell("nemesis", "fault", kind="member_killed", member=self.process)
            self.owned = {}
            await asyncio.sleep(self.rng.uniform(0, 2))

    def _begin_to_join(self) -> None:
        self._epoch = 0
        #: True if the next heartbeat has all fields, because the group may not know them.
        self._tells_all = True
        self._due_s = 0.0

    async def call_member(
        self,
        op: str,
        work: Callable[[Any], Awaitable[Any]],
        told: Callable[[Any], Mapping[str, Any]],
        **asked: Any,
    ) -> tuple[str, Mapping[str, Any]]:
        """Make a call, as ``call`` does, but keep the member's name even if the outcome is open."""
        name = self.process
        found = await self.call(op, self._place, work, told, {"group": self._group.name, **asked})
        self.process = name
        return found

    # ---- membership -------------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        try:
            told = await self.site.call(self._beat, self._place)
        except (UnknownMemberIdError, FencedMemberEpochError):
            self._tell("lost", list(self.owned))
            self._begin_to_join()
            return
        except (LogStoreError, NoConnectionError, ConnectionLostError):
            self._tells_all = True  # it is not known which fields have arrived
            self._due_s = loop.time() + AGAIN_S
            return
        self.heard_s, self._epoch, self._tells_all = sent_s, told.member_epoch, False
        self._due_s = sent_s + told.heartbeat_interval_ms / 1000
        if told.assignment is not None:
            names = {raw: name for name, raw in self.site.topic_ids.items()}
            target = [
                Log(names[bytes(one.topic_id)], partition)
                for one in told.assignment.topic_partitions
                for partition in one.partitions
            ]
            await self._reconcile(target)

    async def _beat(self, link: Link) -> Any:
        kinds = messages.ConsumerGroupHeartbeatRequest
        topic = self._group.topic.name
        if topic not in self.site.topic_ids:
            await link.leader_ports(topic)
        everything: dict[str, Any] = {}
        if self._tells_all:
            everything = {"rebalance_timeout_ms": _REBALANCE_TIMEOUT_MS, "subscribed_topic_names": [topic]}
        if self._tells_all or self._has_changed:
            owned = [kinds.TopicPartitions(topic_id=self.site.topic_ids[topic], partitions=[p for _, p in self.owned])]
            everything["topic_partitions"] = owned if self.owned else []
        beat = kinds(group_id=self._group.name, member_id=self._member_id, member_epoch=self._epoch, **everything)
        told = await link.ask(CONSUMER_HEARTBEAT, beat)
        require(told.error_code)
        self._has_changed = False
        return told

    async def _reconcile(self, target: Sequence[Log]) -> None:
        if revoked := [log for log in self.owned if log not in target]:
            await self._commit_positions(revoked)
            self._tell("revoked", revoked)
        if assigned := [log for log in target if log not in self.owned]:
            for log in assigned:
                self._group.take(log, self)
            self.owned |= dict.fromkeys(assigned)
            self._tell("assigned", assigned)
        if revoked or assigned:
            self._has_changed, self._due_s = True, 0.0

    def _tell(self, op: str, logs: Sequence[Log]) -> None:
        if logs:
            self.history.tell(self.process, op, group=self._group.name, partitions=[tuple(log) for log in logs])
        if op != "assigned":
            for log in logs:
                del self.owned[log]

    async def _leave(self) -> None:
        await self._commit_positions(list(self.owned))
        self._tell("revoked", list(self.owned))
        self._epoch = _LEAVING_EPOCH
        await self._send(self._place, self._beat)

    # ---- records ----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Process new records, and commit the positions."""
        topic = self._group.topic.name
        if None in self.owned.values():

            async def committed(link: Link) -> Mapping[str, Any]:
                found = await link.committed(self._group.name, topic, self._member_id, self._epoch)
                return {"offsets": {str(partition): offset for partition, offset in found.items()}}

            phase, told = await self.call_member("committed", committed, lambda found: found, topic=topic)
            if phase != "ok":
                return
            for log in [log for log, position in self.owned.items() if position is None]:
                self.owned[log] = told["offsets"].get(str(log.partition), 0)
        if not self.owned:
            return
        news = []
        for log, found in (await self.poll({log: at for log, at in self.owned.items() if at is not None})).items():
            if isinstance(found, Mapping) and found["records"]:
                rows = [(row[0], row[2]) for row in found["records"]]
                where = {"topic": log.topic, "partition": log.partition}
                self.history.tell(self.process, "processed", group=self._group.name, rows=rows, **where)
                self.owned[log] = found["next_offset"]
                self._group.processed[log] = max(self._group.processed.get(log, 0), found["next_offset"])
                news.append(log)
        await self._commit_positions(news)

    async def _commit_positions(self, logs: Sequence[Log]) -> None:
        offsets = {log.partition: at for log in logs if (at := self.owned[log]) is not None}
        if not offsets:
            return
        topic = self._group.topic.name

        async def commit(link: Link) -> None:
            await link.commit(self._group.name, topic, offsets, self._member_id, self._epoch)

        asked = {"topic": topic, "offsets": {str(partition): offset for partition, offset in offsets.items()}}
        phase, _ = await self.call_member("commit", commit, lambda _: {}, **asked)
        if phase != "ok":
            self._due_s = 0.0  # the member may be out of its group
