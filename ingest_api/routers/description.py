"""The description of the interface itself."""

from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from ingest_api.routes import declared_router, open_to_all

router = declared_router()


@router.get("/openapi.json", include_in_schema=False)
@open_to_all
async def describe(request: Request) -> Response:
    """What ``openapi`` makes of the routes."""
    return JSONResponse(request.app.openapi())
