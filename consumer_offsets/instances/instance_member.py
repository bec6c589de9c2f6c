"""The membership of a consumer instance, which the store itself carries out on the event loop, with its heartbeats.

Its requests go to the same group machine as those of any other member.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import suppress

import structlog
from msgspec import structs

from consumer_offsets.followed_topics import FollowedTopics
from consumer_offsets.group_members import GroupMembers
from consumer_offsets.groups import events
from consumer_offsets.groups.description import GroupDescription
from logstore.broker.context import INTERNAL
from logstore.clock import Clock
from logstore.errors import LogStoreError
from logstore.protocol.members.classic_member import ClassicMember
from logstore.protocol.members.consumer_member import ConsumerMember
from logstore.protocol.members.identity import TopicPartition
from logstore.protocol.members.membership import MemberOptions, Membership, PartitionCounts, Step, Todo
from logstore.protocol.messages.members import (
    ConsumerGroupHeartbeatRequest,
    GroupRequest,
    HeartbeatRequest,
    JoinedGroup,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncedGroup,
    SyncGroupRequest,
)

log = structlog.stdlib.get_logger(__name__)

_FAREWELL_S = 5.0
# A regex that matches nothing.
_NO_TOPIC = r"[^\s\S]"


class InstanceMember:
    """``woken`` is called when there may be a ``step``. The member is started once; it is stopped before it leaves."""

    def __init__(
        self,
        group: str,
        client_id: str,
        membership: Membership,
        members: GroupMembers,
        topics: FollowedTopics,
        clock: Clock,
        woken: Callable[[], None],
    ) -> None:
        self.membership = membership
        self._group = group
        self._client_id = client_id
        self._members = members
        self._topics = topics
        self._clock = clock
        self._woken = woken
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        # The interval between polls begins, even if there is never a poll.
        self.membership.end_poll(self._clock.monotonic())
        self._running = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Send nothing more."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    async def leave(self, reason: str) -> None:
        """Leave the group; if that fails, the session ends by itself."""
        self.stop()
        farewell = self.membership.farewell(reason)
        if farewell is not None:
            with suppress(LogStoreError, TimeoutError):
                await asyncio.wait_for(self._send(farewell), _FAREWELL_S)

    def begin_poll(self) -> None:
        self.membership.begin_poll()
        self._changed.set()

    def end_poll(self) -> None:
        self.membership.end_poll(self._clock.monotonic())
        self._changed.set()

    def step(self) -> Step | None:
        """Return the next step, as ``Membership.step`` does."""
        try:
            return self.membership.step()
        finally:
            self._changed.set()

    def done(self, step: Step) -> None:
        self.membership.done(step)
        self._changed.set()

    def resubscribe(self, topics: frozenset[str]) -> None:
        self.membership.resubscribe(topics, regex_of(topics))
        self._changed.set()

    def found_topics(self, subscribed: frozenset[str]) -> None:
        """Follow changes of topics; ``subscribed`` are now those of the subscription."""
        if isinstance(self.membership, ClassicMember):
            self.membership.found_topics(subscribed, self._counts(subscribed | self.membership.followed))
        elif subscribed != self.membership.topics:
            self.membership.resubscribe(subscribed, regex_of(subscribed))
        self._changed.set()

    def _counts(self, topics: frozenset[str]) -> dict[str, int]:
        image = self._topics.topics
        return {name: image[name].partitions for name in topics if name in image}

    async def _run(self) -> None:
        membership = self.membership
        while True:
            self._changed.clear()
            todo = membership.next(self._clock.monotonic())
            if isinstance(todo, float):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), min(todo, 3600))
                continue
            answer: object = None
            failure: LogStoreError | None = None
            try:
                answer = self._counts(todo.topics) if isinstance(todo, PartitionCounts) else await self._send(todo)
            except LogStoreError as error:
                failure = error
            except Exception as error:
                log.exception("instance.member_failed", group=self._group)
                failure = LogStoreError(f"The group cannot be followed: {error!r}")
            self._take_outcome(todo, answer, failure)
            if membership.wants_poll:
                self._woken()

    def _take_outcome(self, todo: Todo, answer: object, failure: LogStoreError | None) -> None:
        now = self._clock.monotonic()
        try:
            if failure is None:
                self.membership.answered(todo, answer, now)
            else:
                self.membership.failed(todo, failure, now)
        except LogStoreError as error:
            # Data of other members or of the leader cannot be decoded.
            self.membership.broken(error)

    async def _send(self, request: GroupRequest) -> object:
        members, group, sent = self._members, self._group, structs.asdict(request)
        match request:
            case JoinGroupRequest():
                joining = events.JoinGroup(
                    **sent, request=0, new_member_id=request.member_id, client_id=self._client_id
                )
                return JoinedGroup.of(await members.join(INTERNAL, group, joining))
            case SyncGroupRequest():
                return SyncedGroup.of(await members.sync(INTERNAL, group, events.SyncGroup(**sent, request=0)))
            case HeartbeatRequest():
                await members.heartbeat(INTERNAL, group, events.Heartbeat(**sent, request=0))
                return None
            case LeaveGroupRequest():
                await members.leave(INTERNAL, group, events.LeaveGroup(**sent, request=0))
                return None
            case ConsumerGroupHeartbeatRequest():
                beat = events.ConsumerGroupHeartbeat.sent_in(request, client_id=self._client_id)
                return (await members.consumer_heartbeat(INTERNAL, group, beat)).message()
        raise AssertionError(request)


def new_membership(described: GroupDescription | None, options: MemberOptions) -> Membership:
    """Return a membership of the present members' kind. A group without members is a classic one."""
    if described is not None and described.kind == "consumer" and described.members:
        return ConsumerMember(_of_store(options))
    return ClassicMember(options)


def resumed_membership(
    described: GroupDescription | None, options: MemberOptions, topics: FollowedTopics
) -> Membership | None:
    """Return the membership that the group has a record of; None if there is none that can continue."""
    member = (
        next((each for each in described.members if each.member_id == options.member_id), None) if described else None
    )
    if described is None or member is None:
        return None
    if described.kind == "consumer":
        resumed = ConsumerMember(_of_store(options))
        resumed.resume(
            member.member_epoch,
            {
                TopicPartition(entry.topic, partition): str(entry.topic_id)
                for entry in member.assigned
                for partition in entry.partitions
            },
        )
        return resumed
    if described.state != "Stable" or options.topics is None:
        return None
    classic = ClassicMember(options)
    counts = {name: topics.topics[name].partitions for name in options.topics if name in topics.topics}
    classic.resume(described.generation, [TopicPartition(*place) for place in member.assignment], counts)
    return classic


def _of_store(options: MemberOptions) -> MemberOptions:
    """Return options without assignors, so that the store assigns with its default."""
    return dataclasses.replace(options, assignors=())


def regex_of(topics: frozenset[str]) -> str | None:
    """Return the regex of a subscription. One without topics gets a regex, because a group of the consumer protocol
    refuses an empty subscription.
    """
    return None if topics else _NO_TOPIC
