"""Topics and their partitions in REST Proxy v2 shapes; roll and refresh of a topic's Delta table."""

from ingest_api.dependencies import Context, PartitionInPath, StoreBroker, TopicInPath
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.forwarding import Target
from logstore.broker.elsewhere.partition_offsets import OffsetsElsewhere, PartitionOffsets
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic as OpenTopic
from logstore.protocol.messages.topics import (
    BrokerIds,
    DropForeignFilesRequest,
    DroppedForeignFiles,
    KeylessPartition,
    KeylessRecords,
    Partition,
    Refreshed,
    RefreshRequest,
    Replica,
    Rolled,
    RollRequest,
    SealedOffset,
    Topic,
)

router = model_router(MetadataRoute, tags=["topics"])


@router.get("/topics", operation_id="listTopics", response_description="Names of topics, sorted.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def list_topics(broker: StoreBroker, context: Context) -> list[str]:
    """List the names of all topics that are not internal, sorted."""
    return [topic.name for topic in broker.topics.served.all(context)]


@router.get("/brokers", operation_id="listBrokers", response_description="Ids of brokers, sorted.")
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def list_brokers(broker: StoreBroker) -> BrokerIds:
    """List the brokers of the cluster."""
    return BrokerIds(brokers=tuple(broker.brokers_by_id))


@router.get("/topics/{topic}", operation_id="getTopic", response_description="The topic.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_topic(broker: StoreBroker, context: Context, topic: TopicInPath) -> Topic:
    """Return one topic: its configuration, the location of its Delta table, and the state of each partition."""
    elsewhere = await broker.elsewhere.offsets(topic.partitions)
    return Topic(
        name=topic.name,
        topic_id=str(topic.topic_id),
        location=topic.location,
        is_internal=topic.is_internal,
        configs=topic.config.as_strings(),
        partitions=tuple(_partition(context, broker, topic, log, elsewhere) for log in topic.partitions),
    )


@router.get("/topics/{topic}/partitions", operation_id="listPartitions", response_description="The partitions.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def list_partitions(broker: StoreBroker, context: Context, topic: TopicInPath) -> list[Partition]:
    """Return the state of each partition."""
    elsewhere = await broker.elsewhere.offsets(topic.partitions)
    return [_partition(context, broker, topic, log, elsewhere) for log in topic.partitions]


@router.get(
    "/topics/{topic}/partitions/{partition}", operation_id="getPartition", response_description="The partition."
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_partition(broker: StoreBroker, context: Context, topic: TopicInPath, log: PartitionInPath) -> Partition:
    """Return the state of one partition."""
    return _partition(context, broker, topic, log, await broker.elsewhere.offsets([log]))


@router.post(
    "/topics/{topic}/roll",
    operation_id="rollTopic",
    response_description="Committed and durable.",
    responses=refusals(503),
)
@requires(Operation.ALTER, ResourceType.TOPIC)
async def roll(broker: StoreBroker, context: Context, topic: TopicInPath, _: RollRequest | None = None) -> Rolled:
    """Put all acknowledged records into the Delta table now. Responds when the commit is durable."""
    rolled = await broker.topics.tables.roll(context, topic)
    version, sealed = rolled.version, dict(rolled.sealed)
    elsewhere = await broker.elsewhere.ask_leaders(context, topic, "roll")
    for one in elsewhere:
        version = max(version, one["version"])
        for told in one["sealed_offsets"]:
            sealed[told["partition"]] = max(sealed[told["partition"]], told["sealed_offset"])
    return Rolled(
        version=version,
        sealed_offsets=tuple(SealedOffset(partition=number, sealed_offset=at) for number, at in sorted(sealed.items())),
    )


@router.post(
    "/topics/{topic}/refresh",
    operation_id="refreshTopic",
    response_description="The table was read.",
    responses=refusals(503),
)
@requires(Operation.ALTER, ResourceType.TOPIC)
async def refresh(
    broker: StoreBroker, context: Context, topic: TopicInPath, _: RefreshRequest | None = None
) -> Refreshed:
    """Read commits of others, such as jobs, from the Delta table now. Without this call the store does so every few
    seconds.
    """
    version = await broker.topics.tables.refresh(context, topic)
    elsewhere = await broker.elsewhere.ask_leaders(context, topic, "refresh")
    return Refreshed(version=min([version, *(one["version"] for one in elsewhere)]))


@router.get(
    "/topics/{topic}/keyless-records",
    operation_id="getKeylessRecords",
    response_description="The partitions that have such records.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_keyless_records(broker: StoreBroker, context: Context, topic: TopicInPath) -> KeylessRecords:
    """Count the records of the Delta table that have no key: a compaction removes them (`cleanup.policy=compact`)."""
    found = await broker.topics.tables.keyless_records(context, topic)
    return KeylessRecords(
        partitions=tuple(
            KeylessPartition(partition=one.partition, records=one.count, first_offset=one.first_offset) for one in found
        )
    )


@router.post(
    "/topics/{topic}/drop-foreign-files",
    operation_id="dropForeignFiles",
    response_description="The files were taken out of the table.",
    responses=refusals(400, 503),
)
@requires(Operation.ALTER, ResourceType.TOPIC, target=Target.TABLE_LEADER)
async def drop_foreign_files(
    broker: StoreBroker, context: Context, topic: TopicInPath, _: DropForeignFilesRequest | None = None
) -> DroppedForeignFiles:
    """Take files of other writers that are not served out of the Delta table."""
    return DroppedForeignFiles(files=tuple(await broker.topics.tables.drop_foreign_files(context, topic)))


def _partition(
    context: RequestContext, broker: Broker, topic: OpenTopic, log: PartitionLog, elsewhere: OffsetsElsewhere
) -> Partition:
    state = broker.topics.leaders.partition_state(context, topic, log.partition)
    offsets = PartitionOffsets.of(log, elsewhere)
    return Partition(
        partition=log.partition,
        leader=state.leader,
        replicas=tuple(
            Replica(broker=replica, leader=replica == state.leader, in_sync=replica in state.in_sync_replicas)
            for replica in state.replicas
        ),
        log_start_offset=offsets.log_start_offset,
        high_watermark=offsets.high_watermark,
        log_end_offset=offsets.log_end_offset,
        last_stable_offset=offsets.last_stable_offset,
        sealed_offset=offsets.sealed_offset,
        leader_epoch=log.leader_epoch if log.is_leader else state.leader_epoch,
        segments=len(log.segments),
        size_bytes=log.segments.size_bytes,
        unsealed_bytes=offsets.unsealed_bytes,
    )
