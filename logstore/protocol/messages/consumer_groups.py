"""Consumer groups, as REST Proxy v3 gives them. A consumer is a member of the group."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from logstore.protocol.messages.administration import Link, ListMetadata, ResourceMetadata
from logstore.protocol.messages.base import Int32, Int64, Response

_HOST = "http://127.0.0.1:8082"
_GROUP = f"{_HOST}/v3/clusters/c-1/consumer-groups/billing"
_CONSUMER = "ac0b5cf5-4f3c-4b4b-8d3f-0d4f8f0f6c3a"


def _metadata(path: str, names: str) -> dict[str, str]:
    return {"self": f"{_GROUP}{path}", "resource_name": f"crn:///kafka=c-1/consumer-group=billing{names}"}


def _example(**fields: Any) -> Sequence[Mapping[str, Any]]:
    return (fields,)


class ConsumerGroup(Response, frozen=True, kw_only=True):
    """A simple group has committed offsets, and never had a member."""

    examples = _example(
        kind="KafkaConsumerGroup",
        metadata=_metadata("", ""),
        cluster_id="c-1",
        consumer_group_id="billing",
        is_simple=False,
        partition_assignor="range",
        state="STABLE",
        type="CLASSIC",
        is_mixed_consumer_group=False,
        coordinator={"related": f"{_HOST}/v3/clusters/c-1/brokers/0"},
        consumers={"related": f"{_GROUP}/consumers"},
        lag_summary={"related": f"{_GROUP}/lag-summary"},
    )

    kind: Literal["KafkaConsumerGroup"] = "KafkaConsumerGroup"
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    is_simple: bool
    partition_assignor: Annotated[str, Meta(description="Empty while the group has none.")]
    state: Literal["PREPARING_REBALANCE", "COMPLETING_REBALANCE", "ASSIGNING", "RECONCILING", "STABLE", "EMPTY", "DEAD"]
    type: Literal["CLASSIC", "CONSUMER"]
    is_mixed_consumer_group: Annotated[Literal[False], Meta(description="All members have the same protocol.")] = False
    coordinator: Link
    consumers: Link
    lag_summary: Link


class ConsumerGroupList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaConsumerGroupList"] = "KafkaConsumerGroupList"
    metadata: ListMetadata
    data: tuple[ConsumerGroup, ...]


class Consumer(Response, frozen=True, kw_only=True):
    examples = _example(
        kind="KafkaConsumer",
        metadata=_metadata(f"/consumers/{_CONSUMER}", f"/consumer={_CONSUMER}"),
        cluster_id="c-1",
        consumer_group_id="billing",
        consumer_id=_CONSUMER,
        instance_id=None,
        client_id="invoices",
        assignments={"related": f"{_GROUP}/consumers/{_CONSUMER}/assignments"},
    )

    kind: Literal["KafkaConsumer"] = "KafkaConsumer"
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    instance_id: Annotated[str | None, Meta(description="`group.instance.id` of a static member.")]
    client_id: str
    assignments: Link


class ConsumerList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaConsumerList"] = "KafkaConsumerList"
    metadata: ListMetadata
    data: tuple[Consumer, ...]


class ConsumerAssignment(Response, frozen=True, kw_only=True):
    examples = _example(
        kind="KafkaConsumerAssignment",
        metadata=_metadata(
            f"/consumers/{_CONSUMER}/assignments/orders/partitions/0",
            f"/consumer={_CONSUMER}/assignment=orders/partition=0",
        ),
        cluster_id="c-1",
        consumer_group_id="billing",
        consumer_id=_CONSUMER,
        topic_name="clicks",
        partition_id=0,
        partition={"related": f"{_HOST}/v3/clusters/c-1/topics/orders/partitions/0"},
        lag={"related": f"{_GROUP}/lags/orders/partitions/0"},
    )

    kind: Literal["KafkaConsumerAssignment"] = "KafkaConsumerAssignment"
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    topic_name: str
    partition_id: Int32
    partition: Link
    lag: Link


class ConsumerAssignmentList(Response, frozen=True, kw_only=True):
    kind: Literal["KafkaConsumerAssignmentList"] = "KafkaConsumerAssignmentList"
    metadata: ListMetadata
    data: tuple[ConsumerAssignment, ...]


class ConsumerLag(Response, frozen=True, kw_only=True):
    """`lag` = `log_end_offset` - `current_offset`. `consumer_id` and `client_id` are empty where nobody reads the
    partition.
    """

    examples = _example(
        kind="KafkaConsumerLag",
        metadata=_metadata("/lags/orders/partitions/0", "/lag=orders/partition=0"),
        cluster_id="c-1",
        consumer_group_id="billing",
        topic_name="clicks",
        partition_id=0,
        consumer_id=_CONSUMER,
        instance_id=None,
        client_id="invoices",
        current_offset=1200,
        log_end_offset=1234,
        lag=34,
    )

    kind: Literal["KafkaConsumerLag"] = "KafkaConsumerLag"
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    topic_name: str
    partition_id: Int32
    consumer_id: str
    instance_id: str | None
    client_id: str
    current_offset: Annotated[
        Int64, Meta(description="The committed offset, or the log start offset if none is committed.")
    ]
    log_end_offset: Annotated[Int64, Meta(description="The high watermark.")]
    lag: Int64


class ConsumerLagList(Response, frozen=True, kw_only=True):
    """All partitions of the topics that the group has committed to or reads, the largest lag first."""

    kind: Literal["KafkaConsumerLagList"] = "KafkaConsumerLagList"
    metadata: ListMetadata
    data: tuple[ConsumerLag, ...]


class ConsumerGroupLagSummary(Response, frozen=True, kw_only=True):
    """The lag of the group, and the partition that is furthest behind. Where nobody reads that one, `max_lag_consumer`
    leads to the list of consumers.
    """

    examples = _example(
        kind="KafkaConsumerGroupLagSummary",
        metadata=_metadata("/lag-summary", "/lag-summary"),
        cluster_id="c-1",
        consumer_group_id="billing",
        max_lag_consumer_id=_CONSUMER,
        max_lag_instance_id=None,
        max_lag_client_id="invoices",
        max_lag_topic_name="clicks",
        max_lag_partition_id=0,
        max_lag=34,
        total_lag=54,
        max_lag_consumer={"related": f"{_GROUP}/consumers/{_CONSUMER}"},
        max_lag_partition={"related": f"{_HOST}/v3/clusters/c-1/topics/orders/partitions/0"},
    )

    kind: Literal["KafkaConsumerGroupLagSummary"] = "KafkaConsumerGroupLagSummary"
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_instance_id: str | None
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: Int32
    max_lag: Int64
    total_lag: Int64
    max_lag_consumer: Link
    max_lag_partition: Link
