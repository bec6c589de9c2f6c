"""Routes: finds the route of a request. Each route declares its operation, by which the guard asks for permission, and
the broker of a cluster that is responsible.

Routes are found by the path as it was sent, because a name in it may have a slash, as ``%2F``. Names are decoded once,
here: the guard, the relay and the endpoint take them from the same ``FoundRoute``.

Invariant: a route without such a declaration cannot be made.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import unquote, unquote_to_bytes

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from logstore.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from logstore.broker.elsewhere.forwarding import Target

# A path may have 64 KiB, so the cache holds at most this many times that.
_PATHS_CACHED: Final = 256
_FOUND: Final = "logstore.route"
_PARAMETERS: Final = {ResourceType.TOPIC: "topic", ResourceType.GROUP: "group"}
#: The names that the path of a route must have, so that its target can be found.
_NAMED: Final = {
    Target.PARTITION_LEADER: ("topic", "partition"),
    Target.TABLE_LEADER: ("topic",),
    Target.GROUP_COORDINATOR: ("group",),
    Target.BROKER: ("broker_id",),
}

#: Replaces a group in a path when its name is in the query: ``/groups/-/offsets?group=..``. Without the parameter it is
#: the group of that name. Many clients and proxies remove ``.`` and ``..`` from a path, also as ``%2E``.
GROUP_IN_QUERY: Final = "-"
_ENCODED_SLASH: Final = re.compile("%2f", re.IGNORECASE)
# Replaces a slash in a name while a path is matched: no text that was decoded from UTF-8 has it.
_SLASH_IN_NAME: Final = "\udc2f"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Requirement:
    """The operation of a route, and the type of its resource; None: open to all.

    If ``names_in`` is the path, the guard asks before the body is read. The broker asks for every name, wherever it is.
    """

    operation: Operation | None
    resource_type: ResourceType
    names_in: Literal["path", "body", "answer"]
    #: The broker that is responsible for the route.
    target: Target = Target.ANY

    def names(self, path_parameters: Mapping[str, str]) -> Sequence[str]:
        """Return the names of the resources in the path."""
        if self.operation is None or self.names_in != "path":
            return ()
        if self.resource_type is ResourceType.CLUSTER:
            return (CLUSTER_NAME,)
        return (path_parameters[_PARAMETERS[self.resource_type]],)


_declared: dict[Callable[..., Any], Requirement] = {}


def requires(
    operation: Operation,
    resource_type: ResourceType,
    *,
    names_in: Literal["path", "body", "answer"] = "path",
    target: Target | None = None,
) -> Callable[[Endpoint], Endpoint]:
    """Declare the operation of an endpoint, and the broker that is responsible. It is placed below ``@router.get`` and
    the like.

    Without a ``target``, the coordinator is responsible for a group that the path names, and any broker for everything
    else.
    """
    if target is None:
        of_a_group = resource_type is ResourceType.GROUP and names_in == "path"
        target = Target.GROUP_COORDINATOR if of_a_group else Target.ANY

    def declare(endpoint: Endpoint) -> Endpoint:
        _declared[endpoint] = Requirement(operation, resource_type, names_in, target)
        return endpoint

    return declare


def open_to_all(endpoint: Endpoint) -> Endpoint:
    """Declare that the endpoint reveals no more than anybody who reaches the port may know."""
    _declared[endpoint] = Requirement(None, ResourceType.CLUSTER, "path")
    return endpoint


class DeclaredRoute(APIRoute):
    """A route whose endpoint declares its operation (else TypeError). It runs only after the guard was asked.

    With ``by_hand``, ``respond`` handles requests without FastAPI between the request and the endpoint.
    """

    by_hand: bool = True

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        declared = _declared.get(inspect.unwrap(endpoint))
        if declared is None:
            raise TypeError(f"The route {path} does not say which operation it is: put @requires(...) on its endpoint.")
        parameter = _PARAMETERS.get(declared.resource_type)
        if parameter is not None and (f"{{{parameter}}}" in path) != (declared.names_in == "path"):
            raise TypeError(f"The route {path} says that its names are in the {declared.names_in}: that is not so.")
        if missing := [name for name in _NAMED.get(declared.target, ()) if f"{{{name}}}" not in path]:
            raise TypeError(f"The route {path} does not name its {', '.join(missing)}: nobody can tell who answers it.")
        super().__init__(path, endpoint, **options)
        self.requirement = declared

    async def respond(self, request: Request) -> Response:
        """Respond by hand: the endpoint gets the request as it is."""
        response: Response = await self.endpoint(request)
        return response

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match what ``RouteTable`` found: the framework would look for slashes in the decoded path."""
        if _FOUND not in scope:
            return super().matches(scope)
        return (Match.FULL, {"endpoint": self.endpoint}) if scope[_FOUND] is self else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get(_FOUND) is not self:
            raise RuntimeError(f"The guard was not asked for the route {self.path}.")
        await super().handle(scope, receive, send)


def declared_router(**options: Any) -> APIRouter:
    """Return an APIRouter whose routes are DeclaredRoutes, done by hand; ``model_routes`` has the others."""
    # The responses are also described by hand: FastAPI must not assume anything about them.
    return APIRouter(route_class=DeclaredRoute, default_response_class=Response, **options)


class FoundRoute(NamedTuple):
    """``names`` are the resources in the path, for which the guard asks."""

    route: DeclaredRoute
    path_parameters: dict[str, str]
    names: Sequence[str]

    def with_group_in(self, query_string: bytes) -> "tuple[FoundRoute, bytes]":
        """Return the route with the group that the query names, and the rest of the query, if the path has
        GROUP_IN_QUERY. Otherwise return both unchanged.
        """
        if self.path_parameters.get("group") != GROUP_IN_QUERY:
            return self, query_string
        fields = query_string.split(b"&")
        values = [value for name, _, value in (field.partition(b"=") for field in fields) if name == b"group"]
        if len(values) != 1:
            return self, query_string
        try:
            group = unquote_to_bytes(values[0].replace(b"+", b" ")).decode()
        except UnicodeDecodeError:
            return self, query_string
        parameters = {**self.path_parameters, "group": group}
        rest = b"&".join(field for field in fields if field.partition(b"=")[0] != b"group")
        return FoundRoute(self.route, parameters, self.route.requirement.names(parameters)), rest

    def enter(self, scope: Scope) -> None:
        """Enter the route into the ``scope`` of the request."""
        scope[_FOUND] = scope["route"] = self.route
        scope["path_params"] = self.path_parameters


def operation_of(request: Request) -> Operation:
    """Return the operation that the request's route declares."""
    operation = request.scope[_FOUND].requirement.operation
    assert isinstance(operation, Operation)
    return operation


class RouteTable:
    """All routes, tried in the order of ``routers``. Raises TypeError for a route without a declared operation."""

    def __init__(self, routers: Sequence[APIRouter]) -> None:
        self._routes: list[DeclaredRoute] = []
        for route in (route for router in routers for route in router.routes):
            if not isinstance(route, DeclaredRoute):
                raise TypeError(f"{route} does not say which operation it is: make its router with declared_router.")
            self._routes.append(route)
        self.find = functools.lru_cache(_PATHS_CACHED)(self._find)

    def __iter__(self) -> Iterator[DeclaredRoute]:
        return iter(self._routes)

    def _find(self, method: str, raw_path: bytes) -> FoundRoute | None:
        """Return the route for ``method``; HEAD counts as GET. ``raw_path`` is percent-encoded, without the query."""
        if method == "HEAD":
            method = "GET"
        for route, found in self._at(raw_path):
            if method in (route.methods or ()):
                parameters = {name: text.replace(_SLASH_IN_NAME, "/") for name, text in found.groupdict().items()}
                return FoundRoute(route, parameters, route.requirement.names(parameters))
        return None

    def allowed_methods(self, raw_path: bytes) -> list[str]:
        """Return the methods of a path, with HEAD and OPTIONS; none if there is no route."""
        found = {method for route, _ in self._at(raw_path) for method in route.methods or ()}
        if not found:
            return []
        return sorted(found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set()))

    def first(self, raw_path: bytes) -> DeclaredRoute | None:
        """Return the first route at a path, whatever its method; None if there is none."""
        return next((route for route, _ in self._at(raw_path)), None)

    def _at(self, raw_path: bytes) -> Iterator[tuple[DeclaredRoute, re.Match[str]]]:
        """Yield the routes at a path, with or without a slash at its end; none for a path that is not UTF-8."""
        try:
            path = unquote(_ENCODED_SLASH.sub(_SLASH_IN_NAME, raw_path.decode("latin-1")), errors="strict")
        except UnicodeDecodeError:
            return
        if path.endswith("/") and path != "/":
            path = path[:-1]
        for route in self._routes:
            if found := route.path_regex.match(path):
                yield route, found
