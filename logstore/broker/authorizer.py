"""The authorizer: may this principal do this operation on this resource (Kafka's ``Authorizer``)?

The broker's rooms and the groups ask it, so that no listener can forget to. Names of topics also come in bodies, so
each name is checked separately. Today everybody may do everything. Invariants: a decision is remembered only as long as
the view that made it is the current one; a waiting long poll is woken at once by a new view.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from logstore.broker.context import INTERNAL, Principal, RequestContext
from logstore.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
)
from logstore.limits import TOPIC_NAME_LENGTH_MAX


class Operation(StrEnum):
    """Kafka's operations (``AclOperation``)."""

    __hash__ = str.__hash__  # Enum's own is not a C function: it would be half of a decision's time

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"


class ResourceType(StrEnum):
    """Kafka's resource types (``ResourceType``)."""

    __hash__ = str.__hash__

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"


#: Kafka's name of the one resource of type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"

_DECISIONS_MAX = 100_000
# Few groups have longer names. Their decisions are not remembered, which bounds the memory of the others.
_NAME_LENGTH_MAX = TOPIC_NAME_LENGTH_MAX
_ERRORS: dict[ResourceType, type[AuthorizationError]] = {
    ResourceType.TOPIC: TopicAuthorizationError,
    ResourceType.GROUP: GroupAuthorizationError,
    ResourceType.CLUSTER: ClusterAuthorizationError,
}


class AuthorizerView(Protocol):
    """All rules (Kafka's ACLs) as of one ``version``. Its decisions never change: a changed rule makes another view.

    The view decides which operation implies another one, as in Kafka (READ, WRITE, DELETE, ALTER imply DESCRIBE).
    """

    @property
    def version(self) -> int: ...

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool: ...


@dataclass(frozen=True, slots=True)
class AllowAll:
    """Everybody may do everything."""

    version: int = 0

    def allows(self, *_: object) -> bool:
        return True


class Authorizer:
    """Decides by its current view. It belongs to the broker's event loop, as do its callers."""

    def __init__(self, view: AuthorizerView | None = None) -> None:
        self._view = view or AllowAll()
        # By principal and its groups, host, operation and type; then by name.
        self._decisions: dict[tuple[Principal, str, Operation, ResourceType], dict[str, bool]] = {}
        self._count = 0
        self._readers: dict[asyncio.Future[bool], None] = {}

    @property
    def view(self) -> AuthorizerView:
        return self._view

    def replace(self, view: AuthorizerView) -> None:
        """Decide by ``view`` from now on, unless a later one is already in force."""
        if view.version > self._view.version:
            self._view = view
            self._forget()
            readers, self._readers = self._readers, {}
            for woken in readers:
                if not woken.done():
                    woken.set_result(True)

    def add_reader(self, woken: "asyncio.Future[bool]") -> None:
        """Set ``woken`` to true when the view is replaced, unless ``remove_reader`` comes first."""
        self._readers[woken] = None

    def remove_reader(self, woken: "asyncio.Future[bool]") -> None:
        self._readers.pop(woken, None)

    def authorize(
        self, context: RequestContext, operation: Operation, resource_type: ResourceType, names: Sequence[str]
    ) -> list[str]:
        """Return the ``names`` on which the operation is allowed, in their order; all of them for INTERNAL."""
        if context is INTERNAL:
            return list(names)
        key = (context.principal, context.peer, operation, resource_type)
        known = self._decisions.get(key)
        if known is None:
            known = self._decisions[key] = {}
        allowed = []
        for name in names:
            decision = known.get(name)
            if decision is None:
                decision = self._view.allows(*key, name)
                if len(name) <= _NAME_LENGTH_MAX:
                    known[name] = decision
                    self._count += 1
            if decision:
                allowed.append(name)
        if self._count > _DECISIONS_MAX or len(self._decisions) > _DECISIONS_MAX:
            self._forget()
        return allowed

    def require(self, context: RequestContext, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raise the AuthorizationError of the type unless the operation is allowed on ``name``."""
        if context is INTERNAL:
            return
        known = self._decisions.get((context.principal, context.peer, operation, resource_type))
        if known is not None and known.get(name):
            return
        if not self.authorize(context, operation, resource_type, (name,)):
            raise refusal(context, operation, resource_type, name)

    def require_create(self, context: RequestContext, topic: str) -> None:
        """Raise TopicAuthorizationError unless CREATE is allowed on the cluster, or on the topic of that name."""
        if not self.authorize(context, Operation.CREATE, ResourceType.CLUSTER, (CLUSTER_NAME,)):
            self.require(context, Operation.CREATE, ResourceType.TOPIC, topic)

    def require_cluster(self, context: RequestContext, operation: Operation) -> None:
        """Raise ClusterAuthorizationError unless the operation is allowed on the cluster."""
        self.require(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def described(self, context: RequestContext, names: Sequence[str]) -> frozenset[str]:
        """Return the ``names`` of topics that the principal may describe."""
        return frozenset(self.authorize(context, Operation.DESCRIBE, ResourceType.TOPIC, names))

    def _forget(self) -> None:
        self._decisions = {}
        self._count = 0


def refusal(
    context: RequestContext, operation: Operation, resource_type: ResourceType, name: str
) -> AuthorizationError:
    """Return the error for a name that ``authorize`` did not allow."""
    return _ERRORS.get(resource_type, AuthorizationError)(
        f"{context.principal} may not {operation} the {resource_type.lower()} {name!r}: ask for the permission."
    )
