"""Metadata: brokers, leaders of partitions, the coordinator of a group, in one response, as this broker sees them.

Any broker responds, from its own view. A client sends its requests to the brokers in the response. If that is wrong or
old, the other broker refuses them, and the client asks again. A missing topic is created, if the client allows it and
``auto.create.topics.enable`` is set, as by Kafka's Metadata.
"""

from typing import Annotated

from fastapi import Query

from consumer_offsets.group_shards import check_group_name
from ingest_api.dependencies import Context, State
from ingest_api.errors import http_error, shown_message
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.errors import LogStoreError
from logstore.protocol.messages.metadata import BrokerEndpoint, Metadata, MetadataQuery, PartitionLeader, TopicMetadata

router = model_router(MetadataRoute, tags=["topics"])


@router.get("/metadata", operation_id="getMetadata", response_description="The metadata.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def get_metadata(state: State, context: Context, query: Annotated[MetadataQuery, Query()]) -> Metadata:
    """Describe the live brokers, the leaders of the partitions of these topics, and the coordinator of this group."""
    broker = state.broker
    names = dict.fromkeys(name for name in (query.topics or "").split(",") if name)
    if query.group is not None:
        check_group_name(query.group, may_be_empty=True)
    await broker.elsewhere.until_known(names)
    if query.group is not None and context.is_forwarded:  # Another broker has a request for the group.
        await state.groups.until_there(context, query.group)
    may_create = query.allow_auto_topic_creation == "true"
    topics = [await _topic(context, broker, name, may_create=may_create) for name in names]
    return Metadata(
        cluster_id=broker.cluster_id,
        controller_id=-1 if broker.controller_id is None else broker.controller_id,
        brokers=tuple(
            BrokerEndpoint(broker_id=one.id, url=one.url, rack=one.rack) for one in broker.brokers_by_id.values()
        ),
        topics=tuple(topics),
        coordinator_id=None if query.group is None else state.groups.coordinator_of(context, query.group),
    )


async def _topic(context: RequestContext, broker: Broker, name: str, *, may_create: bool) -> TopicMetadata:
    try:
        if may_create:
            topic = await broker.topics.changes.find_or_create(context, name, Operation.DESCRIBE)
        else:
            topic = broker.topics.served.topic(context, name)
        states = [broker.topics.leaders.partition_state(context, topic, log.partition) for log in topic.partitions]
    except LogStoreError as error:
        return TopicMetadata(
            name=name,
            topic_id=None,
            error_code=http_error(error).error_code,
            message=shown_message(error.message),
            partitions=(),
        )
    return TopicMetadata(
        name=name,
        topic_id=str(topic.topic_id),
        error_code=None,
        message=None,
        partitions=tuple(
            PartitionLeader(partition=number, leader=state.leader, leader_epoch=state.leader_epoch)
            for number, state in enumerate(states)
        ),
    )
