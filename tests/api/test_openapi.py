import re
from typing import Any

import jsonschema
import pytest
from fastapi.routing import APIRoute
from openapi_spec_validator import OpenAPIV31SpecValidator

from ingest_api.routers import ROUTERS
from tests.api.api_client import ARROW, BINARY_V2, JSON_V2
from tests.api.golden_requests import ask

pytestmark = pytest.mark.anyio

OPERATIONS = sorted(
    (route.path, method.lower())
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute) and route.include_in_schema
    for method in route.methods or ()
)


@pytest.fixture
async def document(shared_api) -> dict[str, Any]:
    return (await shared_api.get("/openapi.json")).json()


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        found = [node["$ref"]] if "$ref" in node else []
        return found + [ref for value in node.values() for ref in references(value)]
    if isinstance(node, list):
        return [ref for value in node for ref in references(value)]
    return []


async def test_every_route_is_described_and_nothing_else(document):
    described = sorted((path, method) for path, methods in document["paths"].items() for method in methods)
    assert described == OPERATIONS


async def test_references_lead_somewhere_and_schemas_are_schemas(document):
    for reference in set(references(document)):
        prefix, _, name = reference.rpartition("/")
        assert prefix == "#/components/schemas"
        assert name in document["components"]["schemas"]
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_operations_have_unique_names_and_sentences(document):
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", name) for name in names)
    assert all(operation["description"].endswith(".") for operation in operations)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
async def test_an_operation_describes_its_path_body_answers_and_errors(document, path, method):
    operation = document["paths"][path][method]
    in_path = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
    assert in_path == set(re.findall(r"{(\w+)}", path))
    assert all("schema" in parameter for parameter in operation["parameters"])
    assert any(status.startswith("2") for status in operation["responses"])
    for status, answer in operation["responses"].items():
        assert "X-Request-Id" in answer["headers"]
        if int(status) >= 400:
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}
        elif status != "204":
            assert answer["content"]
    if operation["operationId"] in ("makeErasuresTopic", "eraseFromJournal"):  # brokers send these to each other
        assert "requestBody" not in operation
    elif method in ("post", "put", "patch"):
        assert operation["requestBody"]["content"]
        assert {"413", "415", "422"} <= set(operation["responses"])
    elif operation["operationId"] != "getConsumerInstanceOffsets":  # it is REST Proxy's, and has a body
        assert "requestBody" not in operation


async def test_parameters_show_their_bounds_and_defaults(document):
    parameters = document["paths"]["/topics/{topic}/partitions/{partition}/records"]["get"]["parameters"]
    by_name = {parameter["name"]: parameter["schema"] for parameter in parameters}
    assert by_name["max_wait_ms"] == {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "maximum": 60_000,
        "default": 500,
    }
    produce = document["paths"]["/topics/{topic}"]["post"]
    (acks,) = [parameter for parameter in produce["parameters"] if parameter["name"] == "acks"]
    assert acks["schema"]["enum"] == ["all", "-1", "1", "0"]
    assert len(produce["requestBody"]["content"]) == 5
    assert "Idempotency-Key" in {parameter["name"] for parameter in produce["parameters"]}


async def test_media_types_are_those_there_are_and_a_body_is_no_null(document):
    paths = document["paths"]
    fetched = paths["/topics/{topic}/partitions/{partition}/records"]["get"]["responses"]["200"]["content"]
    assert set(fetched) == {JSON_V2, "application/json", BINARY_V2, ARROW}
    assert set(paths["/fetch"]["post"]["responses"]["200"]["content"]) == {"application/vnd.logstore.fetch"}
    assert set(paths["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}
    assert set(paths["/status"]["get"]["responses"]["200"]["content"]) == {"application/json"}
    kafka = {"application/vnd.kafka.v2+json", "application/vnd.kafka+json", "application/json"}
    assert set(paths["/topics"]["get"]["responses"]["200"]["content"]) == kafka
    roll = paths["/topics/{topic}/roll"]["post"]["requestBody"]
    assert set(roll["content"]) == kafka
    assert roll["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/RollRequest"}
    assert (roll["required"], paths["/groups/{group}/offsets"]["post"]["requestBody"]["required"]) == (False, True)


async def test_bounds_of_64_bits_are_exact(document):
    lag = document["components"]["schemas"]["PartitionLag"]["properties"]["lag"]
    assert (lag["maximum"], type(lag["maximum"])) == (2**63 - 1, int)


async def test_the_description_is_valid_openapi(document):
    OpenAPIV31SpecValidator(document).validate()


async def test_every_answer_is_described_and_fits_its_schema(api, document):
    """Send good and bad requests."""
    schemas: dict[tuple[str, str, int, str], jsonschema.Draft202012Validator] = {}
    statuses: dict[str, set[int]] = {}
    async for name, method, path, answer in ask(api):
        found = api.app.declared_routes.find(method, path.partition("?")[0].encode())
        if found is None:
            continue
        operation = document["paths"][found.route.path]["get" if method == "HEAD" else method.lower()]
        assert str(answer.status_code) in operation["responses"], name
        statuses.setdefault(operation["operationId"], set()).add(answer.status_code)
        described = operation["responses"][str(answer.status_code)]
        if "content" not in described:
            assert not answer.content, name
            continue
        if method == "HEAD":
            continue
        media_type = answer.headers["Content-Type"]
        key = (found.route.path, method, answer.status_code, media_type)
        if key not in schemas:
            schema = {**described["content"][media_type]["schema"], "components": document["components"]}
            schemas[key] = jsonschema.Draft202012Validator(schema)
        schemas[key].validate(answer.json())
    for name, seen in statuses.items():
        # One node has nothing to cancel.
        assert seen & {200, 201, 202, 204} or name == "cancelReassignment", f"{name} was never answered well"
    assert statuses["createTopic"] >= {200, 201, 400, 404, 406, 413, 415, 422}


async def test_answers_with_records_fit_their_schemas(api, document):
    await api.create_topic("t")
    await api.produce("t", [{"a": 1}, None])
    answer = await api.get("/topics/t/partitions/0/records")
    operation = document["paths"]["/topics/{topic}/partitions/{partition}/records"]["get"]
    schema = operation["responses"]["200"]["content"][answer.headers["Content-Type"]]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    produced = await api.post("/topics/t", json={"records": [{"value": 1}]}, headers={"Content-Type": JSON_V2})
    jsonschema.validate(
        produced.json(), {**document["components"]["schemas"]["ProducedOffsets"], "components": document["components"]}
    )
