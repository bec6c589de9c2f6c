"""Members of groups over HTTP, as a client in any language would use them."""

import asyncio
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from logstore.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tests.api.api_client import ApiClient, assert_error, running_api

pytestmark = pytest.mark.anyio

SUBSCRIPTION = b64encode(encode_subscription(Subscription(("t",)))).decode()


def joining(member_id: str, **given: object) -> dict[str, object]:
    protocols = [{"name": "range", "metadata": SUBSCRIPTION}]
    return {"member_id": member_id, "session_timeout_ms": 10_000, "protocols": protocols, **given}


def assigned(*partitions: int) -> str:
    return b64encode(encode_assignment(Assignment(tuple(("t", partition) for partition in partitions)))).decode()


async def test_a_group_whose_log_is_being_read_is_not_described(tmp_path: Path):
    """Describe a group while its log is read: a failed append may have left a wrong state in memory."""
    async with running_api(tmp_path, group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=1) as api:
        await api.create_topic("t")
        assert (await api.post("/groups/g/join", json=joining("a"))).status_code == 200
        (shard,) = api.app.state.api.groups._shards.active()
        shard.load()
        assert_error(await api.get("/groups/g"), 503, 50305)
        await shard.until_settled(10_000)
        assert (await api.get("/groups/g")).json()["generation"] == 1


async def test_two_members_share_a_topic_and_one_takes_over(tmp_path: Path):
    async with running_api(tmp_path, group_initial_rebalance_delay_ms=100) as api:
        await api.create_topic("t", partitions=2)
        first, second = await asyncio.gather(
            *(api.post("/groups/g/join", json=joining(member)) for member in ("a", "b"))
        )
        assert (first.status_code, second.status_code) == (200, 200), (first.text, second.text)
        leader, follower = sorted((first.json(), second.json()), key=lambda joined: -len(joined["members"]))
        assert {member["member_id"] for member in leader["members"]} == {"a", "b"}
        assert {member["metadata"] for member in leader["members"]} == {SUBSCRIPTION}
        assert follower["members"] == []
        assert leader["generation"] == follower["generation"] == 1

        assignments = [{"member_id": "a", "assignment": assigned(0)}, {"member_id": "b", "assignment": assigned(1)}]
        waiting = asyncio.create_task(
            api.post("/groups/g/sync", json={"member_id": follower["member_id"], "generation": 1})
        )
        synced = await api.post(
            "/groups/g/sync", json={"member_id": leader["leader"], "generation": 1, "assignments": assignments}
        )
        got = [decode_assignment(b64decode(answer.json()["assignment"])) for answer in (synced, await waiting)]
        assert sorted(partition for each in got for partition in each.partitions) == [("t", 0), ("t", 1)]

        described = (await api.get("/groups/g")).json()
        assert (described["state"], described["kind"], described["protocol"]) == ("Stable", "classic", "range")
        assert {m["member_id"]: m["assignment"] for m in described["members"]} == {
            "a": [{"topic": "t", "partition": 0}],
            "b": [{"topic": "t", "partition": 1}],
        }
        assert [entry["lag"] for entry in (await api.get("/groups/g/lag")).json()["partitions"]] == [0, 0]

        offsets = [{"topic": "t", "partition": 0, "offset": 0}]
        assert_error(await api.post("/groups/g/offsets", json={"offsets": offsets}), 409, 40914)
        stale = await api.post("/groups/g/offsets", json={"offsets": offsets, "member_id": "a", "generation": 0})
        assert_error(stale, 409, 40915)
        own = await api.post("/groups/g/offsets", json={"offsets": offsets, "member_id": "a", "generation": 1})
        assert own.status_code == 200, own.text

        left = await api.post("/groups/g/leave", json={"members": [{"member_id": "b"}, {"member_id": "c"}]})
        assert [entry["error_code"] for entry in left.json()["members"]] == [None, 40914]
        beat = {"member_id": "a", "generation": 1}
        assert_error(await api.post("/groups/g/heartbeat", json=beat), 409, 40917)
        again = (await api.post("/groups/g/join", json=joining("a"))).json()
        assert (again["generation"], [member["member_id"] for member in again["members"]]) == (2, ["a"])
        assert_error(await api.post("/groups/g/heartbeat", json={"member_id": "b", "generation": 2}), 409, 40914)
        assert_error(await api.delete("/groups/g"), 409, 40924)


async def test_the_store_assigns_partitions(tmp_path: Path):
    async with running_api(tmp_path) as api:
        await api.create_topic("t", partitions=2)
        joining_now = {"member_epoch": 0, "rebalance_timeout_ms": 10_000, "subscribed_topics": ["t"], "owned": []}
        a = (await api.post("/groups/g/consumer-heartbeat", json={"member_id": "a", **joining_now})).json()
        assert [(entry["topic"], entry["partition"]) for entry in a["assignment"]] == [("t", 0), ("t", 1)]
        b = (await api.post("/groups/g/consumer-heartbeat", json={"member_id": "b", **joining_now})).json()
        assert b["assignment"] == []

        async def beat(member: str, epoch: int, owned: list[dict[str, object]]) -> dict[str, object]:
            places = [{"topic_id": entry["topic_id"], "partition": entry["partition"]} for entry in owned]
            answer = await api.post(
                "/groups/g/consumer-heartbeat", json={"member_id": member, "member_epoch": epoch, "owned": places}
            )
            assert answer.status_code == 200, answer.text
            return answer.json()

        kept = (await beat("a", a["member_epoch"], a["assignment"]))["assignment"]
        assert isinstance(kept, list)
        assert len(kept) == 1, "one partition is to be revoked"
        assert (await beat("b", b["member_epoch"], []))["assignment"] in (None, []), "it is not given before that"
        await beat("a", a["member_epoch"], kept)
        given = (await beat("b", b["member_epoch"], []))["assignment"]
        assert isinstance(given, list)
        assert {entry["partition"] for entry in (*kept, *given)} == {0, 1}
        classic = await api.post("/groups/g/join", json=joining("c", protocols=[{"name": "range", "metadata": ""}]))
        assert_error(classic, 409, 40916)
        regex = {"member_id": "d", "member_epoch": 0, "rebalance_timeout_ms": 1, "subscribed_regex": "(", "owned": []}
        assert_error(await api.post("/groups/g/consumer-heartbeat", json=regex), 422, 42214)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("join", {"member_id": ""}),
        ("join", {"member_id": "a", "protocols": []}),
        ("join", {"member_id": "a", "protocols": [{"name": "range", "metadata": "no base64 §"}]}),
        ("join", joining("a", session_timeout_ms=1)),
        ("sync", {"member_id": "a"}),
        ("heartbeat", {"member_id": "a", "generation": 2**31}),
        ("leave", {"members": []}),
        ("consumer-heartbeat", {"member_id": "a", "member_epoch": -3}),
        ("consumer-heartbeat", {"member_id": "a", "member_epoch": 0, "server_assignor": "none"}),
    ],
)
async def test_bad_requests_of_members(api: ApiClient, path: str, body: dict[str, object]):
    answer = await api.post(f"/groups/g/{path}", json=body)
    assert answer.status_code == 422, answer.text
    assert (await api.get("/groups")).json() == []
