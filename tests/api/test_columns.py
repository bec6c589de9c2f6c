"""Columns over HTTP: declared while records flow, described by the Delta log, proposed from the newest records."""

import msgspec
import pytest

from logstore.client.metadata import decode
from logstore.protocol.messages.columns import ChangedColumns, ColumnProposal, TopicColumns
from tests.api.api_client import assert_error

pytestmark = pytest.mark.anyio

VALUES = [{"n": 1, "s": "a", "user": {"city": "Oslo"}}, {"n": 2, "s": "b", "user": None}]


async def produce(api, *values):
    answer = await api.post("/topics/t", json={"records": [{"value": value} for value in values]})
    assert answer.status_code == 200


async def test_columns_are_declared_filled_and_retired(api):
    await api.create_topic("t")
    await produce(api, *VALUES)
    await api.post("/topics/t/roll", json={})
    body = {"columns": "n BIGINT, city STRING FROM user.city"}
    dry = await api.post("/topics/t/columns", json={**body, "dry_run": True})
    assert dry.json()["added"] == ["n BIGINT", "city STRING FROM user.city"]
    assert (await api.get("/topics/t/columns")).json()["columns"] == []

    added = await api.post("/topics/t/columns", json=body)
    assert added.status_code == 200
    assert decode(added.content, ChangedColumns) == msgspec.convert(dry.json(), ChangedColumns)
    again = await api.post("/topics/t/columns", json=body)
    assert (again.json()["added"], again.json()["retired"]) == ([], [])
    await produce(api, {"n": 3}, {"n": "three"})
    await api.post("/topics/t/roll", json={})
    found = decode((await api.get("/topics/t/columns")).content, TopicColumns)
    assert (found.mode, found.ddl, found.problems) == ("declared", "n BIGINT, city STRING FROM user.city", ())
    assert (found.misfits, found.unfilled_files, found.unfilled_records) == (1, 1, 2)
    assert (await api.get("/topics/t")).json()["configs"]["table.columns.mode"] == "declared"

    changed = await api.put("/topics/t/columns", json={"columns": "n BIGINT, s STRING"})
    assert (changed.json()["added"], changed.json()["retired"]) == (["s STRING"], ["city"])
    retired = await api.post("/topics/t/columns/retire", json={"columns": ["n"]})
    assert (retired.json()["retired"], retired.json()["ddl"]) == (["n"], "s STRING")
    listed = (await api.get("/topics/t/columns")).json()["columns"]
    assert {one["name"]: one["retired"] for one in listed} == {"s": False, "n": True, "city": True}
    assert await api.values("t") == [*VALUES, {"n": 3}, {"n": "three"}]


async def test_a_proposal_can_be_declared_as_it_is(api):
    await api.create_topic("t", partitions=3)
    empty = (await api.get("/topics/t/columns/proposal")).json()
    assert (empty["ddl"], empty["records"]) == ("", 0)
    for _ in range(10):
        await produce(api, *VALUES)
    await api.post("/topics/t/roll", json={})
    await produce(api, "no object", *VALUES)
    found = decode((await api.get("/topics/t/columns/proposal")).content, ColumnProposal)
    assert found.ddl == "n BIGINT, s STRING, user STRUCT<city: STRING>"
    assert (found.records, found.fitting, len(found.misfits)) == (23, 22, 1)
    assert 0 < found.plain_bytes < found.typed_bytes
    declared = await api.put("/topics/t/columns", json={"columns": found.ddl})
    assert declared.json()["ddl"] == found.ddl
    few = await api.get("/topics/t/columns/proposal?records=4")
    assert few.json()["records"] <= 6


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "", {"columns": "n INT"}, "write bigint"),
        ("POST", "", {"columns": "a.b STRING"}, "write a_b STRING FROM a.b"),
        ("PUT", "", {"columns": ""}, "columns"),
        ("POST", "/retire", {"columns": ["x"]}, "'x' is not a declared column"),
        ("POST", "", {"column": "n BIGINT"}, "column"),
        ("GET", "/proposal?records=0", None, "a whole number from 1 to 100000"),
        ("GET", "/proposal?rows=5", None, "rows"),
    ],
)
async def test_a_bad_request_changes_nothing(api, method, path, body, message):
    await api.create_topic("t")
    answer = await api.request(method, f"/topics/t/columns{path}", json=body)
    assert message in assert_error(answer, range(400, 423))
    assert (await api.get("/topics/t/columns")).json()["columns"] == []


async def test_modes_of_a_later_release_are_refused(api):
    body = {"topic_name": "t", "configs": [{"name": "table.columns.mode", "value": "schema_id"}]}
    assert "no schema registry" in assert_error(await api.post(api.topics_url, json=body), 400)


async def test_a_topic_that_is_not_there(api):
    for method, path, body in (
        ("GET", "", None),
        ("PUT", "", {"columns": "n BIGINT"}),
        ("POST", "/retire", {"columns": ["n"]}),
        ("GET", "/proposal", None),
    ):
        answer = await api.request(method, f"/topics/absent/columns{path}", json=body)
        assert answer.status_code == 404
