"""The description of the interface itself, and ``/docs``, the page that shows it in a browser.

The page is Swagger UI, from the files of the package fastapi-swagger, whose code does not run. Invariant: a browser
that shows the page sends requests only to this store, as the Content-Security-Policy demands.
"""

import asyncio
import functools
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from ingest_api.parameters import read_query
from ingest_api.routes import declared_router, open_to_all

router = declared_router(include_in_schema=False)

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>logstore</title>
<link rel="icon" href="/docs/favicon.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
# By default Swagger UI has the document validated by its makers' server.
_START: Final = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#page",
  deepLinking: true,
  validatorUrl: null,
});
"""
# The style sheet has its icons in ``data:`` URLs.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@router.get("/openapi.json")
@open_to_all
async def describe(request: Request) -> Response:
    """Return the OpenAPI document of all routes."""
    return JSONResponse(request.app.openapi())


@router.get("/docs")
@open_to_all
async def docs(request: Request) -> Response:
    """Return the page."""
    read_query(request)
    return Response(_PAGE, headers={"Content-Security-Policy": _POLICY}, media_type="text/html")


@router.get("/docs/start.js")
@open_to_all
async def start_script(request: Request) -> Response:
    """Return the script that shows the document. The policy forbids scripts within the page."""
    read_query(request)
    return Response(_START, media_type="text/javascript")


@router.get("/docs/swagger-ui-bundle.js")
@open_to_all
async def swagger_script(request: Request) -> Response:
    return await _packaged(request, "swagger-ui-bundle.js", "text/javascript")


@router.get("/docs/swagger-ui.css")
@open_to_all
async def swagger_style(request: Request) -> Response:
    return await _packaged(request, "swagger-ui.css", "text/css")


@router.get("/docs/favicon.png")
@open_to_all
async def favicon(request: Request) -> Response:
    return await _packaged(request, "favicon-32x32.png", "image/png")


async def _packaged(request: Request, name: str, media_type: str) -> Response:
    read_query(request)
    return Response(await asyncio.to_thread(_packaged_bytes, name), media_type=media_type)


@functools.cache
def _packaged_bytes(name: str) -> bytes:
    # There is one copy in memory, however many clients load it and however slowly.
    found = distribution("fastapi-swagger").locate_file(f"fastapi_swagger/resources/{name}")
    return Path(str(found)).read_bytes()
