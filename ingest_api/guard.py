"""The one guard: every request passes it before anything is done for it, whichever way it comes.

The ways are the application's routes, HEAD, OPTIONS, paths without a route, and short requests, which bypass the
application. The guard checks ``Host`` and ``Origin`` (``allowed_hosts``), makes the ``RequestContext`` with its
principal, asks for permission for the operation that the route declares, and charges the quota of requests. The broker
asks the same ``Authorizer`` for every name, also for those in bodies.

A request that another broker relays has passed a guard there: its context comes with it (``relayed_context``) and is
accepted only on connections between brokers. Permission is asked again; the quota was charged there.
"""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from ingest_api.allowed_hosts import AllowedHosts
from ingest_api.routes import FoundRoute
from logstore.broker.authorizer import Authorizer
from logstore.broker.context import PLAINTEXT, ConnectionIdentity, Forwarding, Principal, RequestContext
from logstore.broker.quotas import QuotaKind, Quotas
from logstore.entropy import random_bits
from logstore.errors import InvalidRequestError, ThrottledError
from logstore.protocol.headers import RELAYED_CONTEXT

HeaderPairs = Sequence[tuple[bytes, bytes]]

REQUEST_ID: Final = b"x-request-id"
CLIENT_ID: Final = b"logstore-client-id"
FORWARD: Final = b"logstore-forward"
_NEVER: Final = b"never"
_SANE = re.compile(rb"[!-~](?:[ -~]{0,126}[!-~])?")
_IN_SCOPE: Final = "logstore.context"


class Arrival(msgspec.Struct, frozen=True):
    """A request before the guard. ``peer`` is an address; ``headers`` have lower-case names.

    ``relayed`` is the context of a request that another broker has admitted. ``identity`` is that of the connection.
    """

    method: str
    request_id: str
    client_id: str
    peer: str
    headers: HeaderPairs
    relayed: RequestContext | None = None
    identity: ConnectionIdentity = PLAINTEXT


class Guard:
    def __init__(self, authorizer: Authorizer, quotas: Quotas, hosts: AllowedHosts, listener: str = "HTTP") -> None:
        self.authorizer = authorizer
        self.quotas = quotas
        self._hosts = hosts
        self._listener = listener
        #: True if ``Logstore-Forward`` has a meaning.
        self.in_cluster = False
        # A request id is the guard's name and a number: 128 random bits take three times as long.
        self._name = f"{random_bits(64):016x}"
        self._requests = itertools.count(1)

    def request_id_of(self, headers: HeaderPairs) -> str:
        """Return the client's request id if it is fit for a log, else a new one."""
        return sane(headers, REQUEST_ID) or self.new_request_id()

    def new_request_id(self) -> str:
        return f"{self._name}{next(self._requests):016x}"

    def admit(self, arrival: Arrival, found: FoundRoute | None) -> RequestContext:
        """Return the context of a request that may be carried out; ``found`` is None if there is no route for it.

        Raises MisdirectedRequestError, ForeignOriginError, AuthorizationError, ThrottledError. It is called once for
        each request, because it charges the quota of requests.
        """
        if (context := arrival.relayed) is None:
            self._hosts.check(arrival.method, arrival.headers)
            context = self._context(arrival)
        if found is not None and found.names:
            operation, resource_type = found.route.requirement.operation, found.route.requirement.resource_type
            assert operation is not None
            for name in found.names:
                self.authorizer.require(context, operation, resource_type, name)
        seconds = 0.0 if arrival.relayed else self.quotas.charge(context, QuotaKind.REQUESTS, 1)
        if seconds > 0:
            raise ThrottledError(
                f"{context.principal} sends more requests than its quota allows: wait.",
                retry_after_s=math.ceil(seconds),
            )
        return context

    def _context(self, arrival: Arrival) -> RequestContext:
        principal = self._authenticate(arrival)
        forwarding = _forwarding(arrival.headers) if self.in_cluster else Forwarding.ALLOWED
        return RequestContext(
            arrival.request_id,
            arrival.client_id,
            self._listener,
            arrival.peer,
            arrival.identity.tls,
            principal,
            forwarding,
        )

    def _authenticate(self, arrival: Arrival) -> Principal:
        return arrival.identity.principal


def enter(scope: Scope, context: RequestContext) -> None:
    """Put ``context`` into the scope, where routes find it."""
    scope[_IN_SCOPE] = context


def context_of(request: Request) -> RequestContext:
    """Return the context of a request that the guard has admitted."""
    context = request.scope[_IN_SCOPE]
    assert isinstance(context, RequestContext)
    return context


def _forwarding(headers: HeaderPairs) -> Forwarding:
    for name, value in headers:
        if name == FORWARD:
            if value.lower() != _NEVER:
                raise InvalidRequestError("Logstore-Forward takes one value, never: leave it out, or send that.")
            return Forwarding.REFUSED
    return Forwarding.ALLOWED


def relayed_context(headers: HeaderPairs) -> RequestContext | None:
    """Return the context of a request from a connection between brokers; None if it cannot be read."""
    found = [value for name, value in headers if name == RELAYED_CONTEXT]
    try:
        return RequestContext.decode(found[0])
    except (IndexError, ValueError):
        return None


def sane(headers: HeaderPairs, wanted: bytes) -> str:
    """Return the header's value if it occurs once, is printable and has at most 128 characters; else ""."""
    values = [value for name, value in headers if name == wanted] if headers else ()
    return values[0].decode() if len(values) == 1 and _SANE.fullmatch(values[0]) else ""
