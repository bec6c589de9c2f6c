"""URLs of resources in REST v3 responses."""

from typing import Final
from urllib.parse import quote, urlencode

from msgspec import structs
from starlette.requests import Request

from ingest_api.parameters import IntegerParameter
from ingest_api.routes import GROUP_IN_QUERY
from logstore.broker.broker import Broker
from logstore.protocol.messages.administration import ListMetadata, PageQuery, ResourceMetadata

#: Entries of a page. They are made on the event loop, in about 50 us each.
PAGE_SIZE_MAX: Final = 1_000
_PAGE_SIZE: Final = IntegerParameter("page_size", 1, PAGE_SIZE_MAX, None, "")


def link(request: Request, *parts: str) -> str:
    """Return the URL of a resource below ``/v3/clusters``, as this client reaches it."""
    query = ""
    if parts[1:2] == ("consumer-groups",) and len(parts) > 2 and parts[2] in ("", ".", ".."):
        query = f"?group={parts[2]}"
        parts = (*parts[:2], GROUP_IN_QUERY, *parts[3:])
    path = "/".join(quote(part, safe=":") for part in ("v3", "clusters", *parts))
    return f"{store_url(request)}/{path}{query}"


def store_url(request: Request) -> str:
    """Return the URL of the store, as this client reaches it."""
    where = ":".join(filter(None, address(request)))
    return f"{request.scope['scheme']}://{where}"


def address(request: Request) -> tuple[str, str]:
    """Return host and port by which this client reaches the store; the port is "" if the client named none."""
    named = request.headers.get("host")
    if named is None:
        named = "{}:{}".format(*(request.scope.get("server") or ("localhost", 80)))
    # An IPv6 address has colons, and is in brackets.
    host, colon, port = named.rpartition(":")
    return (host, port) if colon and "]" not in port else (named, "")


def list_metadata(
    request: Request, *parts: str, query: PageQuery | None = None, next_token: str | None = None
) -> ListMetadata:
    """Return the metadata of a list. That of a page has the link to the next one, if there is a ``next_token``."""
    whole = link(request, *parts)
    if query is None:
        return ListMetadata(self=whole)
    given = {name: value for name, value in structs.asdict(query).items() if value is not None}
    following = None if next_token is None else f"{whole}?{urlencode({**given, 'page_token': next_token})}"
    return ListMetadata(self=f"{whole}?{urlencode(given)}" if given else whole, next=following)


def page_size(query: PageQuery) -> int:
    """Return the number of entries that a page may have. Raises ParameterError."""
    return PAGE_SIZE_MAX if query.page_size is None else _PAGE_SIZE.read(query.page_size)


def resource_metadata(request: Request, broker: Broker, /, **parts: str) -> ResourceMetadata:
    """Return the metadata of the cluster, or of the topic or configuration that ``parts`` name."""
    path = [step for kind, name in parts.items() for step in (f"{kind}s", name)]
    names = "".join(f"/{kind}={name}" for kind, name in parts.items())
    return ResourceMetadata(
        self=link(request, broker.cluster_id, *path), resource_name=f"crn:///kafka={broker.cluster_id}{names}"
    )


def reassignment_link(request: Request, broker: Broker, topic: str, partition: str) -> str:
    """Return the URL of reassignments; ``-`` means all topics, or all partitions."""
    return link(request, broker.cluster_id, "topics", topic, "partitions", partition, "reassignment")
