"""Routes whose query, body and response are messages: FastAPI injects, checks and documents them, by their models.

Where FastAPI is more lenient than the interface promises, these routes check before it. Invariants: a query parameter
is known, given once and has a value; a body is JSON by its Content-Type, bounded in bytes and time, and has each field
once (``bodies``); nothing is done before Accept is known to allow a response; a part that cannot be read raises a
LogStoreError, so that every refusal has the one shape of ``errors``.

FastAPI takes three times as long to find what an endpoint needs as to read its body. So endpoints that need no more
than the store, the context, a group's name and a body are called by hand: commits and heartbeats are among them.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import NoneType
from typing import Any, ClassVar, Final, get_args, get_type_hints

import msgspec
from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ingest_api.bodies import model_in, problems_in, receive_json_body, receive_message, required
from ingest_api.content_types import JSON, JSON_REQUEST_TYPES, METADATA_TYPES, response_media_type
from ingest_api.dependencies import Context, GroupName, State
from ingest_api.errors import ParameterError
from ingest_api.guard import context_of
from ingest_api.message_models import modelled
from ingest_api.operations import refusals
from ingest_api.parameters import query_texts
from ingest_api.routes import DeclaredRoute
from ingest_api.state import api_state
from logstore.errors import LogStoreError
from logstore.protocol.messages.base import Message

#: A placeholder for a body that could not be read: no model accepts it.
_NO_MODEL: Final = 0
#: The arguments that an endpoint may get by hand, by annotation.
_GIVEN: Final[Mapping[Any, Callable[[Request], Any]]] = {
    State: api_state,
    Context: context_of,
    GroupName: lambda request: request.path_params["group"],
}


class ModelRoute(DeclaredRoute):
    """``response_types`` are the media types that Accept chooses from; without any the response is always JSON.
    ``request_types`` are those of bodies.
    """

    response_types: ClassVar[Sequence[str]] = ()
    request_types: ClassVar[Sequence[str]] = JSON_REQUEST_TYPES

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, self._with_models(endpoint), **options)
        hints = get_type_hints(endpoint, include_extras=True)
        del hints["return"]
        self._body_name = self.body_field.name if self.body_field is not None else ""
        self._requires_body = self.body_field is not None and self.body_field.field_info.is_required()
        self._body_message: Any = _message_in(hints.pop(self._body_name, None))
        self._given = {name: _GIVEN[hint] for name, hint in hints.items() if hint in _GIVEN}
        self.by_hand = self._given.keys() == hints.keys()

    def _with_models(self, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        """Return the endpoint as FastAPI sees it: it takes models, and returns a response."""
        hints = get_type_hints(endpoint, include_extras=True)
        messages = {name: message for name, hint in hints.items() if (message := _message_in(hint)) is not None}
        messages.pop("return", None)
        returns = hints["return"]

        @functools.wraps(endpoint)
        async def respond(**arguments: Any) -> Response:
            for name, message in messages.items():
                if isinstance(arguments[name], BaseModel):
                    arguments[name] = message.of(arguments[name])
            answer = await endpoint(**arguments)
            if isinstance(returns, type) and not isinstance(answer, returns):
                raise TypeError(f"{endpoint.__name__} returned {type(answer).__name__}, not {returns.__name__}.")
            if answer is None:
                return Response(status_code=204)
            response = Response(msgspec.json.encode(answer), self.status_code or 200, media_type=JSON)
            # The endpoint may have set the status and headers of the response that FastAPI gives it.
            if (given := arguments.get(self.dependant.response_param_name or "")) is not None:
                response.status_code = given.status_code or response.status_code
                response.headers.update(given.headers)
            return response

        signature = inspect.signature(endpoint)
        parameters = [one.replace(annotation=modelled(hints[name])) for name, one in signature.parameters.items()]
        described = None if returns is NoneType else modelled(returns)
        respond.__signature__ = inspect.Signature(parameters, return_annotation=described)  # type: ignore[attr-defined]
        return respond

    async def respond(self, request: Request) -> Response:
        query_texts(request.scope["query_string"], ())
        media_type = self._response_type(request)
        arguments = {name: given(request) for name, given in self._given.items()}
        if self._body_name:
            body = await receive_message(request, self._body_message, self.request_types)
            arguments[self._body_name] = required(body) if self._requires_body else body
        response: Response = await self.endpoint(**arguments)
        return _typed(response, media_type)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            query_texts(request.scope["query_string"], self._query_names())
            media_type = self._response_type(request)
            received = await self._receive(request)
            try:
                response = await handle(received)
            except RequestValidationError as error:
                raise received.refusal or ParameterError(f"{problems_in(error.errors())}.") from None
            return _typed(response, media_type)

        return answer

    @property
    def body_model(self) -> type[BaseModel]:
        """The model of the body, for routes with a body."""
        assert self.body_field is not None
        return _model_in(self.body_field.field_info.annotation)

    def _query_names(self) -> list[str]:
        """Return the fields of the query models."""
        models = (_model_in(field.field_info.annotation) for field in self.dependant.query_params)
        return [name for model in models for name in model.model_fields]

    @property
    def chooses_response_type(self) -> bool:
        """True if Accept is read, which it is not if no response has a body."""
        return bool(self.response_types) and self.status_code != 204

    def _response_type(self, request: Request) -> str:
        return response_media_type(request.headers, self.response_types) if self.chooses_response_type else JSON

    async def _receive_model(self, request: Request) -> BaseModel | None:
        body = await receive_json_body(request, self.request_types)
        found = model_in(body, self.body_model) if body else None
        return required(found) if self._requires_body else found

    async def _receive(self, request: Request) -> "_Received":
        """Return the request with its body read. A missing resource in the path is reported before an error of the
        body.
        """
        if self.body_field is None:
            return _Received(request)
        try:
            return _Received(request, await self._receive_model(request))
        except LogStoreError as refusal:
            return _Received(request, refusal=refusal)


class MetadataRoute(ModelRoute):
    """A route of REST Proxy v2: JSON, with the media type that the client asks for."""

    response_types: ClassVar[Sequence[str]] = METADATA_TYPES


class AdministrationRoute(ModelRoute):
    """A route of REST Proxy v3: JSON."""

    response_types = (JSON,)


class _Received(Request):
    """A request for FastAPI, with the model as its body, or ``_NO_MODEL`` for a body that was refused."""

    def __init__(self, request: Request, model: BaseModel | None = None, refusal: LogStoreError | None = None) -> None:
        super().__init__(request.scope, request.receive)
        self.refusal = refusal
        self._model = model

    async def body(self) -> bytes:
        return b"" if self._model is None and self.refusal is None else b"%d" % _NO_MODEL

    async def json(self) -> Any:
        return _NO_MODEL if self.refusal is not None else self._model


def model_router(route_class: type[ModelRoute] = ModelRoute, **options: Any) -> APIRouter:
    """Return an APIRouter whose routes are of ``route_class``."""
    # Naming 422 keeps FastAPI's own form of it out of the description.
    return APIRouter(route_class=route_class, responses=refusals(422), **options)


def _typed(response: Response, media_type: str) -> Response:
    if response.body and media_type != JSON:
        response.headers["Content-Type"] = media_type
    return response


def _message_in(annotation: Any) -> type[Message] | None:
    """Return the message of an annotation, which may be optional or have metadata; None if there is none."""
    found = (annotation, *get_args(annotation))
    return next((kind for kind in found if isinstance(kind, type) and issubclass(kind, Message)), None)


def _model_in(annotation: Any) -> type[BaseModel]:
    """Return the model of an annotation, which may be optional."""
    found = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next(kind for kind in found if issubclass(kind, BaseModel))
