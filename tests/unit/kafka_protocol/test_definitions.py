"""Kafka's definitions, the classes that are made from them, and the table of APIs."""

import pytest

from conf.kafka_messages_stub import STUB, render
from logstore.kafka_protocol import messages
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.definitions import (
    Versions,
    message_definitions,
    parse_versions,
    request_and_response,
    snake_case,
)
from logstore.kafka_protocol.messages import ZERO_UUID


@pytest.mark.parametrize(
    ("text", "versions"),
    [("3", (3, 3)), ("3-7", (3, 7)), ("3+", (3, 0x7FFF)), ("none", (0, -1)), (None, (0, -1))],
)
def test_versions_are_a_range_with_both_ends(text: str | None, versions: tuple[int, int]):
    assert parse_versions(text) == versions


def test_a_version_is_in_a_range_up_to_its_last():
    assert [version in Versions(3, 5) for version in range(2, 7)] == [False, True, True, True, False]
    assert 0 not in parse_versions("none")


@pytest.mark.parametrize(
    ("kafka", "here"),
    [("Name", "name"), ("TimeoutMs", "timeout_ms"), ("IsKRaftController", "is_k_raft_controller"), ("PSKs", "ps_ks")],
)
def test_a_field_has_kafkas_name_in_snake_case(kafka: str, here: str):
    assert snake_case(kafka) == here


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_an_api_is_served_from_its_first_to_its_last_stable_version(api):
    request, response = request_and_response(api.key)
    assert (request.name, response.name) == (f"{api.name}Request", f"{api.name}Response")
    assert (api.version_min, api.version_max) == request.stable_versions
    assert response.versions == request.versions


def test_versions_that_may_still_change_are_not_served():
    unstable = {api.name for api in APIS.values() if request_and_response(api.key)[0].latest_version_unstable}
    assert unstable == {"OffsetCommit", "OffsetFetch", "InitProducerId"}
    assert APIS[8].version_max == 9


def test_clients_see_produce_from_version_0_as_from_kafka():
    assert {api.name for api in APIS.values() if api.advertised_min != api.version_min} == {"Produce"}
    assert APIS[0].advertised_min == 0


def test_a_class_has_kafkas_defaults():
    partition = messages.FetchResponse.PartitionData()
    assert (partition.last_stable_offset, partition.preferred_read_replica, partition.records) == (-1, -1, None)
    assert partition.diverging_epoch == messages.FetchResponse.EpochEndOffset(epoch=-1, end_offset=-1)
    request = messages.FetchRequest()
    assert (request.max_bytes, request.cluster_id, request.topics, request.rack_id) == (0x7FFFFFFF, None, (), "")
    assert messages.FetchRequest.FetchTopic().topic_id == ZERO_UUID
    assert messages.MetadataRequest().allow_auto_topic_creation is True


def test_a_default_is_shared_and_so_cannot_be_changed():
    one, other = messages.FetchRequest(), messages.FetchRequest()
    assert one.replica_state is other.replica_state
    with pytest.raises(AttributeError):
        one.replica_state.replica_id = 3


def test_a_name_that_is_no_message_is_no_attribute():
    with pytest.raises(AttributeError, match="FetchRequests"):
        messages.FetchRequests  # noqa: B018


def test_every_message_of_kafka_has_a_class():
    assert len(message_definitions()) > 180
    for name in message_definitions():
        assert getattr(messages, name).__name__ == name


def test_type_checkers_know_the_classes_as_they_are():
    assert STUB.read_text() == render(), "make docs writes messages.pyi"
