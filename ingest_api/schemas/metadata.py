"""Metadata, for clients that send their requests to the responsible brokers."""

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ingest_api.schemas.base import Answer, Int32, Request

_OR_NONE = "-1: none at present."


class MetadataQuery(Request):
    topics: str | SkipJsonSchema[None] = Field(
        None, description="Names of topics, separated by commas.", examples=["clicks,orders"]
    )
    allow_auto_topic_creation: Literal["true", "false"] = Field(
        "true",
        description="Whether a topic that is not there may be made, if the store makes topics "
        "(auto.create.topics.enable).",
    )
    group: str | SkipJsonSchema[None] = Field(None, description="The group whose coordinator is wanted.")


class BrokerEndpoint(Answer):
    broker_id: Int32
    url: str | None = Field(
        description="Where clients find the broker; null of one node, which is at the address that was asked."
    )
    rack: str | None


class PartitionLeader(Answer):
    partition: Int32
    leader: int = Field(description=f"Id of the broker. {_OR_NONE}")
    leader_epoch: int


class TopicMetadata(Answer):
    """A topic and its partitions; or the error with which they cannot be given, and then no partitions."""

    name: str
    topic_id: str | None
    error_code: int | None
    message: str | None
    partitions: list[PartitionLeader]


class Metadata(Answer):
    """The brokers that are there, and the leaders of the topics that were asked for, in the order of the request."""

    cluster_id: str
    controller_id: int = Field(description=f"Id of the broker. {_OR_NONE}")
    brokers: list[BrokerEndpoint]
    topics: list[TopicMetadata]
    coordinator_id: int | None = Field(
        description=f"Id of the broker that coordinates the group. {_OR_NONE} null: no group was asked for."
    )
