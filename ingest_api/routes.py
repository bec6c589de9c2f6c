"""Routes: which one a request is for, and what each declares: the operation, by which the guard asks for permission,
and the broker of a cluster that answers.

Invariant: a route without such a declaration cannot be made.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from logstore.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from logstore.broker.forwarding import Target

# A path may have 64 KiB, so the cache holds at most this many times that.
_PATHS_CACHED: Final = 256
_FOUND: Final = "logstore.route"
_PARAMETERS: Final = {ResourceType.TOPIC: "topic", ResourceType.GROUP: "group"}
#: What the path of a route has to name, so that its target can be found.
_NAMED: Final = {
    Target.PARTITION_LEADER: ("topic", "partition"),
    Target.TABLE_LEADER: ("topic",),
    Target.GROUP_COORDINATOR: ("group",),
    Target.BROKER: ("broker_id",),
}

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Requirement:
    """The operation of a route, and the type of its resource; None: open to all.

    ``names_in`` the path: the guard asks before the body is read. The broker asks for every name, wherever it stands.
    """

    operation: Operation | None
    resource_type: ResourceType
    names_in: Literal["path", "body", "answer"]
    #: The broker that answers.
    target: Target = Target.ANY

    def names(self, path_parameters: Mapping[str, str]) -> Sequence[str]:
        """Names of the resources in the path."""
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
    """Declare the operation of an endpoint, and the broker that answers; stands below ``@router.get`` and its like.

    Without a ``target``, groups that the path names are answered by their coordinators, everything else by any broker.
    """
    if target is None:
        of_a_group = resource_type is ResourceType.GROUP and names_in == "path"
        target = Target.GROUP_COORDINATOR if of_a_group else Target.ANY

    def declare(endpoint: Endpoint) -> Endpoint:
        _declared[endpoint] = Requirement(operation, resource_type, names_in, target)
        return endpoint

    return declare


def open_to_all(endpoint: Endpoint) -> Endpoint:
    """Declare that the endpoint tells no more than anybody who reaches the port may know."""
    _declared[endpoint] = Requirement(None, ResourceType.CLUSTER, "path")
    return endpoint


class DeclaredRoute(APIRoute):
    """A route whose endpoint declares its operation (else TypeError). It runs only after the guard was asked.

    ``by_hand``: ``respond`` answers, without FastAPI between the request and the endpoint.
    """

    by_hand: bool = True

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        declared = _declared.get(endpoint)
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
        """The answer by hand: the endpoint takes the request as it is."""
        response: Response = await self.endpoint(request)
        return response

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Routes are found twice, here and by the framework, whose order may change some day.
        if scope.get(_FOUND) is not self:
            raise RuntimeError(f"The guard was not asked for the route {self.path}.")
        await super().handle(scope, receive, send)


def declared_router(**options: Any) -> APIRouter:
    """An APIRouter whose routes are DeclaredRoutes, done by hand; ``model_routes`` has the others."""
    # The answers are described by hand, too: FastAPI is to assume nothing of them.
    return APIRouter(route_class=DeclaredRoute, default_response_class=Response, **options)


class FoundRoute(NamedTuple):
    """``names``: the resources in the path, for which the guard asks."""

    route: DeclaredRoute
    path_parameters: dict[str, str]
    names: Sequence[str]

    def enter(self, scope: Scope) -> None:
        """Enter the route into the ``scope`` of the request."""
        scope[_FOUND] = scope["route"] = self.route
        scope["path_params"] = self.path_parameters


def operation_of(request: Request) -> Operation:
    """The operation that the request's route declares."""
    operation = request.scope[_FOUND].requirement.operation
    assert isinstance(operation, Operation)
    return operation


class RouteTable:
    """All routes, tried in the order of ``routers``. TypeError for a route without a declared operation."""

    def __init__(self, routers: Sequence[APIRouter]) -> None:
        self._routes: list[DeclaredRoute] = []
        for route in (route for router in routers for route in router.routes):
            if not isinstance(route, DeclaredRoute):
                raise TypeError(f"{route} does not say which operation it is: make its router with declared_router.")
            self._routes.append(route)
        self.find = functools.lru_cache(_PATHS_CACHED)(self._find)

    def __iter__(self) -> Iterator[DeclaredRoute]:
        return iter(self._routes)

    def _find(self, method: str, path: str) -> FoundRoute | None:
        """The route for ``method``; HEAD counts as GET."""
        if method == "HEAD":
            method = "GET"
        for route in self._routes:
            if method in (route.methods or ()) and (found := route.path_regex.match(path)):
                parameters = found.groupdict()
                return FoundRoute(route, parameters, route.requirement.names(parameters))
        return None

    def allowed_methods(self, path: str) -> list[str]:
        """The methods of ``path``, with HEAD and OPTIONS; none if there is no route."""
        found = {method for route in self._routes if route.path_regex.match(path) for method in route.methods or ()}
        if not found:
            return []
        return sorted(found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set()))

    def first(self, path: str) -> DeclaredRoute | None:
        """The first route at ``path``, whatever its method; None if there is none."""
        return next((route for route in self._routes if route.path_regex.match(path)), None)
