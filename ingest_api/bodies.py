"""Reading request bodies: bounded in bytes before they are read, bounded in time while they are read.

Invariants: at most ``max_bytes`` (as sent, and as inflated) are ever held. Every byte held is reserved in the bytes in
flight, and nothing is reserved for bytes that were only announced; otherwise a few clients that announce much and send
nothing would keep all others out. A client that sends too slowly is cut off.
"""

import asyncio
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from ingest_api.content_types import JSON_REQUEST_TYPES, request_coding, request_media_type
from ingest_api.errors import ClientDisconnectedError, SlowRequestError
from ingest_api.message_models import model_of
from ingest_api.state import api_state
from logstore.broker.admission import Reservation
from logstore.errors import InvalidRequestError, RequestTooLargeError
from logstore.limits import CLIENT_BYTES_PER_SECOND_MIN, MIB
from logstore.protocol.messages.base import Request as JsonRequest
from logstore.records import surrogates
from logstore.records.byte_order_mark import without_byte_order_mark
from logstore.records.inflate import Inflater

ADMIN_BODY_BYTES_MAX = MIB
# Inflation takes steps of this many compressed bytes, so that its output is reserved as it grows.
_INFLATE_STEP_BYTES = 16 * 1024
_PROBLEMS_SHOWN_MAX = 3

#: Key in the scope of a request that came over a socket, for its connection, which has ``client_ended``.
CONNECTION = "logstore.connection"

Model = TypeVar("Model", bound=BaseModel)
Body = TypeVar("Body", bound=JsonRequest)
T = TypeVar("T")


async def receive_body(request: Request, reservation: Reservation, *, max_bytes: int) -> bytes:
    """Return the body as sent.

    Raises RequestTooLargeError past ``max_bytes``, ThrottledError when the bytes in flight have no room for it,
    SlowRequestError for a client that sends less than CLIENT_BYTES_PER_SECOND_MIN over ``request.body.timeout.ms``,
    ClientDisconnectedError for a client that left.
    """
    declared = _content_length(request.scope["headers"])
    if declared > max_bytes:
        raise _too_large(max_bytes)
    reservation.require(declared)
    # There is one buffer, so that a client that sends byte by byte does not make an object of each.
    body = bytearray()
    window = api_state(request).settings.request_body_timeout_ms / 1000
    size_at_window_end = CLIENT_BYTES_PER_SECOND_MIN * window
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(window) as deadline:
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnectedError
                chunk = message.get("body", b"")
                if len(body) + len(chunk) > max_bytes:
                    raise _too_large(max_bytes)
                reservation.grow(len(chunk))
                if not message.get("more_body", False):
                    return b"".join((body, chunk)) if body else chunk
                body += chunk
                if len(body) >= size_at_window_end:
                    deadline.reschedule(loop.time() + window)
                    size_at_window_end = len(body) + CLIENT_BYTES_PER_SECOND_MIN * window
    except TimeoutError:
        raise SlowRequestError(
            f"The body stopped or came too slowly, at byte {len(body)}: send at least {CLIENT_BYTES_PER_SECOND_MIN} "
            f"bytes a second over any {window:g} s."
        ) from None


def inflate(body: bytes, coding: str | None, reservation: Reservation, *, max_bytes: int) -> bytes:
    """Return ``body`` without its Content-Encoding. Blocking. The output is reserved as it grows, in addition to the
    input.

    Raises RequestTooLargeError past ``max_bytes``, InvalidRequestError for bytes that are not of that coding,
    ThrottledError.
    """
    if coding is None:
        return body
    inflater = Inflater(coding, max_bytes)
    parts: list[bytes] = []
    view = memoryview(body)
    for start in range(0, len(body), _INFLATE_STEP_BYTES):
        part = inflater.feed(bytes(view[start : start + _INFLATE_STEP_BYTES]))
        reservation.grow(len(part))
        parts.append(part)
    parts.append(inflater.finish())
    return b"".join(parts)


async def receive_json_body(request: Request, taken: Sequence[str] = JSON_REQUEST_TYPES) -> bytes:
    """Return the body of an administrative request, inflated, without a byte order mark; empty if there is none.

    A body needs a Content-Type of ``taken`` (UnsupportedMediaTypeError); a request without a body needs none.
    """
    state = api_state(request)
    with state.requests.reserve() as reservation:
        coding = request_coding(request.headers)
        body = await receive_body(request, reservation, max_bytes=ADMIN_BODY_BYTES_MAX)
        if body:
            request_media_type(request.headers, taken)
        return without_byte_order_mark(inflate(body, coding, reservation, max_bytes=ADMIN_BODY_BYTES_MAX))


async def receive_message(
    request: Request, message: type[Body], taken: Sequence[str] = JSON_REQUEST_TYPES
) -> Body | None:
    """Return the body as ``message``; None for an empty body. Raises what ``model_in`` raises.

    msgspec decodes it in a third of the time that the model takes. It is nowhere more lenient, so the model is needed
    only to say what is wrong.
    """
    body = await receive_json_body(request, taken)
    if not body:
        return None
    try:
        found = msgspec.json.decode(body, type=message).check()
    except (msgspec.DecodeError, ValueError):
        return message.of(model_in(body, model_of(message)))
    _require_fields_once(body)
    return found


def required(found: T | None) -> T:
    """Return what was received. Raises InvalidRequestError for an empty body."""
    if found is None:
        raise InvalidRequestError("The request body is empty: send a JSON object as application/json.")
    return found


def model_in(body: bytes, model: type[Model]) -> Model:
    """Return a body as ``model``. Raises InvalidRequestError, which names each wrong field."""
    try:
        found = model.model_validate_json(body)
    except ValidationError as error:
        if _is_json_but_for_surrogates(body):
            raise InvalidRequestError(
                "The request body is not acceptable. It has a lone surrogate (half of a character, as \\ud800), which "
                "no name or text can have here: send whole characters."
            ) from None
        names = [field.alias or name for name, field in model.model_fields.items()]
        problems = problems_in(error.errors(include_url=False, include_context=False, include_input=False), names)
        raise InvalidRequestError(f"The request body is not acceptable. {problems}.") from None
    _require_fields_once(body)
    return found


def _is_json_but_for_surrogates(body: bytes) -> bool:
    """Return whether a body is JSON text only because JSON allows lone surrogates, which decoders refuse."""
    masked = surrogates.masked(body)
    if masked is None:
        return False
    try:
        msgspec.json.decode(masked)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def problems_in(errors: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """Return the first few errors that pydantic found, each after the name of its field. ``names`` are the fields of
    the body itself.
    """
    problems = [f"{'.'.join(map(str, found['loc'])) or 'body'}: {_problem(found, names)}" for found in errors]
    more = len(problems) - _PROBLEMS_SHOWN_MAX
    return "; ".join(problems[:_PROBLEMS_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def _problem(found: Mapping[str, Any], names: Sequence[str]) -> str:
    if found["type"] != "extra_forbidden":
        return str(found["msg"]).removeprefix("Value error, ")
    given = found["loc"][0] if len(found["loc"]) == 1 else ""
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.6)
    return "there is no such field" + (f" (did you mean {near[0]}?)" if near else "")


def _require_fields_once(body: bytes) -> None:
    """Raise InvalidRequestError for an object with two fields of one name, of which decoders keep the last."""
    # Numbers stay text, because they are not used.
    json.loads(body, object_pairs_hook=_require_each_field_once, parse_int=str)


def _require_each_field_once(fields: list[tuple[str, object]]) -> None:
    names = [name for name, _ in fields]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequestError(f"The request body is not acceptable. {name}: is there twice; send it once.")


async def client_left(request: Request) -> bool:
    """Return when the client has gone (True), or has closed its side and may still read a response (False).

    Nothing of the body may be left to receive.
    """
    connection = request.scope.get(CONNECTION)
    while (await request.receive())["type"] != "http.disconnect":
        if connection is not None and connection.client_ended:
            return False
    return True


async def answer_wanted(request: Request) -> None:
    """Return when a long poll has to end at once: the client will send nothing more, or the server begins to stop.

    Raises ClientDisconnectedError when the client has gone.
    """
    leaving = asyncio.create_task(client_left(request))
    stopping = asyncio.create_task(api_state(request).stopping.wait())
    try:
        await asyncio.wait((leaving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and leaving.result():
            raise ClientDisconnectedError
    finally:
        for task in (leaving, stopping):
            task.cancel()
        await asyncio.gather(leaving, stopping, return_exceptions=True)


def _too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The request body has more than the {max_bytes} bytes that are taken here: send several smaller requests."
    )


def _content_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the declared length, 0 if there is none. The server has checked its form and that the body keeps to it."""
    text = next((value for name, value in headers if name == b"content-length"), b"")
    return int(text) if text.isdigit() and len(text) < 20 else 0
