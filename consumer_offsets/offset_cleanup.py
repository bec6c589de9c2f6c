"""Deletes committed offsets that nobody wants: offsets of deleted topics, and expired ones.

Invariant: an offset belongs to the topic, not to its name: when a topic is deleted its offsets disappear at once, even
if a topic of the same name is created again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.group_shards import GroupShard, GroupShards
from consumer_offsets.groups_machine import DeleteOffsets, ExpireOffsets
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.clock import Clock
from logstore.errors import LogStoreError
from logstore.log.topic import Topic
from logstore.records.offset_record import OffsetCommit

log = structlog.stdlib.get_logger(__name__)

# Without enough replicas in sync nothing is acknowledged. Then the deletion of a topic continues, because nobody sees
# its offsets.
_WAIT_S = 5.0

# The offsets of this many groups expire at a time.
_EXPIRED_GROUPS = 100


class OffsetCleanup:
    def __init__(self, broker: Broker, clock: Clock, shards: GroupShards) -> None:
        self._broker = broker
        self._clock = clock
        self._shards = shards
        self._expiring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Delete what a crash left behind, and follow deletions of topics and the clock."""
        await self._delete_orphans()
        self._broker.topics.served.removals.listeners.append(self._on_topic_deleted)
        self._expiring = asyncio.create_task(self._expire_again_and_again())

    async def close(self) -> None:
        self._broker.topics.served.removals.listeners.remove(self._on_topic_deleted)
        assert self._expiring is not None
        self._expiring.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._expiring

    async def expire_offsets(self) -> int:
        """Delete the offsets that were committed more than ``offsets.retention.minutes`` ago, and return their number.

        This is Kafka's rule (KIP-211): a group with members keeps its offsets. In a group without members an offset
        lives that long after its own commit, or after the last member has left. Such a group disappears with its last
        offset, or if it has none.
        """
        before_ms = self._clock.now_ms() - self._broker.settings.offsets_retention_minutes * 60_000
        count = 0
        for shard in self._shards.active():
            groups = [*shard.machine.offsets.expired(before_ms), *shard.machine.unused()]
            for at in range(0, len(groups), _EXPIRED_GROUPS):
                some = groups[at : at + _EXPIRED_GROUPS]
                count += sum(await _asked(shard, [_expire(group, before_ms) for group in some]))
        if count:
            log.info("group_offsets.expired", offsets=count)
        return count

    async def _expire_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._broker.settings.offsets_retention_check_interval_ms / 1000)
            try:
                await self.expire_offsets()
            except LogStoreError as error:
                # A shard has moved, or is loading again.
                log.warning("group_offsets.not_expired", error=str(error))

    async def _on_topic_deleted(self, deleted: Topic) -> None:
        # Offsets for any id of the topic are deleted: nobody sees them any more.
        for shard in self._shards.active():
            machine = shard.machine
            stale = {
                group: [place for place in machine.keys(group) if place.topic == deleted.name]
                for group in machine.groups_of_topic(deleted.name)
            }
            await _delete_unseen(shard, stale)

    async def _delete_orphans(self) -> None:
        """Delete offsets of topics whose deletion a crash cut short. Offsets of a missing topic stay."""
        existing = {t.name: str(t.topic_id) for t in self._broker.topics.served.all(INTERNAL, include_internal=True)}

        def is_orphan(place: TopicPartition, commit: OffsetCommit) -> bool:
            made_again = existing.get(place.topic, commit.topic_id) != commit.topic_id
            return made_again or self._broker.topics.served.was_deleted(INTERNAL, UUID(commit.topic_id))

        for shard in self._shards.active():
            offsets = shard.machine.offsets
            stale = {
                group: [place for place, commit in offsets.commits(group).items() if is_orphan(place, commit)]
                for group in offsets.stale(existing)
            }
            await _delete_unseen(shard, stale)


async def _delete_unseen(shard: GroupShard, stale: Mapping[str, Sequence[TopicPartition]]) -> None:
    """Delete offsets that nobody sees any more. If that fails, the next start deletes them."""
    await _asked(shard, [_delete(group, places) for group, places in stale.items() if places])


async def _asked(shard: GroupShard, events: Sequence[Callable[[int], object]]) -> list[Any]:
    """Return the responses to events that nobody waits for, without those that fail."""
    answers: list[asyncio.Future[Any]] = []
    try:
        answers = [shard.request(event) for event in events]
    except LogStoreError as error:
        log.warning("group_offsets.not_deleted", error=str(error))
    if answers:
        _, late = await asyncio.wait(answers, timeout=_WAIT_S)
        if late:
            log.warning("group_offsets.not_deleted", error=f"{len(late)} deletions wait for replicas; they continue")
            answers = [answer for answer in answers if answer not in late]
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, LogStoreError):
            log.warning("group_offsets.not_deleted", error=str(outcome))
        elif isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def _expire(group: str, before_ms: int) -> Callable[[int], ExpireOffsets]:
    return lambda request: ExpireOffsets(request, group, before_ms)


def _delete(group: str, places: Sequence[TopicPartition]) -> Callable[[int], DeleteOffsets]:
    return lambda request: DeleteOffsets(request, group, places)
