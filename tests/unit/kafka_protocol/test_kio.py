"""kio, another implementation of Kafka's protocol, gives the same bytes and values, both ways.

The tests cover every API and version that is served, and Kafka's table of errors.
"""

import dataclasses
import datetime as dt
import enum
import inspect
import io
import random
import uuid
from typing import Any

import msgspec
import pytest
from kio import index
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_reader, entity_writer

from logstore import errors
from logstore.errors import LogStoreError
from logstore.kafka_protocol import error_numbers
from logstore.kafka_protocol.decoders import decoder
from logstore.kafka_protocol.definitions import MessageDefinition, request_and_response
from logstore.kafka_protocol.encoders import encoder
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import ZERO_UUID
from logstore.kafka_protocol.requests import write_request
from tests.support.kafka_messages import advertised_messages_and_versions, joined, name_of, plain, random_message

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def kio_class(definition: MessageDefinition, version: int) -> type:
    load = index.load_request_schema if definition.type == "request" else index.load_response_schema
    return load(definition.api_key, version)


def same_values(ours: Any, kios: Any, definition: MessageDefinition, version: int) -> bool:
    """Return whether both have the same values; kio's class has one version's fields, in the definition's order."""
    if not isinstance(ours, msgspec.Struct):
        if isinstance(ours, (list, tuple)):
            return len(ours) == len(kios) and all(
                same_values(*pair, definition, version) for pair in zip(ours, kios, strict=True)
            )
        return bytes_of(ours) == python_value(kios, ours)
    names = {field.name for field in dataclasses.fields(kios)}
    present = [name for name in ours.__struct_fields__ if kio_name(name, names)]
    return len(present) == len(names) and all(
        same_values(getattr(ours, name), getattr(kios, kio_name(name, names)), definition, version) for name in present
    )


def kio_name(name: str, names: set[str]) -> str | None:
    """Return the field's name in kio, which leaves units out of the names of times."""
    return next((each for each in (name, name.removesuffix("_ms")) if each in names), None)


def bytes_of(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def python_value(value: Any, like: Any) -> Any:
    """Return a value of kio as we represent it."""
    match value:
        case uuid.UUID():
            return value.bytes
        case dt.timedelta():
            return round(value.total_seconds() * 1000)
        case dt.datetime():
            return round((value - _EPOCH).total_seconds() * 1000)
        case enum.Enum():
            return value.value
        case None if like == ZERO_UUID:
            return ZERO_UUID
        case None if like == -1:
            return -1
    return bytes_of(value)


def kio_bytes(entity: Any) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


@pytest.mark.parametrize(("definition", "version"), list(advertised_messages_and_versions()), ids=name_of)
def test_the_same_bytes_have_the_same_values(definition: MessageDefinition, version: int):
    chance = random.Random(f"{definition.name} {version}")
    for message in (random_message(definition, version, chance, extremes=False) for _ in range(3)):
        written = joined(encoder(definition.name, version)(message, bytearray()))
        kios, size = entity_reader(kio_class(definition, version))(written, 0)
        assert size == len(written)
        assert same_values(message, kios, definition, version), (message, kios)
        assert kio_bytes(kios) == written
        assert plain(decoder(definition.name, version)(kio_bytes(kios))) == plain(message)


@pytest.mark.parametrize(("version", "header"), [(8, RequestHeaderV1), (9, RequestHeaderV2)])
@pytest.mark.parametrize("client_id", [None, "", "ein Gerät"])
def test_a_request_has_kafkas_header(version: int, header: type, client_id: str | None):
    request, _ = request_and_response(3)
    message = random_message(request, version, random.Random(1), extremes=False)
    written = joined(write_request(3, version, 77, client_id, message))
    assert int.from_bytes(written[:4], "big") == len(written) - 4
    kios, size = entity_reader(header)(written, 4)
    assert (kios.request_api_key, kios.request_api_version, kios.correlation_id, kios.client_id) == (
        3,
        version,
        77,
        client_id,
    )
    assert plain(decoder("MetadataRequest", version)(written, 4 + size)) == plain(message)


# ---- errors ----------------------------------------------------------------------------------------------------------

_KAFKAS = {each.value: each for each in ErrorCode}
_CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, LogStoreError)]
#: Kafka's clients retry these and give up in the end, although they will not succeed soon.
_REPEATED_IN_VAIN = {
    errors.UnknownTopicError,
    errors.UnknownTopicIdError,
    errors.UnknownPartitionError,
    errors.ElectionNotNeededError,
    errors.FencedLeaderEpochError,
    errors.QuarantinedError,
    errors.StorageError,
    errors.JournalFileLostError,
    errors.LockLostError,
    errors.MissingRecordsError,
    errors.CorruptionError,
    errors.NewerFormatError,
    errors.UnsupportedTableError,
}
#: Only brokers see these errors.
_BETWEEN_BROKERS = {errors.InvalidUpdateVersionError, errors.IneligibleReplicaError}


@pytest.mark.parametrize("cls", _CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_has_kafkas_name_and_number(cls: type[LogStoreError]):
    assert _KAFKAS[cls.kafka_code].name.upper() == cls.kafka_name


@pytest.mark.parametrize("cls", _CLASSES, ids=lambda cls: cls.__name__)
def test_clients_repeat_what_may_succeed_and_nothing_else(cls: type[LogStoreError]):
    repeated = _KAFKAS[number_of(cls.__new__(cls))].retriable
    if cls in _BETWEEN_BROKERS:
        return
    assert repeated == (cls.retriable or cls in _REPEATED_IN_VAIN)


def test_no_error_and_foreign_errors_have_kafkas_numbers():
    assert _KAFKAS[error_numbers.NONE].name == "none"
    assert _KAFKAS[number_of(ValueError("a bug"))].name == "unknown_server_error"
    assert number_of(errors.WrongBrokerError("another")) == errors.NotLeaderOrFollowerError.kafka_code
    assert number_of(errors.ZooKeeperUnavailableError("no answer")) == errors.RequestTimedOutError.kafka_code
