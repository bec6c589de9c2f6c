"""``GET /``: a page for people, with the topics that they may see. It needs no script, and loads nothing.

Clients that ask for JSON get the response of a path without a resource.
"""

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ingest_api.content_types import JSON, METADATA_TYPES, asks_for, response_media_type
from ingest_api.errors import NoSuchResourceError, NotAcceptableError
from ingest_api.guard import context_of
from ingest_api.parameters import read_query
from ingest_api.routers.status import topic_status
from ingest_api.routes import declared_router, open_to_all
from ingest_api.state import ApiState, api_state
from logstore import __version__
from logstore.broker.context import RequestContext
from logstore.errors import BrokerNotReadyError
from logstore.protocol.messages.status import TopicStatus

router = declared_router(include_in_schema=False)

_HTML: Final = "text/html"
#: A page of more topics would be long to load and to read.
_TOPICS_MAX: Final = 1_000
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid #ccc; padding: .3rem .6rem; text-align: right }
th:first-child, td:first-child { text-align: left }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } a { color: #8bf } }
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>logstore</title>
<style>{style}</style>
</head>
<body>
<h1>logstore {version}</h1>
<p>A log store with Kafka's model: topics, partitions, offsets, consumer groups. Every topic is a plain Delta table.</p>
<p><a href="/docs">HTTP interface</a> · <a href="/status">Status</a> · <a href="/metrics">Metrics</a> ·
<a href="/health/ready">Health</a> · <a href="/openapi.json">OpenAPI</a></p>
{content}
</body>
</html>
"""
_COLUMNS: Final = ("Topic", "Partitions", "Records", "Bytes", "Newest record")


@router.get("/")
@open_to_all
async def home(request: Request) -> Response:
    """Return the page; 404 for clients that ask for JSON."""
    if not _is_for_people(request):
        raise NoSuchResourceError("No resource at '/'; GET /openapi.json lists what there is.")
    read_query(request)
    try:
        content = _topics(api_state(request), context_of(request))
    except BrokerNotReadyError as error:
        content = f"<p>{escape(error.message)}</p>"
    page = _PAGE.format(style=_STYLE, version=escape(__version__), content=content)
    return Response(page, headers=_HEADERS, media_type=_HTML)


def _is_for_people(request: Request) -> bool:
    try:
        chosen = response_media_type(request.headers, (_HTML, *METADATA_TYPES))
    except NotAcceptableError:
        return False
    # Many client libraries send "application/json, */*".
    return chosen == _HTML and (asks_for(request.headers, (_HTML,)) or not asks_for(request.headers, (JSON,)))


def _topics(state: ApiState, context: RequestContext) -> str:
    """Return a table of the topics that the principal may describe, without internal ones."""
    broker = state.broker
    topics = broker.topics.served.all(context)
    if not topics:
        return "<p>There is no topic yet that you may see. Make one: <code>logstore topic create NAME</code></p>"
    now_ms = broker.clock.now_ms()
    rows = "\n".join(_row(topic_status(context, broker, topic), now_ms) for topic in topics[:_TOPICS_MAX])
    left_out = len(topics) - _TOPICS_MAX
    more = f'<p>And {left_out:,} more: <a href="/topics">all names</a></p>' if left_out > 0 else ""
    return f"<table>\n<tr>{_cells('th', _COLUMNS)}</tr>\n{rows}\n</table>\n{more}"


def _row(topic: TopicStatus, now_ms: int) -> str:
    name = f'<a href="/topics/{quote(topic.name, safe="")}">{escape(topic.name)}</a>'
    newest = "" if topic.newest_timestamp is None else f"{max(0, now_ms - topic.newest_timestamp) / 1000:,.0f} s ago"
    numbers = (topic.partitions, topic.records, topic.size_bytes + max(0, topic.unsealed_bytes))
    return f"<tr>{_cells('td', (name, *(f'{number:,}' for number in numbers), newest))}</tr>"


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{text}</{tag}>" for text in texts)
