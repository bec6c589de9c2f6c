"""Topics and their partitions, as REST Proxy v2 gives them, and the requests for their tables."""

from typing import Annotated

from msgspec import Meta

from logstore.protocol.messages.base import Int32, Int32OrNone, Int64, Int64OrNone, Request, Response


class BrokerIds(Response, frozen=True):
    brokers: tuple[Int32, ...]


class Replica(Response, frozen=True):
    broker: Int32
    leader: bool
    in_sync: bool


class Partition(Response, frozen=True):
    """Offsets are exclusive ends: `sealed_offset` is the first one that is not yet in the Delta table.

    -1 means that no broker leads the partition, or that its leader does not respond now.
    """

    partition: Int32
    leader: Int32OrNone
    replicas: tuple[Replica, ...]
    log_start_offset: Int64OrNone
    high_watermark: Int64OrNone
    log_end_offset: Int64OrNone
    last_stable_offset: Int64OrNone
    sealed_offset: Int64OrNone
    leader_epoch: Int32OrNone
    segments: int
    size_bytes: Int64
    unsealed_bytes: Int64OrNone


class Topic(Response, frozen=True):
    name: str
    topic_id: str
    location: Annotated[str, Meta(description="URI of the topic's Delta table.")]
    is_internal: bool
    configs: dict[str, str]
    partitions: tuple[Partition, ...]


class RollRequest(Request, frozen=True):
    pass


class SealedOffset(Response, frozen=True):
    partition: Int32
    sealed_offset: Int64


class Rolled(Response, frozen=True):
    version: Annotated[
        int, Meta(description="The version of the Delta table that holds everything below the sealed offsets.")
    ]
    sealed_offsets: tuple[SealedOffset, ...]


class RefreshRequest(Request, frozen=True):
    pass


class Refreshed(Response, frozen=True):
    version: Annotated[
        int, Meta(description="The version of the Delta table that later reads see; they may see a newer one.")
    ]


class KeylessPartition(Response, frozen=True):
    partition: Int32
    records: Int64
    first_offset: Annotated[Int64, Meta(examples=[0])]


class KeylessRecords(Response, frozen=True):
    """Partitions with records that have no key, in the Delta table; those that are not rolled yet are not counted."""

    partitions: tuple[KeylessPartition, ...]


class DropForeignFilesRequest(Request, frozen=True):
    pass


class DroppedForeignFiles(Response, frozen=True):
    files: Annotated[
        tuple[str, ...], Meta(description="Paths of the files, relative to the table. They are still on disk.")
    ]
