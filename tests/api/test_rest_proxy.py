"""A table of requests holds our resources to Confluent's documentation of REST Proxy v2 and v3.

Sources: https://docs.confluent.io/platform/current/kafka-rest/api.html and the OpenAPI document of v3
(``api/v3/openapi.yaml`` of confluentinc/kafka-rest). Every request is also sent with a slash at the end of its path.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.api.api_client import BINARY_V2, JSON_V2, ApiClient, running_api

pytestmark = pytest.mark.anyio

V2 = "application/vnd.kafka.v2+json"
JSON = "application/json"
BOM = "\ufeff"


@dataclass(frozen=True)
class Case:
    """A request and its answer. ``sent`` is a body of ``type``; ``has`` is the answer or a part of it (see
    ``_matches``).
    """

    method: str
    path: str
    status: int
    has: Any = None
    sent: Any = None
    type: str | None = None
    accept: str | None = None
    answer_type: str | None = V2


@dataclass(frozen=True)
class Flow:
    """Cases that run in order and have their own names: ``{t}`` is a topic of two partitions with three JSON records in
    the first, ``{g}`` is a group, ``{c}`` is the cluster.
    """

    name: str
    cases: Sequence[Case] = field(default=())


def case(method: str, path: str, status: int, has: Any = None, sent: Any = None, **more: Any) -> Case:
    """Return a case; ``type`` is by default that of v2 without records."""
    if sent is not None:
        more.setdefault("type", V2)
    return Case(method, path, status, has, sent, **more)


def error(code: int) -> dict[str, Any]:
    return {"error_code": code, "message": str}


def refused(method: str, path: str, code: int, sent: Any = None, **more: Any) -> Case:
    status = code // 100 if code > 999 else code
    return case(method, path, status, error(code), sent, answer_type=None, **more)


OFFSET = {"partition": int, "offset": int, "error_code": None, "error": None}
PRODUCED = {"offsets": [OFFSET], "key_schema_id": None, "value_schema_id": None}
PARTITION = {"partition": 0, "leader": int, "replicas": [{"broker": int, "leader": True, "in_sync": True}]}
PLACE = {"topic": "{t}", "partition": 0}
INSTANCE = "/consumers/{g}/instances/c"
MADE = case("POST", "/consumers/{g}", 200, {"instance_id": "c", "base_uri": str},
            {"name": "c", "format": "json", "auto.offset.reset": "earliest"})  # fmt: skip
ASSIGNED = case("POST", f"{INSTANCE}/assignments", 204, None, {"partitions": [PLACE]}, answer_type=None)
RECORD = {"topic": "{t}", "key": None, "value": {"n": 0}, "partition": 0, "offset": 0}


def polled(*values: Any) -> Case:
    rows = [{**RECORD, "value": {"n": n}, "offset": n} for n in values]
    return case("GET", f"{INSTANCE}/records?timeout=2000", 200, rows, accept=JSON_V2, answer_type=JSON_V2)


FLOWS = (
    Flow("topics", (
        case("GET", "/topics", 200, ["{t}"]),
        case("GET", "/topics/{t}", 200, {"name": "{t}", "configs": {"cleanup.policy": "delete"},
                                         "partitions": [PARTITION, {**PARTITION, "partition": 1}]}),
        case("GET", "/topics/{t}/partitions", 200, [PARTITION, {**PARTITION, "partition": 1}]),
        case("GET", "/topics/{t}/partitions/0", 200, PARTITION),
        case("GET", "/topics/{t}/partitions/0/offsets", 200, {"beginning_offset": 0, "end_offset": 3}),
        case("GET", "/brokers", 200, {"brokers": [int]}),
        case("GET", "/topics", 200, ["{t}"], accept=JSON, answer_type=JSON),
        case("GET", "/topics", 200, ["{t}"], accept="*/*", answer_type=None),
        refused("GET", "/topics/absent", 40401),
        refused("GET", "/topics/absent/partitions", 40401),
        refused("GET", "/topics/absent/partitions/0", 40401),
        refused("GET", "/topics/{t}/partitions/2", 40402),
        refused("GET", "/topics/{t}/partitions/2/offsets", 40402),
        refused("GET", "/topics", 406, accept="text/plain"),
        refused("DELETE", "/topics", 405),
        refused("GET", "/nothing/here", 404),
    )),
    Flow("produce", (
        *(case("POST", path, 200, PRODUCED, {"records": [record]}, type=sent_as)
          for path in ("/topics/{t}", "/topics/{t}/partitions/0")
          for sent_as, record in (
              (JSON_V2, {"value": {"a": 1}}), (JSON_V2, {"key": "k", "value": None}), (JSON_V2, {"value": "\ud800"}),
              (JSON, {"key": {"k": 1}, "value": [1.50]}), (BINARY_V2, {"key": "a2V5", "value": "dmFsdWU="}),
              (BINARY_V2, {"key": "a2V5", "value": None}), (BINARY_V2, {"value": None}),
          )),
        case("POST", "/topics/{t}", 200, {"offsets": [{**OFFSET, "partition": 1}] * 2},
             {"records": [{"value": 1, "partition": 1}, {"key": 2, "value": 2, "partition": 1}]}, type=JSON_V2),
        case("POST", "/topics/{t}", 200, PRODUCED, BOM + '{"records": [{"value": 1}]}', type=JSON_V2),
        case("POST", "/topics/{t}", 200, PRODUCED, BOM + '{"records": [{"value": "YQ=="}]}', type=BINARY_V2),
        case("POST", "/topics/{t}", 200, PRODUCED, {"records": [{"value": 1}]}, type=JSON_V2, accept=JSON,
             answer_type=JSON),
        refused("POST", "/topics/{t}", 422, {"records": []}, type=JSON_V2),
        refused("POST", "/topics/{t}", 42206, {}, type=JSON_V2),
        refused("POST", "/topics/{t}", 42206, "{", type=JSON_V2),
        refused("POST", "/topics/{t}", 42206, {"records": [{"value": "aGVsbG8=="}]}, type=BINARY_V2),
        refused("POST", "/topics/{t}", 415, {"records": [{"value": 1}]}, type=V2),
        refused("POST", "/topics/{t}", 415, {"records": [{"value": 1}]}, type="application/vnd.kafka.avro.v2+json"),
        refused("POST", "/topics/absent", 40401, {"records": [{"value": 1}]}, type=JSON_V2),
        refused("POST", "/topics/{t}/partitions/9", 40402, {"records": [{"value": 1}]}, type=JSON_V2),
    )),
    Flow("instances", (
        MADE,
        refused("POST", "/consumers/{g}", 40902, {"name": "c"}),
        case("POST", "/consumers/{g}", 200, {"instance_id": str, "base_uri": str}),
        case("POST", "/consumers/{g}", 200, {"instance_id": "typed", "base_uri": str}, {"name": "typed"}, type=JSON_V2),
        case("POST", "/consumers/{g}", 200, {"instance_id": "id", "base_uri": str}, BOM + '{"id": "id"}'),
        case("POST", "/consumers/{g}", 200, {"instance_id": "all", "base_uri": str},
             {"name": "all", "format": "binary", "auto.offset.reset": "latest", "auto.commit.enable": "true",
              "fetch.min.bytes": "1", "consumer.request.timeout.ms": "500"}),
        refused("POST", "/consumers/{g}", 422, {"format": "avro"}),
        refused("POST", "/consumers/{g}", 42204, {"auto.offset.reset": "soon"}),
        refused("POST", "/consumers/{g}", 42204, {"fetch.min.bytes": "10000001"}),
        case("DELETE", INSTANCE, 204, answer_type=None),
        refused("DELETE", INSTANCE, 40403),
        refused("GET", f"{INSTANCE}/records", 40403),
        refused("POST", f"{INSTANCE}/subscription", 40403, {"topics": ["{t}"]}),
    )),
    Flow("subscription", (
        MADE,
        case("GET", f"{INSTANCE}/subscription", 200, {"topics": []}),
        case("POST", f"{INSTANCE}/subscription", 204, None, {"topics": ["{t}"]}, answer_type=None),
        case("GET", f"{INSTANCE}/subscription", 200, {"topics": ["{t}"]}),
        case("POST", f"{INSTANCE}/subscription", 204, None, {"topics": ["{t}"]}, type=JSON_V2, answer_type=None),
        refused("POST", f"{INSTANCE}/subscription", 40903, {"topics": ["{t}"], "topic_pattern": "x"}),
        refused("POST", f"{INSTANCE}/subscription", 40903, {"topic_pattern": "x.*"}),
        refused("POST", f"{INSTANCE}/assignments", 40903, {"partitions": [PLACE]}),
        polled(0, 1, 2),
        case("POST", f"{INSTANCE}/offsets", 200, [{**PLACE, "consumed": 2, "committed": 3}]),
        case("GET", f"{INSTANCE}/offsets", 200, {"offsets": [{**PLACE, "offset": 3, "metadata": ""}]},
             {"partitions": [PLACE]}),
        case("DELETE", f"{INSTANCE}/subscription", 204, answer_type=None),
        case("GET", f"{INSTANCE}/subscription", 200, {"topics": []}),
        refused("GET", f"{INSTANCE}/records", 40903, accept=JSON_V2),
    )),
    Flow("assignments and positions", (
        MADE,
        ASSIGNED,
        case("GET", f"{INSTANCE}/assignments", 200, {"partitions": [PLACE]}),
        refused("POST", f"{INSTANCE}/subscription", 40903, {"topics": ["{t}"]}),
        polled(0, 1, 2),
        case("POST", f"{INSTANCE}/positions/beginning", 204, None, {"partitions": [PLACE]}, answer_type=None),
        polled(0, 1, 2),
        case("POST", f"{INSTANCE}/positions", 204, None, {"offsets": [{**PLACE, "offset": 2}]}, answer_type=None),
        polled(2),
        case("POST", f"{INSTANCE}/positions/end", 204, None, {"partitions": [PLACE]}, answer_type=None),
        case("GET", f"{INSTANCE}/records?timeout=0", 200, [], accept=JSON_V2, answer_type=JSON_V2),
        # As in Kafka, a seek past the end is taken, and the next poll begins as auto.offset.reset says.
        case("POST", f"{INSTANCE}/positions", 204, None, {"offsets": [{**PLACE, "offset": 99, "metadata": "m"}]},
             answer_type=None),
        polled(0, 1, 2),
        case("POST", f"{INSTANCE}/positions", 204, None,
             {"timestamps": [{**PLACE, "timestamp": "1970-01-01T00:00:00Z"}]}, answer_type=None),
        polled(0, 1, 2),
        refused("POST", f"{INSTANCE}/positions", 40903, {"offsets": [{**PLACE, "partition": 1, "offset": 0}]}),
        refused("GET", f"{INSTANCE}/records", 40601, accept=BINARY_V2),
    )),
    Flow("commits", (
        MADE,
        ASSIGNED,
        # The request has the offset of the last finished record; the group's offset is one more.
        case("POST", f"{INSTANCE}/offsets", 200, [{**PLACE, "consumed": 0, "committed": 1}],
             {"offsets": [{**PLACE, "offset": 0, "metadata": "m"}]}),
        case("GET", f"{INSTANCE}/offsets", 200, {"offsets": [{**PLACE, "offset": 1, "metadata": "m"}]},
             {"partitions": [PLACE]}),
        case("POST", f"{INSTANCE}/offsets?async=true", 200, list, {"offsets": [{**PLACE, "offset": 1}]}),
        # As in Kafka's OffsetCommit, an offset beyond the end is taken.
        case("POST", f"{INSTANCE}/offsets", 200, [{**PLACE, "consumed": 500, "committed": 501}],
             {"offsets": [{**PLACE, "offset": 500}]}),
        case("GET", f"{INSTANCE}/offsets", 200, {"offsets": [{**PLACE, "offset": 501, "metadata": ""}]},
             {"partitions": [PLACE]}),
        case("GET", f"{INSTANCE}/offsets", 200, {"offsets": []}, {"partitions": [{**PLACE, "partition": 1}]}),
        refused("GET", f"{INSTANCE}/offsets", 40402),
        refused("POST", f"{INSTANCE}/offsets", 40401, {"offsets": [{"topic": "absent", "partition": 0, "offset": 1}]}),
    )),
    Flow("v3 topics", (
        case("GET", "/v3/clusters", 200, {"kind": "KafkaClusterList", "data": [{"cluster_id": "{c}"}]},
             answer_type=JSON),
        case("GET", "/v3/clusters/{c}", 200, {"kind": "KafkaCluster", "cluster_id": "{c}"}, answer_type=JSON),
        case("GET", "/v3/clusters/{c}/topics", 200, {"kind": "KafkaTopicList", "data": list}, answer_type=JSON),
        case("POST", "/v3/clusters/{c}/topics", 201, {"kind": "KafkaTopic", "topic_name": "{t}-new"},
             {"topic_name": "{t}-new", "partitions_count": 1, "replication_factor": 1,
              "configs": [{"name": "cleanup.policy", "value": "compact"}]}, type=JSON, answer_type=JSON),
        refused("POST", "/v3/clusters/{c}/topics", 40002, {"topic_name": "{t}-new"}, type=JSON),
        case("GET", "/v3/clusters/{c}/topics/{t}-new", 200, {"topic_name": "{t}-new", "partitions_count": 1,
                                                             "is_internal": False}, answer_type=JSON),
        case("GET", "/v3/clusters/{c}/topics/{t}-new/configs/cleanup.policy", 200, {"value": "compact"},
             answer_type=JSON),
        case("PUT", "/v3/clusters/{c}/topics/{t}-new/configs/retention.ms", 204, None, {"value": "5"}, type=JSON,
             answer_type=None),
        case("POST", "/v3/clusters/{c}/topics/{t}-new/configs:alter", 204, None,
             {"data": [{"name": "retention.ms", "operation": "DELETE"}]}, type=JSON, answer_type=None),
        case("GET", "/v3/clusters/{c}/topics/{t}/partitions/0", 200, {"partition_id": 0}, answer_type=JSON),
        case("PATCH", "/v3/clusters/{c}/topics/{t}-new", 200, {"partitions_count": 2}, {"partitions_count": 2},
             type=JSON, answer_type=JSON),
        case("DELETE", "/v3/clusters/{c}/topics/{t}-new", 204, answer_type=None),
        refused("GET", "/v3/clusters/{c}/topics/{t}-new", 40401),
        refused("GET", "/v3/clusters/other/topics", 404),
    )),
    Flow("v3 records", (
        case("POST", "/v3/clusters/{c}/topics/{t}/records", 200,
             {"error_code": 200, "cluster_id": "{c}", "topic_name": "{t}", "partition_id": 1, "offset": 0},
             {"partition_id": 1, "headers": [{"name": "h", "value": "aGk="}], "key": {"type": "STRING", "data": "k"},
              "value": {"type": "JSON", "data": {"a": 1}}, "timestamp": "2026-11-21T08:00:00Z"},
             type=JSON, answer_type=JSON),
        case("POST", "/v3/clusters/{c}/topics/{t}/records", 200, {"error_code": 200, "offset": 1},
             BOM + r'{"partition_id": 1, "value": {"type": "JSON", "data": "\ud800"}}', type=JSON, answer_type=JSON),
        case("POST", "/v3/clusters/{c}/topics/{t}/records", 200, {"error_code": 42206},
             {"value": {"type": "AVRO", "data": 1}}, type=JSON, answer_type=JSON),
        case("POST", "/v3/clusters/{c}/topics/{t}/records:batch", 207,
             {"successes": [{"id": "1"}], "failures": [{"id": "2", "error_code": int, "message": str}]},
             {"entries": [{"id": "1", "value": {"type": "BINARY", "data": "aGk="}},
                          {"id": "2", "value": {"type": "BINARY", "data": "?"}}]}, type=JSON, answer_type=JSON),
        refused("POST", "/v3/clusters/{c}/topics/absent/records", 40401, {"value": {"type": "JSON", "data": 1}},
                type=JSON),
        refused("POST", "/v3/clusters/{c}/topics/{t}/records", 415, {"value": {"type": "JSON", "data": 1}},
                type=JSON_V2),
    )),
    Flow("v3 groups", (
        case("POST", "/groups/{g}/offsets", 200, dict, {"offsets": [{**PLACE, "offset": 1}]}, answer_type=V2),
        case("GET", "/v3/clusters/{c}/consumer-groups", 200, {"kind": "KafkaConsumerGroupList"}, answer_type=JSON),
        case("GET", "/v3/clusters/{c}/consumer-groups/{g}", 200,
             {"consumer_group_id": "{g}", "is_simple": True, "state": "EMPTY"}, answer_type=JSON),
        case("GET", "/v3/clusters/{c}/consumer-groups/{g}/consumers", 200, {"data": []}, answer_type=JSON),
        case("GET", "/v3/clusters/{c}/consumer-groups/{g}/lag-summary", 200, {"max_lag": 2, "total_lag": 2,
             "max_lag_topic_name": "{t}", "max_lag_partition_id": 0}, answer_type=JSON),
        case("GET", "/v3/clusters/{c}/consumer-groups/{g}/lags/{t}/partitions/0", 200,
             {"current_offset": 1, "log_end_offset": 3, "lag": 2}, answer_type=JSON),
        refused("GET", "/v3/clusters/{c}/consumer-groups/absent", 40405),
    )),
)  # fmt: skip


@pytest.fixture(scope="module")
async def store(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[ApiClient]:
    async with running_api(
        tmp_path_factory.mktemp("rest") / "data", group_initial_rebalance_delay_ms=0, auto_create_topics_enable=False
    ) as api:
        yield api


@pytest.mark.parametrize("slash", ["", "/"], ids=["plain", "slash"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
async def test_requests_are_answered_as_by_rest_proxy(store: ApiClient, flow: Flow, slash: str) -> None:
    name = f"{flow.name.replace(' ', '-')}{'-slash' if slash else ''}"
    names = {"{t}": f"t-{name}", "{g}": f"g-{name}", "{c}": store.broker.cluster_id}
    await store.create_topic(names["{t}"], partitions=2)
    await store.produce(names["{t}"], [{"n": n} for n in range(3)])
    for number, one in enumerate(flow.cases):
        where = f"{number}: {one.method} {one.path}"
        path, question, query = _filled(one.path, names).partition("?")
        headers = {name: value for name, value in (("Content-Type", one.type), ("Accept", one.accept)) if value}
        sent = _filled(one.sent, names)
        options = {"content": sent.encode()} if isinstance(sent, str) else {"content": _dumped(sent)} if sent else {}
        answer = await store.request(one.method, f"{path}{slash}{question}{query}", headers=headers, **options)
        assert answer.status_code == one.status, f"{where}: {answer.status_code} {answer.text[:300]}"
        if one.answer_type is not None:
            assert answer.headers["Content-Type"] == one.answer_type, where
        if one.has is not None:
            expected = _filled(one.has, names)
            found = answer.json()
            if one.path == "/topics" and isinstance(found, list):
                found = [topic for topic in found if topic == names["{t}"]]
            assert _matches(found, expected), f"{where}: {answer.text[:500]} is not {expected}"
        elif one.status == 204:
            assert not answer.content, where
    await store.http.delete(f"{store.topics_url}/{names['{t}']}")


def _dumped(sent: Any) -> bytes:
    return json.dumps(sent).encode()


def _filled(shape: Any, names: Mapping[str, str]) -> Any:
    """Return ``shape`` with the names of this run."""
    match shape:
        case str():
            for name, text in names.items():
                shape = shape.replace(name, text)
            return shape
        case dict():
            return {key: _filled(value, names) for key, value in shape.items()}
        case list():
            return [_filled(value, names) for value in shape]
        case _:
            return shape


def _matches(found: Any, expected: Any) -> bool:
    """Return whether they match. A type matches its values; an object matches one that has at least these fields."""
    if isinstance(expected, type):
        return isinstance(found, expected)
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(k in found and _matches(found[k], v) for k, v in expected.items())
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(_matches(f, e) for f, e in zip(found, expected, strict=True))
        )
    return bool(found == expected)
