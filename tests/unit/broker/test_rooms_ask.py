"""Every public method of the broker and of the groups checks permissions, so that no listener can forget to."""

import asyncio
import inspect
import operator
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.groups.instance_record import InstanceConfig
from consumer_offsets.offset_reset import ResetTarget, ResetTo
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition, WantedPartition
from logstore.broker.produce.batches import TopicBatches
from logstore.cluster.cluster_state import ElectionType
from logstore.errors import AuthorizationError, InvalidTopicError, TopicAuthorizationError
from logstore.log.topic import Topic
from logstore.protocol.members.identity import MemberIdentity
from logstore.protocol.messages.groups import GroupListings
from logstore.records.offset_record import InstanceKey
from tests.support.authorizer_views import Denied, Nothing
from tests.support.running_broker import CLIENT, produce, records, running_broker
from tests.support.virtual_time import clock_of_loop, run

#: Methods of a store's life, which no client calls.
LIFE = {"start", "stop", "running", "close", "topics_changed", "recover"}
#: Methods of rooms for other rooms and for the brokers of a cluster, which check permissions themselves.
OF_ROOMS = {
    "topics.served": {
        *("get", "by_id", "served", "names", "is_known", "knows_id", "partition_log", "facts", "make", "remove"),
        *("forget_gone", "appear", "follow", "look_at_start", "was_removed", "let_go", "drop", "look_at_tables"),
        "finish_deletion",
    },
    "topics.changes": {"change_table"},
    "produce.records": {"append", "append_here", "acknowledged", "require_issued"},
}
ROOMS = (
    *("topics.served", "topics.changes", "topics.tables", "topics.leaders", "topics.problems", "fetch"),
    "topics.columns",
    *("produce.records", "produce.batches", "produce.batcher"),
)
#: Between brokers: the caller has proved that it is one.
BETWEEN_BROKERS = {"fetch_session"}
#: Methods that wait for things that other brokers create, and return nothing.
WAITS = {"until_there"}
LIMITS = FetchLimits(1000, 1000, 1, 600_000)
CLUSTER, TOPIC, GROUP = ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.GROUP

#: Each method's arguments, and the pairs of operation and type that it checks first.
BROKER: dict[str, tuple[Callable[[Topic], tuple[Any, ...]], set[tuple[Operation, ResourceType]]]] = {
    "topics.served.all": (lambda _: (), {(Operation.DESCRIBE, TOPIC)}),
    "topics.served.topic": (lambda _: ("t",), {(Operation.DESCRIBE, TOPIC)}),
    "topics.served.topic_by_id": (lambda topic: (topic.topic_id,), {(Operation.DESCRIBE, TOPIC)}),
    "topics.leaders.partition_state": (lambda topic: (topic, 0), {(Operation.DESCRIBE, TOPIC)}),
    "topics.leaders.partition_states": (lambda topic: (topic,), {(Operation.DESCRIBE, TOPIC)}),
    "topics.leaders.elect_leaders": (lambda _: (ElectionType.PREFERRED,), {(Operation.ALTER, CLUSTER)}),
    "topics.leaders.reassign": (lambda topic: (topic, {0: [0]}), {(Operation.ALTER, CLUSTER)}),
    "topics.problems.all": (lambda _: (), {(Operation.DESCRIBE, TOPIC)}),
    "topics.served.was_deleted": (lambda _: (uuid4(),), {(Operation.CLUSTER_ACTION, CLUSTER)}),
    "topics.changes.create": (lambda _: ("new",), {(Operation.CREATE, CLUSTER), (Operation.CREATE, TOPIC)}),
    "topics.changes.find": (lambda _: ("t", Operation.WRITE), {(Operation.WRITE, TOPIC)}),
    "topics.changes.find_or_create": (lambda _: ("t", Operation.READ), {(Operation.READ, TOPIC)}),
    "topics.changes.delete": (lambda _: ("t",), {(Operation.DELETE, TOPIC)}),
    "topics.changes.alter_configs": (lambda _: ("t", {"retention.ms": "1"}), {(Operation.ALTER_CONFIGS, TOPIC)}),
    "topics.changes.add_partitions": (lambda _: ("t", 9), {(Operation.ALTER, TOPIC)}),
    "topics.changes.require_alterable": (lambda _: ("t",), {(Operation.ALTER_CONFIGS, TOPIC)}),
    "topics.columns.describe": (lambda topic: (topic,), {(Operation.DESCRIBE, TOPIC)}),
    "topics.columns.declare": (lambda _: ("t", "n BIGINT"), {(Operation.ALTER_CONFIGS, TOPIC)}),
    "topics.columns.retire": (lambda _: ("t", ("n",)), {(Operation.ALTER_CONFIGS, TOPIC)}),
    "topics.columns.propose": (lambda topic: (topic, 10, {}), {(Operation.READ, TOPIC)}),
    "topics.tables.delete_records": (lambda topic: (topic, 0, -1), {(Operation.DELETE, TOPIC)}),
    "topics.tables.delete_all_records": (lambda topic: (topic, {0: -1}), {(Operation.DELETE, TOPIC)}),
    "topics.tables.drop_foreign_files": (lambda topic: (topic,), {(Operation.ALTER, TOPIC)}),
    "produce.records.produce": (lambda topic: (topic, records([b"x"])), {(Operation.WRITE, TOPIC)}),
    "produce.batches.produce": (lambda _: ([TopicBatches("t", [(0, b"x")])],), {(Operation.WRITE, TOPIC)}),
    "produce.batcher.produce": (lambda topic: (topic, [b"x"], records), {(Operation.WRITE, TOPIC)}),
    "produce.batcher.begin": (lambda topic: (topic, [b"x"], records), {(Operation.WRITE, TOPIC)}),
    "produce.records.init_producer": (lambda _: (), {(Operation.IDEMPOTENT_WRITE, CLUSTER)}),
    "fetch.partition": (lambda topic: (topic, 0, 0), {(Operation.READ, TOPIC)}),
    "fetch.records": (lambda _: ([FetchPartition("t", 0, 0)], LIMITS), {(Operation.READ, TOPIC)}),
    "fetch.stored": (lambda _: ([FetchPartition("t", 0, 0)], LIMITS), {(Operation.READ, TOPIC)}),
    "fetch.batches": (
        lambda topic: ([WantedPartition(topic, topic.partition(0), 0)], LIMITS),
        {(Operation.READ, TOPIC)},
    ),
    "fetch.count_records": (lambda topic: (topic, 0, 0, 1), {(Operation.DESCRIBE, TOPIC)}),
    "fetch.offset_for_timestamp": (lambda topic: (topic, 0, 0), {(Operation.DESCRIBE, TOPIC)}),
    "fetch.offset_of_max_timestamp": (lambda topic: (topic, 0), {(Operation.DESCRIBE, TOPIC)}),
    "topics.tables.roll": (lambda topic: (topic,), {(Operation.ALTER, TOPIC)}),
    "topics.tables.refresh": (lambda topic: (topic,), {(Operation.ALTER, TOPIC)}),
    "topics.tables.keyless_records": (lambda topic: (topic,), {(Operation.DESCRIBE, TOPIC)}),
    "topics.changes.internal": (lambda _: ("__audit",), {(Operation.CLUSTER_ACTION, CLUSTER)}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "topics.columns.declare": {"is_whole": False, "dry_run": False},
    "topics.columns.retire": {"dry_run": False},
    "topics.changes.internal": {"partitions": 1, "configs": {}},
    "list_groups": {"limit": 9},
    "list_all_groups": {"limit": 9},
    "produce.batcher.produce": {"num_bytes": 1, "timeout_ms": 1000},
    "produce.batcher.begin": {"num_bytes": 1, "timeout_ms": 1000, "callback": print},
    "fetch.partition": {"max_bytes": 1, "min_bytes": 1, "max_wait_ms": 0},
}
GROUPS: dict[str, tuple[Callable[[Topic], tuple[Any, ...]], set[tuple[Operation, ResourceType]]]] = {
    "commit": (lambda _: ("g", [OffsetToCommit("t", 0, 1)]), {(Operation.READ, GROUP)}),
    "commit_of_instance": (
        lambda _: (InstanceKey("g", "c"), "id", [OffsetToCommit("t", 0, 1)], MemberIdentity()),
        {(Operation.READ, GROUP)},
    ),
    "commit_each": (lambda _: ("g", [OffsetToCommit("t", 0, 1)], MemberIdentity()), {(Operation.READ, GROUP)}),
    "check_fetch": (lambda _: ("g", "m", 1), {(Operation.DESCRIBE, GROUP)}),
    "pending": (lambda _: ("g",), {(Operation.DESCRIBE, GROUP)}),
    "overview": (lambda _: (), {(Operation.DESCRIBE, GROUP)}),
    "delete_offsets": (lambda _: ("g", [TopicPartition("t", 0)]), {(Operation.DELETE, GROUP)}),
    "coordinator_of": (lambda _: ("g",), {(Operation.DESCRIBE, GROUP)}),
    "groups": (lambda _: (), {(Operation.DESCRIBE, GROUP)}),
    "list_groups": (lambda _: (), {(Operation.DESCRIBE, GROUP)}),
    "all_groups": (lambda _: (), {(Operation.DESCRIBE, GROUP)}),
    "list_all_groups": (lambda _: (), {(Operation.DESCRIBE, GROUP)}),
    "fetch_lag": (lambda _: ("g",), {(Operation.DESCRIBE, GROUP)}),
    "fetch_lag_in_records": (lambda _: ("g",), {(Operation.DESCRIBE, GROUP)}),
    "reset": (lambda _: ("g", ResetTarget(ResetTo.EARLIEST)), {(Operation.READ, GROUP)}),
    "delete_groups": (lambda _: (["g"],), {(Operation.DELETE, GROUP)}),
    "committed": (lambda _: ("g",), {(Operation.DESCRIBE, GROUP)}),
    "describe": (lambda _: ("g",), {(Operation.DESCRIBE, GROUP)}),
    "lag": (lambda _: ("g",), {(Operation.DESCRIBE, GROUP)}),
    "delete": (lambda _: ("g",), {(Operation.DELETE, GROUP)}),
}


INSTANCES: dict[str, tuple[Callable[[Topic], tuple[Any, ...]], set[tuple[Operation, ResourceType]]]] = {
    "create": (lambda _: ("g", "c", CONFIG), {(Operation.READ, GROUP)}),
    "get": (lambda _: ("g", "c"), {(Operation.READ, GROUP)}),
    "delete": (lambda _: ("g", "c"), {(Operation.READ, GROUP)}),
}
CONFIG = InstanceConfig("json", "earliest", auto_commit=False, fetch_min_bytes=1, request_timeout_ms=1, isolation=0)


class Watched(Nothing):
    """An authorizer that allows nothing and remembers what it was asked."""

    def allows(self, *asked: Any) -> bool:
        _, _, operation, resource_type, _ = asked
        ASKED.add((operation, resource_type))
        return False


ASKED: set[tuple[Operation, ResourceType]] = set()


def methods_of_rooms(broker: Broker) -> dict[str, Callable[..., Any]]:
    """Return the methods of the broker and its rooms that listeners call."""
    found = public_methods(broker)
    for name in ROOMS:
        methods = public_methods(operator.attrgetter(name)(broker))
        assert methods.keys() >= OF_ROOMS.get(name, set())
        found |= {f"{name}.{key}": one for key, one in methods.items() if key not in OF_ROOMS.get(name, ())}
    return found


def test_no_listener_calls_what_rooms_keep_for_each_other() -> None:
    own = re.compile("|".join(rf"\b{name}\.(?:{'|'.join(names)})\(" for name, names in OF_ROOMS.items()))
    files = [
        path
        for room in ("ingest_api", "consumer_offsets", "logstore/kafka_listener")
        for path in Path(room).rglob("*.py")
    ]
    assert len(files) > 50
    for path in files:
        assert own.search(path.read_text()) is None, path


def public_methods(thing: object) -> dict[str, Callable[..., Any]]:
    found = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}
    return {
        name: method
        for name, method in found.items()
        if inspect.ismethod(method) and name not in LIFE | BETWEEN_BROKERS | WAITS
    }


async def call(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    made = method(*args, **options)
    return await asyncio.wait_for(made, 30) if inspect.isawaitable(made) else made


async def stores(path: Path) -> AsyncIterator[tuple[Broker, GroupCoordinator, Topic]]:
    async with running_broker(path) as broker, GroupCoordinator.running(broker, clock=clock_of_loop()) as groups:
        topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2)
        assert topic is not None
        await produce(broker, topic, [b"secret"])
        await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
        yield broker, groups, topic


def test_every_method_refuses_a_principal_without_permissions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async for broker, groups, topic in stores(tmp_path):
            instances = groups.instances
            for thing, table in ((broker, BROKER), (groups, GROUPS), (instances, INSTANCES)):
                methods = methods_of_rooms(thing) if isinstance(thing, Broker) else public_methods(thing)
                assert sorted(methods) == sorted(table), "say here how a new method is called, and what it asks for"
                for turn, (name, (arguments, wanted)) in enumerate(table.items(), start=1):
                    assert next(iter(inspect.signature(methods[name]).parameters)) == "context", name
                    broker.authorizer.replace(Watched(broker.authorizer.view.version + turn))
                    ASKED.clear()
                    try:
                        told = await call(methods[name], CLIENT, *arguments(topic), **OPTIONS.get(name, {}))
                    except AuthorizationError:
                        told = None
                    if name in {"topics.served.all", "groups", "all_groups", "overview", "topics.problems.all"}:
                        assert told == [], name
                    elif name in {"list_groups", "list_all_groups"}:
                        assert told == GroupListings((), None)
                    elif name == "delete_groups":
                        assert isinstance(told["g"], AuthorizationError)
                    elif name == "produce.batches.produce":
                        assert isinstance(told.outcomes[0][0].error, TopicAuthorizationError)
                    elif name in {"fetch.records", "fetch.stored", "fetch.batches"}:
                        (error,) = told.answers.values()
                        assert isinstance(error, TopicAuthorizationError)
                    else:
                        assert told is None, name
                    if name != "topics.problems.all":  # there are none to ask for
                        assert wanted == ASKED, name
            assert [found.name for found in broker.topics.served.all(INTERNAL)] == ["t"]
            assert topic.partition(0).high_watermark == 1
            assert topic.partition(0).log_start_offset == topic.partition(0).sealed_offset == 0
            assert [found.offset for found in groups.committed(INTERNAL, "g")] == [1]

    run(scenario())


def test_a_topic_is_created_by_whom_the_cluster_or_the_name_is_given_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, auto_create_topics_enable=True) as broker:
            broker.authorizer.replace(Denied({CLUSTER_NAME}, 1))
            await broker.topics.changes.create(CLIENT, "by-name")
            broker.authorizer.replace(Denied({"by-cluster"}, 2))
            await broker.topics.changes.create(CLIENT, "by-cluster")
            broker.authorizer.replace(Denied({"neither", CLUSTER_NAME}, 3))
            for refused in (
                broker.topics.changes.create(CLIENT, "neither"),
                broker.topics.changes.create(CLIENT, "neither", validate_only=True),
                broker.topics.changes.find_or_create(CLIENT, "neither", Operation.READ),
            ):
                with pytest.raises(TopicAuthorizationError):
                    await refused
            assert [topic.name for topic in broker.topics.served.all(INTERNAL)] == ["by-cluster", "by-name"]

    run(scenario())


def test_a_group_commits_and_shows_only_topics_that_it_may(tmp_path: Path) -> None:
    async def scenario() -> None:
        async for broker, groups, _ in stores(tmp_path):
            await broker.topics.changes.create(INTERNAL, "u", partitions=1)
            both = [OffsetToCommit("u", 0, 0), OffsetToCommit("t", 1, 0)]
            await groups.commit(CLIENT, "g", both)
            broker.authorizer.replace(Denied({"t"}, 1))
            with pytest.raises(TopicAuthorizationError):
                await groups.commit(CLIENT, "g", both)
            with pytest.raises(TopicAuthorizationError):
                groups.committed(CLIENT, "g", "t")
            assert {found.topic for found in groups.committed(CLIENT, "g")} == {"u"}
            assert {found.topic for found in groups.lag(CLIENT, "g")} == {"u"}
            assert {found.topic for found in groups.lag(INTERNAL, "g")} == {"t", "u"}

    run(scenario())


def test_only_the_store_itself_writes_to_its_own_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.internal(INTERNAL, "__audit", partitions=1, configs={})
            with pytest.raises(InvalidTopicError):
                await broker.produce.records.produce(CLIENT, topic, records([b"x"]))
            assert await produce(broker, topic, [b"x"]) == 0

    run(scenario())
