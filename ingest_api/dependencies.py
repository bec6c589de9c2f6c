"""Dependencies that FastAPI injects: the store, the context of the request, and the resources that the path names.

They raise the 404 of a missing resource, and BrokerNotReadyError while the store starts. All are coroutines: FastAPI
would run a plain function in another thread, and the store's state belongs to the event loop.
"""

from typing import Annotated

from fastapi import Depends, Path
from pydantic import AfterValidator, BeforeValidator
from starlette.requests import Request

from consumer_offsets.group_shards import check_group_name
from consumer_offsets.groups.description import GroupDescription
from ingest_api.guard import context_of
from ingest_api.operations import (
    CLUSTER_DESCRIPTION,
    GROUP_DESCRIPTION,
    NAME_PATTERN,
    PARTITION_DESCRIPTION,
    TOPIC_DESCRIPTION,
)
from ingest_api.parameters import broker_number, partition_number, shown
from ingest_api.routes import operation_of
from ingest_api.state import ApiState, api_state
from ingest_api.topic_ids import topic_to_read
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.errors import UnknownClusterError
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic


def _member_group(name: str) -> str:
    check_group_name(name)
    return name


# The pattern is only for the description: a name of another form is not found, which is 404.
TopicName = Annotated[
    str,
    Path(
        alias="topic",
        description=TOPIC_DESCRIPTION,
        json_schema_extra={"pattern": NAME_PATTERN, "maxLength": TOPIC_NAME_LENGTH_MAX},
    ),
]
GroupName = Annotated[
    str,
    Path(
        alias="group",
        description=GROUP_DESCRIPTION,
    ),
]
#: The group of a member request: its name must not be empty. Commits without members allow an empty name.
MemberGroupName = Annotated[GroupName, AfterValidator(_member_group)]
ConfigName = Annotated[str, Path(alias="name", description="Name of the configuration, as `retention.ms`.")]
_ClusterId = Annotated[str, Path(alias="cluster_id", description=CLUSTER_DESCRIPTION)]
PartitionNumber = Annotated[
    int,
    BeforeValidator(partition_number),
    Path(
        alias="partition",
        description=PARTITION_DESCRIPTION,
        json_schema_extra={"format": "int32", "minimum": 0},
    ),
]

#: Like a partition's number, it is not found if it has another form.
BrokerNumber = Annotated[
    int,
    BeforeValidator(broker_number),
    Path(alias="broker_id", description="Id of the broker.", json_schema_extra={"format": "int32", "minimum": 0}),
]


async def _state(request: Request) -> ApiState:
    return api_state(request)


async def _context(request: Request) -> RequestContext:
    return context_of(request)


State = Annotated[ApiState, Depends(_state)]
Context = Annotated[RequestContext, Depends(_context)]


async def _broker(state: State) -> Broker:
    return state.broker


StoreBroker = Annotated[Broker, Depends(_broker)]


async def _broker_of_cluster(cluster_id: _ClusterId, broker: StoreBroker) -> Broker:
    if cluster_id != broker.cluster_id:
        raise UnknownClusterError(
            f"Cluster {shown(cluster_id)} not found: this is {broker.cluster_id!r}, as GET /v3/clusters says."
        )
    return broker


#: The broker, when the path names its cluster.
ClusterBroker = Annotated[Broker, Depends(_broker_of_cluster)]


async def _topic(request: Request, context: Context, broker: StoreBroker, name: TopicName) -> Topic:
    return broker.topics.served.topic(context, name, operation_of(request))


async def _topic_in_cluster(request: Request, context: Context, broker: ClusterBroker, name: TopicName) -> Topic:
    return broker.topics.served.topic(context, name, operation_of(request))


async def _identified_topic(request: Request, context: Context, broker: StoreBroker, _: TopicName) -> Topic:
    return topic_to_read(context, request, broker, operation_of(request))


TopicInPath = Annotated[Topic, Depends(_topic)]
TopicInCluster = Annotated[Topic, Depends(_topic_in_cluster)]
#: The topic in the path, checked against ``Logstore-Topic-Id`` if the request has it. The response then has the topic's
#: id.
IdentifiedTopic = Annotated[Topic, Depends(_identified_topic)]


async def _partition_in_cluster(topic: TopicInCluster, number: PartitionNumber) -> PartitionLog:
    return topic.partition(number)


PartitionInCluster = Annotated[PartitionLog, Depends(_partition_in_cluster)]


async def _partition(topic: TopicInPath, number: PartitionNumber) -> PartitionLog:
    return topic.partition(number)


async def _identified_partition(topic: IdentifiedTopic, number: PartitionNumber) -> PartitionLog:
    return topic.partition(number)


PartitionInPath = Annotated[PartitionLog, Depends(_partition)]
#: A partition of an IdentifiedTopic.
IdentifiedPartition = Annotated[PartitionLog, Depends(_identified_partition)]


async def _group(state: State, context: Context, name: GroupName) -> GroupDescription:
    found = state.groups.describe(context, name)
    await state.groups.members.until_durable(context, name)
    return found


#: The group in the path with its durable state, which is never taken back.
GroupInPath = Annotated[GroupDescription, Depends(_group)]
