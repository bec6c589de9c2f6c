import asyncio
import time
from pathlib import Path

import duckdb
import jsonschema
import msgspec
import pytest
from deltalake import DeltaTable

from logstore.broker.context import INTERNAL
from logstore.protocol.messages.groups import CommittedOffsets, GroupLag, GroupOffsets
from logstore.records.offset_record import OFFSETS_TOPIC
from tests.api.api_client import ApiClient, assert_error, running_api

pytestmark = pytest.mark.anyio

LATEST = """
    SELECT "group", topic, topic_partition, arg_max(committed_offset, "offset") AS committed_offset
    FROM offsets GROUP BY ALL HAVING arg_max(value IS NOT NULL, "offset") ORDER BY ALL
"""


def offset(topic: str, partition: int, offset: int, metadata: str = "") -> dict[str, object]:
    return {"topic": topic, "partition": partition, "offset": offset, "metadata": metadata}


async def commit(api: ApiClient, group: str, *offsets: dict[str, object]) -> None:
    answer = await api.post(f"/groups/{group}/offsets", json={"offsets": offsets})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"offsets": list(offsets)}
    msgspec.json.decode(answer.content, type=CommittedOffsets)


async def committed(api: ApiClient, group: str) -> list[tuple[str, int, int]]:
    rows = (await api.get(f"/groups/{group}/offsets")).json()["offsets"]
    return [(row["topic"], row["partition"], row["offset"]) for row in rows]


async def roll_offsets(api: ApiClient) -> DeltaTable:
    answer = await api.post(f"/topics/{OFFSETS_TOPIC}/roll")
    assert answer.status_code == 200, answer.text
    return DeltaTable((await api.get(f"/topics/{OFFSETS_TOPIC}")).json()["location"])


@pytest.fixture
async def filled(api: ApiClient) -> ApiClient:
    """Fill topics ``t`` and ``u`` with two partitions of five records each."""
    for topic in ("t", "u"):
        await api.create_topic(topic, partitions=2)
        for partition in range(2):
            await api.produce(topic, [1, 2, 3, 4, 5], partition=partition)
    return api


async def test_a_group_gets_back_its_committed_offsets(filled):
    assert (await filled.get("/groups")).json() == []
    began = int(time.time() * 1000)
    await commit(filled, "g.1", offset("t", 1, 5, 'é "x"\n'), offset("t", 0, 0))
    await commit(filled, "g.1", offset("t", 1, 4, "lower"))
    await commit(filled, "A", offset("u", 0, 1))
    answer = await filled.get("/groups/g.1/offsets")
    assert answer.headers["Content-Type"] == "application/vnd.kafka.v2+json"
    msgspec.json.decode(answer.content, type=GroupOffsets)
    rows = answer.json()["offsets"]
    assert all(began <= row.pop("timestamp") <= int(time.time() * 1000) for row in rows)
    # Offset 0 has no record before it, and so no epoch.
    assert rows == [offset("t", 0, 0) | {"leader_epoch": -1}, offset("t", 1, 4, "lower") | {"leader_epoch": 1}]
    assert (await filled.get("/groups")).json() == ["A", "g.1"]
    assert (await filled.get("/groups/g.1/offsets?topic=u")).json() == {"offsets": []}
    assert_error(await filled.get("/groups/g.1/offsets?topic=absent"), 404, 40401)


async def test_lag_is_what_is_left_to_read(filled):
    await commit(filled, "g", offset("t", 0, 5), offset("t", 1, 1), offset("u", 1, 3))
    for partition in ("t/partitions/1", "u/partitions/0"):
        await filled.post(f"/topics/{partition}/delete-records", json={"before_offset": 2})
    answer = await filled.get("/groups/g/lag")
    msgspec.json.decode(answer.content, type=GroupLag)
    fields = ("topic", "partition", "committed_offset", "log_start_offset", "high_watermark", "lag")
    # Nothing is committed for u-0, so all its records are left to read.
    rows = [("t", 0, 5, 0, 5, 0), ("t", 1, 1, 2, 5, 4), ("u", 0, None, 2, 5, 3), ("u", 1, 3, 0, 5, 2)]
    partitions = [dict(zip(fields, row, strict=True)) for row in rows]
    told = answer.json()
    # Every offset that is left has its record, and the oldest was appended just now.
    assert [row.pop("records_behind") for row in told["partitions"]] == [0, 3, 3, 2]
    assert [row.pop("lag_ms") is None for row in told["partitions"]] == [False, False, False, False]
    assert told.pop("max_lag_ms") >= 0
    assert told == {"group": "g", "total_lag": 9, "max_lag": 4, "records_behind": 8, "partitions": partitions}
    assert {row["partition"] for row in (await filled.get("/groups/g/offsets?topic=u")).json()["offsets"]} == {1}


async def test_a_deleted_group_is_gone_alone(filled):
    for group in ("g", "other"):
        await commit(filled, group, offset("t", 0, 1), offset("u", 0, 1))
    assert (await filled.delete("/groups/g")).status_code == 204
    for answer in [
        await filled.get("/groups/g/offsets"),
        await filled.get("/groups/g/lag"),
        await filled.delete("/groups/g"),
    ]:
        assert "g" in assert_error(answer, 404, 40405)
    assert (await filled.get("/groups")).json() == ["other"]
    await commit(filled, "g", offset("t", 1, 2))
    assert await committed(filled, "g") == [("t", 1, 2)]


async def test_offsets_go_with_their_topic(filled):
    await commit(filled, "g", offset("t", 0, 3), offset("u", 0, 3))
    await commit(filled, "only-t", offset("t", 1, 3))
    assert (await filled.delete(f"{filled.topics_url}/t")).status_code == 204
    assert (await filled.get("/groups")).json() == ["g"]
    assert await committed(filled, "g") == [("u", 0, 3)]
    answer = await filled.post("/groups/g/offsets", json={"offsets": [offset("u", 0, 4), offset("t", 0, 3)]})
    assert_error(answer, 404, 40401)
    await filled.create_topic("t", partitions=2)
    assert await committed(filled, "g") == [("u", 0, 3)]
    table = (await roll_offsets(filled)).to_pyarrow_table(columns=["topic", "committed_offset"]).to_pylist()
    assert [row["topic"] for row in table if row["committed_offset"] is None] == ["t", "t"]


async def test_any_delta_reader_sees_the_committed_offsets(filled):
    await commit(filled, "g", offset("t", 0, 1, 'é "x"\n'), offset("t", 1, 2))
    await roll_offsets(filled)
    await commit(filled, "g", offset("t", 0, 4))
    await commit(filled, "gone", offset("u", 0, 1))
    await filled.delete("/groups/gone")
    table = await roll_offsets(filled)
    offsets = table.to_pyarrow_dataset()
    types = {field.name: str(field.type) for field in offsets.schema}
    assert list(types)[:6] == ["offset", "timestamp", "key", "value", "headers", "partition"]
    assert {name: types[name] for name in list(types)[6:]} == {
        "group": "string",
        "topic": "string",
        "topic_partition": "int32",
        "committed_offset": "int64",
        "leader_epoch": "int32",
        "metadata": "string",
        "generation": "int32",
    }
    assert duckdb.sql(LATEST).fetchall() == [("g", "t", 0, 4), ("g", "t", 1, 2)]
    rows = sorted(offsets.to_table().to_pylist(), key=lambda row: (row["group"], row["offset"]))
    typed = [
        tuple(row[name] for name in ("group", "committed_offset", "leader_epoch", "metadata", "generation"))
        for row in rows
    ]
    assert typed == [
        ("g", 1, 1, 'é "x"\n', -1),
        ("g", 2, 1, "", -1),
        ("g", 4, 1, "", -1),
        ("gone", 1, 1, "", -1),
        ("gone", None, None, None, None),
    ]


async def test_rolls_of_group_offsets_come_by_themselves(filled):
    topic = filled.broker.topics.served.all
    await commit(filled, "g", offset("t", 0, 1))
    (internal,) = [found for found in topic(INTERNAL, include_internal=True) if found.is_internal]
    assert internal.config.segment_ms == 5000


@pytest.mark.parametrize("rolled", [True, False])
async def test_groups_outlast_the_store(tmp_path: Path, rolled: bool):
    async with running_api(tmp_path / "data") as api:
        await api.create_topic("t")
        await api.produce("t", [1, 2, 3])
        await commit(api, "g", offset("t", 0, 1))
        if rolled:
            await roll_offsets(api)
        await commit(api, "g", offset("t", 0, 2, "m"))
        await commit(api, "gone", offset("t", 0, 2))
        await api.delete("/groups/gone")
        before = (await api.get("/groups/g/offsets")).json()
    async with running_api(tmp_path / "data") as api:
        assert (await api.get("/groups/g/offsets")).json() == before
        assert (await api.get("/groups")).json() == ["g"]


async def test_requests_at_once_leave_the_last_of_the_log(filled):
    many = [commit(filled, f"g{n % 3}", offset("t", 0, n % 6), offset("t", 1, n % 6)) for n in range(60)]
    await asyncio.gather(*many)
    found = {group: await committed(filled, group) for group in (await filled.get("/groups")).json()}
    assert set(found) == {"g0", "g1", "g2"}
    # The two offsets of one request always appear together.
    assert all(first[2] == second[2] for first, second in found.values())
    offsets = (await roll_offsets(filled)).to_pyarrow_dataset()
    # Only the last offset of each key is in the table, of all that were appended together.
    assert 6 <= len(offsets.to_table()) <= 120
    assert duckdb.sql(LATEST).fetchall() == [(group, *row) for group, rows in found.items() for row in rows]


async def test_the_topic_of_group_offsets_is_the_stores_own(filled):
    await commit(filled, "g", offset("t", 0, 1))
    ends = filled.end_offsets(OFFSETS_TOPIC)
    url = f"{filled.topics_url}/{OFFSETS_TOPIC}"
    for answer in [
        await filled.post(f"/topics/{OFFSETS_TOPIC}", json={"records": [{"key": 1, "value": 2}]}),
        await filled.post(f"/topics/{OFFSETS_TOPIC}/partitions/0", json={"records": [{"key": 1, "value": 2}]}),
        await filled.post(f"/topics/{OFFSETS_TOPIC}/partitions/0/delete-records", json={"before_offset": -1}),
        await filled.delete(url),
        await filled.patch(url, json={"partitions_count": 20}),
        await filled.put(f"{url}/configs/cleanup.policy", json={"value": "delete"}),
        await filled.delete(f"{url}/configs/segment.ms"),
        await filled.post(f"{url}/configs:alter", json={"data": [{"name": "retention.ms", "value": "1"}]}),
        await filled.post(filled.topics_url, json={"topic_name": OFFSETS_TOPIC}),
        await filled.post(filled.topics_url, json={"topic_name": "__Consumer.Offsets"}),
    ]:
        assert_error(answer, 400, 40002)
    assert filled.end_offsets(OFFSETS_TOPIC) == ends
    assert await committed(filled, "g") == [("t", 0, 1)]

    assert (await filled.get("/topics")).json() == ["t", "u"]
    listed = (await filled.get(filled.topics_url)).json()["data"]
    assert {entry["topic_name"]: entry["is_internal"] for entry in listed} == {
        OFFSETS_TOPIC: True,
        "t": False,
        "u": False,
    }
    (partition,) = [number for number, end in enumerate(ends) if end]
    (record,) = (await filled.fetch(OFFSETS_TOPIC, partition)).json()
    assert record["key"] == {"group": "g", "topic": "t", "partition": 0}
    assert record["value"]["offset"] == 1


async def test_answers_fit_the_interface(filled):
    await commit(filled, "g", offset("t", 0, 1))
    document = (await filled.get("/openapi.json")).json()
    for path, url in {
        "/groups": "/groups",
        "/groups/{group}/offsets": "/groups/g/offsets",
        "/groups/{group}/lag": "/groups/g/lag",
    }.items():
        answer = await filled.get(url)
        schema = document["paths"][path]["get"]["responses"]["200"]["content"][answer.headers["Content-Type"]]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
