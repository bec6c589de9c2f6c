"""The cluster as a whole, and elections of leaders."""

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ingest_api.schemas.administration import PageQuery
from ingest_api.schemas.base import Answer, Int32, Int32OrNone, Request
from logstore.limits import ELECTIONS_MAX


class BrokerDescription(Answer):
    broker_id: Int32
    url: str = Field(description="Where clients reach this broker.")
    rack: str | None
    replicas: int = Field(description="Partitions of which it has a replica.")
    leaders: int = Field(description="Partitions that it leads.")


class ClusterDescription(Answer):
    """The brokers that are there, by id, and how many partitions lack something."""

    cluster_id: str
    controller_id: Int32 | None = Field(description="The broker that decides who leads; null while there is none.")
    brokers: list[BrokerDescription]
    partitions: int = Field(description="Partitions of all topics, internal ones too.")
    under_replicated_partitions: int = Field(description="Those with fewer replicas in sync than they have.")
    unavailable_partitions: int = Field(description="Those without a leader.")
    under_min_isr_partitions: int = Field(description="Those with fewer replicas in sync than `min.insync.replicas`.")


class PartitionsQuery(PageQuery):
    state: Literal["under-replicated", "unavailable", "under-min-isr"] | SkipJsonSchema[None] = Field(
        None, description="Only partitions in this state; without it all.", examples=["under-replicated"]
    )


class PartitionReplicas(Answer):
    """Brokers by id; `leader` is -1 while there is none. The first of `replicas` is the preferred leader."""

    topic: str
    partition: Int32
    leader: Int32OrNone
    leader_epoch: Int32OrNone
    replicas: list[Int32]
    in_sync_replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


class PartitionReplicasList(Answer):
    """Whole topics, by name; `next` is the `page_token` of the next page, null on the last one."""

    partitions: list[PartitionReplicas]
    next: str | None


class TopicPartitionEntry(Request):
    topic: str
    partition: int = Field(ge=0, le=2**31 - 1)


class ElectLeadersRequest(Request):
    """Without `partitions` leaders are elected of all partitions that need it."""

    election_type: Literal["preferred", "unclean"] = Field(
        description="preferred: the first replica leads again, if it is in sync. unclean: a replica leads that may "
        "lack acknowledged records, if no other one can."
    )
    partitions: list[TopicPartitionEntry] | None = Field(None, min_length=1, max_length=ELECTIONS_MAX)


class ElectedPartition(Answer):
    """`leader` is the broker that leads now; null with an error."""

    topic: str
    partition: Int32
    leader: Int32 | None
    error_code: int | None
    message: str | None


class ElectedLeaders(Answer):
    """By topic and partition. Without `partitions` in the request only those that needed a leader."""

    partitions: list[ElectedPartition]
