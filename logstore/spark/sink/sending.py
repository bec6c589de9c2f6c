"""Sends the requests of one task to the store, one after the other, and gathers the places of the records.

Invariants:

- The records of a topic are stored in the order of the requests: each leaves after the response to the one before.
- A request is sent until its response is final or its time is up. With an ``Idempotency-Key`` it is stored once,
  however often it is sent; without one it may be stored again when a response is lost.
- At most two requests are in memory: one is under way while the caller makes the next one.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from logstore import errors
from logstore.client.producer.produce_request import ARROW_STREAM
from logstore.client.producer.produce_response import failure_of, read_ranges
from logstore.client.producer.retries import Retries
from logstore.client.transport import Transport, topic_path
from logstore.errors import LogStoreError
from logstore.spark.option_checks import HTTP_PORT
from logstore.spark.sink.commit_message import RecordsWritten, WrittenRange, joined
from logstore.spark.sink.requests import Request
from logstore.spark.sink.sink_options import SinkOptions


class KeyUsedForOtherRowsError(LogStoreError):
    """Raised if an earlier try of the task stored other rows, or in another order. This request stored nothing."""


def send_all(requests: Iterable[Request], options: SinkOptions, key_prefix: str) -> RecordsWritten:
    """Return the places of all records, when they are stored.

    ``key_prefix`` names this task of this write, or is "" if a request may be stored twice. Raises the store's refusal
    of a request, KeyUsedForOtherRowsError, and the last failure when ``delivery_timeout_ms`` is over.
    """
    timeout_s = options.request_timeout_ms / 1000
    with (
        Transport(options.bootstrap, client_id=options.client_id, request_timeout_s=timeout_s) as transport,
        ThreadPoolExecutor(1, "logstore-sink") as thread,
    ):
        sender = _Sender(transport, options, key_prefix)
        done = RecordsWritten()
        last: Future[RecordsWritten] | None = None
        try:
            for request in requests:
                if last is not None:
                    done = joined((done, last.result()))
                last = thread.submit(sender.send, request)
        except BaseException:
            # The task has failed, so the request under way is not tried again.
            sender.stop()
            raise
        return done if last is None else joined((done, last.result()))


class _Sender:
    def __init__(self, transport: Transport, options: SinkOptions, key_prefix: str) -> None:
        self._transport = transport
        self._options = options
        self._key_prefix = key_prefix
        self._retries = Retries(options)
        self._params: dict[str, str | int] = {"acks": options.acks, "timeout_ms": options.request_timeout_ms}

    def stop(self) -> None:
        self._retries.stop()

    def send(self, request: Request) -> RecordsWritten:
        headers = {"Content-Type": ARROW_STREAM}
        if self._key_prefix:
            headers["Idempotency-Key"] = f"{self._key_prefix}-r{request.number}"

        def once(timeout_s: float) -> RecordsWritten:
            response = self._transport.request_once(
                "POST",
                topic_path(request.topic),
                request.body,
                headers=headers,
                params=self._params,
                timeout_s=timeout_s,
            )
            ranges = read_ranges(response.content)
            for failure in map(failure_of, ranges):
                if failure is not None:
                    # With a key, partitions that accepted their records respond as before.
                    raise failure
            return RecordsWritten(
                tuple(
                    WrittenRange(request.topic, found.partition, base, base + found.count - 1, found.count)
                    for found in ranges
                    if (base := found.base_offset) is not None
                ),
                requests=1,
                replayed=int("Idempotent-Replayed" in response.headers),
            )

        try:
            return self._retries.ask(once, time.monotonic() + self._options.delivery_timeout_ms / 1000)
        except errors.IdempotencyKeyReusedError as refusal:
            raise KeyUsedForOtherRowsError(_OTHER_ROWS.format(topic=request.topic, refusal=refusal)) from None
        except errors.NetworkError as error:
            raise not_reached(error) from None


_OTHER_ROWS = (
    "An earlier try of this task wrote other rows to topic {topic!r}, or the same rows in another order: these would "
    "be stored beside them. Make the rows of a task the same in each try (sortWithinPartitions after a shuffle, no "
    "rand(), or a checkpointed input); or accept records that are stored twice with kafka.enable.idempotence=false. "
    "The store said: {refusal}"
)


def not_reached(error: errors.NetworkError) -> errors.NetworkError:
    """Return the error with a hint for an address that is not the store's."""
    return type(error)(f"{error.message}. {HTTP_PORT}")
