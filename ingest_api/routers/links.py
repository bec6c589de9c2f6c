"""URLs of resources in REST v3 answers."""

from urllib.parse import quote

from starlette.requests import Request

from ingest_api.schemas.administration import Link, ListMetadata, ResourceMetadata
from logstore.broker.broker import Broker


def link(request: Request, *parts: str) -> str:
    """The URL of a resource below ``/v3/clusters``, as this client reaches it."""
    return _link(request, "v3", "clusters", *parts)


def partitions_link(request: Request, topic: str) -> Link:
    """The URL of a topic's partitions, which only v2 describes."""
    return Link(related=_link(request, "topics", topic, "partitions"))


def list_metadata(request: Request, *parts: str) -> ListMetadata:
    return ListMetadata(self=link(request, *parts))


def resource_metadata(request: Request, broker: Broker, **parts: str) -> ResourceMetadata:
    """Metadata of the cluster, or of the topic or configuration that ``parts`` name."""
    path = [step for kind, name in parts.items() for step in (f"{kind}s", name)]
    names = "".join(f"/{kind}={name}" for kind, name in parts.items())
    return ResourceMetadata(
        self=link(request, broker.cluster_id, *path), resource_name=f"crn:///kafka={broker.cluster_id}{names}"
    )


def _link(request: Request, *parts: str) -> str:
    host = request.headers.get("host")
    if host is None:
        host = "{}:{}".format(*(request.scope.get("server") or ("localhost", 80)))
    return f"{request.scope['scheme']}://{host}/{'/'.join(quote(part, safe=':') for part in parts)}"
