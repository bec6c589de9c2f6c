"""Whole requests and responses: headers, versions that are not served, and bytes after a message."""

import pytest

from logstore.errors import MalformedMessageError, UnsupportedVersionError
from logstore.kafka_protocol import messages
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.requests import Request, read_request, write_request
from logstore.kafka_protocol.responses import read_response, write_response
from tests.support.kafka_messages import joined

METADATA = messages.MetadataRequest(topics=[messages.MetadataRequest.MetadataRequestTopic(name="flights")])


def payload(*request) -> bytes:
    return joined(write_request(*request))[4:]


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize("client_id", [None, "", "a client", "ä" * 200])
def test_a_request_is_read_as_it_was_written(version: int, client_id: str | None):
    read = read_request(payload(3, version, -5, client_id, METADATA))
    assert (read.api_key, read.api_version, read.correlation_id, read.client_id) == (3, version, -5, client_id)
    assert [topic.name for topic in read.message.topics] == ["flights"]
    assert read.response_version == version


def test_bytes_behind_a_request_are_passed_over():
    """Add three bytes, as librdkafka does after an empty Metadata request of version 13."""
    read = read_request(payload(3, 13, 1, "rdkafka", messages.MetadataRequest(topics=None)) + b"\x00\x00\x00")
    assert read.message.topics is None


def test_tagged_fields_of_a_header_are_passed_over():
    frame = payload(3, 9, 1, "me", METADATA)
    head = 10 + len("me")
    assert frame[head] == 0
    with_tags = frame[:head] + b"\x02\x00\x03abc\x05\x00" + frame[head + 1 :]
    assert read_request(with_tags) == read_request(frame)
    with pytest.raises(MalformedMessageError):
        read_request(frame[:head] + b"\x01\x00\x7f")


@pytest.mark.parametrize("version", [5, 99, -1, 0x7FFF])
def test_api_versions_of_an_unknown_version_is_a_request_for_its_version_0(version: int):
    frame = bytearray(payload(18, 4, 12, "new", messages.ApiVersionsRequest()))
    frame[2:4] = version.to_bytes(2, "big", signed=True)
    read = read_request(bytes(frame))
    assert read == Request(api_key=18, api_version=version, correlation_id=12, client_id="new", message=None)
    assert read.response_version == 0


@pytest.mark.parametrize(
    ("key", "version", "said"),
    [
        (0, 2, "serves Produce in versions 3 to 13, not in 2"),
        (0, 14, "not in 14"),
        (8, 10, "OffsetCommit in versions 2 to 9, not in 10"),
        (3, -1, "not in -1"),
        (24, 0, "does not serve Kafka's API 24$"),
        (17, 1, "API 17: there is no SASL"),
        (0x4745, 0x5420, "API 18245"),
        (-1, 0, "API -1"),
    ],
)
def test_requests_that_are_not_served_are_refused_by_name(key: int, version: int, said: str):
    frame = b"".join(number.to_bytes(2, "big", signed=True) for number in (key, version)) + bytes(50)
    with pytest.raises(UnsupportedVersionError, match=said):
        read_request(frame)


@pytest.mark.parametrize("size", range(13))
def test_a_header_that_is_cut_is_malformed(size: int):
    with pytest.raises(MalformedMessageError):
        read_request(payload(3, 9, 1, "me", METADATA)[:size])


def test_a_client_id_is_within_its_request_and_utf_8():
    head = bytes.fromhex("0003 0009 00000001")
    for client_id in (b"\x7f\xff", b"\x00\x05abcd", b"\x00\x02\xff\xfe\x00\x00\x00\x00\x00"):
        with pytest.raises(MalformedMessageError, match="client id"):
            read_request(head + client_id)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_response_is_read_as_it_was_written(api):
    response = getattr(messages, f"{api.name}Response")()
    for version in range(api.version_min, api.version_max + 1):
        written = joined(write_response(api.key, version, 0x7FFFFFFF, response))
        assert int.from_bytes(written[:4], "big") == len(written) - 4
        correlation_id, read = read_response(api.key, version, written[4:])
        assert (correlation_id, type(read)) == (0x7FFFFFFF, type(response))


def test_a_flexible_response_has_a_flexible_header_but_that_of_api_versions():
    flexible = joined(write_response(12, 4, 7, messages.HeartbeatResponse(error_code=27)))
    assert flexible.hex(" ", 1) == "00 00 00 0c 00 00 00 07 00 00 00 00 00 00 1b 00"
    versions = joined(write_response(18, 3, 7, messages.ApiVersionsResponse(error_code=35)))
    assert versions.hex(" ", 1) == "00 00 00 0c 00 00 00 07 00 23 01 00 00 00 00 00"


def test_the_length_of_a_response_counts_its_records():
    records = memoryview(bytes(10_000))
    partition = messages.FetchResponse.PartitionData(records=[records, records[:100]])
    topic = messages.FetchResponse.FetchableTopicResponse(partitions=[partition])
    buffers = write_response(1, 13, 9, messages.FetchResponse(responses=[topic]))
    assert buffers[1] is records
    written = joined(buffers)
    assert int.from_bytes(written[:4], "big") == len(written) - 4 > 10_100


@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x01\x00\x05"])
def test_a_response_without_a_header_is_malformed(frame: bytes):
    with pytest.raises(MalformedMessageError):
        read_response(12, 4, frame)
