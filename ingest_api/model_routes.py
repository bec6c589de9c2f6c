"""Routes whose query, body and answer are models: FastAPI injects, checks, writes and documents them.

Where FastAPI is more lenient than the interface promises, these routes step in before it. Invariants: a query parameter
is known, given once and has a value; a body is JSON by its Content-Type, bounded in bytes and time, and has each field
once (``bodies``); nothing is done before Accept is known to allow an answer; a part that cannot be read raises a
LogStoreError, so that every refusal has the one shape of ``errors``.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Final, get_args

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ingest_api.bodies import problems_in, receive_model, receive_model_or_none
from ingest_api.content_types import JSON, JSON_REQUEST_TYPES, METADATA_TYPES, answer_media_type
from ingest_api.errors import ParameterError
from ingest_api.operations import refusals
from ingest_api.parameters import query_texts
from ingest_api.routes import DeclaredRoute
from logstore.errors import LogStoreError

#: Stands for a body that could not be read: no model takes it.
_NO_MODEL: Final = 0


class ModelRoute(DeclaredRoute):
    """``answer_types``: the media types that Accept chooses from; without any the answer is always JSON.
    ``request_types`` are those of bodies.
    """

    by_hand: ClassVar[bool] = False
    answer_types: ClassVar[Sequence[str]] = ()
    request_types: ClassVar[Sequence[str]] = JSON_REQUEST_TYPES

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            query_texts(request.scope["query_string"], self._query_names())
            media_type = answer_media_type(request.headers, self.answer_types) if self.chooses_answer_type else JSON
            received = await self._receive(request)
            try:
                response = await handle(received)
            except RequestValidationError as error:
                raise received.refusal or ParameterError(f"{problems_in(error.errors())}.") from None
            if response.status_code == 204:
                return Response(status_code=204)
            response.headers["Content-Type"] = media_type
            return response

        return answer

    @property
    def body_model(self) -> type[BaseModel]:
        """The model of the body; for routes that take one."""
        assert self.body_field is not None
        return _model_in(self.body_field.field_info.annotation)

    def _query_names(self) -> list[str]:
        """The fields of the query models."""
        models = (_model_in(field.field_info.annotation) for field in self.dependant.query_params)
        return [name for model in models for name in model.model_fields]

    @property
    def chooses_answer_type(self) -> bool:
        """Whether Accept is read: not if no answer has a body."""
        return bool(self.answer_types) and self.status_code != 204

    async def _receive(self, request: Request) -> "_Received":
        """The request with its body read. A missing resource in the path comes before an error of the body."""
        if self.body_field is None:
            return _Received(request)
        receive = receive_model if self.body_field.field_info.is_required() else receive_model_or_none
        try:
            return _Received(request, await receive(request, self.body_model, self.request_types))
        except LogStoreError as refusal:
            return _Received(request, refusal=refusal)


class MetadataRoute(ModelRoute):
    """As in REST Proxy v2: JSON, by the media type that the client asks for."""

    answer_types: ClassVar[Sequence[str]] = METADATA_TYPES


class AdministrationRoute(ModelRoute):
    """As in REST Proxy v3: JSON."""

    answer_types = (JSON,)


class _Received(Request):
    """A request as FastAPI sees it: with the model as its body, or ``_NO_MODEL`` for a body that was refused."""

    def __init__(self, request: Request, model: BaseModel | None = None, refusal: LogStoreError | None = None) -> None:
        super().__init__(request.scope, request.receive)
        self.refusal = refusal
        self._model = model

    async def body(self) -> bytes:
        return b"" if self._model is None and self.refusal is None else b"%d" % _NO_MODEL

    async def json(self) -> Any:
        return _NO_MODEL if self.refusal is not None else self._model


def model_router(route_class: type[ModelRoute] = ModelRoute, **options: Any) -> APIRouter:
    """An APIRouter whose routes are of ``route_class``."""
    # Naming 422 keeps FastAPI's own form of it out of the description.
    return APIRouter(route_class=route_class, responses=refusals(422), **options)


def _model_in(annotation: Any) -> type[BaseModel]:
    """The model, also of one that may be left out."""
    found = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next(kind for kind in found if issubclass(kind, BaseModel))
