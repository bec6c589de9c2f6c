"""The description of the HTTP interface in ``/openapi.json``, complete enough to generate a client from.

FastAPI makes it from the routes and their models. This module adds what FastAPI does not know: headers, the media types
to choose from, refusals, examples.
"""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from ingest_api.content_types import JSON
from ingest_api.examples import add_examples
from ingest_api.message_models import model_of
from ingest_api.model_routes import ModelRoute
from ingest_api.operations import (
    COMMON_HEADERS,
    CONTENT_ENCODING,
    MESSAGES,
    REFERENCE,
    REQUEST_ID_HEADER,
    common_refusals,
    refusals,
)
from ingest_api.routes import DeclaredRoute


def describe(app: FastAPI, routes: Iterable[DeclaredRoute]) -> dict[str, Any]:
    """Return the whole document; ``routes`` are those of ``app``."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for route in routes:
        if isinstance(route, ModelRoute):
            for method in route.methods or ():
                _complete(document["paths"][route.path][method.lower()], route)
    models = [*_models(routes), *((model_of(message), "validation") for message in MESSAGES)]
    _, definitions = models_json_schema(models, ref_template=REFERENCE)
    # These replace FastAPI's schemas, which have 64-bit bounds as floating-point numbers.
    document["components"]["schemas"] = definitions["$defs"]
    add_examples(document)
    return document


def _models(routes: Iterable[DeclaredRoute]) -> Iterator[tuple[type[BaseModel], JsonSchemaMode]]:
    """Yield the models of bodies and responses; the models within them are included."""
    for route in routes:
        if not isinstance(route, ModelRoute):
            continue
        if route.body_field is not None:
            yield route.body_model, "validation"
        for kind in (route.response_model, *get_args(route.response_model)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield kind, "serialization"


def _complete(operation: dict[str, Any], route: ModelRoute) -> None:
    """Add what FastAPI does not know about the routes that it describes."""
    operation["parameters"] = [*operation.get("parameters", ()), *COMMON_HEADERS]
    answers: dict[str, Any] = operation["responses"]
    for status, answer in answers.items():
        answer["headers"] = {**REQUEST_ID_HEADER, **answer.get("headers", {})}
        if status.startswith("2") and "content" in answer and route.response_types:
            answer["content"] = dict.fromkeys(route.response_types, answer["content"][JSON])
    body = operation.get("requestBody")
    if body is not None and route.body_field is not None:
        operation["parameters"].append(CONTENT_ENCODING)
        body["required"] = route.body_field.field_info.is_required()
        # An optional body must not be null.
        schema = {"$ref": REFERENCE.format(model=route.body_model.__name__)}
        body["content"] = {media_type: {"schema": schema} for media_type in route.request_types}
    failures = common_refusals(has_path="{" in route.path, has_body=body is not None)
    if route.chooses_response_type:
        failures |= refusals(406)
    for code, failure in failures.items():
        answers.setdefault(str(code), failure)
    operation["responses"] = dict(sorted(answers.items()))
