import re
from typing import Any

import jsonschema
import pytest
from fastapi.routing import APIRoute

from ingest_api.routers import ROUTERS
from tests.api.api_client import JSON_V2

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
    if method in ("post", "put", "patch"):
        assert operation["requestBody"]["content"]
        assert {"413", "415", "422"} <= set(operation["responses"])
    else:
        assert "requestBody" not in operation


async def test_parameters_tell_their_bounds_and_defaults(document):
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


async def test_real_answers_fit_their_schemas(api, document):
    await api.create_topic("t")
    await api.produce("t", [{"a": 1}, None])
    cluster = f"/v3/clusters/{api.broker.cluster_id}"
    real = {
        "/topics": "/topics",
        "/topics/{topic}": "/topics/t",
        "/topics/{topic}/partitions": "/topics/t/partitions",
        "/topics/{topic}/partitions/{partition}": "/topics/t/partitions/0",
        "/topics/{topic}/partitions/{partition}/records": "/topics/t/partitions/0/records",
        "/topics/{topic}/partitions/{partition}/offsets": "/topics/t/partitions/0/offsets?timestamp=0",
        "/v3/clusters": "/v3/clusters",
        "/v3/clusters/{cluster_id}": cluster,
        "/v3/clusters/{cluster_id}/topics": f"{cluster}/topics",
        "/v3/clusters/{cluster_id}/topics/{topic}": f"{cluster}/topics/t",
        "/v3/clusters/{cluster_id}/topics/{topic}/configs": f"{cluster}/topics/t/configs",
        "/v3/clusters/{cluster_id}/topics/{topic}/configs/{name}": f"{cluster}/topics/t/configs/retention.ms",
        "/health/live": "/health/live",
        "/health/ready": "/health/ready",
    }
    for path, url in real.items():
        answer = await api.get(url)
        described = document["paths"][path]["get"]["responses"]["200"]["content"]
        schema = described[answer.headers["Content-Type"]]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    error = await api.get("/topics/t/partitions/9")
    jsonschema.validate(error.json(), document["components"]["schemas"]["ErrorBody"])
    produced = await api.post("/topics/t", json={"records": [{"value": 1}]}, headers={"Content-Type": JSON_V2})
    jsonschema.validate(
        produced.json(), {**document["components"]["schemas"]["ProducedOffsets"], "components": document["components"]}
    )
