"""URLs of resources in REST v3 answers."""

from urllib.parse import quote

from starlette.requests import Request

from ingest_api.schemas.administration import ListMetadata, ResourceMetadata
from logstore.broker.broker import Broker


def link(request: Request, *parts: str) -> str:
    """The URL of a resource below ``/v3/clusters``, as this client reaches it."""
    host, port = address(request)
    where = ":".join(filter(None, (host, port)))
    path = "/".join(quote(part, safe=":") for part in ("v3", "clusters", *parts))
    return f"{request.scope['scheme']}://{where}/{path}"


def address(request: Request) -> tuple[str, str]:
    """Host and port by which this client reaches the store; the port is "" if the client named none."""
    named = request.headers.get("host")
    if named is None:
        named = "{}:{}".format(*(request.scope.get("server") or ("localhost", 80)))
    # An IPv6 address has colons, and stands in brackets.
    host, colon, port = named.rpartition(":")
    return (host, port) if colon and "]" not in port else (named, "")


def list_metadata(request: Request, *parts: str) -> ListMetadata:
    return ListMetadata(self=link(request, *parts))


def resource_metadata(request: Request, broker: Broker, /, **parts: str) -> ResourceMetadata:
    """Metadata of the cluster, or of the topic or configuration that ``parts`` name."""
    path = [step for kind, name in parts.items() for step in (f"{kind}s", name)]
    names = "".join(f"/{kind}={name}" for kind, name in parts.items())
    return ResourceMetadata(
        self=link(request, broker.cluster_id, *path), resource_name=f"crn:///kafka={broker.cluster_id}{names}"
    )
