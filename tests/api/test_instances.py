"""Consumer instances over HTTP: what REST Proxy v2 promises, and the answers to requests that cannot be met."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from logstore.broker.authorizer import AllowAll
from logstore.broker.context import INTERNAL
from logstore.records.offset_record import InstanceKey
from tests.api.api_client import BINARY_V2, JSON_V2, ApiClient, assert_error, running_api
from tests.api.instance_client import InstanceClient, create
from tests.support.authorizer_views import Denied
from tests.support.eventually import eventually_async
from tests.support.running_broker import records

pytestmark = pytest.mark.anyio

SETTINGS = {"group_initial_rebalance_delay_ms": 0, "consumer_request_timeout_ms": 50}
OTHER_TYPES = {"json": BINARY_V2, "binary": JSON_V2}


@pytest.fixture
async def api(tmp_path, anyio_backend) -> AsyncIterator[ApiClient]:
    async with running_api(tmp_path / "data", **SETTINGS) as client:
        await client.create_topic("t", partitions=2)
        yield client


async def held(instance: InstanceClient, count: int) -> list[tuple[str, int]]:
    """Wait until the instance has ``count`` partitions, without a poll, and return them."""
    deadline = time.monotonic() + 60
    while len(found := await instance.assigned()) != count:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.01)
    return found


# ---- create and delete ----------------------------------------------------------------------------------------------


async def test_an_instance_is_made_with_defaults_and_a_name_of_its_own(api):
    answer = await api.post("/consumers/g", headers={"Host": "localhost:1234"})
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert made["base_uri"] == f"http://localhost:1234/consumers/g/instances/{made['instance_id']}"
    instance = InstanceClient(api, "g", made["instance_id"])
    await api.produce("t", ["before"])
    await instance.assign(0)
    assert await instance.poll(0) == []  # auto.offset.reset is latest
    await api.produce("t", ["after"])
    (record,) = await instance.poll()
    assert base64.b64decode(record["value"]) == b'"after"'  # the format is binary
    assert (await instance.get("/subscription")).json() == {"topics": []}


@pytest.mark.parametrize(
    ("config", "status", "code"),
    [
        ({"format": "avro"}, 422, 422),
        ({"format": ""}, 422, 422),
        ({"auto.offset.reset": "none"}, 422, 42204),
        ({"auto.commit.enable": "yes"}, 422, 42204),
        ({"fetch.min.bytes": 10_000_001}, 422, 42204),
        ({"fetch.min.bytes": "-2"}, 422, 42204),
        ({"fetch.min.bytes": True}, 422, 42206),
        ({"responseMinBytes": "1e3"}, 422, 42204),
        ({"consumer.request.timeout.ms": 2**31}, 422, 42204),
        ({"consumer.request.timeout.ms": "٣"}, 422, 42204),
        ({"isolation.level": "serializable"}, 422, 42204),
        ({"name": "a/b"}, 422, 42204),
        ({"name": ".."}, 422, 42204),
        ({"name": ""}, 200, None),
        ({"unknown": 1}, 422, 42206),
        ({"auto.commit.enable": "true", "fetch.min.bytes": "-1", "consumer.request.timeout.ms": "5"}, 200, None),
        ({"id": "named", "requestWaitMs": 5, "responseMinBytes": 2, "auto.commit.enable": False}, 200, None),
    ],
)
async def test_configurations(api, config, status, code):
    answer = await api.post("/consumers/g", json=config)
    if code is None:
        assert answer.status_code == status, answer.text
        assert config.get("id") in (None, answer.json()["instance_id"])
    else:
        assert_error(answer, status, code)
    assert_error(await api.post("/consumers/-?group="), 422)


async def test_one_of_two_creations_with_one_name_succeeds(api):
    answers = await asyncio.gather(*(api.post("/consumers/g", json={"name": "c"}) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    assert_error(next(answer for answer in answers if answer.status_code == 409), 409, 40902)
    assert (await api.post("/consumers/other", json={"name": "c"})).status_code == 200
    assert (await api.delete("/consumers/g/instances/c")).status_code == 204
    assert (await api.post("/consumers/g", json={"name": "c"})).status_code == 200


async def test_instances_are_limited_and_a_refusal_names_the_setting(tmp_path):
    async with running_api(tmp_path, max_consumer_instances=2) as api:
        answers = await asyncio.gather(*(api.post("/consumers/g") for _ in range(6)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert "max.consumer.instances" in assert_error(refused, 429, 42901)
        assert refused.headers["Retry-After"]
        made = next(answer for answer in answers if answer.status_code == 200).json()["instance_id"]
        assert (await api.delete(f"/consumers/g/instances/{made}")).status_code == 204
        assert (await api.post("/consumers/g")).status_code == 200


ONE = {"partitions": [{"topic": "t", "partition": 0}]}
REQUESTS = [
    ("DELETE", "", None),
    ("POST", "/subscription", {"topics": ["t"]}),
    ("GET", "/subscription", None),
    ("DELETE", "/subscription", None),
    ("POST", "/assignments", ONE),
    ("GET", "/assignments", None),
    ("POST", "/positions", {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}),
    ("POST", "/positions/beginning", ONE),
    ("POST", "/positions/end", ONE),
    ("POST", "/offsets", None),
    ("POST", "/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}),
    ("GET", "/offsets", ONE),
    ("GET", "/records", None),
    ("GET", "/events", None),
]


async def test_an_instance_that_is_unknown_deleted_or_of_another_group_is_not_found(api):
    await create(api, "gone")
    await create(api, "there")
    assert (await api.delete("/consumers/g/instances/gone")).status_code == 204
    for method, rest, body in REQUESTS:
        for path in ("/consumers/g/instances/gone", "/consumers/other/instances/there", "/consumers/g/instances/%20"):
            answer = await api.request(method, path + rest, **({"json": body} if body else {}))
            assert_error(answer, 404, 40403)
    assert (await api.get("/topics")).json() == ["t"]


async def test_an_idle_instance_is_removed_and_its_partitions_are_anothers(tmp_path):
    async with running_api(tmp_path, **SETTINGS, consumer_instance_timeout_ms=2_000) as api:
        await api.create_topic("t", partitions=2)
        idle = await create(api, "idle")
        await idle.subscribe("t")
        await held(idle, 2)
        busy = await create(api, "busy")
        await busy.subscribe("t")
        for _ in range(100):
            if len(await busy.assigned()) == 2:
                break
            await busy.poll(100)
        assert await busy.assigned() == [("t", 0), ("t", 1)]
        assert_error(await idle.get("/assignments"), 404, 40403)


async def test_an_instance_whose_record_is_gone_is_let_go(tmp_path):
    """Write a tombstone of an instance, as if the answer to its deletion was late, or a client deleted it early."""
    async with running_api(tmp_path, **SETTINGS, consumer_instance_timeout_ms=2_000, max_consumer_instances=1) as api:
        instance = await create(api, "first")
        found = api.app.state.api.groups.instances.get(INTERNAL, "g", "first")
        await found._starts.put(None)
        assert_error(await instance.get("/assignments"), 404, 40403)
        assert_error(await api.post("/consumers/g", json={"name": "second"}), 429)
        for _ in range(200):
            if (made := await api.post("/consumers/g", json={"name": "second"})).status_code == 200:
                break
            await asyncio.sleep(0.05)
        assert made.status_code == 200, made.text


async def test_an_instance_in_use_is_not_idle(tmp_path):
    async with running_api(tmp_path, **SETTINGS, consumer_instance_timeout_ms=200) as api:
        await api.create_topic("t")
        instance = await create(api)
        await instance.assign(0)
        assert await instance.poll(1_000) == []
        assert await instance.assigned() == [("t", 0)]


async def test_an_instance_that_is_stuck_keeps_no_other_from_timing_out(tmp_path):
    async with running_api(tmp_path, **SETTINGS, consumer_instance_timeout_ms=2_000) as api:
        await api.create_topic("t")
        for name in ("stuck", "idle"):
            await create(api, name)
        found = api.app.state.api.groups.instances
        stuck = found.get(INTERNAL, "g", "stuck")
        async with stuck._changing:
            await eventually_async(lambda: InstanceKey("g", "idle") not in found._instances)
            await asyncio.sleep(2.5)
            # A request that begins before the cleaner's turn comes keeps the instance.
            request = asyncio.create_task(InstanceClient(api, "g", "stuck").assign(0))
            await eventually_async(lambda: stuck._uses == 1)
        await request
        assert found.get(INTERNAL, "g", "stuck").assignment() == [("t", 0)]


# ---- subscriptions and assignments ----------------------------------------------------------------------------------


async def test_subscription_and_assignment_exclude_each_other(api):
    instance = await create(api)
    assert_error(await instance.get("/records"), 409, 40903)
    await instance.subscribe("t")
    assert_error(await instance.post("/assignments", ONE), 409, 40903)
    assert_error(await instance.post("/subscription", {"topic_pattern": "t"}), 409, 40903)
    await instance.subscribe("t", "later")
    assert (await instance.get("/subscription")).json() == {"topics": ["later", "t"]}
    assert (await api.delete(instance.path + "/subscription")).status_code == 204
    assert (await instance.get("/subscription")).json() == {"topics": []}
    assert await instance.assigned() == []
    assert (await api.get("/groups")).json() in ([], ["g"])
    await instance.assign(1, 0, 1)
    assert await instance.assigned() == [("t", 0), ("t", 1)]
    assert_error(await instance.post("/subscription", {"topics": ["t"]}), 409, 40903)
    await instance.assign(0)
    assert await instance.assigned() == [("t", 0)]
    assert (await api.delete(instance.path + "/subscription")).status_code == 204
    assert (await api.delete(instance.path + "/subscription")).status_code == 204
    assert_error(await instance.get("/records"), 409, 40903)


@pytest.mark.parametrize(
    ("rest", "body", "status", "code"),
    [
        ("/subscription", {}, 422, 42206),
        ("/subscription", {"topics": []}, 422, 42206),
        ("/subscription", {"topics": ["t"], "topic_pattern": "t"}, 409, 40903),
        ("/subscription", {"topics": ["a b"]}, 400, 40002),
        ("/subscription", {"topic_pattern": "("}, 422, 42214),
        ("/subscription", {"topic_pattern": "(?=t)t"}, 422, 42214),
        ("/subscription", {"topic_pattern": "a" * 1_001}, 422, 42206),
        ("/assignments", {"partitions": [{"topic": "absent", "partition": 0}]}, 404, 40401),
        ("/assignments", {"partitions": [{"topic": "t", "partition": 2}]}, 404, 40402),
        ("/assignments", {"partitions": [{"topic": "t", "partition": -1}]}, 422, 42206),
        ("/assignments", None, 422, 42206),
        ("/positions", {}, 422, 42206),
        ("/positions", {"offsets": [{"topic": "t", "partition": 1, "offset": 0}]}, 409, 40903),
        ("/positions", {"offsets": [{"topic": "t", "partition": 0, "offset": -1}]}, 422, 42206),
        ("/positions", {"timestamps": [{"topic": "t", "partition": 0, "timestamp": "soon"}]}, 422, 42206),
        ("/positions/beginning", {"partitions": [{"topic": "t", "partition": 1}]}, 409, 40903),
        ("/positions/end", {"partitions": [{"topic": "t", "partition": 9}]}, 404, 40402),
        ("/offsets", {"offsets": [{"topic": "t", "partition": 1, "offset": 0}]}, 409, 40903),
        ("/offsets", {"offsets": [{"topic": "absent", "partition": 0, "offset": 0}]}, 404, 40401),
        ("/offsets", {"offsets": [{"topic": "t", "partition": 7, "offset": 0}]}, 404, 40402),
        ("/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": -1}]}, 422, 42206),
        ("/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 2**63 - 1}]}, 422, 42206),
        ("/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 1, "metadata": "é" * 2_049}]}, 422, 42206),
        ("/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 1}] * 2}, 422, 42206),
        ("/offsets", {"offsets": []}, 422, 42206),
    ],
)
async def test_an_impossible_request_is_refused_and_changes_nothing(api, rest, body, status, code):
    instance = await create(api)
    await api.produce("t", [0, 1, 2])
    await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 1})
    if rest in ("/positions", "/offsets", "/positions/beginning", "/positions/end"):
        await instance.assign(0)
    assert_error(await instance.post(rest, body), status, code)
    assert await instance.committed(0, 1) == {}
    if rest in ("/subscription", "/assignments"):
        assert_error(await instance.get("/records"), 409, 40903)
    else:
        assert [record["value"] for record in await instance.poll()] == [1, 2]


async def test_a_pattern_that_takes_much_memory_is_refused(api):
    instance = await create(api)
    assert_error(await instance.post("/subscription", {"topic_pattern": r"((\pL\pN){100}){3}"}), 422)
    await instance.did("/subscription", {"topic_pattern": r"[\w.-]{1,249}|(?i)orders\..*|\pL+"})
    assert (await instance.get("/subscription")).json() == {"topics": ["t"]}


async def test_a_catastrophic_pattern_takes_no_time(api):
    await api.create_topic("a" * 200)
    instance = await create(api)
    async with asyncio.timeout(10):
        await instance.did("/subscription", {"topic_pattern": "(a+)+b|(a*)*b|(.*a){50}b"})
        assert (await instance.get("/subscription")).json() == {"topics": []}


async def test_topics_that_come_later_are_read_from_their_beginning(api):
    instance = await create(api, auto_offset_reset="latest")
    await api.produce("t", ["old"])
    await instance.did("/subscription", {"topic_pattern": "t[0-9]*|made"})
    await held(instance, 2)
    await api.create_topic("t1")
    await api.produce("t1", ["new"])
    await held(instance, 3)
    assert await instance.values(1) == ["new"]
    assert (await instance.get("/subscription")).json() == {"topics": ["t", "t1"]}
    await api.produce("t", ["now"])
    assert await instance.values(1) == ["now"]


async def test_a_topic_may_not_be_read_without_permission(api):
    instance = await create(api)
    await instance.assign(0)
    api.broker.authorizer.replace(Denied({"t"}))
    assert_error(await instance.post("/assignments", ONE), 403, 40301)
    assert_error(await instance.post("/offsets", REQUESTS[10][2]), 403, 40301)
    assert_error(await instance.get("/records"), 403, 40301)
    api.broker.authorizer.replace(Denied({"g"}, version=2))
    for method, rest, _ in REQUESTS:
        assert_error(await api.request(method, instance.path + rest), 403, 40301)
    assert_error(await api.post("/consumers/g"), 403, 40301)


@pytest.mark.parametrize("kind", ["classic", "consumer"])
async def test_a_pattern_matches_what_its_subscriber_may_describe(api, kind):
    if kind == "consumer":
        joining = {"member_epoch": 0, "rebalance_timeout_ms": 5_000, "subscribed_topics": ["other"], "owned": []}
        answer = await api.post("/groups/g/consumer-heartbeat", json={"member_id": "a", **joining})
        assert answer.status_code == 200, answer.text
    await api.create_topic("secret")
    api.broker.authorizer.replace(Denied({"secret"}))
    instance = await create(api)
    await instance.did("/subscription", {"topic_pattern": ".*"})
    assert (await instance.get("/subscription")).json() == {"topics": ["t"]}
    await instance.poll(100)
    assert await held(instance, 2) == [("t", 0), ("t", 1)]
    # Hidden topics stay out when topics change and when all matching ones are hidden; a permission brings them in.
    await api.create_topic("u")
    await instance.poll(100)
    assert await held(instance, 3) == [("t", 0), ("t", 1), ("u", 0)]
    api.broker.authorizer.replace(Denied({"secret", "t", "u"}, version=2))
    for _ in range(100):
        await instance.get("/records?timeout=50")  # 403 as long as it holds them
        if not await instance.assigned():
            break
    assert await instance.assigned() == []
    api.broker.authorizer.replace(AllowAll(version=3))
    for _ in range(100):
        await instance.poll(50)
        if len(await instance.assigned()) == 4:
            break
    assert await instance.assigned() == [("secret", 0), ("t", 0), ("t", 1), ("u", 0)]


async def test_a_poll_waits_for_the_commit_of_a_rebalance_at_most_its_timeout(api):
    await api.produce("t", [0])
    await api.produce("t", [1], partition=1)
    first, second = [await create(api, name, auto_commit_enable="true") for name in ("first", "second")]
    await first.subscribe("t")
    assert sorted(await first.values(2)) == [0, 1]
    home = api.app.state.api.groups.instances._home
    commit, commits, may_commit = home.commit, [], asyncio.Event()

    async def late(*arguments: object) -> None:
        commits.append(arguments)
        await may_commit.wait()
        await commit(*arguments)

    object.__setattr__(home, "commit", late)
    await second.subscribe("t")
    while not commits:
        assert await first.poll(100) == []
    began = asyncio.get_running_loop().time()
    for _ in range(4):
        assert await first.poll(100) == []
    assert asyncio.get_running_loop().time() - began < 20
    assert (await first.assigned(), await second.assigned()) == ([("t", 0), ("t", 1)], [])
    may_commit.set()
    await asyncio.gather(held(first, 1), held(second, 1))
    assert await first.committed(0, 1) == {0: 1, 1: 1}
    assert len(commits) == 1


# ---- positions and commits ------------------------------------------------------------------------------------------


async def test_a_commit_beyond_the_end_is_taken_as_by_kafka(api):
    await api.produce("t", [0, 1])
    instance = await create(api)
    await instance.assign(0, 1)
    for offset in (7, 2**63 - 2):
        body = {"offsets": [{"topic": "t", "partition": partition, "offset": offset} for partition in (0, 1)]}
        assert (await instance.post("/offsets", body)).status_code == 200
        assert await instance.committed(0, 1) == {0: offset + 1, 1: offset + 1}
    # The next reader begins where records are: the log does not have the committed offset.
    other = await create(api, "other")
    await other.assign(0)
    assert await other.values(2) == [0, 1]


async def test_a_seek_outside_the_log_is_taken_and_the_next_poll_begins_again(api):
    await api.produce("t", [0, 1, 2])
    await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 1})
    instance = await create(api)
    await instance.assign(0)
    for offset in (0, 9, 2**63 - 1):
        await instance.did("/positions", {"offsets": [{"topic": "t", "partition": 0, "offset": offset}]})
        assert await instance.values(2) == [1, 2]
    latest = await create(api, "latest", auto_offset_reset="latest")
    await latest.assign(0)
    await latest.did("/positions", {"offsets": [{"topic": "t", "partition": 0, "offset": 9}]})
    assert await latest.poll(0) == []
    await api.produce("t", [3])
    assert await latest.values(1) == [3]


async def test_positions_are_moved_by_offset_to_the_ends_and_by_time(api):
    await api.produce("t", [0, 1])
    await asyncio.sleep(0.01)
    now = api.broker.clock.now_ms()
    await asyncio.sleep(0.01)
    await api.produce("t", [2, 3])
    instance = await create(api)
    await instance.assign(0)
    assert await instance.values(4) == [0, 1, 2, 3]
    at = {"topic": "t", "partition": 0}
    await instance.did("/positions", {"offsets": [{**at, "offset": 1, "metadata": ""}]})
    assert await instance.values(3) == [1, 2, 3]
    await instance.did("/positions/beginning", {"partitions": [at]})
    assert await instance.values(4) == [0, 1, 2, 3]
    await instance.did("/positions/beginning", {"partitions": [at]})
    await instance.did("/positions/end", {"partitions": [at]})
    assert await instance.poll(0) == []
    text = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    await instance.did("/positions", {"timestamps": [{**at, "timestamp": text}]})
    assert await instance.values(2) == [2, 3]
    await instance.did("/positions", {"timestamps": [{**at, "timestamp": "2999-01-01T00:00:00Z"}]})
    assert await instance.poll(0) == []


async def test_a_commit_is_of_the_last_record_done(api):
    await api.produce("t", [0, 1, 2])
    await api.produce("t", [3], partition=1)
    instance = await create(api)
    assert await instance.commit() == []
    await instance.assign(0, 1)
    assert await instance.commit((0, 0)) == [{"topic": "t", "partition": 0, "consumed": 0, "committed": 1}]
    assert await instance.committed(0, 1) == {0: 1}
    assert sorted(await instance.values(4)) == [0, 1, 2, 3]
    assert [(entry["partition"], entry["committed"]) for entry in await instance.commit()] == [(0, 3), (1, 1)]
    assert await instance.commit() == []
    assert await instance.committed(1, 0) == {1: 1, 0: 3}
    offsets = [{"topic": "t", "partition": 0, "offset": 1, "metadata": "half"}]
    answer = await instance.api.post(instance.path + "/offsets?async=true", json={"offsets": offsets})
    assert answer.status_code == 200
    answer = await instance.get("/offsets", ONE)
    assert answer.json() == {"offsets": [{"topic": "t", "partition": 0, "offset": 2, "metadata": "half"}]}
    assert_error(await instance.get("/offsets"), 404, 40402)
    assert_error(await instance.get("/offsets", {"partitions": [{"topic": "t", "partition": 2}]}), 404, 40402)
    assert_error(await instance.get("/offsets", {"partitions": [{"topic": "no", "partition": 0}]}), 404, 40401)
    assert_error(await instance.api.post(instance.path + "/offsets?async=1"), 422, 422)


async def test_an_instance_that_reads_nothing_commits_for_a_group_without_members(api):
    await api.produce("t", [0, 1])
    bare, member = await create(api, "bare"), await create(api, "member")
    await bare.commit((0, 0))
    await member.subscribe("t")
    await held(member, 2)
    assert_error(await bare.post("/offsets", REQUESTS[10][2]), 409, 40914)
    assert await member.values(1) == [1]


async def test_auto_commit_is_of_what_earlier_polls_have_answered(api, monkeypatch):
    monkeypatch.setattr("consumer_offsets.instances.instance_group.AUTO_COMMIT_S", 0)
    await api.produce("t", [0, 1, 2])
    instance = await create(api, auto_commit_enable="true")
    await instance.assign(0)
    assert await instance.values(3) == [0, 1, 2]
    assert await instance.committed(0) == {}
    await instance.poll(0)
    assert await instance.committed(0) == {0: 3}
    await api.produce("t", [3])
    assert await instance.values(1) == [3]
    assert (await api.delete(instance.path)).status_code == 204
    assert await (await create(api, "next")).committed(0) == {0: 4}


# ---- records --------------------------------------------------------------------------------------------------------


async def test_values_that_are_false_headers_and_times_are_there(api):
    values = [0, False, "", [], {}, None, 0.0]
    await api.produce("t", values)
    topic = api.broker.topics.served.topic(INTERNAL, "t")
    made = records([b"x"], keys=[b"k"], headers=[("h", b"\xff"), ("n", None)], timestamp=7)
    (await api.broker.produce.records.produce(INTERNAL, topic, made, partition=1)).require_stored()
    instance = await create(api)
    await instance.assign(0)
    found = await instance.poll()
    assert [record["value"] for record in found] == values
    assert [record["offset"] for record in found] == list(range(7))
    assert set(found[0]) == {"topic", "key", "value", "partition", "offset", "timestamp"}
    await instance.assign(1)
    (record,) = await instance.poll()
    assert record == {
        "topic": "t",
        "key": "k",
        "value": "x",
        "partition": 1,
        "offset": 0,
        "timestamp": 7,
        "key_format": "string",
        "value_format": "string",
        "headers": [{"key": "h", "value": "/w=="}, {"key": "n", "value": None}],
    }


@pytest.mark.parametrize("embedded", ["json", "binary"])
async def test_the_answer_has_the_format_of_the_instance(api, embedded):
    await api.produce("t", [{"a": 1}])
    instance = await create(api, format=embedded)
    await instance.assign(0)
    assert_error(await instance.get("/records", headers={"Accept": OTHER_TYPES[embedded]}), 406, 40601)
    assert_error(await instance.get("/records", headers={"Accept": "text/html"}), 406, 406)
    own = OTHER_TYPES[{"json": "binary", "binary": "json"}[embedded]]
    for accept in ("application/json", "application/vnd.kafka.v2+json", own):
        answer = await instance.get("/records", headers={"Accept": accept})
        assert answer.headers["Content-Type"] == accept
    await instance.did("/positions/beginning", ONE)
    answer = await instance.get("/records", headers={"Accept": "*/*"})
    assert answer.headers["Content-Type"] == own
    (record,) = answer.json()
    value = record["value"] if embedded == "json" else json.loads(base64.b64decode(record["value"]))
    assert value == {"a": 1}


async def test_requests_may_have_the_type_of_the_format_everywhere(api):
    headers = {"Content-Type": JSON_V2, "Accept": JSON_V2}
    answer = await api.post("/consumers/g", content=b'{"name":"c"}', headers=headers)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, JSON_V2)
    answer = await api.post("/consumers/g/instances/c/subscription", content=b'{"topics":["t"]}', headers=headers)
    assert answer.status_code == 204
    answer = await api.post("/consumers/g", content=b"{}", headers={"Content-Type": "text/plain"})
    assert_error(answer, 415, 415)


@pytest.mark.parametrize("max_bytes", [0, 1, 1_000, -1])
async def test_a_poll_answers_one_record_at_least_whatever_max_bytes_says(api, max_bytes):
    for number in range(3):
        await api.produce("t", [f"{number}" * 1_000])
    instance = await create(api)
    await instance.assign(0)
    sizes = [len(await instance.poll(max_bytes=max_bytes)) for _ in range(3)]
    assert sizes == ([3, 0, 0] if max_bytes < 0 else [1, 1, 1])


async def test_a_poll_waits_for_bytes_and_no_longer_than_it_says(api):
    instance = await create(api, fetch_min_bytes=5_000)
    await instance.assign(0)
    await api.produce("t", [1])
    polling = asyncio.create_task(instance.poll(60_000))
    await asyncio.sleep(0.2)
    assert not polling.done()
    await api.produce("t", ["x" * 5_000])
    assert len(await asyncio.wait_for(polling, 10)) == 2
    await api.produce("t", [2])
    assert [record["value"] for record in await instance.poll(100)] == [2]
    assert_error(await instance.get("/records?timeout=soon"), 422, 422)
    assert_error(await instance.get("/records?max_byte=1"), 422, 422)


async def test_two_polls_at_once_share_the_records(api):
    instance = await create(api)
    await instance.assign(0)
    polls = [asyncio.create_task(instance.poll(5_000)) for _ in range(2)]
    await asyncio.sleep(0.1)
    await api.produce("t", [1])
    done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    assert [record["value"] for record in done.pop().result()] == [1]
    await api.produce("t", [2])
    found = await asyncio.gather(*polls)
    assert sorted(record["value"] for polled in found for record in polled) == [1, 2]


async def test_a_delete_ends_a_poll(api):
    instance = await create(api)
    await instance.subscribe("t")
    await held(instance, 2)
    polls = [asyncio.create_task(instance.get("/records?timeout=60000")) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert (await api.delete(instance.path)).status_code == 204
    for answer in await asyncio.wait_for(asyncio.gather(*polls), 10):
        assert_error(answer, 404, 40403)
    assert (await api.get("/groups/g")).json()["members"] == []


async def test_a_poll_of_an_instance_that_continues_elsewhere_may_be_sent_again(api):
    """Unload the shard, as when the coordinator has moved: the instance is not gone."""
    instance = await create(api)
    await instance.subscribe("t")
    await held(instance, 2)
    shard = api.app.state.api.groups.instances.get(INTERNAL, "g", "c").shard
    polling = asyncio.create_task(instance.get("/records?timeout=60000"))
    await asyncio.sleep(0.1)
    shard.unload()
    assert_error(await polling, 503)
    assert_error(await instance.get("/assignments"), 503)
    shard.load()
    await shard.until_settled(10_000)
    await api.produce("t", [0])
    assert await instance.values(1) == [0]


async def test_positions_move_while_a_poll_is_held(api):
    await api.produce("t", [0, 1])
    instance = await create(api)
    await instance.assign(0)
    await instance.values(2)
    polling = asyncio.create_task(instance.poll(60_000))
    await asyncio.sleep(0.1)
    await instance.did("/positions/beginning", ONE)
    assert [record["value"] for record in await asyncio.wait_for(polling, 10)] == [0, 1]


async def test_a_question_for_the_head_reads_nothing(api):
    await api.produce("t", [0])
    instance = await create(api)
    await instance.assign(0)
    answer = await api.request("HEAD", instance.path + "/records")
    assert answer.status_code == 200
    assert await instance.values(1) == [0]


async def test_retention_that_overtakes_an_instance_begins_again(api):
    await api.produce("t", [0, 1, 2])
    instance = await create(api)
    await instance.assign(0)
    await instance.poll(max_bytes=1)
    await instance.did("/positions/beginning", ONE)
    answer = await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 2})
    assert answer.status_code == 200
    assert await instance.values(1) == [2]


# ---- topics that go -------------------------------------------------------------------------------------------------


async def made_again(api: ApiClient) -> None:
    assert (await api.delete(f"{api.topics_url}/t")).status_code == 204
    await api.create_topic("t", partitions=2)
    await api.produce("t", ["new 0", "new 1", "new 2"])


@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_a_topic_that_was_made_again_is_read_from_its_beginning_by_a_subscriber(api, reset):
    await api.produce("t", ["old 0", "old 1"])
    instance = await create(api, auto_offset_reset=reset)
    await instance.subscribe("t")
    await held(instance, 2)
    await instance.did("/positions/beginning", ONE)
    assert await instance.values(2) == ["old 0", "old 1"]
    polling = asyncio.create_task(instance.values(3))
    await asyncio.sleep(0.05)
    await made_again(api)
    assert await polling == ["new 0", "new 1", "new 2"]
    assert [entry["committed"] for entry in await instance.commit()] == [3]


async def test_an_assignment_is_of_the_topic_as_it_was(api):
    await api.produce("t", ["old 0"])
    instance = await create(api)
    await instance.assign(0)
    assert await instance.values(1) == ["old 0"]
    assert (await api.delete(f"{api.topics_url}/t")).status_code == 204
    assert_error(await instance.get("/records?timeout=60000"), 404, 40401)
    await api.create_topic("t", partitions=2)
    await api.produce("t", ["new 0"])
    assert_error(await instance.get("/records?timeout=60000"), 404, 40406)
    assert_error(await instance.post("/offsets", REQUESTS[10][2]), 404, 40406)
    assert_error(await instance.post("/positions/beginning", ONE), 404, 40406)
    await instance.assign(0)
    assert await instance.values(1) == ["new 0"]


# ---- members --------------------------------------------------------------------------------------------------------


async def test_a_partition_is_given_up_in_a_poll_or_when_its_records_are_committed(api):
    await api.produce("t", [0])
    await api.produce("t", [1], partition=1)
    first = await create(api, "first")
    await first.subscribe("t")
    assert sorted(await first.values(2)) == [0, 1]
    second = await create(api, "second")
    await second.subscribe("t")
    # The first instance has unfinished records. It has to give them up, and keeps them until it polls or commits.
    assert await second.poll(1_500) == []
    assert await first.assigned() == [("t", 0), ("t", 1)]
    await first.commit()
    await eventually_async(lambda: len(api.app.state.api.groups.describe(INTERNAL, "g").members) == 2)
    (of_second,) = await held(second, 1)
    assert [of_second, *await held(first, 1)] in ([("t", 0), ("t", 1)], [("t", 1), ("t", 0)])
    foreign = {"offsets": [{"topic": "t", "partition": of_second[1], "offset": 0}]}
    assert_error(await first.post("/offsets", foreign), 409, 40903)
    third = await create(api, "third")
    await third.subscribe("t")
    members = (first, second, third)

    async def is_settled() -> bool:
        joined = api.app.state.api.groups.describe(INTERNAL, "g").members
        return len(joined) == 3 and sum([len(await each.assigned()) for each in members]) == 2

    async with asyncio.timeout(60):
        while not await is_settled():
            await asyncio.gather(*(each.poll(100) for each in members))
    assert sorted([place for each in members for place in await each.assigned()]) == [("t", 0), ("t", 1)]
    described = (await api.get("/groups/g")).json()
    assert (described["protocol_type"], described["protocol"], len(described["members"])) == ("consumer", "sticky", 3)
    assert {member["client_id"] for member in described["members"]} == {"first", "second", "third"}


async def test_partitions_that_come_back_in_a_rebalance_continue_where_they_were(api):
    await api.produce("t", [0])
    await api.produce("t", [1], partition=1)
    first, second = await create(api, "first"), await create(api, "second")
    await first.subscribe("t")
    assert sorted(await first.values(2)) == [0, 1]
    await second.subscribe("t")
    while [len(await each.assigned()) for each in (first, second)] != [1, 1]:
        assert await first.poll(50) == []
    ((_, kept),) = await first.assigned()
    assert [(entry["partition"], entry["committed"]) for entry in await first.commit()] == [(kept, 1)]
    assert await second.values(1) == [1 - kept], "it was not committed"


async def test_an_instance_that_is_not_polled_leaves_and_comes_back(tmp_path):
    async with running_api(tmp_path, **SETTINGS, consumer_max_poll_interval_ms=300) as api:
        await api.create_topic("t", partitions=1)
        await api.produce("t", [0, 1])
        instance, other = await create(api, "c"), await create(api, "d")
        await instance.subscribe("t")
        assert await instance.values(2) == [0, 1]
        await eventually_async(lambda: not api.app.state.api.groups.describe(INTERNAL, "g").members)
        assert_error(await instance.post("/offsets", REQUESTS[10][2]), 409, 40903)
        await other.subscribe("t")
        assert await other.values(2) == [0, 1], "they were not committed"
        await other.commit()
        assert (await api.delete(other.path)).status_code == 204
        await api.produce("t", [2])
        assert await instance.values(1) == [2]


async def test_the_next_owner_begins_where_the_first_began(api):
    """Use latest without a commit: an owner that began at the end would pass over records."""
    first = await create(api, "first", auto_offset_reset="latest")
    await first.subscribe("t")
    await held(first, 2)
    await api.produce("t", [0])
    await api.produce("t", [1], partition=1)
    assert (await api.delete(first.path + "/subscription")).status_code == 204
    second = await create(api, "second", auto_offset_reset="latest")
    await second.subscribe("t")
    assert sorted(await second.values(2)) == [0, 1]


async def test_a_topic_that_is_deleted_keeps_no_other_from_its_commit(api):
    """Delete a topic, so that a rebalance revokes all partitions: their start positions must be committed.

    Without that commit an owner with latest, or this one after a restart, would begin at their ends.
    """
    await api.create_topic("u", partitions=1)
    instance = await create(api, auto_offset_reset="latest")
    await instance.subscribe("t", "u")
    await held(instance, 3)
    await api.produce("t", [0])
    assert (await api.delete(f"{api.topics_url}/u")).status_code == 204
    assert await held(instance, 2) == [("t", 0), ("t", 1)]
    assert await instance.committed(0, 1) == {0: 0, 1: 0}
    assert await instance.values(1) == [0]


async def test_a_commit_of_all_that_was_polled_leaves_out_a_topic_that_is_gone(api):
    await api.create_topic("u", partitions=1)
    instance = await create(api)
    place = [{"topic": topic, "partition": 0} for topic in ("t", "u")]
    await instance.did("/assignments", {"partitions": place})
    await api.produce("t", [0])
    await api.produce("u", [1])
    assert sorted(await instance.values(2)) == [0, 1]
    assert (await api.delete(f"{api.topics_url}/u")).status_code == 204
    assert [(entry["topic"], entry["committed"]) for entry in await instance.commit()] == [("t", 1)]


async def test_instances_join_a_group_whose_partitions_the_store_assigns(api):
    joining = {"member_epoch": 0, "rebalance_timeout_ms": 5_000, "subscribed_topics": ["t"], "owned": []}
    joined = (await api.post("/groups/g/consumer-heartbeat", json={"member_id": "a", **joining})).json()
    instance = await create(api)
    await instance.subscribe("t")
    kept = joined["assignment"][:1]
    for _ in range(100):
        beat = {
            "member_id": "a",
            "member_epoch": joined["member_epoch"],
            "owned": [{"topic_id": entry["topic_id"], "partition": entry["partition"]} for entry in kept],
        }
        answer = await api.post("/groups/g/consumer-heartbeat", json=beat)
        assert answer.status_code == 200, answer.text
        joined["member_epoch"] = answer.json()["member_epoch"]
        kept = answer.json()["assignment"] if answer.json()["assignment"] is not None else kept
        if await instance.assigned():
            break
        await instance.poll(100)
    assert sorted([*await instance.assigned(), *(("t", entry["partition"]) for entry in kept)]) == [("t", 0), ("t", 1)]
    await api.produce("t", [0])
    await api.produce("t", [1], partition=1)
    assert len(await instance.values(1)) == 1
    await instance.commit()
