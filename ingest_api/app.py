"""The FastAPI application: routers, error handlers and the broker's life around them."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from consumer_offsets.group_coordinator import GroupCoordinator
from ingest_api import openapi
from ingest_api.errors import MethodNotAllowedError, add_error_handlers, log_store_error_response
from ingest_api.request_context import RequestContextMiddleware
from ingest_api.routers import ROUTERS
from ingest_api.state import ApiState
from logstore import __version__
from logstore.broker.broker import Broker
from logstore.settings import Settings

_DESCRIPTION = (
    "A log store with the interface of Kafka's REST Proxy (v2 for records and metadata, v3 for administration); "
    "topics are Delta tables."
)


def create_app(settings: Settings) -> FastAPI:
    """The application. Its lifespan starts and stops the broker, which locks ``settings.data``, and the groups on it.

    Starting raises what ``Broker.start`` and ``GroupCoordinator.start`` raise.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Broker.running(settings) as broker, GroupCoordinator.running(broker) as groups:
            app.state.api = ApiState(settings, broker, groups)
            try:
                yield
            finally:
                app.state.api.close()

    app = FastAPI(
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
