"""The examples of every operation in the description fit their schemas, and a store takes them as they are."""

import json
import re
from typing import Any

import jsonschema
import pytest

from ingest_api.operations import ERRORS
from logstore.protocol.error_codes import ERROR_CODES, kind_of
from tests.api.api_client import ApiClient

pytestmark = pytest.mark.anyio

BINARY = "binary"
#: The operations of a member's life, in their order; operations that end something come last.
IN_ORDER = (
    "createTopic",
    "commitOffsets",
    "resetOffsets",
    "joinGroup",
    "syncGroup",
    "heartbeat",
    "createConsumerInstance",
    "subscribeConsumerInstance",
    "getConsumerInstanceSubscription",
    "unsubscribeConsumerInstance",
    "assignConsumerInstance",
)
LAST = (
    "retireColumns",
    "leaveGroup",
    "deleteGroup",
    "deleteGroups",
    "deleteConsumerInstance",
    "resetTopicConfig",
    "deleteTopic",
)
#: These members need another group: here the store assigns partitions, elsewhere the client itself does.
ANOTHER_GROUP = {"consumerGroupHeartbeat": "another"}
INSTANCES = "/consumers/"
ONCE = ("createTopic", "createConsumerInstance")
#: One node has no reassignment, and the erasure of the example is unknown.
NEVER_FOUND = ("getReassignment", "cancelReassignment", "getErasure", "eraseFromJournal")
ENDLESS = ("streamEvents", "streamConsumerInstance")
#: The answers of these have a different form for each media type of the request.
OTHER_FORMS = ("produce", "produceToPartition", "fetch")


@pytest.fixture
async def document(shared_api: ApiClient) -> dict[str, Any]:
    return (await shared_api.get("/openapi.json")).json()


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def contents(operation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return every body and answer except binary ones, each with its place and media type."""
    found = [("body", operation.get("requestBody", {}))]
    found += [(status, answer) for status, answer in operation["responses"].items()]
    return [
        (f"{place} {media_type}", content)
        for place, described in found
        for media_type, content in described.get("content", {}).items()
        if content["schema"].get("format") != BINARY
    ]


async def test_every_operation_has_a_summary_and_examples_that_fit(document):
    components = document["components"]
    for path, _, operation in operations(document):
        name = operation["operationId"]
        assert operation["summary"], name
        for parameter in operation["parameters"]:
            if parameter["in"] == "path":
                assert parameter["example"] is not None, f"{name}: {parameter['name']} in {path}"
                jsonschema.validate(parameter["example"], {**parameter["schema"], "components": components})
        for place, content in contents(operation):
            assert "example" in content, f"{name}: {place}"
            problem = jsonschema.Draft202012Validator({**content["schema"], "components": components})
            problem.validate(content["example"])


async def test_every_error_code_is_documented_with_its_status(document):
    """Check that each known code is in the description of its status, and that examples show codes of their status."""
    known = {code for code in ERROR_CODES.values() if code != kind_of(code)}
    assert {code for code in known if not re.search(rf"\b{code}\b", ERRORS[kind_of(code)])} == set()
    for _, _, operation in operations(document):
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                for content in answer["content"].values():
                    assert kind_of(content["example"]["error_code"]) == int(status)


async def test_a_store_takes_the_example_of_every_operation(api, document):
    def turn(operation: dict[str, Any]) -> int:
        name = operation["operationId"]
        if name in LAST:
            return LAST.index(name) + 1
        return IN_ORDER.index(name) - len(IN_ORDER) if name in IN_ORDER else 0

    for path, method, operation in sorted(operations(document), key=lambda entry: turn(entry[2])):
        name = operation["operationId"]
        if name in (*ENDLESS, *NEVER_FOUND):
            continue
        values = {p["name"]: p["example"] for p in operation["parameters"] if p["in"] == "path"}
        values |= {"cluster_id": api.broker.cluster_id}
        if "group" in values:
            values["group"] = "instances" if path.startswith(INSTANCES) else ANOTHER_GROUP.get(name, values["group"])
        bodies = operation.get("requestBody", {}).get("content", {None: {}})
        for media_type, content in bodies.items():
            if media_type is not None and "example" not in content:
                continue
            example = content.get("example")
            text = example if isinstance(example, str) else json.dumps(example)
            data = b"" if media_type is None else text.encode()
            headers = {} if media_type is None else {"Content-Type": media_type}
            answer = await api.request(method, path.format(**values), content=data, headers=headers)
            assert answer.status_code < 300, f"{name} {media_type} {data}: {answer.status_code} {answer.text}"
            shown = operation["responses"][str(answer.status_code)].get("content", {})
            if answer.content and "json" in answer.headers["Content-Type"] and name not in OTHER_FORMS:
                found = shown[answer.headers["Content-Type"]]["example"]
                assert same_fields(found, answer.json()), f"{name}: {found} is not like {answer.json()}"
            if name == "createTopic":
                await api.produce("clicks", [{"page": "/home"}] * 20)
            if name in ONCE:
                break


def same_fields(shown: Any, answered: Any) -> bool:
    """Return whether both are objects with the same fields, or of the same type."""
    if isinstance(shown, dict) and isinstance(answered, dict):
        return set(shown) == set(answered)
    return isinstance(shown, type(answered))
