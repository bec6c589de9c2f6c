"""Every route declares its operation. The guard checks names in paths, and the routes check names in bodies."""

import pytest
from starlette.requests import Request

from ingest_api.routers import ROUTERS
from ingest_api.routes import RouteTable, declared_router, open_to_all, requires
from logstore.broker.authorizer import Operation, ResourceType
from tests.api.api_client import assert_error
from tests.support.authorizer_views import DeniedOperations

pytestmark = pytest.mark.anyio


async def nothing(request: Request) -> None:
    pass


def test_a_route_that_does_not_say_what_it_does_cannot_be_made(shared_api):
    for make in (declared_router().post, shared_api.app.post):
        with pytest.raises(TypeError, match="does not say which operation"):
            make("/topics/{topic}/shred")(nothing)


def test_a_router_of_another_kind_cannot_be_among_ours():
    from fastapi import APIRouter

    router = APIRouter()
    router.get("/backdoor")(nothing)
    with pytest.raises(TypeError, match="does not say which operation"):
        RouteTable((*ROUTERS, router))


@pytest.mark.parametrize(("path", "names_in"), [("/topics/{topic}/x", "body"), ("/x", "path")])
def test_a_route_whose_names_are_elsewhere_cannot_be_made(path, names_in):
    async def endpoint(request: Request) -> None:
        pass

    declared = requires(Operation.READ, ResourceType.TOPIC, names_in=names_in)(endpoint)
    with pytest.raises(TypeError, match="names are in the"):
        declared_router().get(path)(declared)


async def test_a_route_that_is_not_in_the_table_is_not_there(api):
    async def endpoint(request: Request) -> None:
        raise AssertionError

    api.app.get("/extra")(open_to_all(endpoint))
    api.app.add_route("/plain", endpoint)
    for path in ("/extra", "/plain"):
        assert_error(await api.get(path), 404, 404)


async def test_the_framework_runs_no_route_but_the_one_the_guard_was_asked_for(api):
    scope = {"type": "http", "method": "GET", "path": "/status", "headers": [], "query_string": b"", "app": api.app}
    with pytest.raises(RuntimeError, match="guard was not asked"):
        await api.app.router(scope, None, None)


@pytest.fixture
async def deny(api):
    """Make the store deny pairs of operation and name."""
    await api.create_topic("mine", partitions=1)
    await api.create_topic("theirs", partitions=1)
    await api.produce("theirs", ["secret"])
    for group in ("mine", "theirs"):
        offsets = [{"topic": name, "partition": 0, "offset": 0} for name in ("mine", "theirs")]
        assert (await api.post(f"/groups/{group}/offsets", json={"offsets": offsets})).status_code == 200
    version = 0

    def set_denied(*pairs: tuple[Operation, str]) -> None:
        nonlocal version
        version += 1
        api.app.guard.authorizer.replace(DeniedOperations(pairs, version))

    return set_denied


async def test_the_guard_asks_for_names_in_the_path(api, deny):
    topic, one = "/topics/theirs", {"records": [{"value": 1}]}
    v3 = f"{api.topics_url}/theirs"
    attempts = [
        (Operation.WRITE, "POST", topic, one),
        (Operation.WRITE, "POST", f"{topic}/partitions/0", one),
        (Operation.READ, "GET", f"{topic}/partitions/0/records", None),
        (Operation.READ, "HEAD", f"{topic}/partitions/0/records", None),
        (Operation.DESCRIBE, "GET", f"{topic}/partitions/0/offsets", None),
        (Operation.DELETE, "POST", f"{topic}/partitions/0/delete-records", {"before_offset": 1}),
        (Operation.ALTER, "POST", f"{topic}/roll", None),
        (Operation.ALTER, "PATCH", v3, {"partitions_count": 2}),
        (Operation.ALTER_CONFIGS, "PUT", f"{v3}/configs/retention.ms", {"value": "1"}),
        (Operation.DESCRIBE_CONFIGS, "GET", f"{v3}/configs", None),
        (Operation.DELETE, "DELETE", v3, None),
        (Operation.DELETE, "DELETE", "/groups/theirs", None),
        (Operation.READ, "POST", "/groups/theirs/offsets", {"offsets": []}),
    ]
    for operation, method, path, body in attempts:
        deny((operation, "theirs"))
        answer = await api.request(method, path, json=body)
        assert answer.status_code == 403, (method, path)
        if method != "HEAD":
            assert "User:ANONYMOUS may not" in assert_error(answer, 403, 40301)
    for operation, method, path in (
        (Operation.DESCRIBE, "GET", "/status"),
        (Operation.DESCRIBE, "GET", "/metrics"),
        (Operation.IDEMPOTENT_WRITE, "POST", "/producers"),
    ):
        deny((operation, "kafka-cluster"))
        assert_error(await api.request(method, path), 403, 40301)
        assert (await api.get("/health/ready")).status_code == 200
    deny()
    assert await api.values("theirs") == ["secret"]
    assert (await api.get("/topics/theirs")).json()["configs"]["retention.ms"] != "1"


async def test_names_in_bodies_and_answers_are_asked_for_one_by_one(api, deny):
    deny((Operation.DESCRIBE, "theirs"))
    assert (await api.get("/topics")).json() == ["mine"]
    assert [found["topic_name"] for found in (await api.get(api.topics_url)).json()["data"]] == [
        "__consumer_offsets",
        "mine",
    ]
    assert (await api.get("/groups")).json() == ["mine"]
    assert [found["topic"] for found in (await api.get("/groups/mine/offsets")).json()["offsets"]] == ["mine"]
    assert_error(await api.get("/groups/mine/offsets?topic=theirs"), 403, 40301)
    lag = (await api.get("/groups/mine/lag")).json()
    assert (lag["total_lag"], [found["topic"] for found in lag["partitions"]]) == (0, ["mine"])

    deny((Operation.CREATE, "theirs-too"), (Operation.CREATE, "kafka-cluster"))
    assert_error(await api.post(api.topics_url, json={"topic_name": "theirs-too"}), 403, 40301)
    assert "theirs-too" not in (await api.get("/topics")).json()

    deny((Operation.READ, "theirs"))
    offsets = [{"topic": name, "partition": 0, "offset": 1} for name in ("theirs",)]
    assert_error(await api.post("/groups/mine/offsets", json={"offsets": offsets}), 403, 40301)
    wanted = [{"topic": name, "partition": 0, "offset": 0} for name in ("theirs", "mine")]
    answer = await api.post("/fetch", json={"partitions": wanted, "max_wait_ms": 0})
    assert answer.status_code == 200
    assert b"may not READ the topic 'theirs'" in answer.content
    assert b"secret" not in answer.content


async def test_a_topic_that_produce_would_create_needs_the_permission_to_create(tmp_path):
    from tests.api.api_client import running_api

    async with running_api(tmp_path / "data", auto_create_topics_enable=True) as api:
        api.app.guard.authorizer.replace(
            DeniedOperations({(Operation.CREATE, "new"), (Operation.CREATE, "kafka-cluster")})
        )
        assert_error(await api.post("/topics/new", json={"records": [{"value": 1}]}), 403, 40301)
        assert (await api.get("/topics")).json() == []
