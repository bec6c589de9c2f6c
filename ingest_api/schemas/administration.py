"""Clusters, topics and their configurations, as REST Proxy v3 gives them."""

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ingest_api.schemas.base import Answer, Int32, Int64, Request
from logstore.broker.topics.configs import ConfigSource


class ResourceMetadata(Answer):
    self: str
    resource_name: str


class ListMetadata(Answer):
    """`next` is where the list goes on; null at its end. Lists that can be long come in pages."""

    self: str
    next: str | None = None


class PageQuery(Request):
    page_size: str | SkipJsonSchema[None] = Field(
        None,
        min_length=1,
        description="How many entries at most, 1 to 1000 (default: 1000); lists by topic have whole topics.",
        examples=["100"],
    )
    page_token: str | SkipJsonSchema[None] = Field(
        None, min_length=1, description="As it stands in `next` of the page before."
    )


class Link(Answer):
    related: str


class Cluster(Answer):
    kind: Literal["KafkaCluster"] = "KafkaCluster"
    metadata: ResourceMetadata
    cluster_id: str
    controller: Link | None = Field(description="The broker that decides who leads; null while there is none.")
    brokers: Link
    consumer_groups: Link
    topics: Link
    partition_reassignments: Link


class ClusterList(Answer):
    kind: Literal["KafkaClusterList"] = "KafkaClusterList"
    metadata: ListMetadata
    data: list[Cluster]


class ClusterTopic(Answer):
    kind: Literal["KafkaTopic"] = "KafkaTopic"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    topic_id: str | None = Field(description="Null when the topic was only validated.")
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Link
    configs: Link
    partition_reassignments: Link


class ClusterTopicList(Answer):
    kind: Literal["KafkaTopicList"] = "KafkaTopicList"
    metadata: ListMetadata
    data: list[ClusterTopic]


class ClusterBroker(Answer):
    """`host` and `port` are where clients reach the broker; on one node those by which this request came."""

    kind: Literal["KafkaBroker"] = "KafkaBroker"
    metadata: ResourceMetadata
    cluster_id: str
    broker_id: Int32
    host: str
    port: int
    rack: str | None = None
    configs: Link
    partition_replicas: Link


class ClusterBrokerList(Answer):
    kind: Literal["KafkaBrokerList"] = "KafkaBrokerList"
    metadata: ListMetadata
    data: list[ClusterBroker]


class BrokerConfigEntry(Answer):
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
    synonyms: list["ConfigSynonym"]


class BrokerConfigList(Answer):
    kind: Literal["KafkaBrokerConfigList"] = "KafkaBrokerConfigList"
    metadata: ListMetadata
    data: list[BrokerConfigEntry]


class ClusterPartition(Answer):
    """`leader` is null while the partition has none."""

    kind: Literal["KafkaPartition"] = "KafkaPartition"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: Int32
    leader: Link | None
    replicas: Link
    reassignment: Link


class ClusterPartitionList(Answer):
    kind: Literal["KafkaPartitionList"] = "KafkaPartitionList"
    metadata: ListMetadata
    data: list[ClusterPartition]


class PartitionOffsetsQuery(Request):
    offset_type: Literal["earliest_and_latest"] = Field("earliest_and_latest", description="There is this one.")


class PartitionWithOffsets(Answer):
    """The log start offset and the high watermark."""

    kind: Literal["KafkaPartitionWithOffsets"] = "KafkaPartitionWithOffsets"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: Int32
    earliest_offset: Int64
    latest_offset: Int64


class ClusterReplica(Answer):
    kind: Literal["KafkaReplica"] = "KafkaReplica"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: Int32
    broker_id: Int32
    is_leader: bool
    is_in_sync: bool
    broker: Link


class ClusterReplicaList(Answer):
    kind: Literal["KafkaReplicaList"] = "KafkaReplicaList"
    metadata: ListMetadata
    data: list[ClusterReplica]


class Reassignment(Answer):
    """A partition whose replicas move from brokers to others."""

    kind: Literal["KafkaReassignment"] = "KafkaReassignment"
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: Int32
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]
    replicas: Link


class ReassignRequest(Request):
    """Ids of brokers, the preferred leader first."""

    replicas: list[int] = Field(min_length=1)


class ReassignmentList(Answer):
    kind: Literal["KafkaReassignmentList"] = "KafkaReassignmentList"
    metadata: ListMetadata
    data: list[Reassignment]


class ConfigEntry(Request):
    name: str
    value: str | None = None


class CreateTopicRequest(Request):
    topic_name: str
    partitions_count: int | None = None
    replication_factor: int | None = None
    configs: list[ConfigEntry] = Field(default_factory=list)
    validate_only: bool = False


class UpdateTopicRequest(Request):
    partitions_count: int


class ConfigSynonym(Answer):
    name: str
    value: str
    source: ConfigSource


class TopicConfigEntry(Answer):
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
    synonyms: list[ConfigSynonym]


class TopicConfigList(Answer):
    kind: Literal["KafkaTopicConfigList"] = "KafkaTopicConfigList"
    metadata: ListMetadata
    data: list[TopicConfigEntry]


class ConfigChange(Request):
    """`value` null, or operation DELETE, takes the key back to its default."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


class AlterConfigsRequest(Request):
    data: list[ConfigChange] = Field(min_length=1)
    validate_only: bool = False


class UpdateConfigRequest(Request):
    value: str | None
