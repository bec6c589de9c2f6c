"""Health, readiness, and the state of the whole store."""

from typing import Annotated, Literal

from msgspec import Meta

from logstore.protocol.messages.base import NOT_SENT_BEFORE, Int32, Int64, Response


class Health(Response, frozen=True):
    status: Literal["live"]


class TopicProblem(Response, frozen=True):
    topic: str
    partition: Annotated[Int32 | None, Meta(description="Null if the whole topic has the problem.")]
    state: Literal[
        "quarantined",
        "records_missing",
        "unreadable",
        "foreign_file",
        "rolls_fail",
        "append_only",
        "columns",
        "journal_full",
        "registration_damaged",
    ]
    reason: str
    remedy: str


class Readiness(Response, frozen=True):
    status: Literal["ready"]
    problems: Annotated[
        tuple[TopicProblem, ...], Meta(description="Topics and partitions that are not served, or are served in part.")
    ]


class TopicStatus(Response, frozen=True):
    """`newest_timestamp` (ms) is that of the record appended last; null in an empty topic."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: int
    replication_factor: int
    records: Int64
    size_bytes: Annotated[Int64, Meta(description="The size of the Parquet files in the Delta table.")]
    unsealed_records: Int64
    unsealed_bytes: Annotated[Int64, Meta(description="Bytes that are only in the journal.")]
    newest_timestamp: int | None
    misfits: Annotated[
        Int64 | None, Meta(description="Records in the Delta table with a `value_error` in place of columns.")
    ] = NOT_SENT_BEFORE


class JournalStatus(Response, frozen=True):
    """`needed_bytes` are the bytes of the files from the oldest one with un-sealed records on. `max_bytes`
    (journal.max.bytes) limits them.
    """

    needed_bytes: Int64
    retained_bytes: Int64
    max_bytes: Int64


class InFlightStatus(Response, frozen=True):
    """`max_bytes` (queued.max.request.bytes) limits requests, and also responses."""

    request_bytes: Int64
    answer_bytes: Int64
    max_bytes: Int64


class StoreStatus(Response, frozen=True):
    """Topics are sorted by name, and include internal ones. A quarantined topic is only in `problems`."""

    version: str
    cluster_id: str
    broker_id: Int32
    now: Annotated[int, Meta(description="The store's clock, in milliseconds since 1970-01-01T00:00:00Z.")]
    uptime_ms: Int64
    not_ready_reason: Annotated[str | None, Meta(description="Why appends are refused; null while they are accepted.")]
    topics: tuple[TopicStatus, ...]
    problems: tuple[TopicProblem, ...]
    journal: JournalStatus
    in_flight: InFlightStatus
    max_connections: int
    connections_taken_max: Annotated[
        int, Meta(description="`max_connections`, or fewer if `open_files_max` does not allow that many.")
    ]
    open_files_max: Annotated[int | None, Meta(description="`ulimit -n` of the process; null if there is no limit.")]
