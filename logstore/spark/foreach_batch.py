"""A streaming query into a Delta table: a function for ``foreachBatch`` that writes each batch once.

Invariants: a batch is one commit, with the query's id as ``txnAppId`` and the batch's as ``txnVersion``. Spark repeats
the last batch of a checkpoint, with the same offsets and the same id, until it knows that the batch is done; Delta
takes it once. A query that has lost its checkpoint is another query: its batch ids begin anew, and so does its app id.
An app id that the caller chose must not be taken on by another query, whose first batches Delta would leave out.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from logstore.errors import InvalidRequestError
from logstore.spark import delta_sink
from logstore.spark.delta_sink import DeltaSink, SaveMode, check_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"


class QueryCommit(msgspec.Struct, frozen=True, rename="camel"):
    """What a commit says of the batch in it."""

    app_id: str
    query_id: str
    batch_id: int

    def user_metadata(self) -> str:
        return msgspec.json.encode(_UserMetadata(self)).decode()


class _UserMetadata(msgspec.Struct, frozen=True):
    logstore: QueryCommit


class DeltaWriter:
    """``delta_writer`` makes it; Spark calls it with each batch."""

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
        self._checked_query: str | None = None

    def __call__(self, df: "DataFrame", batch_id: int) -> None:
        sink = DeltaSink(df.sparkSession, self._path_or_table)
        query_id = _query_id(df)
        commit = QueryCommit(self._app_id or query_id, query_id, batch_id)
        if self._checked_query != query_id:
            self._check(sink, commit)
            self._checked_query = query_id
        records = self._transform(df) if self._transform else df
        delta_sink.reached("planned")
        sink.write(records, commit.app_id, batch_id, commit.user_metadata(), self._mode, self._options)
        delta_sink.reached("written")

    def _check(self, sink: DeltaSink, commit: QueryCommit) -> None:
        """Before the first batch of a run. InvalidRequestError if the sink would leave new batches out."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        if sink.table_id() is None or self._app_id is None:
            return
        found = sink.newest_metadata(F.get_json_object("userMetadata", "$.logstore.appId") == commit.app_id)
        if not found:
            return
        last = msgspec.json.decode(found[0], type=_UserMetadata).logstore
        if last.query_id != commit.query_id:
            raise InvalidRequestError(
                f"{sink.name} has batches of app_id={commit.app_id} from another query (id {last.query_id}): a query "
                "with a new checkpoint needs an app_id of its own, or none, because its batch ids begin anew"
            )


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


def delta_writer(
    path_or_table: str | os.PathLike[str],
    transform: "Callable[[DataFrame], DataFrame] | None" = None,
    mode: SaveMode = "append",
    app_id: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Callable[["DataFrame", int], None]:
    """A function for ``writeStream.foreachBatch`` that writes each batch to a Delta table, exactly once.

    ``transform`` makes of a batch what is written. ``mode`` "append" adds it, "overwrite" puts it in the place of the
    table's rows (for the output mode "complete"). ``options`` are those of Spark's Delta writer. ``app_id`` tells apart
    two writers of one query into one table; by default it is the query's id, which lives in its checkpoint.

    The query fails with InvalidRequestError for a table that cannot be a sink, or has batches of ``app_id`` of another
    query; this function raises it for the other arguments. For classic sessions: Spark Connect does not tell a batch
    which query it belongs to.
    """
    check_write(mode, options)
    if app_id is not None and not app_id:
        raise InvalidRequestError('app_id="": give a text that no other writer of the table has, or leave it out')
    return DeltaWriter(path_or_table, transform, mode, app_id, options)
