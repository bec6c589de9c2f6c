"""The models that FastAPI gets say what the messages say, and a body is the same message by either."""

import base64
import importlib
import json
import pkgutil
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from pydantic import ValidationError

from ingest_api.message_models import model_of
from logstore.protocol import messages
from logstore.protocol.messages.base import Message, Query, Request, Response
from logstore.protocol.messages.groups import CommitOffsetsRequest, ResetOffsetsRequest
from logstore.protocol.messages.members import ConsumerGroupHeartbeatRequest, JoinGroupRequest
from logstore.protocol.messages.records import FetchRequest, PartitionOffsets

MODULES = [
    importlib.import_module(f"{messages.__name__}.{module.name}") for module in pkgutil.iter_modules(messages.__path__)
]
MESSAGES: list[type[Message]] = [
    found
    for module in MODULES
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Message) and found.__module__ == module.__name__
]
BODIES = [
    found
    for found in MESSAGES
    if issubclass(found, Request) and not issubclass(found, Query) and structs.fields(found) and found is not Request
]


def values(schema: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    """JSON values of a schema of this interface, and at times one that its bounds exclude."""
    if "$ref" in schema:
        return values(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return st.one_of(*(values(one, definitions) for one in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object":
            fields = {name: values(one, definitions) for name, one in schema.get("properties", {}).items()}
            needed = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(needed, optional=fields)
        case "array":
            return st.lists(values(schema["items"], definitions), max_size=3)
        case "integer":
            return st.integers(schema.get("minimum", -(2**70)) - 1, schema.get("maximum", 2**70) + 1)
        case "string" if schema.get("format") == "uuid":
            return st.uuids().map(str)
        case "string" if "contentEncoding" in schema:
            return st.binary(max_size=8).map(lambda content: base64.b64encode(content).decode())
        case "string":
            return st.text(max_size=300)
        case "boolean":
            return st.booleans()
    return st.none()


def test_messages_have_names_of_their_own():
    names = [found.__name__ for found in MESSAGES]
    assert len(names) == len(set(names)) > 100


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_a_model_has_the_fields_of_its_message(message: type[Message]):
    sent = {field.alias or name: field.is_required() for name, field in model_of(message).model_fields.items()}
    assert sent == {field.encode_name: field.required for field in structs.fields(message)}


@pytest.mark.parametrize("message", BODIES, ids=lambda message: message.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_a_body_is_the_same_message_by_its_model_and_by_msgspec(message: type[Message], data: st.DataObject):
    model = model_of(message)
    schema = model.model_json_schema()
    body = json.dumps(data.draw(values(schema, schema.get("$defs", {})))).encode()
    try:
        decoded: Message | None = msgspec.json.decode(body, type=message)
    except msgspec.ValidationError:
        decoded = None
    try:
        taken: Message | None = message.of(model.model_validate_json(body))
    except ValidationError as error:
        if any(found["type"] == "value_error" for found in error.errors()):
            return  # Only ``check`` looks at fields together.
        taken = None
    assert taken == decoded


@pytest.mark.parametrize(
    ("message", "body", "says"),
    [
        (CommitOffsetsRequest, {"offsets": []}, "List should have at least 1 item"),
        (CommitOffsetsRequest, {"offsets": [{"topic": "t", "partition": "0", "offset": 1}]}, "valid integer"),
        (ConsumerGroupHeartbeatRequest, {"member_id": "m", "member_epoch": -3}, "greater than or equal to -2"),
        (ConsumerGroupHeartbeatRequest, {"member_id": "m", "member_epoch": 0, "server_assignor": "x"}, "'uniform' or"),
        (FetchRequest, {"partitions": [{"topic": "t", "partition": 0, "offset": 2**63}]}, "less than or equal to"),
        (JoinGroupRequest, {"member_id": "m", "protocols": [{"name": "r", "metadata": 1}]}, "is no text in base64"),
        (JoinGroupRequest, {"member_id": "", "protocols": [{"name": "r", "metadata": ""}]}, "at least 1 character"),
        (ResetOffsetsRequest, {"to": "latest", "shift_by": 1}, "give exactly one of to"),
        (ResetOffsetsRequest, {"to": "latest", "too": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_model_refuses_what_its_message_does_not_allow(message: type[Message], body: object, says: str):
    with pytest.raises(ValidationError, match=says):
        model_of(message).model_validate_json(json.dumps(body))


def test_a_response_has_all_its_fields_but_those_that_may_be_unset():
    class Found(Response, frozen=True):
        partition: int
        offset: int | None = None

    assert model_of(Found).model_json_schema(mode="serialization")["required"] == ["partition", "offset"]
    assert b"offset" not in msgspec.json.encode(PartitionOffsets(1, 2, 2)).replace(b"_offset", b"")
    required = model_of(PartitionOffsets).model_json_schema(mode="serialization")["required"]
    assert required == ["beginning_offset", "end_offset", "last_stable_offset"]
