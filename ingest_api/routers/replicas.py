"""Brokers with their settings, and the partitions of topics with their replicas, in REST v3 shapes."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Query
from starlette.requests import Request

from ingest_api.dependencies import BrokerNumber, ClusterBroker, ConfigName, Context, PartitionInCluster, TopicInCluster
from ingest_api.errors import NoSuchResourceError
from ingest_api.model_routes import AdministrationRoute, model_router
from ingest_api.parameters import shown
from ingest_api.routers.links import link, list_metadata, page_size, reassignment_link, resource_metadata, store_url
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.forwarding import Target
from logstore.broker.topics.configs import setting_layers
from logstore.cluster.cluster_state import BrokerEndpoint
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.protocol.messages import administration
from logstore.protocol.messages.administration import (
    BrokerConfigEntry,
    BrokerConfigList,
    ClusterBrokerList,
    ClusterPartition,
    ClusterPartitionList,
    ClusterReplica,
    ClusterReplicaList,
    ConfigSynonym,
    Link,
    PageQuery,
    PartitionOffsetsQuery,
    PartitionWithOffsets,
    ResourceMetadata,
)
from logstore.settings import plain_settings

_BROKERS = "/v3/clusters/{cluster_id}/brokers"
_PARTITIONS = "/v3/clusters/{cluster_id}/topics/{topic}/partitions"
_PORTS = {"http": 80, "https": 443}

router = model_router(AdministrationRoute, tags=["administration"])


@router.get(_BROKERS, operation_id="listClusterBrokers", response_description="All brokers.")
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def list_brokers(request: Request, broker: ClusterBroker) -> ClusterBrokerList:
    """List the brokers of the cluster."""
    return ClusterBrokerList(
        metadata=list_metadata(request, broker.cluster_id, "brokers"),
        data=tuple(_broker(request, broker, endpoint) for endpoint in broker.brokers_by_id.values()),
    )


@router.get(f"{_BROKERS}/{{broker_id}}", operation_id="getClusterBroker", response_description="The broker.")
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def get_broker(request: Request, broker: ClusterBroker, number: BrokerNumber) -> administration.ClusterBroker:
    """Return one broker."""
    return _broker(request, broker, _endpoint(broker, number))


@router.get(
    f"{_BROKERS}/{{broker_id}}/configs", operation_id="listBrokerConfigs", response_description="Every setting."
)
@requires(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, target=Target.BROKER)
async def list_broker_configs(request: Request, broker: ClusterBroker, number: BrokerNumber) -> BrokerConfigList:
    """List the settings of a broker, set or default. They are read at its start, and not changed here."""
    _endpoint(broker, number)
    return BrokerConfigList(
        metadata=list_metadata(request, broker.cluster_id, "brokers", str(number), "configs"),
        data=tuple(_config(request, broker, number, name, field) for name, field in sorted(plain_settings().items())),
    )


@router.get(
    f"{_BROKERS}/{{broker_id}}/configs/{{name}}",
    operation_id="getBrokerConfig",
    response_description="The setting.",
)
@requires(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, target=Target.BROKER)
async def get_broker_config(
    request: Request, broker: ClusterBroker, number: BrokerNumber, name: ConfigName
) -> BrokerConfigEntry:
    """Return one setting."""
    _endpoint(broker, number)
    field = plain_settings().get(name)
    if field is None:
        raise NoSuchResourceError(f"No setting {shown(name)}: the list of all is one level up.")
    return _config(request, broker, number, name, field)


@router.get(
    f"{_BROKERS}/{{broker_id}}/partition-replicas",
    operation_id="listBrokerReplicas",
    response_description="The replicas that the broker has, by topic and partition.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def list_broker_replicas(
    request: Request,
    context: Context,
    broker: ClusterBroker,
    number: BrokerNumber,
    query: Annotated[PageQuery, Query()],
) -> ClusterReplicaList:
    """List the replicas that a broker has: whole topics, a page at a time."""
    _endpoint(broker, number)
    topics = [
        topic
        for topic in broker.topics.served.all(context, include_internal=True)
        if topic.name > (query.page_token or "")
    ]
    size, found, next_token = page_size(query), list[ClusterReplica](), None
    for index, topic in enumerate(topics):
        for log in topic.partitions:
            found += [each for each in _replicas(request, context, broker, topic, log) if each.broker_id == number]
        if len(found) >= size and index + 1 < len(topics):
            next_token = topic.name
            break
    path = ("brokers", str(number), "partition-replicas")
    return ClusterReplicaList(
        metadata=list_metadata(request, broker.cluster_id, *path, query=query, next_token=next_token), data=tuple(found)
    )


@router.get(_PARTITIONS, operation_id="listClusterPartitions", response_description="All partitions of the topic.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def list_partitions(
    request: Request, context: Context, broker: ClusterBroker, topic: TopicInCluster
) -> ClusterPartitionList:
    """List the partitions of a topic."""
    return ClusterPartitionList(
        metadata=list_metadata(request, broker.cluster_id, "topics", topic.name, "partitions"),
        data=tuple(_partition(request, context, broker, topic, log) for log in topic.partitions),
    )


@router.get(f"{_PARTITIONS}/{{partition}}", operation_id="getClusterPartition", response_description="The partition.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_partition(
    request: Request, context: Context, broker: ClusterBroker, topic: TopicInCluster, log: PartitionInCluster
) -> ClusterPartition:
    """Return one partition."""
    return _partition(request, context, broker, topic, log)


@router.get(
    f"{_PARTITIONS}/{{partition}}/offset",
    operation_id="getClusterPartitionOffset",
    response_description="The first and the end offset.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC, target=Target.PARTITION_LEADER)
async def get_partition_offset(
    request: Request,
    broker: ClusterBroker,
    topic: TopicInCluster,
    log: PartitionInCluster,
    query: Annotated[PartitionOffsetsQuery, Query()],
) -> PartitionWithOffsets:
    """Return the first offset of a partition, and the one after the last that readers see."""
    log.require_served()
    log.require_leader().require_settled()
    whole = resource_metadata(request, broker, topic=topic.name, partition=str(log.partition))
    metadata = ResourceMetadata(
        self=f"{whole.self}/offset", resource_name=f"{whole.resource_name}/offset_type={query.offset_type}"
    )
    return PartitionWithOffsets(
        metadata=metadata,
        cluster_id=broker.cluster_id,
        topic_name=topic.name,
        partition_id=log.partition,
        earliest_offset=log.log_start_offset,
        latest_offset=log.high_watermark,
    )


@router.get(
    f"{_PARTITIONS}/{{partition}}/replicas",
    operation_id="listClusterReplicas",
    response_description="All replicas of the partition.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def list_replicas(
    request: Request, context: Context, broker: ClusterBroker, topic: TopicInCluster, log: PartitionInCluster
) -> ClusterReplicaList:
    """List the replicas of a partition."""
    path = ("topics", topic.name, "partitions", str(log.partition), "replicas")
    return ClusterReplicaList(
        metadata=list_metadata(request, broker.cluster_id, *path),
        data=tuple(_replicas(request, context, broker, topic, log)),
    )


@router.get(
    f"{_PARTITIONS}/{{partition}}/replicas/{{broker_id}}",
    operation_id="getClusterReplica",
    response_description="The replica.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_replica(
    request: Request,
    context: Context,
    broker: ClusterBroker,
    topic: TopicInCluster,
    log: PartitionInCluster,
    number: BrokerNumber,
) -> ClusterReplica:
    """Return one replica."""
    for replica in _replicas(request, context, broker, topic, log):
        if replica.broker_id == number:
            return replica
    raise NoSuchResourceError(f"Broker {number} has no replica of {topic.name}-{log.partition}.")


def _endpoint(broker: Broker, number: int) -> BrokerEndpoint:
    found = broker.brokers_by_id
    if number not in found:
        raise NoSuchResourceError(f"Broker {number} not found: the cluster has {', '.join(map(str, found))}.")
    return found[number]


def _config(request: Request, broker: Broker, number: int, name: str, field: str) -> BrokerConfigEntry:
    found = setting_layers(broker.settings, name, field)
    return BrokerConfigEntry(
        metadata=resource_metadata(request, broker, broker=str(number), config=name),
        cluster_id=broker.cluster_id,
        broker_id=number,
        name=name,
        value=found.value,
        is_default=found.source == "DEFAULT_CONFIG",
        is_sensitive=found.is_secret,
        source=found.source,
        synonyms=tuple(
            ConfigSynonym(name=layer.name, value=layer.value, source=layer.source) for layer in found.layers
        ),
    )


def _broker(request: Request, broker: Broker, endpoint: BrokerEndpoint) -> administration.ClusterBroker:
    url = urlsplit(endpoint.url or store_url(request))
    host, number = url.hostname or "", endpoint.id
    return administration.ClusterBroker(
        metadata=resource_metadata(request, broker, broker=str(number)),
        cluster_id=broker.cluster_id,
        broker_id=number,
        host=f"[{host}]" if ":" in host else host,
        port=url.port or _PORTS[url.scheme],
        rack=endpoint.rack,
        configs=Link(related=link(request, broker.cluster_id, "brokers", str(number), "configs")),
        partition_replicas=Link(related=link(request, broker.cluster_id, "brokers", str(number), "partition-replicas")),
    )


def _partition(
    request: Request, context: RequestContext, broker: Broker, topic: Topic, log: PartitionLog
) -> ClusterPartition:
    leader = broker.topics.leaders.partition_state(context, topic, log.partition).leader
    path = (broker.cluster_id, "topics", topic.name, "partitions", str(log.partition), "replicas")
    return ClusterPartition(
        metadata=resource_metadata(request, broker, topic=topic.name, partition=str(log.partition)),
        cluster_id=broker.cluster_id,
        topic_name=topic.name,
        partition_id=log.partition,
        leader=None if leader < 0 else Link(related=link(request, *path, str(leader))),
        replicas=Link(related=link(request, *path)),
        reassignment=Link(related=reassignment_link(request, broker, topic.name, str(log.partition))),
    )


def _replicas(
    request: Request, context: RequestContext, broker: Broker, topic: Topic, log: PartitionLog
) -> list[ClusterReplica]:
    state = broker.topics.leaders.partition_state(context, topic, log.partition)
    return [
        ClusterReplica(
            metadata=resource_metadata(
                request, broker, topic=topic.name, partition=str(log.partition), replica=str(number)
            ),
            cluster_id=broker.cluster_id,
            topic_name=topic.name,
            partition_id=log.partition,
            broker_id=number,
            is_leader=number == state.leader,
            is_in_sync=number in state.in_sync_replicas,
            broker=Link(related=link(request, broker.cluster_id, "brokers", str(number))),
        )
        for number in state.replicas
    ]
