"""One write, from its plan to its commit: ``begin`` on the driver, ``records`` in every task, ``commit`` or ``abort``.

Invariants:

- A record is stored, and visible to readers, once its task has its acknowledgement. There is no transaction yet:
  ``commit`` and ``abort`` change nothing in the store, and records of a write that failed stay.
- The ``Idempotency-Key`` of a request consists of write, epoch, Spark partition and number of the request. A task that
  is tried again with the same rows in the same order stores none of them twice, as long as the store remembers the keys
  (``idempotency.window.ms``); other rows under a used key fail the task.
- A batch write has its own id, made when it is planned, or the program's (``txnAppId`` and ``txnVersion``). A streaming
  write is planned again for every micro-batch, and when a query is restarted: its write is the id of the query, which
  its checkpoint keeps, and its epoch the id of the micro-batch.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from logstore import errors
from logstore.client.transport import Transport
from logstore.errors import InvalidRequestError, LogStoreError
from logstore.spark.sink.columns import SinkColumns
from logstore.spark.sink.commit_message import RecordsWritten, joined
from logstore.spark.sink.requests import Requests
from logstore.spark.sink.sending import not_reached, send_all
from logstore.spark.sink.sink_options import SinkOptions, parse_sink_options
from logstore.spark.sink.whole_input import whole
from logstore.spark.worker import one_line_errors

logger = logging.getLogger(__name__)

#: Seconds that the driver tries to reach the store: a restarting store is back by then.
_REACH_SECONDS = 10.0
#: Local properties of the tasks of a micro-batch.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkWrite:
    """A planned write, which every task gets. ``write`` is "" for a stream, whose tasks know it."""

    options: SinkOptions
    columns: SinkColumns
    write: str
    epoch: int

    @classmethod
    def begin_batch(cls, schema: StructType, given: Mapping[str, str]) -> "SinkWrite":
        """Plan a batch write. Raises InvalidRequestError naming the option or the column; StoreUnreachableError."""
        options = parse_sink_options(given)
        columns = SinkColumns.of(schema, options.topic)
        _reach(options)
        return cls(options, columns, options.txn_app_id or uuid.uuid4().hex, options.txn_version)

    @classmethod
    def begin_stream(cls, schema: StructType, given: Mapping[str, str]) -> "SinkWrite":
        """Plan a streaming write, whose tasks wait for a store that is down. Raises InvalidRequestError."""
        options = parse_sink_options(given)
        if options.txn_app_id:
            raise InvalidRequestError(
                "Options txnAppId and txnVersion are for batch writes: a stream has its query id and batch id"
            )
        return cls(options, SinkColumns.of(schema, options.topic), "", 0)

    @one_line_errors()
    def records(self, batches: Iterable[pa.RecordBatch]) -> RecordsWritten:
        """Store ``batches``, the rows of one task."""
        requests = Requests(
            self.columns, self.options.topic, max_bytes=self.options.max_request_size, codec=self.options.codec
        )
        key_prefix = self._key_prefix() if self.options.idempotent else ""
        return send_all(requests.of(whole(batches)), self.options, key_prefix)

    def commit(self, messages: Sequence[WriterCommitMessage | None], epoch: int | None = None) -> None:
        written = _joined(messages)
        logger.info("Wrote %s%s%s", _summary(written), _of(epoch), _replayed(written))

    def abort(self, messages: Sequence[WriterCommitMessage | None], epoch: int | None = None) -> None:
        written = _joined(messages)
        logger.warning("A write failed. At least %s%s are stored and stay", _summary(written), _of(epoch))

    def _key_prefix(self) -> str:
        context = TaskContext.get()
        if context is None:
            raise LogStoreError("Records are written by a task of Spark: there is none here")
        write, epoch = self.write, str(self.epoch)
        if not write:
            write, epoch = (context.getLocalProperty(name) or "" for name in (_QUERY_ID, _BATCH_ID))
            if not (write and epoch):
                raise LogStoreError(
                    f"Spark does not give this task its streaming query and batch ({_QUERY_ID}, {_BATCH_ID}), so "
                    "a retry could not be distinguished from new rows: set kafka.enable.idempotence=false to "
                    "write anyway"
                )
        return f"{write}-e{epoch}-p{context.partitionId()}"


def _reach(options: SinkOptions) -> None:
    """Reach the store once before many tasks do, so that a wrong address fails at once, on the driver."""
    retry_s = min(_REACH_SECONDS, options.delivery_timeout_ms / 1000)
    try:
        with Transport(options.bootstrap, client_id=options.client_id, retry_timeout_s=retry_s) as transport:
            transport.request("GET", "/health/live")
    except errors.NetworkError as error:
        raise not_reached(error) from None


def _joined(messages: Sequence[WriterCommitMessage | None]) -> RecordsWritten:
    return joined(message for message in messages if isinstance(message, RecordsWritten))


def _summary(written: RecordsWritten) -> str:
    return f"{written.records} records in {len(written.ranges)} partitions of {written.topics} topics"


def _of(epoch: int | None) -> str:
    return "" if epoch is None else f" of batch {epoch}"


def _replayed(written: RecordsWritten) -> str:
    return f"; {written.replayed} of {written.requests} requests were stored before" if written.replayed else ""
