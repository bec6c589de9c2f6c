"""One fetch of many partitions, as a client asks for it and reads the answer."""

import http.client
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from logstore.client.transport import Transport
from logstore.protocol.fetch_response import MEDIA_TYPE, PartitionData, read_fetch_response


class FetchPartition(msgspec.Struct, frozen=True, gc=False):
    """A partition to read from ``offset`` on, of the topic with ``topic_id`` and of no other with its name."""

    topic: str
    partition: int
    offset: int
    topic_id: str


class FetchRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request: records of ``partitions`` in their order, up to ``max_bytes``, and ``max_partition_bytes`` of each.
    The answer waits for ``min_bytes`` in all, up to ``max_wait_ms``. ``where``: only records
    that it selects.
    """

    partitions: Sequence[FetchPartition]
    max_bytes: int
    max_partition_bytes: int
    min_bytes: int
    max_wait_ms: int
    where: str | None = None


def fetch(
    transport: Transport,
    request: FetchRequest,
    request_timeout_s: float,
    is_cancelled: Callable[[], bool] = lambda: False,
    at: str | None = None,
) -> list[PartitionData]:
    """Fetch once: a response for each partition that has news. An error of a partition is in its response.

    The store may answer ``request_timeout_s`` later than ``max_wait_ms``. ``at`` is as of ``Transport.request_once``,
    and so is what it raises.
    """
    answer = transport.request_once(
        "POST",
        "/fetch",
        msgspec.json.encode(request),
        headers={"Content-Type": "application/json", "Accept": MEDIA_TYPE},
        timeout_s=request_timeout_s + request.max_wait_ms / 1000,
        read=_into_arrow,
        is_cancelled=is_cancelled,
        at=at,
    )
    return list(read_fetch_response(answer.content))


def _into_arrow(response: http.client.HTTPResponse) -> bytes | pa.Buffer:
    """The body of an answer, from the socket into memory that Arrow can read in place."""
    if response.status != 200 or not response.length:  # an error, an empty body, or chunks, as some proxies answer
        content = response.read()
        return content if response.status != 200 else pa.py_buffer(content)
    body = pa.allocate_buffer(response.length)
    view = memoryview(body).cast("B")
    at = 0
    while at < len(view):
        read = response.readinto(view[at:])
        if not read:
            raise http.client.IncompleteRead(b"", len(view) - at)
        at += read
    return body
