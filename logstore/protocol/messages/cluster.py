"""The cluster as a whole, and elections of leaders."""

from typing import Annotated, Literal

from msgspec import Meta

from logstore.limits import ELECTIONS_MAX
from logstore.protocol.messages.administration import PageQuery
from logstore.protocol.messages.base import Int32, Int32OrNone, Request, Response


class BrokerDescription(Response, frozen=True):
    broker_id: Int32
    url: Annotated[str, Meta(description="The address at which clients reach this broker.")]
    rack: str | None
    replicas: Annotated[int, Meta(description="The number of partitions of which it has a replica.")]
    leaders: Annotated[int, Meta(description="The number of partitions that it leads.")]


class ClusterDescription(Response, frozen=True):
    """The live brokers, by id, and how many partitions lack replicas or a leader."""

    cluster_id: str
    controller_id: Annotated[
        Int32 | None, Meta(description="The broker that elects leaders; null while there is none.")
    ]
    brokers: tuple[BrokerDescription, ...]
    partitions: Annotated[int, Meta(description="The number of partitions of all topics, including internal ones.")]
    under_replicated_partitions: Annotated[
        int, Meta(description="The number of partitions that have replicas out of sync.")
    ]
    unavailable_partitions: Annotated[int, Meta(description="The number of partitions without a leader.")]
    under_min_isr_partitions: Annotated[
        int, Meta(description="The number of partitions with fewer replicas in sync than `min.insync.replicas`.")
    ]


class PartitionsQuery(PageQuery, frozen=True):
    state: Annotated[
        Literal["under-replicated", "unavailable", "under-min-isr"] | None,
        Meta(description="Only partitions in this state. Default: all.", examples=["under-replicated"]),
    ] = None


class PartitionReplicas(Response, frozen=True):
    """Brokers are given by id; `leader` is -1 while there is none. The first of `replicas` is the preferred leader."""

    topic: str
    partition: Int32
    leader: Int32OrNone
    leader_epoch: Int32OrNone
    replicas: tuple[Int32, ...]
    in_sync_replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


class PartitionReplicasList(Response, frozen=True):
    """Partitions of whole topics, by name. `next` is the `page_token` of the next page, null on the last one."""

    partitions: tuple[PartitionReplicas, ...]
    next: str | None


class TopicPartitionEntry(Request, frozen=True):
    topic: str
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ElectLeadersRequest(Request, frozen=True):
    """An election of leaders for `partitions`, or for all partitions that need one."""

    election_type: Annotated[
        Literal["preferred", "unclean"],
        Meta(
            description="preferred: the first replica leads again, if it is in sync. unclean: if no replica in "
            "sync can lead, another one leads, which may lack acknowledged records."
        ),
    ]
    partitions: Annotated[tuple[TopicPartitionEntry, ...], Meta(min_length=1, max_length=ELECTIONS_MAX)] | None = None


class ElectedPartition(Response, frozen=True):
    """`leader` is the broker that leads now; null with an error."""

    topic: str
    partition: Int32
    leader: Int32 | None
    error_code: int | None
    message: str | None


class ElectedLeaders(Response, frozen=True):
    """The results, by topic and partition. If the request has no `partitions`, only those that needed a leader."""

    partitions: tuple[ElectedPartition, ...]
