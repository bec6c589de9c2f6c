"""The FastAPI application: routers and error handlers behind one guard."""

from typing import TYPE_CHECKING, Any

import prometheus_client
from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ingest_api import openapi
from ingest_api.allowed_hosts import AllowedHosts
from ingest_api.errors import (
    MethodNotAllowedError,
    NoSuchResourceError,
    add_error_handlers,
    error_answer,
    log_store_error_response,
)
from ingest_api.event_stream import HEAD_ONLY
from ingest_api.guard import Arrival, Guard, enter
from ingest_api.request_log import RequestLog
from ingest_api.routers import ROUTERS
from ingest_api.routes import DeclaredRoute, FoundRoute, RouteTable
from ingest_api.short_requests import ShortRequests
from ingest_api.state import ApiState
from logstore import __version__
from logstore.broker.authorizer import Authorizer
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.forwarding import Target
from logstore.broker.quotas import Quotas
from logstore.errors import LogStoreError
from logstore.settings import Settings

if TYPE_CHECKING:  # A single node relays nothing.
    from ingest_api.relay import Relay

_DESCRIPTION = (
    "A log store with the interface of Kafka's REST Proxy (v2 for records and metadata, v3 for administration); "
    "topics are Delta tables."
)


def create_app(settings: Settings, authorizer: Authorizer, quotas: Quotas) -> "Application":
    """Return the application without a store, which ``open`` passes to it.

    Until then ``state.api`` is None, and only requests that need no store get a response: liveness, the metrics of the
    process, and the description of the interface.
    """
    # The times at which series were made are left out: nobody here uses these lines, which would double the output.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    app = Application(
        Guard(authorizer, quotas, AllowedHosts.of(settings)),
        title="logstore",
        version=__version__,
        description=_DESCRIPTION,
        # ``routers.description`` has its own routes, because FastAPI's pages load their scripts from another server.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_error_handlers(app)
    _describe_once(app)
    return app


class Application(FastAPI):
    """FastAPI behind one guard, with a shortcut to the routes for records.

    Every request passes, in this order: ``RequestLog``, search of the route, guard, in a cluster ``Relay``, endpoint.
    FastAPI sees no request that the guard has refused, none without a route, and none that another broker handles.

    The record routes bypass FastAPI: its regular expressions, layers of middleware and dependencies would take longer
    than the records themselves.
    """

    def __init__(self, guard: Guard, **options: Any) -> None:
        super().__init__(**options)
        self.guard = guard
        #: None on a single node.
        self.relay: Relay | None = None
        self.state.api = None
        self.router.route_class = DeclaredRoute
        self.declared_routes = RouteTable(ROUTERS)
        # The routes are added as they are: ``include_router`` would make each route again at the first request of every
        # store.
        self.router.routes.extend(self.declared_routes)
        self.short_requests = ShortRequests(self.declared_routes.find, guard)
        self._answer_logged = RequestLog(self._admit, guard.request_id_of)

    def open(self, state: ApiState, relay: "Relay | None" = None) -> None:
        """Respond to all requests from now on."""
        self.guard.in_cluster = relay is not None
        self.relay = relay
        self.state.api = self.short_requests.state = state

    def stop_waiting(self) -> None:
        """Let long polls respond at once, and report that the store is not ready."""
        if self.state.api is not None:
            self.state.api.stopping.set()

    def close(self) -> None:
        """Release what the application holds. It is called after the last response."""
        if self.state.api is not None:
            self.state.api.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["app"] = self
            await self._answer_logged(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        stack = super().build_middleware_stack()
        # ServerErrorMiddleware would respond to unexpected errors with text: RequestLog handles them on every way.
        assert isinstance(stack, ServerErrorMiddleware)
        return stack.app

    async def _admit(self, arrival: Arrival, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.declared_routes.find(arrival.method, scope["raw_path"])
        if found is None:
            self.guard.admit(arrival, None)
            await self._answer_without_route(scope)(scope, receive, send)
            return
        found, query_string = found.with_group_in(scope["query_string"])
        found.enter(scope)
        context = self.guard.admit(arrival, found)
        if self.relay is not None:
            await self._await_names(found, context, arrival.method)
            if (broker_id := self.relay.other_broker(found, context)) is not None:
                await self.relay.pass_on(broker_id, found.route.requirement.target, context, scope, receive, send)
                return
        enter(scope, context)
        scope["query_string"] = query_string
        if arrival.method == "HEAD":
            # The server leaves the body out.
            scope = {**scope, "method": "GET", HEAD_ONLY: True}
        if found.route.by_hand:
            await self._answer_by_hand(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _await_names(self, found: FoundRoute, context: RequestContext, method: str) -> None:
        """Wait in a cluster until this broker knows the names in the path. They may have been created at another broker
        a moment ago, or by this request, such as the topic of groups for the first group.
        """
        assert self.relay is not None
        await self.relay.until_target_known(found)
        if found.route.requirement.target is Target.GROUP_COORDINATOR and method in ("POST", "PUT"):
            await self.state.api.groups.until_there(context, found.path_parameters["group"])

    def _answer_without_route(self, scope: Scope) -> Response:
        method, path = scope["method"], scope["raw_path"]
        if not (methods := ", ".join(self.declared_routes.allowed_methods(path))):
            return log_store_error_response(
                NoSuchResourceError(f"No resource at {scope['path']!r}; GET /openapi.json lists what there is.")
            )
        if method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": methods})
        scope["route"] = self.declared_routes.first(path)
        return log_store_error_response(
            MethodNotAllowedError(f"{method} is not allowed here: use one of {methods}.", allow=methods)
        )

    async def _answer_by_hand(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await scope["route"].respond(request)
        except LogStoreError as error:
            response = error_answer(request, error)
        await response(scope, receive, send)


def _describe_once(app: Application) -> None:
    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.describe(app, app.declared_routes)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
