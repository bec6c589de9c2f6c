"""Groups of Kafka's clients in a cluster: any broker names the coordinator, and only that one serves the group."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from logstore.broker.context import INTERNAL
from logstore.errors import CoordinatorNotAvailableError, NotCoordinatorError
from logstore.kafka_protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from logstore.records.murmur2 import partition_for
from logstore.records.offset_record import OFFSETS_TOPIC
from tests.support.cluster_states import Brokers
from tests.support.cluster_stores import ClusterStores
from tests.support.kafka_handlers import Handlers

pytestmark = [pytest.mark.anyio, pytest.mark.system]

#: One group for each partition of the offsets topic.
GROUPS = {partition_for(name, 2): name for name in ("a b", "c/d", "e", "f")}
NOT_COORDINATOR = NotCoordinatorError.kafka_code


@pytest.fixture
async def stores(brokers: Brokers, tmp_path: Path) -> AsyncIterator[ClusterStores]:
    found = ClusterStores(brokers, tmp_path / "data", offsets_topic_replication_factor=1)
    yield found
    await found.stop()


def handlers_of(stores: ClusterStores, broker_id: int) -> Handlers:
    store = stores.stores[broker_id]
    return Handlers(store.broker, store.groups)


async def coordinator(handlers: Handlers, group: str) -> FindCoordinatorResponse.Coordinator:
    """Look for the coordinator as a client does, until there is one."""
    for _ in range(600):
        (found,) = (await handlers.ask(10, 6, FindCoordinatorRequest(coordinator_keys=[group]))).coordinators
        if found.error_code == 0:
            break
        assert found.error_code == CoordinatorNotAvailableError.kafka_code
        await asyncio.sleep(0.1)
    assert found.error_code == 0
    return found


def commit_request(group: str, offset: int) -> OffsetCommitRequest:
    one = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[one])
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])


async def committed(handlers: Handlers, group: str) -> tuple[int, list[int]]:
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    (found,) = (await handlers.ask(9, 9, OffsetFetchRequest(groups=[asked]))).groups
    return found.error_code, [one.committed_offset for topic in found.topics for one in topic.partitions]


async def test_clients_are_sent_to_the_coordinator(stores: ClusterStores):
    await stores.start(1, 2)
    await (await stores.making()).topics.changes.create(INTERNAL, "t", partitions=2)
    await stores.everywhere("t", 2)
    asked = handlers_of(stores, 1)
    found = {group: await coordinator(asked, group) for group in GROUPS.values()}
    await stores.everywhere(OFFSETS_TOPIC, 2)
    for group, one in found.items():
        assert (one.host, one.port) == (("127.0.0.1", 9092) if one.node_id == 1 else ("h2", 9092))
        here, elsewhere = handlers_of(stores, one.node_id), handlers_of(stores, 3 - one.node_id)
        assert (await coordinator(elsewhere, group)).node_id == one.node_id
        await _refused(elsewhere, group)
        (answer,) = (await here.ask(8, 9, commit_request(group, 5))).topics[0].partitions
        assert answer.error_code == 0
        assert await committed(here, group) == (0, [5])
        assert group in [one.group_id for one in (await here.ask(16, 5, ListGroupsRequest())).groups]
        assert group not in [one.group_id for one in (await elsewhere.ask(16, 5, ListGroupsRequest())).groups]


async def _refused(elsewhere: Handlers, group: str) -> None:
    """Send each request of the group to a broker that does not coordinate it."""
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range")]
    join = JoinGroupRequest(
        group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=1, protocol_type="consumer", protocols=protocols
    )
    sync = SyncGroupRequest(group_id=group, protocol_type="consumer", protocol_name="range")
    heartbeat = ConsumerGroupHeartbeatRequest(group_id=group, member_id="m")
    for api_key, version, message in (
        (11, 9, join),
        (12, 4, HeartbeatRequest(group_id=group)),
        (13, 5, LeaveGroupRequest(group_id=group)),
        (14, 5, sync),
        (47, 0, OffsetDeleteRequest(group_id=group)),
        (68, 1, heartbeat),
    ):
        assert (await elsewhere.ask(api_key, version, message)).error_code == NOT_COORDINATOR, api_key
    (answer,) = (await elsewhere.ask(8, 9, commit_request(group, 5))).topics[0].partitions
    assert answer.error_code == NOT_COORDINATOR
    assert await committed(elsewhere, group) == (NOT_COORDINATOR, [])
    for api_key, version, message in (
        (15, 6, DescribeGroupsRequest(groups=[group])),
        (69, 1, ConsumerGroupDescribeRequest(group_ids=[group])),
    ):
        (described,) = (await elsewhere.ask(api_key, version, message)).groups
        assert described.error_code == NOT_COORDINATOR
    (deleted,) = (await elsewhere.ask(42, 2, DeleteGroupsRequest(groups_names=[group]))).results
    assert deleted.error_code == NOT_COORDINATOR
