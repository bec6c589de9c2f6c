"""Every public method of the broker and of the groups asks who may do what, so that no listener can forget to."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.group_listings import GroupListings
from consumer_offsets.instances.instance_record import InstanceConfig
from consumer_offsets.offset_reset import ResetTarget, ResetTo
from consumer_offsets.offsets import CommittingMember, OffsetToCommit
from logstore.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from logstore.broker.broker import Broker, Topic
from logstore.broker.context import INTERNAL
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition, WantedPartition
from logstore.broker.produce.appends import ProduceRequest
from logstore.broker.produce.batches import TopicBatches
from logstore.cluster.coordinator import ElectionType
from logstore.errors import AuthorizationError, InvalidTopicError, TopicAuthorizationError
from logstore.records.offset_record import InstanceKey
from tests.support.authorizer_views import Denied, Nothing
from tests.support.running_broker import CLIENT, produce, records, running_broker
from tests.support.virtual_time import clock_of_loop, run

#: Of a store's life; nobody outside calls them.
LIFE = {"start", "stop", "running", "close", "topics_changed", "join_cluster"}
#: For other brokers, which have proved that they are, and of them, for topics that were asked for.
BETWEEN_BROKERS = {"fetch_session", "offsets_elsewhere", "ends_in_doubt"}
#: They wait for what other brokers have made, and tell nothing.
WAITS = {"until_known", "until_there"}
LIMITS = FetchLimits(1000, 1000, 1, 600_000)
CLUSTER, TOPIC, GROUP = ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.GROUP

#: How each method is called, and the pairs of operation and type that it asks for first.
BROKER: dict[str, tuple[Callable[[Topic], tuple[Any, ...]], set[tuple[Operation, ResourceType]]]] = {
    "topics": (lambda _: (), {(Operation.DESCRIBE, TOPIC)}),
    "topic": (lambda _: ("t",), {(Operation.DESCRIBE, TOPIC)}),
    "topic_by_id": (lambda topic: (topic.topic_id,), {(Operation.DESCRIBE, TOPIC)}),
    "partition_state": (lambda topic: (topic, 0), {(Operation.DESCRIBE, TOPIC)}),
    "partition_states": (lambda topic: (topic,), {(Operation.DESCRIBE, TOPIC)}),
    "elect_leaders": (lambda _: (ElectionType.PREFERRED,), {(Operation.ALTER, CLUSTER)}),
    "reassign": (lambda topic: (topic, {0: [0]}), {(Operation.ALTER, CLUSTER)}),
    "problems": (lambda _: (), {(Operation.DESCRIBE, TOPIC)}),
    "was_deleted": (lambda _: (uuid4(),), {(Operation.CLUSTER_ACTION, CLUSTER)}),
    "create_topic": (lambda _: ("new",), {(Operation.CREATE, CLUSTER), (Operation.CREATE, TOPIC)}),
    "find_topic": (lambda _: ("t", Operation.WRITE), {(Operation.WRITE, TOPIC)}),
    "find_or_create_topic": (lambda _: ("t", Operation.READ), {(Operation.READ, TOPIC)}),
    "delete_topic": (lambda _: ("t",), {(Operation.DELETE, TOPIC)}),
    "alter_configs": (lambda _: ("t", {"retention.ms": "1"}), {(Operation.ALTER_CONFIGS, TOPIC)}),
    "add_partitions": (lambda _: ("t", 9), {(Operation.ALTER, TOPIC)}),
    "delete_records": (lambda topic: (topic, 0, -1), {(Operation.DELETE, TOPIC)}),
    "delete_all_records": (lambda topic: (topic, {0: -1}), {(Operation.DELETE, TOPIC)}),
    "drop_foreign_files": (lambda topic: (topic,), {(Operation.ALTER, TOPIC)}),
    "produce": (lambda topic: (topic, records([b"x"])), {(Operation.WRITE, TOPIC)}),
    "produce_all": (lambda topic: ([ProduceRequest(topic, records([b"x"]))],), {(Operation.WRITE, TOPIC)}),
    "produce_batches": (lambda _: ([TopicBatches("t", [(0, b"x")])],), {(Operation.WRITE, TOPIC)}),
    "produce_small": (lambda topic: (topic, [b"x"], records), {(Operation.WRITE, TOPIC)}),
    "begin_produce_small": (lambda topic: (topic, [b"x"], records), {(Operation.WRITE, TOPIC)}),
    "init_producer": (lambda _: (), {(Operation.IDEMPOTENT_WRITE, CLUSTER)}),
    "fetch": (lambda topic: (topic, 0, 0), {(Operation.READ, TOPIC)}),
    "fetch_records": (lambda _: ([FetchPartition("t", 0, 0)], LIMITS), {(Operation.READ, TOPIC)}),
    "fetch_stored": (lambda _: ([FetchPartition("t", 0, 0)], LIMITS), {(Operation.READ, TOPIC)}),
    "fetch_batches": (
        lambda topic: ([WantedPartition(topic, topic.partition(0), 0)], LIMITS),
        {(Operation.READ, TOPIC)},
    ),
    "count_records": (lambda topic: (topic, 0, 0, 1), {(Operation.DESCRIBE, TOPIC)}),
    "offset_for_timestamp": (lambda topic: (topic, 0, 0), {(Operation.DESCRIBE, TOPIC)}),
    "offset_of_max_timestamp": (lambda topic: (topic, 0), {(Operation.DESCRIBE, TOPIC)}),
    "roll": (lambda topic: (topic,), {(Operation.ALTER, TOPIC)}),
    "refresh": (lambda topic: (topic,), {(Operation.ALTER, TOPIC)}),
    "keyless_records": (lambda topic: (topic,), {(Operation.DESCRIBE, TOPIC)}),
    "internal_topic": (lambda _: ("__audit",), {(Operation.CLUSTER_ACTION, CLUSTER)}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "internal_topic": {"partitions": 1, "configs": {}},
    "list_groups": {"limit": 9},
    "list_all_groups": {"limit": 9},
    "produce_small": {"num_bytes": 1, "timeout_ms": 1000},
    "begin_produce_small": {"num_bytes": 1, "timeout_ms": 1000, "told": print},
    "fetch": {"max_bytes": 1, "min_bytes": 1, "max_wait_ms": 0},
}
GROUPS: dict[str, tuple[Callable[[Topic], tuple[Any, ...]], set[tuple[Operation, ResourceType]]]] = {
    "commit": (lambda _: ("g", [OffsetToCommit("t", 0, 1)]), {(Operation.READ, GROUP)}),
    "commit_of_instance": (
        lambda _: (InstanceKey("g", "c"), "id", [OffsetToCommit("t", 0, 1)], CommittingMember()),
        {(Operation.READ, GROUP)},
    ),
    "commit_each": (lambda _: ("g", [OffsetToCommit("t", 0, 1)], CommittingMember()), {(Operation.READ, GROUP)}),
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
    """Nothing is allowed; remembers what was asked for."""

    def allows(self, *asked: Any) -> bool:
        _, _, operation, resource_type, _ = asked
        ASKED.add((operation, resource_type))
        return False


ASKED: set[tuple[Operation, ResourceType]] = set()


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
        topic = await broker.create_topic(INTERNAL, "t", partitions=2)
        assert topic is not None
        await produce(broker, topic, [b"secret"])
        await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
        yield broker, groups, topic


def test_every_method_refuses_a_principal_without_permissions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async for broker, groups, topic in stores(tmp_path):
            instances = groups.instances
            for thing, table in ((broker, BROKER), (groups, GROUPS), (instances, INSTANCES)):
                methods = public_methods(thing)
                assert sorted(methods) == sorted(table), "say here how a new method is called, and what it asks for"
                for turn, (name, (arguments, wanted)) in enumerate(table.items(), start=1):
                    assert next(iter(inspect.signature(methods[name]).parameters)) == "context", name
                    broker.authorizer.replace(Watched(broker.authorizer.view.version + turn))
                    ASKED.clear()
                    try:
                        told = await call(methods[name], CLIENT, *arguments(topic), **OPTIONS.get(name, {}))
                    except AuthorizationError:
                        told = None
                    if name in {"topics", "groups", "all_groups", "overview", "problems"}:
                        assert told == [], name
                    elif name in {"list_groups", "list_all_groups"}:
                        assert told == GroupListings([], None)
                    elif name == "delete_groups":
                        assert isinstance(told["g"], AuthorizationError)
                    elif name == "produce_batches":
                        assert isinstance(told.outcomes[0][0].error, TopicAuthorizationError)
                    elif name in {"fetch_records", "fetch_stored", "fetch_batches"}:
                        (error,) = told.answers.values()
                        assert isinstance(error, TopicAuthorizationError)
                    else:
                        assert told is None, name
                    if name != "problems":  # there are none to ask for
                        assert wanted == ASKED, name
            assert [found.name for found in broker.topics(INTERNAL)] == ["t"]
            assert topic.partition(0).high_watermark == 1
            assert topic.partition(0).log_start_offset == topic.partition(0).sealed_offset == 0
            assert [found.offset for found in groups.committed(INTERNAL, "g")] == [1]

    run(scenario())


def test_a_topic_is_created_by_whom_the_cluster_or_the_name_is_given_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, auto_create_topics_enable=True) as broker:
            broker.authorizer.replace(Denied({CLUSTER_NAME}, 1))
            await broker.create_topic(CLIENT, "by-name")
            broker.authorizer.replace(Denied({"by-cluster"}, 2))
            await broker.create_topic(CLIENT, "by-cluster")
            broker.authorizer.replace(Denied({"neither", CLUSTER_NAME}, 3))
            for refused in (
                broker.create_topic(CLIENT, "neither"),
                broker.create_topic(CLIENT, "neither", validate_only=True),
                broker.find_or_create_topic(CLIENT, "neither", Operation.READ),
            ):
                with pytest.raises(TopicAuthorizationError):
                    await refused
            assert [topic.name for topic in broker.topics(INTERNAL)] == ["by-cluster", "by-name"]

    run(scenario())


def test_a_group_commits_and_shows_only_topics_that_it_may(tmp_path: Path) -> None:
    async def scenario() -> None:
        async for broker, groups, _ in stores(tmp_path):
            await broker.create_topic(INTERNAL, "u", partitions=1)
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
            topic = await broker.internal_topic(INTERNAL, "__audit", partitions=1, configs={})
            with pytest.raises(InvalidTopicError):
                await broker.produce(CLIENT, topic, records([b"x"]))
            assert await produce(broker, topic, [b"x"]) == 0

    run(scenario())
