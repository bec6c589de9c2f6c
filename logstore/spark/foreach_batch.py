"""Writes a streaming query into a Delta table: a function for ``foreachBatch`` that writes each batch once.

Invariants:

- A batch is one commit, with the query's id as ``txnAppId`` and the batch's as ``txnVersion``. Spark repeats the last
  batch of a checkpoint, with the same plan (``offsets/<batch id>``), until it knows that the batch is done; Delta
  accepts it once.
- A batch id alone does not identify a batch: a checkpoint that was restored from a copy reuses an id of the table for
  other records. So the commit contains the plan, and the table's commit for the id is read back after each write. A
  batch that was left out, and is not the one in the table, fails the query.
- A query that has lost its checkpoint is another query: its batch ids begin again, with a new app id. An app id that
  the caller chose must not be reused by another query, whose first batches Delta would leave out.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from logstore.errors import InvalidRequestError
from logstore.spark import delta_sink
from logstore.spark.delta_sink import DeltaSink, SaveMode, check_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"


class Plan(NamedTuple):
    """A batch in the checkpoint: when Spark planned it (ms), and a digest of its end offsets."""

    planned_ms: int
    offsets: str


class QueryCommit(msgspec.Struct, frozen=True, rename="camel"):
    """A commit's description of its batch; ``writer`` is unique to the attempt that made it."""

    APP_ID_KEY: ClassVar[str] = "appId"
    WAY_ON: ClassVar[str] = "continue with a new checkpoint, at the offsets where the table ends"

    app_id: str
    query_id: str
    batch_id: int
    planned_ms: int = 0
    offsets: str = ""
    run_id: str = ""
    writer: str = ""

    @property
    def txn_version(self) -> int:
        return self.batch_id

    @property
    def plan(self) -> Plan:
        return Plan(self.planned_ms, self.offsets)


class DeltaWriter:
    """The function that ``delta_writer`` returns; Spark calls it with each batch."""

    def __init__(
        self,
        path_or_table: str | os.PathLike[str],
        transform: "Callable[[DataFrame], DataFrame] | None",
        mode: SaveMode,
        app_id: str | None,
        options: Mapping[str, str] | None,
    ) -> None:
        self._path_or_table = path_or_table
        self._transform = transform
        self._mode = mode
        self._app_id = app_id
        self._options = dict(options or {})
        self._checked_run: str | None = None

    def __call__(self, df: "DataFrame", batch_id: int) -> None:
        sink = DeltaSink(df.sparkSession, self._path_or_table)
        query_id = _query_id(df)
        run_id, plan = _run_and_plan(df, query_id, batch_id)
        commit = QueryCommit(self._app_id or query_id, query_id, batch_id, *plan, run_id, uuid.uuid4().hex)
        if self._checked_run != run_id:
            # Reasons to refuse the write are checked before the first one, so that nothing is computed in vain.
            if sink.table_id() is not None and (commits := sink.commits(QueryCommit, commit.app_id)):
                check_batch(sink.name, commits[0], commit)
            self._checked_run = run_id
        records = self._transform(df) if self._transform else df
        delta_sink.reached("planned")
        newest, *_ = sink.write_once(records, commit, self._mode, self._options)
        check_batch(sink.name, newest, commit)


def check_batch(sink: str, newest: QueryCommit, commit: QueryCommit) -> None:
    """Raise InvalidRequestError if the sink's newest commit keeps ``commit`` out, and is not the same batch."""
    if newest.query_id != commit.query_id:
        raise InvalidRequestError(
            f"{sink} has batches of app_id={commit.app_id} from another query (id {newest.query_id}): a query "
            "with a new checkpoint needs its own app_id, or none, because its batch ids begin again at 0"
        )
    if newest.batch_id < commit.batch_id or newest.writer == commit.writer:
        return
    if newest.batch_id > commit.batch_id or newest.plan != commit.plan:
        raise InvalidRequestError(
            f"{sink} has batch {newest.batch_id} of this query, planned {_time(newest)}, and the checkpoint gives "
            f"batch {commit.batch_id}, planned {_time(commit)}: the checkpoint is older than the table, and Delta "
            f"would leave this batch out. Put the newer checkpoint back, or {QueryCommit.WAY_ON}"
        )
    if newest.run_id == commit.run_id:
        raise InvalidRequestError(
            f"{sink} got batch {commit.batch_id} from another delta_writer of this query, and Delta leaves out a "
            f"second one under app_id={commit.app_id}: give each writer of this table its own app_id"
        )


def _time(commit: QueryCommit) -> str:
    return datetime.fromtimestamp(commit.planned_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _query_id(df: "DataFrame") -> str:
    try:
        query_id = df.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except AttributeError:
        raise InvalidRequestError(
            'delta_writer needs a classic session: in Spark Connect use writeStream.format("delta")'
        ) from None
    if query_id is None:
        raise InvalidRequestError("delta_writer is for writeStream.foreachBatch: this is no batch of a query")
    return query_id


def _run_and_plan(df: "DataFrame", query_id: str, batch_id: int) -> tuple[str, Plan]:
    """Return the id of the query's run, and the batch in the query's checkpoint, which is the same when Spark repeats
    it.

    Spark has no public way to either: ``foreachBatch`` works in a separate session, whose ``streams`` are empty.
    """
    spark: Any = df.sparkSession
    running = spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    query = running.get(spark._jvm.java.util.UUID.fromString(query_id))  # noqa: SLF001
    planned = query.offsetLog().get(batch_id).get()
    metadata = json.loads(planned.metadataOpt().get().json())
    offsets = hashlib.sha256(planned.toString().encode()).hexdigest()[:32]
    return query.runId().toString(), Plan(metadata["batchTimestampMs"], offsets)


def delta_writer(
    path_or_table: str | os.PathLike[str],
    transform: "Callable[[DataFrame], DataFrame] | None" = None,
    mode: SaveMode = "append",
    app_id: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Callable[["DataFrame", int], None]:
    """Return a function for ``writeStream.foreachBatch`` that writes each batch to a Delta table, exactly once.

    ``transform`` turns a batch into the DataFrame to write. ``mode`` "append" adds it, "overwrite" replaces the table's
    rows (for the output mode "complete"). ``options`` are those of Spark's Delta writer. ``app_id`` distinguishes two
    writers of one query into one table; by default it is the query's id, which is in its checkpoint.

    The query fails with InvalidRequestError for a table that cannot be a sink, that has batches of ``app_id`` of
    another query or another writer, or that is ahead of the query's checkpoint; with SinkOffsetsUnknownError if the
    table's log no longer shows what it has of the batch; with CommitStateUnknownError. This function raises
    InvalidRequestError for the other arguments. It needs a classic session: Spark Connect does not give a batch the id
    of its query.
    """
    check_write(mode, options)
    if app_id is not None and not app_id:
        raise InvalidRequestError('app_id="": give a text that no other writer of the table has, or leave it out')
    return DeltaWriter(path_or_table, transform, mode, app_id, options)
