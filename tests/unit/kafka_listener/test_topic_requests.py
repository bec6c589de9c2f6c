"""CreateTopics, DeleteTopics, CreatePartitions and DescribeTopicPartitions at a real broker, through the codecs."""

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicPartitionsRequest,
)
from logstore.topic_config import CONFIG_KEYS
from tests.support.authorizer_views import Denied
from tests.support.kafka_handlers import Handlers, kafka_handlers
from tests.support.virtual_time import run

CREATE, DELETE, GROW, DESCRIBE = 19, 20, 37, 75
INVALID_REQUEST, EXISTS, UNKNOWN, UNKNOWN_ID, NOT_ALLOWED = 42, 36, 3, 100, 29
INVALID_TOPIC, INVALID_PARTITIONS, INVALID_FACTOR, INVALID_ASSIGNMENT, INVALID_CONFIG = 17, 37, 38, 39, 40


def versions(api_key: int) -> range:
    api = APIS[api_key]
    return range(api.version_min, api.version_max + 1)


def topic(
    name: str, partitions: int = -1, replicas: int = -1, assignment: dict[int, list[int]] | None = None, **configs
):
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=partition, broker_ids=brokers)
            for partition, brokers in (assignment or {}).items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


async def create(handlers: Handlers, *topics, version: int = 7, validate_only: bool = False, timeout_ms: int = 30_000):
    """Create the topics and return the answers by name."""
    request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)
    answer = await handlers.ask(CREATE, version, request)
    found = {one.name: one for one in answer.topics}
    assert len(found) == len(answer.topics)
    return found


def codes(answers) -> list[int]:
    return [one.error_code for one in answers]


@pytest.mark.parametrize("version", versions(CREATE))
def test_a_topic_is_created_in_every_version(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, num_partitions=3) as handlers:
            answers = await create(handlers, topic("a"), topic("b", 2, 1, retention_ms="1000"), version=version)
            assert codes(answers.values()) == [0, 0], answers
            a, b = (handlers.broker.topics.served.topic(INTERNAL, name) for name in "ab")
            assert (len(a.partitions), len(b.partitions)) == (3, 2)
            assert b.config.retention_ms == 1000
            if version >= 5:
                told = answers["b"]
                assert (told.num_partitions, told.replication_factor, told.topic_config_error_code) == (2, 1, 0)
                configs = {one.name: one for one in told.configs}
                assert list(configs) == [key.name for key in CONFIG_KEYS]
                assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
                assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("134217728", 5)
            if version >= 7:
                assert UUID(bytes=answers["a"].topic_id) == a.topic_id

    run(scenario())


def test_topics_that_cannot_be_made_stop_no_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await create(handlers, topic("there"))
            answers = await create(
                handlers,
                topic("there"),
                topic("The.re"),
                topic("twice"),
                topic("twice", 2),
                topic("bad name"),
                topic("__audit"),
                topic("none", 0),
                topic("negative", -2),
                topic("too-many", 1, 2),
                topic("no-replica", 1, 0),
                topic("bad-config", retention_ms="soon"),
                topic("unknown-config", flush_messages="1"),
                topic("null-config", retention_ms=None),
                topic("mixed", 1, assignment={0: [0]}),
                topic("mixed-factor", -1, 1, assignment={0: [0]}),
                topic("gap", assignment={0: [0], 2: [0]}),
                topic("nobody", assignment={0: [7]}),
                topic("doubled", assignment={0: [0, 0]}),
                topic("empty", assignment={0: []}),
                topic("good"),
            )
            assert {name: one.error_code for name, one in answers.items()} == {
                "there": EXISTS,
                "The.re": 0,
                "twice": INVALID_REQUEST,
                "bad name": INVALID_TOPIC,
                "__audit": INVALID_TOPIC,
                "none": INVALID_PARTITIONS,
                "negative": INVALID_PARTITIONS,
                "too-many": INVALID_FACTOR,
                "no-replica": INVALID_FACTOR,
                "bad-config": INVALID_CONFIG,
                "unknown-config": INVALID_CONFIG,
                "null-config": INVALID_CONFIG,
                "mixed": INVALID_REQUEST,
                "mixed-factor": INVALID_REQUEST,
                "gap": INVALID_ASSIGNMENT,
                "nobody": INVALID_ASSIGNMENT,
                "doubled": INVALID_ASSIGNMENT,
                "empty": INVALID_ASSIGNMENT,
                "good": 0,
            }
            assert "retention.ms cannot be 'soon'" in answers["bad-config"].error_message
            assert all((one.error_message is None) == (one.error_code == 0) for one in answers.values())
            made = [one.name for one in handlers.broker.topics.served.all(INTERNAL)]
            assert made == ["The.re", "good", "there"]

    run(scenario())


def test_an_assignment_of_replicas_says_how_many_partitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, broker_id=3) as handlers:
            answers = await create(handlers, topic("t", assignment={1: [3], 0: [3]}))
            assert (answers["t"].error_code, answers["t"].num_partitions) == (0, 2)
            assert len(handlers.broker.topics.served.topic(INTERNAL, "t").partitions) == 2

    run(scenario())


def test_validate_only_creates_nothing_and_returns_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            asked = (topic("t", 4, cleanup_policy="compact"), topic("bad name"), topic("a", assignment={0: [0]}))
            answers = await create(handlers, *asked, validate_only=True)
            assert codes(answers.values()) == [0, INVALID_TOPIC, 0]
            assert (answers["t"].num_partitions, answers["t"].replication_factor) == (4, 1)
            assert answers["a"].num_partitions == 1
            assert {one.name: one.value for one in answers["t"].configs}["cleanup.policy"] == "compact"
            assert handlers.broker.topics.served.all(INTERNAL) == []

    run(scenario())


def test_a_client_that_may_not_create_gets_an_error_and_configs_need_describe_configs(tmp_path: Path) -> None:
    class NoConfigs(Denied):
        def allows(self, principal, host, operation, resource_type, name) -> bool:
            return operation != "DESCRIBE_CONFIGS" and super().allows(principal, host, operation, resource_type, name)

    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(NoConfigs(["secret", "kafka-cluster"]))) as handlers:
            answers = await create(handlers, topic("secret"), topic("open", 2))
            assert (answers["secret"].error_code, answers["open"].error_code) == (NOT_ALLOWED, 0)
            assert answers["open"].topic_config_error_code == NOT_ALLOWED
            assert (answers["open"].num_partitions, list(answers["open"].configs)) == (-1, [])

    run(scenario())


def test_a_creation_that_outlasts_its_request_continues(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            async with handlers.broker.topics.served.lock:  # another change of the catalogue is under way
                answers = await create(handlers, topic("t"), timeout_ms=20)
                assert answers["t"].error_code == 7
            assert (await create(handlers, topic("t"), timeout_ms=0))["t"].error_code == EXISTS

    run(scenario())


def test_work_that_a_request_has_no_time_for_is_not_begun(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            names = [f"t{number}" for number in range(40)]
            async with handlers.broker.topics.served.lock:
                answers = await create(handlers, *map(topic, names), timeout_ms=500)
            assert codes(answers.values()) == [7] * 40
            begun = [name for name, one in answers.items() if "goes on" in one.error_message]
            assert 0 < len(begun) < 40
            await handlers.broker.topics.changes.create(INTERNAL, "last")  # changes run one after another
            assert {one.name for one in handlers.broker.topics.served.all(INTERNAL)} == {*begun, "last"}

    run(scenario())


# ---- deletion --------------------------------------------------------------------------------------------------------


def by_name(name: str | None, topic_id: UUID | None = None) -> DeleteTopicsRequest.DeleteTopicState:
    return DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=bytes(16) if topic_id is None else topic_id.bytes)


@pytest.mark.parametrize("version", versions(DELETE))
def test_a_topic_is_deleted_by_name_in_every_version(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await create(handlers, topic("a"), topic("b"))
            names = ["a", "gone"]
            request = DeleteTopicsRequest(topic_names=names, topics=list(map(by_name, names)), timeout_ms=30_000)
            answer = await handlers.ask(DELETE, version, request)
            assert [(one.name, one.error_code) for one in answer.responses] == [("a", 0), ("gone", UNKNOWN)]
            assert [one.name for one in handlers.broker.topics.served.all(INTERNAL)] == ["b"]

    run(scenario())


def test_a_topic_is_deleted_by_id_and_by_one_of_the_two_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied(["hidden"]))) as handlers:
            await create(handlers, topic("a"), topic("b"), topic("c"))
            hidden = await handlers.broker.topics.changes.create(INTERNAL, "hidden")
            ids = {one.name: one.topic_id for one in handlers.broker.topics.served.all(INTERNAL)}
            unknown = uuid4()
            asked = [
                by_name(None, ids["a"]),
                by_name("b", ids["b"]),
                by_name(None),
                by_name(None, unknown),
                by_name("c"),
                by_name("c"),
                by_name(None, hidden.topic_id),
            ]
            answer = await handlers.ask(DELETE, 6, DeleteTopicsRequest(topics=asked, timeout_ms=30_000))
            assert [(one.name, one.error_code) for one in answer.responses] == [
                ("a", 0),
                ("b", INVALID_REQUEST),
                (None, INVALID_REQUEST),
                (None, UNKNOWN_ID),
                (None, NOT_ALLOWED),
                ("c", INVALID_REQUEST),
            ]
            assert answer.responses[3].topic_id == unknown.bytes
            assert [one.name for one in handlers.broker.topics.served.all(INTERNAL)] == ["b", "c", "hidden"]

    run(scenario())


def test_the_topic_that_has_the_name_now_is_not_deleted_for_another_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            broker = handlers.broker
            old = await broker.topics.changes.create(INTERNAL, "t")
            request = DeleteTopicsRequest(topics=[by_name(None, old.topic_id)], timeout_ms=30_000)
            async with asyncio.TaskGroup() as tasks, broker.topics.served.lock:  # changes wait in this order
                tasks.create_task(broker.topics.changes.delete(INTERNAL, "t"))
                creating = tasks.create_task(broker.topics.changes.create(INTERNAL, "t"))
                deleting = tasks.create_task(handlers.ask(DELETE, 6, request))
                await asyncio.sleep(0.01)
            assert codes(deleting.result().responses) == [UNKNOWN_ID]
            assert handlers.broker.topics.served.all(INTERNAL) == [creating.result()]

    run(scenario())


# ---- partitions ------------------------------------------------------------------------------------------------------


def growth(name: str, count: int, assignments=None) -> CreatePartitionsRequest.CreatePartitionsTopic:
    return CreatePartitionsRequest.CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=assignments
        and [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments],
    )


@pytest.mark.parametrize("version", versions(GROW))
def test_partitions_are_added_in_every_version(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await create(handlers, *(topic(name, 2) for name in "abcdefg"))
            asked = [
                growth("a", 3),
                growth("b", 2),
                growth("c", 1),
                growth("gone", 5),
                growth("d", 9),
                growth("d", 9),
                growth("e", 4, [[0], [0]]),
                growth("f", 4, [[0]]),
                growth("g", 3, [[8]]),
            ]
            request = CreatePartitionsRequest(topics=asked, timeout_ms=30_000)
            answer = await handlers.ask(GROW, version, request)
            assert {one.name: one.error_code for one in answer.results} == {
                "a": 0,
                "b": INVALID_PARTITIONS,
                "c": INVALID_PARTITIONS,
                "gone": UNKNOWN,
                "d": INVALID_REQUEST,
                "e": 0,
                "f": INVALID_ASSIGNMENT,
                "g": INVALID_ASSIGNMENT,
            }
            counts = {one.name: len(one.partitions) for one in handlers.broker.topics.served.all(INTERNAL)}
            assert counts == {"a": 3, "b": 2, "c": 2, "d": 2, "e": 4, "f": 2, "g": 2}

    run(scenario())


def test_growth_that_is_only_checked_grows_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await create(handlers, topic("t", 2))
            request = CreatePartitionsRequest(topics=[growth("t", 5)], timeout_ms=30_000, validate_only=True)
            assert codes((await handlers.ask(GROW, 3, request)).results) == [0]
            assert len(handlers.broker.topics.served.topic(INTERNAL, "t").partitions) == 2

    run(scenario())


# ---- description -----------------------------------------------------------------------------------------------------


async def described(handlers: Handlers, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None):
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor and DescribeTopicPartitionsRequest.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return await handlers.ask(DESCRIBE, 0, request)


def test_topics_are_described_some_partitions_at_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await create(handlers, topic("a", 3), topic("b", 1), topic("c", 4))
            seen: list[tuple[str, int]] = []
            cursor, answers = None, 0
            while answers == 0 or cursor is not None:
                answer = await described(handlers, limit=2, cursor=cursor)
                pages = [(one.name, each.partition_index) for one in answer.topics for each in one.partitions]
                assert 1 <= len(pages) <= 2
                assert all(one.partitions for one in answer.topics)
                seen += pages
                following = answer.next_cursor
                cursor = following and (following.topic_name, following.partition_index)
                answers += 1
            assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]
            assert answers == 4

    run(scenario())


def test_a_partition_is_described_with_its_leader_and_its_replicas(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, broker_id=5) as handlers:
            await create(handlers, topic("t", 1))
            (found,) = (await described(handlers, "t")).topics
            made = handlers.broker.topics.served.topic(INTERNAL, "t")
            assert (found.error_code, found.topic_id, found.is_internal) == (0, made.topic_id.bytes, False)
            (partition,) = found.partitions
            assert (partition.leader_id, partition.leader_epoch) == (5, made.partitions[0].leader_epoch)
            assert (list(partition.replica_nodes), list(partition.isr_nodes)) == ([5], [5])
            assert list(partition.offline_replicas) == []
            assert found.topic_authorized_operations == sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))

    run(scenario())


def test_topics_that_cannot_be_described_have_an_error_of_their_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied(["hidden"]))) as handlers:
            await create(handlers, topic("t", 2))
            await handlers.broker.topics.changes.create(INTERNAL, "hidden")
            answer = await described(handlers, "t", "gone", "hidden", "t")
            assert [(one.name, one.error_code) for one in answer.topics] == [
                ("gone", UNKNOWN),
                ("hidden", NOT_ALLOWED),
                ("t", 0),
            ]
            assert [one.name for one in (await described(handlers)).topics] == ["t"]
            for cursor in (("t", -1), ("u", 0)):
                assert codes((await described(handlers, "t", cursor=cursor)).topics) == [INVALID_REQUEST]
            assert [one.name for one in (await described(handlers, cursor=("deleted", 3))).topics] == ["t"]
            assert not (await described(handlers, "t", cursor=("t", 9))).topics[0].partitions

    run(scenario())
