"""The description of the HTTP interface in ``/openapi.json``, complete enough to generate a client from.

FastAPI makes it from the routes and their models. It knows nothing of what this interface does around every route:
headers, media types that are chosen from, refusals. That is added here.
"""

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from ingest_api.content_types import JSON, JSON_REQUEST_TYPES
from ingest_api.model_routes import ModelRoute
from ingest_api.operations import (
    CONTENT_ENCODING,
    MODELS,
    REFERENCE,
    REQUEST_HEADERS,
    REQUEST_ID_HEADER,
    common_refusals,
    refusals,
)
from ingest_api.routes import DeclaredRoute


def describe(app: FastAPI, routes: Iterable[DeclaredRoute]) -> dict[str, Any]:
    """The whole document; ``routes`` are those of ``app``."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for route in routes:
        if isinstance(route, ModelRoute):
            for method in route.methods or ():
                _complete(document["paths"][route.path][method.lower()], route)
    _, definitions = models_json_schema([(model, "validation") for model in MODELS], ref_template=REFERENCE)
    document["components"]["schemas"] |= definitions["$defs"]
    return document


def _complete(operation: dict[str, Any], route: ModelRoute) -> None:
    """Add what FastAPI does not know of the routes that it describes."""
    operation["parameters"] = [*operation.get("parameters", ()), *REQUEST_HEADERS]
    answers: dict[str, Any] = operation["responses"]
    for status, answer in answers.items():
        answer["headers"] = {**REQUEST_ID_HEADER, **answer.get("headers", {})}
        if status.startswith("2") and "content" in answer and route.answer_types:
            answer["content"] = dict.fromkeys(route.answer_types, answer["content"][JSON])
    body = operation.get("requestBody")
    if body is not None:
        operation["parameters"].append(CONTENT_ENCODING)
        body["content"] = dict.fromkeys(JSON_REQUEST_TYPES, body["content"][JSON])
    failures = common_refusals(has_path="{" in route.path, has_body=body is not None)
    if route.chooses_answer_type:
        failures |= refusals(406)
    for code, failure in failures.items():
        answers.setdefault(str(code), failure)
    operation["responses"] = dict(sorted(answers.items()))
