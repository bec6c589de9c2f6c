"""Bodies of answers: small ones as JSON, large ones made column by column and sent in pieces.

Invariant: every answer with a body has a Content-Length.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingest_api.backpressure import Reservation
from ingest_api.content_types import JSON
from logstore.broker.broker import ProduceResult
from logstore.filesystem import Buffer

_PIECE_BYTES = 256 * 1024


def json_response(
    content: Any, *, status: int = 200, media_type: str = JSON, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type)


class RecordsResponse(Response):
    """A large body, sent as fast as the client takes it (``protocol`` cuts one that does not); reserved until then.

    The pieces of ``body`` are sent as they are, small ones together and large ones bit by bit.
    """

    def __init__(
        self, body: Sequence[Buffer], reservation: Reservation, *, media_type: str, headers: Mapping[str, str]
    ) -> None:
        length = {"Content-Length": str(sum(map(len, body)))}
        super().__init__(None, 200, {**headers, **length}, media_type)
        self._pieces = body
        self._reservation = reservation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        with self._reservation:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            gathered: list[Buffer] = []
            size = 0
            for piece in self._pieces:
                if size + len(piece) > _PIECE_BYTES:
                    await _send_more(send, b"".join(gathered))
                    gathered, size = [], 0
                view = memoryview(piece)
                while len(view) > _PIECE_BYTES:
                    await _send_more(send, view[:_PIECE_BYTES])
                    view = view[_PIECE_BYTES:]
                gathered.append(view)
                size += len(view)
            await send({"type": "http.response.body", "body": b"".join(gathered)})


async def _send_more(send: Send, piece: Buffer) -> None:
    if piece:
        await send({"type": "http.response.body", "body": piece, "more_body": True})


def produced_offsets(result: ProduceResult) -> bytes:
    """The v2 answer: one object per record, in the order of the request.

    No Python object per record: 100,000 of them take a few milliseconds.
    """
    rows: list[pa.Array] = []
    for produced in result.ranges:
        offsets = pa.array(np.arange(produced.base_offset, produced.base_offset + produced.count)).cast(pa.string())
        before = f'{{"partition":{produced.partition},"offset":'
        rows.append(pc.binary_join_element_wise(before, offsets, ',"error_code":null,"error":null}', ""))
    texts = pa.chunked_array(rows, pa.string()).combine_chunks()
    if any(produced.rows is not None for produced in result.ranges):
        texts = texts.take(pa.array(_positions(result)))
    everything = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined = pc.binary_join(everything, ",")[0].as_buffer() if len(texts) else b""
    return b"".join((b'{"offsets":[', joined, b'],"key_schema_id":null,"value_schema_id":null}'))


def produced_ranges(result: ProduceResult) -> bytes:
    """The short answer, for bodies in columns: offsets are consecutive within a partition."""
    return msgspec.json.encode(
        {
            "ranges": [
                {"partition": produced.partition, "base_offset": produced.base_offset, "count": produced.count}
                for produced in result.ranges
            ]
        }
    )


def _positions(result: ProduceResult) -> np.ndarray:
    """For each record of the request, in its order: its position in the ranges laid end to end."""
    positions = np.empty(result.count, dtype=np.int64)
    start = 0
    for produced in result.ranges:
        rows = slice(None) if produced.rows is None else produced.rows
        positions[rows] = np.arange(start, start + produced.count)
        start += produced.count
    return positions
