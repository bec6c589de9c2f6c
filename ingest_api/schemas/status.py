"""Health, readiness, and the state of the whole store."""

from typing import Literal

from pydantic import Field

from ingest_api.schemas.base import Answer, Int32, Int64


class Health(Answer):
    status: Literal["live"]


class TopicProblem(Answer):
    topic: str
    partition: Int32 | None = Field(description="Null: the whole topic.")
    state: Literal[
        "quarantined",
        "records_missing",
        "unreadable",
        "foreign_file",
        "rolls_fail",
        "append_only",
        "journal_full",
        "registration_damaged",
    ]
    reason: str
    remedy: str


class Readiness(Answer):
    status: Literal["ready"]
    problems: list[TopicProblem] = Field(description="Topics and partitions that are not served, or not whole.")


class TopicStatus(Answer):
    """`newest_timestamp` (ms) is that of the record appended last; null in an empty topic."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: int
    replication_factor: int
    records: Int64
    size_bytes: Int64 = Field(description="Of the Parquet files in the Delta table.")
    unsealed_records: Int64
    unsealed_bytes: Int64 = Field(description="In the journal alone.")
    newest_timestamp: int | None


class JournalStatus(Answer):
    """`needed_bytes` are those from the oldest file with un-sealed records on; `max_bytes` (journal.max.bytes) bounds
    them.
    """

    needed_bytes: Int64
    retained_bytes: Int64
    max_bytes: Int64


class InFlightStatus(Answer):
    """`max_bytes` (queued.max.request.bytes) bounds requests, and answers too."""

    request_bytes: Int64
    answer_bytes: Int64
    max_bytes: Int64


class StoreStatus(Answer):
    """Topics by name, with internal ones. A quarantined topic is only among `problems`."""

    version: str
    cluster_id: str
    broker_id: Int32
    now: int = Field(description="The store's clock, in milliseconds since 1970-01-01T00:00:00Z.")
    uptime_ms: Int64
    not_ready_reason: str | None = Field(description="Why appends are refused; null while they are taken.")
    topics: list[TopicStatus]
    problems: list[TopicProblem]
    journal: JournalStatus
    in_flight: InFlightStatus
    max_connections: int
    connections_taken_max: int = Field(description="`max_connections`, or what `open_files_max` allows.")
    open_files_max: int | None = Field(description="`ulimit -n` of the process; null: no limit.")
