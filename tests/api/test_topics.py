import msgspec
import pytest
from deltalake import DeltaTable

from logstore.broker.context import INTERNAL
from logstore.cluster.cluster_state import PartitionState
from logstore.delta.topic_table import TopicTable
from logstore.protocol.messages.topics import Partition, Refreshed, Rolled, Topic
from logstore.table_files import open_table
from tests.api.api_client import BINARY_V2, assert_error
from tests.support.topics import rewrite_files, write_segment

pytestmark = pytest.mark.anyio


async def test_topics_are_listed_by_name(api):
    assert (await api.get("/topics")).json() == []
    for name in ("b", "a.x", "A-1"):
        await api.create_topic(name)
    answer = await api.get("/topics")
    assert answer.json() == ["A-1", "a.x", "b"]
    assert answer.headers["Content-Type"] == "application/vnd.kafka.v2+json"


async def test_a_topic_shows_its_configuration_location_and_partitions(api):
    await api.create_topic("t", partitions=2, retention_ms="1000")
    await api.produce("t", [1, 2, 3], partition=1)
    body = (await api.get("/topics/t")).json()
    msgspec.convert(body, Topic)
    assert body["name"] == "t"
    assert body["is_internal"] is False
    assert body["configs"]["retention.ms"] == "1000"
    assert body["configs"]["cleanup.policy"] == "delete"
    first, second = body["partitions"]
    assert first["replicas"] == [{"broker": 0, "leader": True, "in_sync": True}]
    assert (first["partition"], first["leader"], first["high_watermark"]) == (0, 0, 0)
    assert (second["high_watermark"], second["log_end_offset"], second["sealed_offset"]) == (3, 3, 0)
    assert second["unsealed_bytes"] > 0
    table = DeltaTable(body["location"])
    assert str(table.metadata().id) == body["topic_id"]


async def test_partitions_alone_are_those_of_the_topic(api):
    await api.create_topic("t", partitions=3)
    whole = (await api.get("/topics/t")).json()["partitions"]
    assert (await api.get("/topics/t/partitions")).json() == whole
    for partition in range(3):
        one = (await api.get(f"/topics/t/partitions/{partition}")).json()
        msgspec.convert(one, Partition)
        assert one == whole[partition]
    assert_error(await api.get("/topics/t/partitions/3"), 404, 40402)


async def test_leader_and_in_sync_replicas_are_those_of_the_coordinator(api, monkeypatch):
    await api.create_topic("t")
    state = PartitionState(leader=2, leader_epoch=7, replicas=(1, 2, 3), in_sync_replicas=(2, 3))
    monkeypatch.setattr(api.broker.topics.leaders, "partition_state", lambda *_: state)
    found = (await api.get("/topics/t/partitions/0")).json()
    assert found["leader"] == 2
    assert found["replicas"] == [
        {"broker": 1, "leader": False, "in_sync": False},
        {"broker": 2, "leader": True, "in_sync": True},
        {"broker": 3, "leader": False, "in_sync": True},
    ]
    assert (await api.get(f"{api.topics_url}/t")).json()["replication_factor"] == 3
    (topic,) = (await api.get("/status")).json()["topics"]
    assert topic["replication_factor"] == 3


@pytest.mark.parametrize("body", [b"", b"{}"])
async def test_roll_answers_the_version_that_holds_the_sealed_offsets(api, body):
    await api.create_topic("t", partitions=2)
    await api.produce("t", [1, 2, 3], partition=1)
    headers = {"Content-Type": "application/json"} if body else {}
    answer = await api.post("/topics/t/roll", content=body, headers=headers)
    msgspec.json.decode(answer.content, type=Rolled)
    rolled = answer.json()
    assert {"partition": 1, "sealed_offset": 3} in rolled["sealed_offsets"]
    described = (await api.get("/topics/t")).json()
    assert described["partitions"][1]["sealed_offset"] == 3
    assert described["partitions"][1]["segments"] == 1
    assert described["partitions"][1]["size_bytes"] > 0
    assert described["partitions"][1]["unsealed_bytes"] == 0
    table = DeltaTable(described["location"], version=rolled["version"])
    assert table.to_pyarrow_table(columns=["offset"]).column("offset").to_pylist() == [0, 1, 2]


async def test_keyless_records_are_counted_from_the_log_start_on(api):
    await api.create_topic("t", partitions=2)
    for records in ([{"value": 1}, {"key": "k", "value": 2}], [{"value": 3}, {"value": 4}, {"key": "k", "value": 5}]):
        assert (await api.post("/topics/t/partitions/1", json={"records": records})).status_code == 200
        await api.post("/topics/t/roll")

    async def counted() -> list[tuple[int, int, int]]:
        found = (await api.get("/topics/t/keyless-records")).json()["partitions"]
        return [(one["partition"], one["records"], one["first_offset"]) for one in found]

    assert await counted() == [(1, 3, 0)]
    await api.post("/topics/t/partitions/1/delete-records", json={"before_offset": 3})
    assert await counted() == [(1, 1, 3)]
    await api.post("/topics/t/partitions/1/delete-records", json={"before_offset": -1})
    assert await counted() == []


async def test_refresh_shows_what_another_process_committed(api):
    """Commit a compaction that keeps every second record."""
    await api.create_topic("t", cleanup_policy="compact")
    await api.post("/topics/t", json={"records": [{"key": n, "value": n} for n in range(6)]})
    await api.post("/topics/t/roll")
    elsewhere = TopicTable.open(open_table(api.broker.topics.served.topic(INTERNAL, "t").table.files.uri))
    (file,) = elsewhere.snapshot().segments(0)
    written = write_segment(elsewhere, 0, 0, 6, epoch=1, step=2)
    version = rewrite_files(elsewhere, 0, [file.path], [written], data_change=False, cleaned=6)

    async def count() -> int:
        return len((await api.fetch("t", accept=BINARY_V2, offset=0)).json())

    assert await count() == 6
    answer = await api.post("/topics/t/refresh")
    msgspec.json.decode(answer.content, type=Refreshed)
    assert answer.json() == {"version": version}
    assert await count() == 3
    assert_error(await api.post("/topics/none/refresh"), 404, 40401)


async def test_rolling_nothing_is_no_new_version(api):
    await api.create_topic("t")
    await api.produce("t", [1])
    first = (await api.post("/topics/t/roll")).json()
    assert (await api.post("/topics/t/roll")).json()["version"] == first["version"]


async def test_names_may_be_percent_encoded(api):
    await api.create_topic("a.b-c_d")
    assert (await api.get("/topics/a%2Eb%2Dc%5Fd")).json()["name"] == "a.b-c_d"
    answer = await api.post("/topics/%61.b-c_d/partitions/%30", json={"records": [{"value": 1}]})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "a%2Fb",
        "..%2f..%2fetc",
        "%00",
        "%zz",
        "%ff",
        "t%0a",
        "t%20",
        "T",
        "\uff54",
        "x" * 249,
        "x" * 250,
        "x" * 10_000,
        "%2E",
        "*",
    ],
)
async def test_strange_names_are_not_found(api, path):
    await api.create_topic("t")
    for answer in (await api.get(f"/topics/{path}"), await api.post(f"/topics/{path}", json={"records": [{}]})):
        assert_error(answer, range(404, 406))
