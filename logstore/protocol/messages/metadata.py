"""Metadata, for clients that send their requests to the responsible brokers."""

from typing import Annotated, Literal

from msgspec import Meta

from logstore.protocol.messages.base import Int32, Query, Response

_OR_NONE = "-1 if there is none at present."


class MetadataQuery(Query, frozen=True):
    topics: Annotated[
        str | None, Meta(description="Names of topics, separated by commas.", examples=["clicks,orders"])
    ] = None
    allow_auto_topic_creation: Annotated[
        Literal["true", "false"],
        Meta(description="Allow the store to create missing topics, if auto.create.topics.enable is set."),
    ] = "true"
    group: Annotated[str | None, Meta(description="The group whose coordinator is wanted.")] = None


class BrokerEndpoint(Response, frozen=True):
    broker_id: Int32
    url: Annotated[
        str | None,
        Meta(description="The broker's address for clients; null on one node, which has the address of this request."),
    ]
    rack: str | None


class PartitionLeader(Response, frozen=True):
    partition: Int32
    leader: Annotated[int, Meta(description=f"Id of the broker. {_OR_NONE}")]
    leader_epoch: int


class TopicMetadata(Response, frozen=True):
    """A topic with its partitions, or with an error and no partitions."""

    name: str
    topic_id: str | None
    error_code: int | None
    message: str | None
    partitions: tuple[PartitionLeader, ...]


class Metadata(Response, frozen=True):
    """The live brokers, and the leaders of the requested topics, in the order of the request."""

    cluster_id: str
    controller_id: Annotated[int, Meta(description=f"Id of the broker. {_OR_NONE}")]
    brokers: tuple[BrokerEndpoint, ...]
    topics: tuple[TopicMetadata, ...]
    coordinator_id: Annotated[
        int | None,
        Meta(
            description=f"Id of the broker that coordinates the group. {_OR_NONE} Null if the request names no group."
        ),
    ]
