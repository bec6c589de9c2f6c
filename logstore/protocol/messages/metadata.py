"""Metadata, for clients that send their requests to the responsible brokers."""

from typing import Annotated, Literal

from msgspec import Meta

from logstore.protocol.messages.base import Int32, Query, Response

_OR_NONE = "-1: none at present."


class MetadataQuery(Query, frozen=True):
    topics: Annotated[
        str | None, Meta(description="Names of topics, separated by commas.", examples=["clicks,orders"])
    ] = None
    allow_auto_topic_creation: Annotated[
        Literal["true", "false"],
        Meta(
            description="Whether a topic that is not there may be made, if the store makes topics "
            "(auto.create.topics.enable)."
        ),
    ] = "true"
    group: Annotated[str | None, Meta(description="The group whose coordinator is wanted.")] = None


class BrokerEndpoint(Response, frozen=True):
    broker_id: Int32
    url: Annotated[
        str | None,
        Meta(description="Where clients find the broker; null of one node, which is at the address that was asked."),
    ]
    rack: str | None


class PartitionLeader(Response, frozen=True):
    partition: Int32
    leader: Annotated[int, Meta(description=f"Id of the broker. {_OR_NONE}")]
    leader_epoch: int


class TopicMetadata(Response, frozen=True):
    """A topic and its partitions; or the error with which they cannot be given, and then no partitions."""

    name: str
    topic_id: str | None
    error_code: int | None
    message: str | None
    partitions: tuple[PartitionLeader, ...]


class Metadata(Response, frozen=True):
    """The brokers that are there, and the leaders of the topics that were asked for, in the order of the request."""

    cluster_id: str
    controller_id: Annotated[int, Meta(description=f"Id of the broker. {_OR_NONE}")]
    brokers: tuple[BrokerEndpoint, ...]
    topics: tuple[TopicMetadata, ...]
    coordinator_id: Annotated[
        int | None,
        Meta(description=f"Id of the broker that coordinates the group. {_OR_NONE} null: no group was asked for."),
    ]
