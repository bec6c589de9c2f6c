"""Handles the requests of group members, whichever protocol they arrive by.

Invariant: a response with a new epoch or generation is given once the record of it is durable.
"""

from typing import TypeVar

from msgspec import structs

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
#: Every rebalance ends within the longest time-out of a member and the time to make it durable.
_REBALANCE_TIMEOUT_MAX_MS = 2**31 - 1


class GroupMembers:
    """The requests of group members.

    Events come with any ``request``: the shard replaces it by a token. ``timeout_ms`` bounds the load of the group's
    shard, and a response that waits for no other member.

    All methods raise GroupAuthorizationError, the error in the response (``groups.responses``), NotCoordinatorError,
    CoordinatorLoadInProgressError, BrokerNotReadyError, QuarantinedError, RequestTimedOutError, and what
    ``Broker.produce`` raises.
    """

    def __init__(self, authorizer: Authorizer, shards: GroupShards, topics: FollowedTopics) -> None:
        self._authorizer = authorizer
        self._shards = shards
        self._topics = topics

    async def join(
        self, context: RequestContext, group: str, event: events.JoinGroup, *, timeout_ms: int = _TIMEOUT_MS
    ) -> JoinGroupResponse:
        """Join a classic group, and return when the rebalance is complete.

        A client that generates its member id (KIP-1082) sends it as ``new_member_id`` as well: a repeated request is of
        the same member. For other clients ``new_member_id`` is the id that the member gets, first in
        MemberIdRequiredError (KIP-394).
        """
        if not event.new_member_id:
            raise InvalidRequestError("member_id is empty: send an id of the client's own, a UUID for example.")
        shard = await self._shard(context, group, timeout_ms)
        if event.member_id == event.new_member_id and not shard.machine.knows(group, event.member_id):
            event = structs.replace(event, member_id="", requires_known_member_id=False)
        response = await self._asked(shard, group, event, _REBALANCE_TIMEOUT_MAX_MS)
        assert isinstance(response, JoinGroupResponse)
        return response

    async def sync(
        self, context: RequestContext, group: str, event: events.SyncGroup, *, timeout_ms: int = _TIMEOUT_MS
    ) -> SyncGroupResponse:
        """Return the member's assignment, once the leader has sent it."""
        shard = await self._shard(context, group, timeout_ms)
        response = await self._asked(shard, group, event, _REBALANCE_TIMEOUT_MAX_MS)
        assert isinstance(response, SyncGroupResponse)
        return response

    async def heartbeat(
        self, context: RequestContext, group: str, event: events.Heartbeat, *, timeout_ms: int = _TIMEOUT_MS
    ) -> None:
        """Keep the member alive. Raises RebalanceInProgressError if it has to join again."""
        response = await self._asked(await self._shard(context, group, timeout_ms), group, event, timeout_ms)
        assert isinstance(response, HeartbeatResponse)

    async def leave(
        self, context: RequestContext, group: str, event: events.LeaveGroup, *, timeout_ms: int = _TIMEOUT_MS
    ) -> LeaveGroupResponse:
        """Remove members. The response holds the errors of those that could not leave."""
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
        """Handle the heartbeat of KIP-848. It may also raise TopicAuthorizationError."""
        for topic in sorted(event.subscribed_topics or ()):
            self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, topic)
        shard = await self._shard(context, group, timeout_ms)
        if event.subscribed_regex:
            names = sorted(self._topics.matching(event.subscribed_regex))
            permitted = self._authorizer.authorize(context, Operation.DESCRIBE, ResourceType.TOPIC, names)
            event = structs.replace(event, regex_topics=frozenset(permitted))
        response = await self._asked(shard, group, event, timeout_ms)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    async def until_durable(self, context: RequestContext, group: str) -> None:
        """Wait until the members that can be read now are durable, before they are reported: a failed append may take a
        generation back.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        # A shard that loads again is not waited for: the machine that was read may be the one whose append failed.
        shard = self._shards.get_active_shard(group)
        if shard is not None:
            await answered(group, shard.request(Barrier), _TIMEOUT_MS)

    async def _shard(self, context: RequestContext, group: str, timeout_ms: int) -> GroupShard:
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        return await self._shards.wait_for_shard(group, timeout_ms)

    async def _asked(self, shard: GroupShard, group: str, event: E, timeout_ms: int) -> Response:
        answer = shard.request(lambda token: MemberRequest(group, structs.replace(event, request=token)))
        response: Response = await answered(group, answer, timeout_ms)
        if response.error is not None:
            raise response.error
        return response
