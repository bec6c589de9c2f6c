"""The producer's API: send records, and wait for them.

``send`` and ``send_batch`` check records and put them into the ``RecordAccumulator``. The threads of the ``Sender``
take them out and complete the futures that the program was given (``delivery``). There is no other state.

Invariants:

- Records of one topic and partition are stored in the order of ``send``.
- No failure is silent: ``flush`` and ``close`` raise the first one since the last ``flush``; the end of a ``with``
  block raises the first that the program has not had.
"""

import os
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Never, Self

from logstore.client.addresses import DEFAULT_URL, Bootstrap
from logstore.client.cluster_metadata import ClusterMetadata
from logstore.client.option_checks import refuse_unknown
from logstore.client.producer.delivery import BatchDelivery, Delivery, OnDelivery
from logstore.client.producer.incomplete_batches import was_raised
from logstore.client.producer.options import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_BUFFER_MEMORY,
    DEFAULT_MAX_REQUEST_SIZE,
    RETRIES_MAX,
    Acks,
    Compression,
    PartitionerOption,
    ProducerOptions,
    Serializer,
)
from logstore.client.producer.record_accumulator import RecordAccumulator
from logstore.client.producer.record_columns import Columns, Headers, check_extras, from_columns, to_bytes
from logstore.client.producer.sender import Sender
from logstore.client.transport import Transport, topic_path
from logstore.errors import InvalidRequestError, RecordTooLargeError, SerializationError
from logstore.limits import RECORD_OVERHEAD_BYTES

_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


class Producer:
    """Sends records to the store of ``bootstrap`` (``http(s)://host:port`` or ``host:port``, separated by commas, or a
    list of them).

    The options are those of Kafka's producer, under its names; ``docs/python-client.md`` has a table of them. Several
    threads may use it, but not across a fork. It is a context manager, which flushes; at its end it raises failures
    that the program has not had yet from a delivery or in a callback. Raises InvalidConfigError naming an option that
    is wrong or unknown, InvalidRequestError for ``bootstrap``.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = DEFAULT_URL,
        *,
        client_id: str | None = None,
        acks: Acks = "all",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        linger_ms: float = 5,
        batch_size: int = DEFAULT_BATCH_SIZE,
        buffer_memory: int = DEFAULT_BUFFER_MEMORY,
        max_block_ms: float = 60_000,
        compression_type: Compression | None = None,
        retries: int = RETRIES_MAX,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1_000,
        delivery_timeout_ms: float = 120_000,
        max_in_flight_requests_per_connection: int = 5,
        request_timeout_ms: float = 30_000,
        max_request_size: int = DEFAULT_MAX_REQUEST_SIZE,
        metadata_max_age_ms: float = 300_000,
        partitioner: PartitionerOption = "murmur2",
        enable_idempotence: bool | None = None,
        ssl_cafile: str | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        ssl_password: str | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown("producer", ProducerOptions, unknown)
        self._options = ProducerOptions(
            client_id=client_id,
            acks=acks,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            linger_ms=linger_ms,
            batch_size=batch_size,
            buffer_memory=buffer_memory,
            max_block_ms=max_block_ms,
            compression_type=compression_type,
            retries=retries,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            max_in_flight_requests_per_connection=max_in_flight_requests_per_connection,
            request_timeout_ms=request_timeout_ms,
            max_request_size=max_request_size,
            metadata_max_age_ms=metadata_max_age_ms,
            partitioner=partitioner,
            enable_idempotence=enable_idempotence,
            ssl_cafile=ssl_cafile,
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            ssl_password=ssl_password,
        )
        self._serializes = key_serializer is not None or value_serializer is not None
        self._bootstrap = bootstrap
        self._begin()
        _producers.add(self)

    def _begin(self, *, closed: str = "") -> None:
        options = self._options
        timeout_s = options.request_timeout_ms / 1000
        transport = Transport(
            self._bootstrap, client_id=options.client_id, tls=options.tls, request_timeout_s=timeout_s
        )
        metadata = ClusterMetadata(transport, max_age_ms=options.metadata_max_age_ms)
        self._accumulator = RecordAccumulator(options, metadata, closed=closed)
        self._sender = Sender(self._accumulator, transport, metadata, options)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Queue one record; return a future of its place.

        ``value`` and ``key`` are passed to their serializers, if any; then they must be bytes or text (stored as
        UTF-8). A ``value`` of None is a tombstone. ``headers`` are pairs or a mapping of text to bytes. Without
        ``partition`` the ``partitioner`` decides. ``timestamp_ms`` None is the time of the append. ``on_delivery(error,
        metadata)`` is called from a thread of the producer, with one of the two None.

        Raises SerializationError, InvalidRecordError, RecordTooLargeError (over ``max_request_size``), ThrottledError
        (no room within ``max_block_ms``), InvalidRequestError (closed); then nothing is queued.
        """
        if self._serializes:
            value = _serialize(self._options.value_serializer, value, "value", topic)
            key = _serialize(self._options.key_serializer, key, "key", topic)
        size = RECORD_OVERHEAD_BYTES
        if type(value) is bytes:
            size += len(value)
        elif value is not None:
            value = to_bytes(value, "value")
            size += len(value)
        if type(key) is bytes:
            size += len(key)
        elif key is not None:
            key = to_bytes(key, "key")
            size += len(key)
        extras = None
        if headers is not None or partition is not None or timestamp_ms is not None or on_delivery is not None:
            extras = check_extras(headers, partition, timestamp_ms, on_delivery)
            size += extras.header_bytes
        while (delivery := self._accumulator.append(topic, value, key, extras, size)) is None:
            self._open_batch(topic, size)
        return delivery

    def send_batch(self, topic: str, columns: Columns) -> BatchDelivery:
        """Queue many records at once, after those already queued for ``topic``; return a future of their places.

        ``columns`` is a pyarrow RecordBatch or Table, or a mapping of names to values: ``value`` and optionally
        ``key``, ``timestamp``, ``headers``, ``partition`` (null or -1: not named). No serializer is applied. Raises
        InvalidRequestError, RequestTooLargeError (more than ``buffer_memory``), ThrottledError.
        """
        topic_path(topic)
        batch, named = from_columns(columns)
        if not batch.num_rows:
            raise InvalidRequestError("A batch without records: there is nothing to send")
        size = batch.nbytes + RECORD_OVERHEAD_BYTES * batch.num_rows
        self._sender.start()
        closed = self._accumulator.append_batch(topic, batch.num_rows, size, lambda: (batch, named))
        for each in closed:
            self._sender.split(each)
        return BatchDelivery(closed[-1].outcome)

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of ``topic``. Waits up to ``max_block_ms``. Raises UnknownTopicError."""
        self._accumulator.check_open()
        give_up = time.monotonic() + self._options.max_block_ms / 1000
        return set(range(self._sender.find_partitions(topic, give_up).count))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued so far is stored, or has failed, and all callbacks are called.

        Raises the first failure since the last flush, or the exception of a callback; RequestTimedOutError if
        ``timeout`` seconds run out first.
        """
        self._refuse_callbacks()
        closed, number = self._accumulator.begin_flush()
        for batch in closed:
            self._sender.split(batch)
        self._accumulator.await_flush(number, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then stop. Records that are not delivered within ``timeout`` seconds fail.

        Raises as ``flush``; a second call does nothing.
        """
        if self._accumulator.closed:
            return
        self._refuse_callbacks()
        try:
            self.flush(timeout)
        finally:
            self._sender.stop("The producer is closed: make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, own: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # After an error of the program, do not wait long for a store that does not respond.
            self.close(None if kind is None else 1.0)
        except Exception as error:
            # The program's own error comes first, and an error that it has had is not raised again.
            if kind is None and not was_raised(error):
                raise
            # The program's error may be the one that ``close`` raises again.
            if own is not None:
                own.with_traceback(traceback)

    def _open_batch(self, topic: str, size: int) -> None:
        """Open a batch with room for ``size`` bytes, if there is none. Another thread may fill it."""
        topic_path(topic)
        if size > self._options.max_request_size:
            raise RecordTooLargeError(
                f"A record of {size} bytes is over max_request_size = {self._options.max_request_size}"
            )
        if full := self._accumulator.close_full(topic, size):
            self._sender.split(full)
        self._sender.start()
        self._accumulator.open(topic, size)

    def _refuse_callbacks(self) -> None:
        if threading.current_thread() in self._sender.threads:
            raise InvalidRequestError("flush() and close() wait for callbacks, so that none of them may call it")

    def _forked(self) -> None:
        """Begin again after a fork: the new process has none of the threads, and no thread releases the old locks."""
        made_before = "This producer was made before a fork: make one in each process"
        self._begin(closed=made_before if self._sender.threads else self._accumulator.closed)


def _serialize(serializer: Serializer | None, given: Any, what: str, topic: str) -> Any:
    if serializer is None or given is None:
        return given
    try:
        return serializer(given)
    except Exception as error:
        raise SerializationError(
            f"{what}_serializer failed on a {what} for topic {topic!r}, nothing was queued: {error!r}"
        ) from error


def _after_fork() -> None:
    for producer in list(_producers):
        producer._forked()  # noqa: SLF001 (of this module)


os.register_at_fork(after_in_child=_after_fork)
