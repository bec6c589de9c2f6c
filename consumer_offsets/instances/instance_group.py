"""A consumer instance's place in its group: the membership, the steps of its rebalances, and its commits.

Invariants: partitions are given up inside a poll, or when nothing that was handed out of them is still to be committed;
a commit is made as the member that holds the partitions. The caller makes one call after another.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import structlog

from consumer_offsets.group_shards import GroupShard
from consumer_offsets.groups import events
from consumer_offsets.groups.instance_record import InstanceValue
from consumer_offsets.instances.instance_home import InstanceHome
from consumer_offsets.instances.instance_member import InstanceMember, new_membership, regex_of, resumed_membership
from consumer_offsets.instances.instance_positions import InstancePositions
from consumer_offsets.instances.instance_starts import InstanceStarts
from consumer_offsets.offsets import OffsetToCommit
from logstore.backoff import backoffs
from logstore.broker.context import INTERNAL, RequestContext
from logstore.entropy import new_uuid
from logstore.errors import (
    CommitFailedError,
    IllegalGenerationError,
    IllegalStateError,
    LogStoreError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from logstore.protocol.members.classic_member import ClassicMember
from logstore.protocol.members.identity import MemberIdentity, TopicPartition
from logstore.protocol.members.membership import Assigned as AssignedStep
from logstore.protocol.members.membership import Lost, MemberOptions, Membership, State
from logstore.protocol.messages.members import LeavingMember
from logstore.records.offset_record import InstanceKey

log = structlog.stdlib.get_logger(__name__)

#: These include eager assignors: a group with members of any kind has one of them in common. Instances among themselves
#: keep their partitions.
_ASSIGNORS: Final = ("sticky", "range", "cooperative-sticky", "roundrobin")
# A heartbeat is a call here, not a request over a network, so it can be frequent: rebalances are noticed soon.
HEARTBEAT_INTERVAL_S: Final = 1.0
#: The time between commits of an instance that commits automatically.
AUTO_COMMIT_S: Final = 5.0
_GIVE_UP_S: Final = 60.0
_TIMEOUT_MS: Final = 30_000
_AGAIN: Final = (IllegalGenerationError, StaleMemberEpochError, RebalanceInProgressError)


class InstanceGroup:
    """``woken`` is called when the membership has, or may have, a new step: the owner then calls ``take_steps``."""

    def __init__(
        self,
        home: InstanceHome,
        shard: GroupShard,
        key: InstanceKey,
        id: str,
        starts: InstanceStarts,
        positions: InstancePositions,
        woken: Callable[[], None],
    ) -> None:
        self._home = home
        self._shard = shard
        self._key = key
        self._id = id
        self._starts = starts
        self._positions = positions
        self._woken = woken
        self._member: InstanceMember | None = None
        self._view = home.broker.authorizer.view
        self._auto_committed_at = home.clock.monotonic()
        #: True while a poll or a stream is under way.
        self.is_polled = False

    # ---- membership -------------------------------------------------------------------------------------------------

    def begin_poll(self) -> None:
        self.is_polled = True
        if self._member is not None:
            self._member.begin_poll()

    def end_poll(self) -> None:
        self.is_polled = False
        if self._member is not None:
            self._member.end_poll()

    def stop(self) -> None:
        """Send nothing more."""
        if self._member is not None:
            self._member.stop()

    def give_up(self) -> InstanceMember | None:
        """Return the member, which has to leave; the instance no longer has one."""
        member, self._member = self._member, None
        return member

    def resubscribe(self, topics: frozenset[str]) -> None:
        if self._member is not None:
            self._member.resubscribe(topics)

    def found_topics(self) -> None:
        """Notify the member that other topics, or partitions, may match the subscription."""
        if self._member is not None:
            self._member.found_topics(self._starts.subscribed(self._starts.value))

    def held(self) -> set[TopicPartition]:
        """Return the partitions that the group has assigned."""
        return set(self._member.membership.owned) if self._member is not None else set()

    async def take_steps(self) -> None:
        """Take the steps of a rebalance that can be taken now."""
        view = self._home.broker.authorizer.view
        if view is not self._view:
            # The topics that the subscriber may describe may be others since the last call.
            self.found_topics()
            self._view = view
        member = await self._entered()
        while (step := member.step()) is not None:
            membership = member.membership
            if isinstance(step, AssignedStep):
                self._positions.take_back(_generation(membership), membership.assigned, self._starts.topic_id)
                await self._find(step.partitions - set(self._positions))
            elif isinstance(step, Lost):
                # Nothing of the old membership counts in the next one, which has another id.
                await self._starts.put(msgspec.structs.replace(self._starts.value, member_id=None, starts=[]))
                self._positions.forget(step.partitions)
                member.stop()
                member.done(step)
                self._member = None
                member = await self._entered()
                continue
            else:
                self._positions.absorb()
                if not self.is_polled and any(at in self._positions.handed for at in step.partitions):
                    return
                await self.commit_before_giving_up(step.partitions)
                await self._starts.drop_starts(step.partitions)
                is_classic = isinstance(membership, ClassicMember)
                self._positions.lay_aside(_generation(membership) if is_classic else None, step.partitions)
                self._positions.forget(step.partitions)
            member.done(step)
            self._positions.show()

    async def find_missing(self) -> None:
        """Find the positions of partitions that have none."""
        await self._find(self.held() - set(self._positions))

    async def _find(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions.put(await self._starts.find({at: self._starts.topic_id(at) for at in partitions}))

    async def _entered(self) -> InstanceMember:
        """Return the membership: the present one, the one that the group has a record of, or a new one."""
        described = self._shard.machine.describe(self._key.group)
        if self._member is not None:
            present = self._member.membership
            kind = type(new_membership(described, present.options))
            if present.state is not State.UNJOINED or present.owned or isinstance(present, kind):
                return self._member
            self._member.stop()
            self._member = None
        home, value = self._home, self._starts.value
        found: Membership | None = None
        if value.member_id is not None:
            found = resumed_membership(described, self._options(value, value.member_id), home.topics)
        if found is None:
            member_id = f"{self._key.instance}-{new_uuid()}"
            before = value.member_id
            await self._starts.put(msgspec.structs.replace(value, member_id=member_id, starts=[]))
            membership = new_membership(described, self._options(self._starts.value, member_id))
            if before is not None and described is not None and any(m.member_id == before for m in described.members):
                # The previous member leaves, so that the group need not wait for the end of its session.
                left = LeavingMember(before, None, "Its place in a rebalance was lost by a restart.")
                with suppress(LogStoreError):
                    await home.members.leave(INTERNAL, self._key.group, events.LeaveGroup(request=0, members=(left,)))
        else:
            membership = found
            held = membership.owned.keys()
            await self._starts.drop_starts({TopicPartition(s.topic, s.partition) for s in value.starts} - held)
        self._member = InstanceMember(
            self._key.group, self._key.instance, membership, home.members, home.topics, home.clock, self._woken
        )
        self._member.start()
        if self.is_polled:
            self._member.begin_poll()
        return self._member

    def _options(self, value: InstanceValue, member_id: str) -> MemberOptions:
        topics = self._starts.subscribed(value)
        return MemberOptions(
            member_id=member_id,
            group_instance_id=None,
            assignors=_ASSIGNORS,
            session_timeout_s=self._home.session_timeout_ms / 1000,
            heartbeat_interval_s=HEARTBEAT_INTERVAL_S,
            max_poll_interval_s=self._home.max_poll_interval_ms / 1000,
            give_up_s=_GIVE_UP_S,
            topics=topics,
            regex=regex_of(topics),
        )

    # ---- commits ----------------------------------------------------------------------------------------------------

    async def commit(self, context: RequestContext, offsets: Sequence[OffsetToCommit]) -> None:
        """Commit as the member that the instance is. Raises IllegalStateError if the group took the partitions
        meanwhile.
        """
        member = self._member
        hold = None
        try:
            if member is not None:
                hold = member.membership.hold([TopicPartition(one.topic, one.partition) for one in offsets])
            give_up = self._home.clock.monotonic() + _TIMEOUT_MS / 1000
            for wait_s in backoffs():
                identity = MemberIdentity()
                if member is not None and hold is not None:
                    identity = member.membership.identity_of(hold)
                try:
                    await self._home.commit(context, self._key, self._id, offsets, identity)
                    break
                except _AGAIN:
                    if self._home.clock.monotonic() + wait_s > give_up:
                        raise
                    await asyncio.sleep(wait_s)
                except UnknownMemberIdError:
                    if member is not None and hold is not None:
                        member.membership.refused(member.membership.identity_of(hold), UnknownMemberIdError(""))
                        self._woken()
                    raise
        except CommitFailedError as error:
            raise IllegalStateError(f"Illegal state: {error.message}") from None
        self._positions.committed(offsets)
        self._auto_committed_at = self._home.clock.monotonic()
        self._woken()

    async def commit_handed(
        self, handed: Mapping[TopicPartition, int], context: RequestContext = INTERNAL
    ) -> dict[TopicPartition, int]:
        """Commit offsets of the topics that still exist, and return the committed ones."""
        offsets = [
            OffsetToCommit(*at, offset, "", position.topic_id)
            for at, offset in handed.items()
            if (position := self._positions.get(at)) is not None and position.topic_id == self._starts.topic_id(at)
        ]
        if offsets:
            await self.commit(context, offsets)
        return {TopicPartition(one.topic, one.partition): one.offset for one in offsets}

    @property
    def is_auto_commit_due(self) -> bool:
        """True if the instance commits automatically and has to do it now."""
        is_due = self._home.clock.monotonic() >= self._auto_committed_at + AUTO_COMMIT_S
        return self._starts.value.config.auto_commit and bool(self._positions.handed) and is_due

    async def auto_commit(self) -> None:
        """Commit what was handed out. A failure is not reported, because the next commit may succeed."""
        try:
            await self.commit_handed(self._positions.handed)
        except LogStoreError as error:
            log.warning("instance.auto_commit_failed", instance=self._key.instance, error=str(error))
            self._auto_committed_at = self._home.clock.monotonic()

    async def commit_before_giving_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit what the next owner must know.

        That is the position of an instance that commits automatically. If the group has committed nothing, it is where
        this instance began to read, so that the next owner does not begin behind that.
        """
        value = self._starts.value
        starts = {TopicPartition(start.topic, start.partition): start for start in value.starts}
        commits = self._home.commits(self._key.group)
        handed = self._positions.handed
        offsets: list[OffsetToCommit] = []
        for at in partitions:
            position, start = self._positions.get(at), starts.get(at)
            # An offset of a deleted topic would make the whole commit fail.
            if position is None or position.topic_id != self._starts.topic_id(at):
                continue
            if value.config.auto_commit and at in handed:
                offsets.append(OffsetToCommit(*at, handed[at], "", position.topic_id))
            elif at not in commits and start is not None and start.topic_id == position.topic_id:
                offsets.append(OffsetToCommit(*at, start.offset, "", start.topic_id))
        if not offsets:
            return
        try:
            await self.commit(INTERNAL, offsets)
        except LogStoreError as error:
            if error.retriable:
                raise
            log.warning("instance.commit_failed", instance=self._key.instance, group=self._key.group, error=str(error))


def _generation(membership: Membership) -> int | None:
    return None if membership.identity is None else membership.identity.generation
