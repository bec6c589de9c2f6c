"""The FastAPI application: routers, error handlers and the broker's life around them."""

import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any

import prometheus_client
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from consumer_offsets.group_coordinator import GroupCoordinator
from ingest_api import openapi
from ingest_api.errors import MethodNotAllowedError, add_error_handlers, log_store_error_response
from ingest_api.request_context import RequestContextMiddleware
from ingest_api.routers import ROUTERS
from ingest_api.short_requests import ShortRequests
from ingest_api.state import ApiState
from ingest_api.topic_ids import topic_id_headers
from logstore import __version__
from logstore.broker.broker import Broker
from logstore.errors import LogStoreError
from logstore.settings import Settings

_RECORDS = ("/topics/", "/fetch")
# A path may have 64 KiB: this many of them at the worst.
_PATHS_CACHED = 256
_DESCRIPTION = (
    "A log store with the interface of Kafka's REST Proxy (v2 for records and metadata, v3 for administration); "
    "topics are Delta tables."
)


def create_app(settings: Settings) -> "Application":
    """The application. Its lifespan starts and stops the broker, which locks ``settings.data``, and the groups on it.

    Starting raises what ``Broker.start`` and ``GroupCoordinator.start`` raise. Until then ``state.api`` is None, and
    only what needs no store is answered: whether the process lives, its metrics, the description of the interface.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Broker.running(settings) as broker, GroupCoordinator.running(broker) as groups:
            app.state.api = ApiState(settings, broker, groups)
            # When each series was made: as many lines again, of use to nobody here.
            prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
            try:
                yield
            finally:
                app.state.api.close()

    app = Application(
        title="logstore",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        # The pages would load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Response,
    )
    app.state.api = None
    for router in ROUTERS:
        app.include_router(router)
    add_error_handlers(app)

    async def method_not_allowed(request: Request, _: Exception) -> Response:
        methods = ", ".join(allowed_methods(request.scope["path"]))
        return log_store_error_response(
            MethodNotAllowedError(f"{request.method} is not allowed here: use one of {methods}.", allow=methods)
        )

    app.add_exception_handler(405, method_not_allowed)
    app.add_middleware(RequestContextMiddleware, allowed_methods=allowed_methods)
    _describe_once(app)
    return app


class Application(FastAPI):
    """FastAPI, with a short way to the routes for records.

    What it does for them (one regular expression after another, layers of middleware, dependencies that there are none
    of) would take longer than the records themselves.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._record_routes = [
            route
            for router in ROUTERS
            for route in router.routes
            if isinstance(route, APIRoute) and route.path.startswith(_RECORDS) and "records" in route.tags
        ]
        self._records = RequestContextMiddleware(self._answer_records, allowed_methods)
        self._find = functools.lru_cache(_PATHS_CACHED)(self._find_route)
        self.short_requests = ShortRequests(lambda: self.state.api, self._find)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_RECORDS):
            found = self._find(scope["method"], scope["path"])
            if found is not None:
                scope["app"] = self
                scope["route"], scope["path_params"] = found
                await self._records(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def _find_route(self, method: str, path: str) -> tuple[APIRoute, dict[str, str]] | None:
        for route in self._record_routes:
            if method in (route.methods or ()) and (found := route.path_regex.match(path)):
                return route, found.groupdict()
        return None

    async def _answer_records(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await scope["route"].endpoint(Request(scope, receive, send))
        except LogStoreError as error:
            response = log_store_error_response(error, topic_id_headers(scope))
        await response(scope, receive, send)


def allowed_methods(path: str) -> list[str]:
    """The methods that ``path`` has, HEAD and OPTIONS with them; none if there is nothing there."""
    found = {
        method
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and route.path_regex.match(path)
        for method in route.methods or ()
    }
    if path == "/openapi.json":
        found = {"GET"}
    if not found:
        return []
    return sorted(found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set()))


def _describe_once(app: FastAPI) -> None:
    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.describe(app)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
