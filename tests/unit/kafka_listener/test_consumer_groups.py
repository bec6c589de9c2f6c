"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848), on a real broker, as bytes."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.errors import (
    FencedMemberEpochError,
    GroupAuthorizationError,
    InvalidGroupError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    RecordTooLargeError,
    UnknownGroupError,
    UnknownMemberIdError,
    UnsupportedAssignorError,
)
from logstore.kafka_protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.support.authorizer_views import Denied
from tests.support.kafka_handlers import Handlers, kafka_handlers
from tests.support.virtual_time import run

HEARTBEAT, DESCRIBE = 68, 69
Owned = list[ConsumerGroupHeartbeatRequest.TopicPartitions]


async def beat(handlers: Handlers, version: int = 1, **values: Any) -> ConsumerGroupHeartbeatResponse:
    wanted: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    answer: ConsumerGroupHeartbeatResponse = await handlers.ask(
        HEARTBEAT, version, ConsumerGroupHeartbeatRequest(**wanted | values)
    )
    return answer


async def join(handlers: Handlers, version: int = 1, **values: Any) -> ConsumerGroupHeartbeatResponse:
    wanted: dict[str, Any] = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    return await beat(handlers, version, **wanted | values)


def assigned(answer: ConsumerGroupHeartbeatResponse) -> dict[bytes, list[int]] | None:
    if answer.assignment is None:
        return None
    return {one.topic_id: list(one.partitions) for one in answer.assignment.topic_partitions}


@pytest.mark.parametrize("version", [0, 1])
def test_members_join_share_and_leave(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=4)
            assert topic is not None
            at = topic.topic_id.bytes
            first = await join(handlers, version, member_id="m" if version else "")
            assert (first.error_code, first.member_epoch) == (0, 1)
            assert first.heartbeat_interval_ms == 5000
            assert first.member_id is not None
            assert len(first.member_id) == (1 if version else 22)
            assert assigned(first) == {at: [0, 1, 2, 3]}
            steady = await beat(handlers, version, member_id=first.member_id, member_epoch=1)
            assert (steady.error_code, assigned(steady)) == (0, None)
            second = await join(handlers, version, member_id="second")
            assert (second.member_epoch, assigned(second)) == (2, {})
            revoking = await beat(handlers, version, member_id=first.member_id, member_epoch=1)
            kept = assigned(revoking)
            assert kept is not None
            assert len(kept[at]) == 2
            owned = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=at, partitions=kept[at])]
            revoked = await beat(handlers, version, member_id=first.member_id, member_epoch=1, topic_partitions=owned)
            assert revoked.member_epoch == 2
            taken = assigned(await beat(handlers, version, member_id="second", member_epoch=2))
            assert taken == {at: sorted({0, 1, 2, 3} - set(kept[at]))}
            left = await beat(handlers, version, member_id=first.member_id, member_epoch=-1)
            assert (left.error_code, left.member_epoch) == (0, -1)
            gone = await beat(handlers, version, member_id=first.member_id, member_epoch=2)
            assert gone.error_code == UnknownMemberIdError.kafka_code
            assert gone.error_message

    run(scenario())


def test_bad_requests_of_members_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied({"secret"}))) as handlers:
            await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=1)
            invalid = InvalidRequestError.kafka_code
            assert (await join(handlers, group_id="")).error_code == InvalidGroupError.kafka_code
            assert (await join(handlers, group_id="secret")).error_code == GroupAuthorizationError.kafka_code
            assert (await join(handlers, member_id="")).error_code == invalid
            assert (await join(handlers, rebalance_timeout_ms=-1)).error_code == invalid
            assert (await join(handlers, subscribed_topic_names=None)).error_code == invalid
            assert (await join(handlers, server_assignor="mine")).error_code == UnsupportedAssignorError.kafka_code
            bad = await join(handlers, subscribed_topic_regex="(")
            assert bad.error_code == InvalidRegularExpressionError.kafka_code
            many = ["x" * 30_000] * 40
            assert (await join(handlers, subscribed_topic_names=many)).error_code == RecordTooLargeError.kafka_code
            assert (await beat(handlers, member_epoch=3)).error_code == UnknownGroupError.kafka_code
            assert (await join(handlers)).error_code == 0
            assert (await beat(handlers, member_epoch=7)).error_code == FencedMemberEpochError.kafka_code

    run(scenario())


def test_a_member_may_have_no_topics_yet(tmp_path: Path) -> None:
    """Send an empty list, as for a pattern that the client resolves itself and that matches nothing yet."""

    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=1)
            assert topic is not None
            joined = await join(handlers, subscribed_topic_names=[])
            assert (joined.error_code, joined.member_epoch, assigned(joined)) == (0, 1, {})
            found = await beat(handlers, member_epoch=joined.member_epoch, subscribed_topic_names=["t"])
            assert assigned(found) == {topic.topic_id.bytes: [0]}

    run(scenario())


@pytest.mark.parametrize("version", [0, 1])
def test_groups_are_described(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied({"secret"}))) as handlers:
            topic = await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=2)
            assert topic is not None
            await join(handlers, instance_id="pod", rack_id="r", subscribed_topic_regex="t.*")
            asked = ConsumerGroupDescribeRequest(
                group_ids=["g", "unknown", "secret", ""], include_authorized_operations=True
            )
            answer = await handlers.ask(DESCRIBE, version, asked)
            described, unknown, secret, nameless = answer.groups
            assert (described.error_code, described.group_id, described.group_state) == (0, "g", "Stable")
            assert (described.group_epoch, described.assignment_epoch) == (1, 1)
            assert described.assignor_name == "uniform"
            assert described.authorized_operations & 1 << 8
            (member,) = described.members
            assert (member.member_id, member.member_epoch, member.instance_id, member.rack_id) == ("m", 1, "pod", "r")
            assert (member.client_id, member.client_host) == ("test", "127.0.0.1")
            assert list(member.subscribed_topic_names) == ["t"]
            assert member.subscribed_topic_regex == "t.*"
            for assignment in (member.assignment, member.target_assignment):
                (one,) = assignment.topic_partitions
                assert (UUID(bytes=one.topic_id), one.topic_name) == (topic.topic_id, "t")
                assert list(one.partitions) == [0, 1]
            assert member.member_type == (1 if version >= 1 else -1)
            assert unknown.error_code == UnknownGroupError.kafka_code
            assert secret.error_code == GroupAuthorizationError.kafka_code
            assert nameless.error_code == InvalidGroupError.kafka_code

    run(scenario())
