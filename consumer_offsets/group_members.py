"""The requests of members of groups, for whatever protocol they come by.

Invariant: a response that tells of a new epoch or generation is given once the record of it is durable.
"""

import dataclasses
from typing import TypeVar

from consumer_offsets.followed_topics import FollowedTopics
from consumer_offsets.group_shards import GroupShard, GroupShards, answered
from consumer_offsets.groups import events
from consumer_offsets.groups.responses import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    Response,
    SyncGroupResponse,
)
from consumer_offsets.groups_machine import Barrier, MemberRequest
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.errors import InvalidRequestError

E = TypeVar("E", events.JoinGroup, events.SyncGroup, events.Heartbeat, events.LeaveGroup, events.ConsumerGroupHeartbeat)

_TIMEOUT_MS = 30_000
#: A rebalance is over by then: the longest time-out of a member, and some time to make it durable.
_REBALANCE_TIMEOUT_MAX_MS = 2**31 - 1


class GroupMembers:
    """Events come with any ``request``: the shard gives them their tokens. ``timeout_ms`` bounds the time for the load
    of the group's shard, and for an answer that waits for no other member.

    All raise GroupAuthorizationError, the error in the response (``groups.responses``), NotCoordinatorError,
    CoordinatorLoadInProgressError, BrokerNotReadyError, QuarantinedError; RequestTimedOutError, and as
    ``Broker.produce``.
    """

    def __init__(self, authorizer: Authorizer, shards: GroupShards, topics: FollowedTopics) -> None:
        self._authorizer = authorizer
        self._shards = shards
        self._topics = topics

    async def join(
        self, context: RequestContext, group: str, event: events.JoinGroup, *, timeout_ms: int = _TIMEOUT_MS
    ) -> JoinGroupResponse:
        """Join a classic group. Answered when the rebalance is complete.

        A client that makes its member's id (KIP-1082) gives it as ``new_member_id``, too: a request sent again is of
        the same member. For others it is the id that the member gets, in MemberIdRequiredError first (KIP-394).
        """
        if not event.new_member_id:
            raise InvalidRequestError("member_id is empty: send an id of the client's own, a UUID for example.")
        shard = await self._shard(context, group, timeout_ms)
        if event.member_id == event.new_member_id and not shard.machine.knows(group, event.member_id):
            event = dataclasses.replace(event, member_id="", requires_known_member_id=False)
        response = await self._asked(shard, group, event, _REBALANCE_TIMEOUT_MAX_MS)
        assert isinstance(response, JoinGroupResponse)
        return response

    async def sync(
        self, context: RequestContext, group: str, event: events.SyncGroup, *, timeout_ms: int = _TIMEOUT_MS
    ) -> SyncGroupResponse:
        """The member's assignment, once the leader has sent it."""
        shard = await self._shard(context, group, timeout_ms)
        response = await self._asked(shard, group, event, _REBALANCE_TIMEOUT_MAX_MS)
        assert isinstance(response, SyncGroupResponse)
        return response

    async def heartbeat(
        self, context: RequestContext, group: str, event: events.Heartbeat, *, timeout_ms: int = _TIMEOUT_MS
    ) -> None:
        """RebalanceInProgressError: join again."""
        response = await self._asked(await self._shard(context, group, timeout_ms), group, event, timeout_ms)
        assert isinstance(response, HeartbeatResponse)

    async def leave(
        self, context: RequestContext, group: str, event: events.LeaveGroup, *, timeout_ms: int = _TIMEOUT_MS
    ) -> LeaveGroupResponse:
        """Members that could not leave have their errors in the response."""
        response = await self._asked(await self._shard(context, group, timeout_ms), group, event, timeout_ms)
        assert isinstance(response, LeaveGroupResponse)
        return response

    async def consumer_heartbeat(
        self,
        context: RequestContext,
        group: str,
        event: events.ConsumerGroupHeartbeat,
        *,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> ConsumerGroupHeartbeatResponse:
        """The heartbeat of KIP-848. Raises TopicAuthorizationError, too."""
        for topic in sorted(event.subscribed_topics or ()):
            self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, topic)
        shard = await self._shard(context, group, timeout_ms)
        if event.subscribed_regex:
            names = sorted(self._topics.matching(event.subscribed_regex))
            permitted = self._authorizer.authorize(context, Operation.DESCRIBE, ResourceType.TOPIC, names)
            event = dataclasses.replace(event, regex_topics=frozenset(permitted))
        response = await self._asked(shard, group, event, timeout_ms)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    async def until_durable(self, context: RequestContext, group: str) -> None:
        """Wait until what can be read of the group's members at the call is durable, to tell of it: a generation that a
        failed append takes back was never there.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        # Not that of the next load: the machine that was read may be one whose append has failed.
        shard = self._shards.active_of(group)
        if shard is not None:
            await answered(group, shard.request(Barrier), _TIMEOUT_MS)

    async def _shard(self, context: RequestContext, group: str, timeout_ms: int) -> GroupShard:
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        return await self._shards.of(group, timeout_ms)

    async def _asked(self, shard: GroupShard, group: str, event: E, timeout_ms: int) -> Response:
        answer = shard.request(lambda token: MemberRequest(group, dataclasses.replace(event, request=token)))
        response: Response = await answered(group, answer, timeout_ms)
        if response.error is not None:
            raise response.error
        return response
