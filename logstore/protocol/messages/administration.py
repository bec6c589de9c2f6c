"""Clusters, topics and their configurations, as REST Proxy v3 gives them."""

from typing import Annotated, Literal

from msgspec import Meta, field

from logstore.protocol.messages.base import Int32, Int64, Query, Request, Response

#: The layer that gives a configuration key its value.
ConfigSource = Literal["DYNAMIC_TOPIC_CONFIG", "STATIC_BROKER_CONFIG", "DEFAULT_CONFIG"]


class ResourceMetadata(Response, frozen=True):
    self: str
    resource_name: str


class ListMetadata(Response, frozen=True):
    """`next` is where the list continues; null at its end. Lists that can be long come in pages."""

    self: str
    next: str | None = None


class PageQuery(Query, frozen=True):
    page_size: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="The most entries, 1 to 1000 (default: 1000); lists by topic have whole topics.",
            examples=["100"],
        ),
    ] = None
    page_token: Annotated[
        Annotated[str, Meta(min_length=1)] | None, Meta(description="The value from `next` of the previous page.")
    ] = None


class Link(Response, frozen=True):
    related: str


class Cluster(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaCluster"] = "KafkaCluster"
    metadata: ResourceMetadata
    cluster_id: str
    controller: Annotated[Link | None, Meta(description="The broker that elects leaders; null while there is none.")]
    brokers: Link
    consumer_groups: Link
    topics: Link
    partition_reassignments: Link


class ClusterList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaClusterList"] = "KafkaClusterList"
    metadata: ListMetadata
    data: tuple[Cluster, ...]


class ClusterTopic(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaTopic"] = "KafkaTopic"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    topic_id: Annotated[str | None, Meta(description="Null when the topic was only validated.")]
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Link
    configs: Link
    partition_reassignments: Link


class ClusterTopicList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaTopicList"] = "KafkaTopicList"
    metadata: ListMetadata
    data: tuple[ClusterTopic, ...]


class ClusterBroker(Response, frozen=True, kw_only=True):
    """`host` and `port` are the broker's address for clients; on one node the address that this request used."""

    kind: Literal["KafkaBroker"] = "KafkaBroker"
    metadata: ResourceMetadata
    cluster_id: str
    broker_id: Int32
    host: str
    port: int
    rack: str | None = None
    configs: Link
    partition_replicas: Link


class ClusterBrokerList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaBrokerList"] = "KafkaBrokerList"
    metadata: ListMetadata
    data: tuple[ClusterBroker, ...]


class BrokerConfigEntry(Response, frozen=True, kw_only=True):
    """`value` is null for a setting without a value, and for a secret one (`is_sensitive`)."""

    kind: Literal["KafkaBrokerConfig"] = "KafkaBrokerConfig"
    metadata: ResourceMetadata
    cluster_id: str
    broker_id: Int32
    name: str
    value: str | None
    is_default: bool
    is_read_only: Literal[True] = True
    is_sensitive: bool
    source: ConfigSource
    synonyms: tuple["ConfigSynonym", ...]


class BrokerConfigList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaBrokerConfigList"] = "KafkaBrokerConfigList"
    metadata: ListMetadata
    data: tuple[BrokerConfigEntry, ...]


class ClusterPartition(Response, frozen=True, kw_only=True):
    """`leader` is null while the partition has none."""

    kind: Literal["KafkaPartition"] = "KafkaPartition"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: Int32
    leader: Link | None
    replicas: Link
    reassignment: Link


class ClusterPartitionList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaPartitionList"] = "KafkaPartitionList"
    metadata: ListMetadata
    data: tuple[ClusterPartition, ...]


class PartitionOffsetsQuery(Query, frozen=True):
    offset_type: Annotated[Literal["earliest_and_latest"], Meta(description="The only type.")] = "earliest_and_latest"


class PartitionWithOffsets(Response, frozen=True, kw_only=True):
    """The log start offset and the high watermark."""

    kind: Literal["KafkaPartitionWithOffsets"] = "KafkaPartitionWithOffsets"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: Int32
    earliest_offset: Int64
    latest_offset: Int64


class ClusterReplica(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaReplica"] = "KafkaReplica"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: Int32
    broker_id: Int32
    is_leader: bool
    is_in_sync: bool
    broker: Link


class ClusterReplicaList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaReplicaList"] = "KafkaReplicaList"
    metadata: ListMetadata
    data: tuple[ClusterReplica, ...]


class Reassignment(Response, frozen=True, kw_only=True):
    """A partition whose replicas move to other brokers."""

    kind: Literal["KafkaReassignment"] = "KafkaReassignment"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: Int32
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]
    replicas: Link


class ReassignRequest(Request, frozen=True):
    """Ids of brokers, the preferred leader first."""

    replicas: Annotated[tuple[int, ...], Meta(min_length=1)]


class ReassignmentList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaReassignmentList"] = "KafkaReassignmentList"
    metadata: ListMetadata
    data: tuple[Reassignment, ...]


class ConfigEntry(Request, frozen=True):
    name: str
    value: str | None = None


class CreateTopicRequest(Request, frozen=True):
    topic_name: str
    partitions_count: int | None = None
    replication_factor: int | None = None
    configs: list[ConfigEntry] = field(default_factory=list)
    validate_only: bool = False


class UpdateTopicRequest(Request, frozen=True):
    partitions_count: int


class ConfigSynonym(Response, frozen=True):
    name: str
    value: str
    source: ConfigSource


class TopicConfigEntry(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaTopicConfig"] = "KafkaTopicConfig"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    name: str
    value: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]


class TopicConfigList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaTopicConfigList"] = "KafkaTopicConfigList"
    metadata: ListMetadata
    data: tuple[TopicConfigEntry, ...]


class ConfigChange(Request, frozen=True):
    """`value` null, or operation DELETE, takes the key back to its default."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


class AlterConfigsRequest(Request, frozen=True):
    data: Annotated[tuple[ConfigChange, ...], Meta(min_length=1)]
    validate_only: bool = False


class UpdateConfigRequest(Request, frozen=True):
    value: str | None
