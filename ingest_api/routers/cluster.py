"""The cluster as a whole: its brokers, the replicas of all partitions, elections of leaders."""

import asyncio
from collections import Counter
from typing import Annotated

from fastapi import Query
from starlette.requests import Request

from ingest_api.dependencies import Context, StoreBroker
from ingest_api.errors import http_error, shown_message
from ingest_api.model_routes import AdministrationRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routers.links import page_size, store_url
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.elsewhere.forwarding import Target
from logstore.broker.topics.leaders import PartitionCounts, is_under_min_isr
from logstore.cluster.cluster_state import ElectionType, PartitionState
from logstore.log.topic import Topic
from logstore.protocol.messages.cluster import (
    BrokerDescription,
    ClusterDescription,
    ElectedLeaders,
    ElectedPartition,
    ElectLeadersRequest,
    PartitionReplicas,
    PartitionReplicasList,
    PartitionsQuery,
)

# Other tasks of the event loop have their turn after this many partitions.
_STEP = 200

router = model_router(AdministrationRoute, tags=["administration"])


@router.get("/cluster", operation_id="describeCluster", response_description="The cluster.")
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def describe_cluster(request: Request, context: Context, broker: StoreBroker) -> ClusterDescription:
    """Describe the cluster: the live brokers, the controller, and the numbers of partitions that lack replicas or a
    leader.
    """
    counts, replicas, leaders = PartitionCounts(), Counter[int](), Counter[int]()
    looked_at = 0
    for topic in broker.topics.served.all(context, include_internal=True):
        for state in broker.topics.leaders.partition_states(context, topic):
            counts.add(topic, state)
            replicas.update(state.replicas)
            leaders[state.leader] += 1
        looked_at += len(topic.partitions)
        if looked_at >= _STEP:
            looked_at = 0
            await asyncio.sleep(0)
    return ClusterDescription(
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        brokers=tuple(
            BrokerDescription(
                broker_id=one.id,
                url=one.url or store_url(request),
                rack=one.rack,
                replicas=replicas[one.id],
                leaders=leaders[one.id],
            )
            for one in broker.brokers_by_id.values()
        ),
        partitions=counts.partitions,
        under_replicated_partitions=counts.under_replicated,
        unavailable_partitions=counts.unavailable,
        under_min_isr_partitions=counts.under_min_isr,
    )


@router.get("/cluster/partitions", operation_id="listPartitionReplicas", response_description="The partitions.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def list_partitions(
    context: Context, broker: StoreBroker, query: Annotated[PartitionsQuery, Query()]
) -> PartitionReplicasList:
    """List leaders and replicas of all partitions, also of internal topics: whole topics, a page at a time."""
    size, found, following = page_size(query), list[PartitionReplicas](), None
    topics = [
        one for one in broker.topics.served.all(context, include_internal=True) if one.name > (query.page_token or "")
    ]
    looked_at = 0
    for at, topic in enumerate(topics):
        found += [
            _partition(topic, number, state)
            for number, state in enumerate(broker.topics.leaders.partition_states(context, topic))
            if query.state is None or _is_in(topic, state, query.state)
        ]
        if len(found) >= size and at + 1 < len(topics):
            following = topic.name
            break
        looked_at += len(topic.partitions)
        if looked_at >= _STEP:
            looked_at = 0
            await asyncio.sleep(0)
    return PartitionReplicasList(partitions=tuple(found), next=following)


@router.post(
    "/cluster/elect-leaders",
    operation_id="electLeaders",
    response_description="The result of each election.",
    responses=refusals(503),
)
@requires(Operation.ALTER, ResourceType.CLUSTER, target=Target.CONTROLLER)
async def elect_leaders(context: Context, broker: StoreBroker, asked: ElectLeadersRequest) -> ElectedLeaders:
    """Make the controller elect leaders of partitions, as Kafka's ElectLeaders does."""
    partitions: dict[str, set[int]] | None = None
    if asked.partitions is not None:
        partitions = {}
        for one in asked.partitions:
            partitions.setdefault(one.topic, set()).add(one.partition)
    elected = await broker.topics.leaders.elect_leaders(context, ElectionType(asked.election_type), partitions)
    return ElectedLeaders(
        partitions=tuple(
            ElectedPartition(
                topic=topic,
                partition=number,
                leader=how if isinstance(how, int) else None,
                error_code=None if isinstance(how, int) else http_error(how).error_code,
                message=None if isinstance(how, int) else shown_message(how.message),
            )
            for (topic, number), how in sorted(elected.items(), key=lambda found: found[0])
        )
    )


def _is_in(topic: Topic, state: PartitionState, wanted: str) -> bool:
    match wanted:
        case "under-replicated":
            return state.is_under_replicated
        case "unavailable":
            return state.leader < 0
        case _:
            return is_under_min_isr(topic, state)


def _partition(topic: Topic, number: int, state: PartitionState) -> PartitionReplicas:
    return PartitionReplicas(
        topic=topic.name,
        partition=number,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=tuple(state.replicas),
        in_sync_replicas=tuple(state.in_sync_replicas),
        adding_replicas=tuple(state.adding_replicas),
        removing_replicas=tuple(state.removing_replicas),
    )
