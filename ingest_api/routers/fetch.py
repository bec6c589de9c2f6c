"""Read many partitions in one request: Kafka's Fetch API in HTTP's clothes.

Invariants: partitions are read in the order of the request, so that a client that turns that order round is fair to
all; one that cannot be read is told of in a section of its own and keeps nobody else from being read; a record of any
of them ends the wait.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.answers import RecordsResponse
from ingest_api.bodies import client_left, receive_model
from ingest_api.content_types import FETCH_SECTIONS, answer_media_type
from ingest_api.errors import ClientDisconnectedError, http_error
from ingest_api.guard import context_of
from ingest_api.parameters import read_query
from ingest_api.routes import declared_router, requires
from ingest_api.schemas import FetchRequest
from ingest_api.state import ApiState, api_state
from logstore.broker.access import Operation, ResourceType, refusal
from logstore.broker.topic_identity import require_topic_id
from logstore.errors import LogStoreError, OffsetOutOfRangeError
from logstore.records.fetch_sections import Section, encode_sections
from logstore.records.stored_batch import encode_blocks

router = declared_router(tags=["records"])


@dataclass(frozen=True, slots=True)
class _Read:
    """``num_bytes`` of records in ``sections``; ``advances`` tell when there is more in partitions that had no more."""

    sections: list[Section]
    num_bytes: int
    advances: Sequence["asyncio.Future[None]"]


@router.post("/fetch", **openapi.FETCH_MANY)
@requires(Operation.READ, ResourceType.TOPIC, names_in="body")
async def fetch_many(request: Request) -> Response:
    """Read records of many partitions, each from its offset on, waiting for some when all are at their ends."""
    read_query(request)
    state = api_state(request)
    media_type = answer_media_type(request.headers, (FETCH_SECTIONS,))
    asked = await receive_model(request, FetchRequest)
    found = await _read_or_wait(request, state, asked)
    body = encode_sections(found.sections)
    reservation = state.answers.reserve(sum(map(len, body)))
    try:
        return RecordsResponse(body, reservation, media_type=media_type, headers={})
    except BaseException:
        reservation.release()
        raise


async def _read_or_wait(request: Request, state: ApiState, asked: FetchRequest) -> _Read:
    """Read until there are ``min_bytes`` or an error to tell, ``max_wait_ms`` have passed, the client will send nothing
    more, or the server stops.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + asked.max_wait_ms / 1000
    found = await _read(request, asked)
    if _is_enough(found, asked) or not asked.max_wait_ms:
        return found
    ends: tuple[asyncio.Future[Any], ...] = (
        asyncio.create_task(client_left(request)),
        asyncio.create_task(state.stopping.wait()),
    )
    try:
        while not _is_enough(found, asked) and (left := deadline - loop.time()) > 0:
            await asyncio.wait((*found.advances, *ends), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if ends[0].done() and ends[0].result():
                raise ClientDisconnectedError
            found = await _read(request, asked)
            if any(end.done() for end in ends):
                break
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
    return found


def _is_enough(found: _Read, asked: FetchRequest) -> bool:
    # Without anybody to wait for there will not be more.
    failed = any(section.error_code for section in found.sections)
    return failed or found.num_bytes >= max(1, asked.min_bytes) or not found.advances


async def _read(request: Request, asked: FetchRequest) -> _Read:
    """What there is now, up to ``max_bytes`` of records (at least one, if there is any)."""
    state, context = api_state(request), context_of(request)
    broker = state.broker
    topics = {wanted.topic for wanted in asked.partitions}
    readable = frozenset(state.access.authorize(context, Operation.READ, ResourceType.TOPIC, [*topics]))
    sections: list[Section] = []
    advances: list[asyncio.Future[None]] = []
    num_bytes = 0
    for index, wanted in enumerate(asked.partitions):
        if num_bytes >= asked.max_bytes:
            break
        try:
            if wanted.topic not in readable:
                raise refusal(context, Operation.READ, ResourceType.TOPIC, wanted.topic)
            topic = broker.topic(wanted.topic)
            require_topic_id(topic, wanted.topic_id)
            log = topic.partition(wanted.partition)
            if wanted.offset == log.last_stable_offset:
                advances.append(log.advanced())
                continue
            max_bytes = min(asked.max_bytes - num_bytes, asked.max_partition_bytes)
            result = await broker.fetch_stored(
                topic, wanted.partition, wanted.offset, max_bytes=max_bytes, min_bytes=max_bytes, max_wait_ms=0
            )
        except LogStoreError as error:
            sections.append(_failed(index, error))
            continue
        num_bytes += result.num_bytes
        pieces = encode_blocks(result.records)
        sections.append(Section(index, 0, result.log_start_offset, result.high_watermark, result.next_offset, pieces))
        if result.next_offset == log.last_stable_offset:
            advances.append(log.advanced())
    return _Read(sections, num_bytes, advances)


def _failed(index: int, error: LogStoreError) -> Section:
    start, end = -1, -1
    if isinstance(error, OffsetOutOfRangeError):
        start, end = error.log_start_offset, error.high_watermark
    message = error.message.encode("utf-8", "backslashreplace")
    return Section(index, http_error(error).error_code, start, end, -1, [message])
