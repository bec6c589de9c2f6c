"""Topics and their partitions, as REST Proxy v2 gives them, and the requests for their tables."""

from pydantic import Field

from ingest_api.schemas.base import Answer, Int32, Int32OrNone, Int64, Int64OrNone, Request


class BrokerIds(Answer):
    brokers: list[Int32]


class Replica(Answer):
    broker: Int32
    leader: bool
    in_sync: bool


class Partition(Answer):
    """Offsets are exclusive ends: `sealed_offset` is the first one that is not yet in the Delta table.

    -1: no broker leads the partition; its leader is another broker, which does not answer now.
    """

    partition: Int32
    leader: Int32OrNone
    replicas: list[Replica]
    log_start_offset: Int64OrNone
    high_watermark: Int64OrNone
    log_end_offset: Int64OrNone
    last_stable_offset: Int64OrNone
    sealed_offset: Int64OrNone
    leader_epoch: Int32OrNone
    segments: int
    size_bytes: Int64
    unsealed_bytes: Int64OrNone


class Topic(Answer):
    name: str
    topic_id: str
    location: str = Field(description="URI of the topic's Delta table.")
    is_internal: bool
    configs: dict[str, str]
    partitions: list[Partition]


class RollRequest(Request):
    pass


class SealedOffset(Answer):
    partition: Int32
    sealed_offset: Int64


class Rolled(Answer):
    version: int = Field(description="Version of the Delta table that holds everything below the sealed offsets.")
    sealed_offsets: list[SealedOffset]


class RefreshRequest(Request):
    pass


class Refreshed(Answer):
    version: int = Field(description="Version of the Delta table that every read from here on sees, or a later one.")


class KeylessPartition(Answer):
    partition: Int32
    records: Int64
    first_offset: Int64 = Field(examples=[0])


class KeylessRecords(Answer):
    """Partitions with records that have no key, in the Delta table; those that are not rolled yet are not counted."""

    partitions: list[KeylessPartition]


class DropForeignFilesRequest(Request):
    pass


class DroppedForeignFiles(Answer):
    files: list[str] = Field(description="Paths of the files, relative to the table. They are still on disk.")
