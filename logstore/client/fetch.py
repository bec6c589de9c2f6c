"""One fetch of many partitions: sends the request, and reads the response."""

import http.client
from collections.abc import Callable

import msgspec
import pyarrow as pa

from logstore.client.transport import Transport
from logstore.protocol.fetch_response import MEDIA_TYPE, PartitionData, read_fetch_response
from logstore.protocol.messages.records import FetchRequest


def fetch(
    transport: Transport,
    request: FetchRequest,
    request_timeout_s: float,
    is_cancelled: Callable[[], bool] = lambda: False,
    at: str | None = None,
) -> list[PartitionData]:
    """Fetch once; return a response for each partition that has news. It contains the partition's error, if any.

    The store may respond ``request_timeout_s`` later than ``max_wait_ms``. ``at`` and the errors raised are those of
    ``Transport.request_once``.
    """
    response = transport.request_once(
        "POST",
        "/fetch",
        msgspec.json.encode(request),
        headers={"Content-Type": "application/json", "Accept": MEDIA_TYPE},
        timeout_s=request_timeout_s + request.max_wait_ms / 1000,
        read=_into_arrow,
        is_cancelled=is_cancelled,
        at=at,
    )
    return list(read_fetch_response(response.content))


def _into_arrow(response: http.client.HTTPResponse) -> bytes | pa.Buffer:
    """Read the body of a response from the socket into memory that Arrow can use in place."""
    if response.status != 200 or not response.length:  # an error, no body, or a chunked one, as some proxies send
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
