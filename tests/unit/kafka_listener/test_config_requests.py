"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs at a real broker, through the codecs."""

from pathlib import Path

import pytest

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from logstore.settings import plain_settings
from logstore.topic_config import CONFIG_KEYS
from tests.support.authorizer_views import Denied
from tests.support.kafka_handlers import Handlers, kafka_handlers
from tests.support.virtual_time import run

DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
INVALID_REQUEST, UNKNOWN, NOT_ALLOWED, NOT_ALLOWED_CLUSTER, INVALID_CONFIG = 42, 3, 29, 31, 40
INVALID_TOPIC = 17
TOPIC, BROKER, GROUP = 2, 4, 32
SET, REMOVE, APPEND, SUBTRACT = range(4)


def versions(api_key: int) -> range:
    api = APIS[api_key]
    return range(api.version_min, api.version_max + 1)


async def describe(
    handlers: Handlers, *resources: tuple[int, str], keys: list[str] | None = None, version: int = 4, more: bool = True
):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
            for kind, name in resources
        ],
        include_synonyms=more,
        include_documentation=more,
    )
    answer = await handlers.ask(DESCRIBE, version, request)
    assert [(one.resource_type, one.resource_name) for one in answer.results] == list(resources)
    return answer.results


async def value(handlers: Handlers, key: str) -> str:
    ((config,),) = [one.configs for one in await describe(handlers, (TOPIC, "t"), keys=[key])]
    return config.value


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_the_keys_of_a_topic_are_described_with_all_layers(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        defaults = {"log.retention.hours": "2", "message.max.bytes": "5000"}
        async with kafka_handlers(tmp_path, broker_defaults=defaults) as handlers:
            await handlers.broker.topics.changes.create(INTERNAL, "t", configs={"retention.ms": "1000"})
            (found,) = await describe(handlers, (TOPIC, "t"), version=version)
            assert (found.error_code, found.error_message) == (0, None)
            configs = {one.name: one for one in found.configs}
            assert list(configs) == [key.name for key in CONFIG_KEYS]
            retention = configs["retention.ms"]
            assert (retention.value, retention.config_source) == ("1000", 1)
            assert [(one.name, one.value, one.source) for one in retention.synonyms] == [
                ("retention.ms", "1000", 1),
                ("log.retention.hours", "2", 4),
                ("retention.ms", "-1", 5),
            ]
            assert (configs["max.message.bytes"].value, configs["max.message.bytes"].config_source) == ("5000", 4)
            assert not any(one.read_only or one.is_sensitive for one in found.configs)
            if version >= 3:
                kinds = {name: one.config_type for name, one in configs.items()}
                assert (kinds["retention.ms"], kinds["segment.bytes"], kinds["cleanup.policy"]) == (5, 3, 7)
                assert (kinds["min.cleanable.dirty.ratio"], kinds["unclean.leader.election.enable"]) == (6, 1)
                assert retention.documentation.startswith("Delete segments whose")
            (few,) = await describe(handlers, (TOPIC, "t"), version=version, keys=["segment.ms", "no.key"], more=False)
            assert [(one.name, list(one.synonyms), one.documentation) for one in few.configs] == [
                ("segment.ms", [], None if version >= 3 else few.configs[0].documentation)
            ]

    run(scenario())


def test_the_settings_of_this_broker_are_read_only_and_secrets_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        secret = "not for everybody to read"
        async with kafka_handlers(tmp_path, broker_id=7, num_partitions=3, cluster_secret=secret) as handlers:
            found, of_all, other, none = await describe(
                handlers, (BROKER, "7"), (BROKER, ""), (BROKER, "8"), (BROKER, "seven")
            )
            configs = {one.name: one for one in found.configs}
            assert list(configs) == list(plain_settings())
            assert all(one.read_only for one in found.configs)
            partitions = configs["num.partitions"]
            assert (partitions.value, partitions.config_source, partitions.config_type) == ("3", 4, 5)
            assert [(one.value, one.source) for one in partitions.synonyms] == [("3", 4), ("1", 5)]
            kept = configs["cluster.secret"]
            assert (kept.value, kept.is_sensitive, kept.config_type, list(kept.synonyms)) == (None, True, 9, [])
            assert secret not in repr(found)
            assert configs["auto.create.topics.enable"].config_type == 1
            assert configs["allowed.hosts"].config_type == 7
            assert all(one.documentation for one in found.configs)
            assert (of_all.error_code, list(of_all.configs)) == (0, [])
            assert [one.error_code for one in (other, none)] == [INVALID_REQUEST] * 2

    run(scenario())


def test_resources_that_cannot_be_described_have_an_error_of_their_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        denied = Authorizer(Denied(["hidden", "kafka-cluster"]))
        async with kafka_handlers(tmp_path, authorizer=denied) as handlers:
            for name in ("t", "hidden"):
                await handlers.broker.topics.changes.create(INTERNAL, name)
            asked = [(TOPIC, "gone"), (TOPIC, "hidden"), (BROKER, "0"), (8, "0"), (16, "metrics"), (TOPIC, "t")]
            found = await describe(handlers, *asked)
            wanted = [UNKNOWN, NOT_ALLOWED, NOT_ALLOWED_CLUSTER, INVALID_REQUEST, INVALID_REQUEST, 0]
            assert [one.error_code for one in found] == wanted
            assert [bool(one.error_message) for one in found] == [*[True] * 5, False]

    run(scenario())


def test_a_resource_is_described_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            for name in ("a", "b"):
                await handlers.broker.topics.changes.create(INTERNAL, name)
            resource = DescribeConfigsRequest.DescribeConfigsResource
            asked = [resource(resource_type=TOPIC, resource_name=name) for name in [*"ab" * 3000]]
            answer = await handlers.ask(DESCRIBE, 4, DescribeConfigsRequest(resources=asked))
            assert sorted(one.resource_name for one in answer.results) == ["a", "b"]

    run(scenario())


# ---- changes ---------------------------------------------------------------------------------------------------------


def replacement(name: str, configs: dict[str, str | None], kind: int = TOPIC):
    return AlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterConfigsRequest.AlterableConfig(name=key, value=text) for key, text in configs.items()],
    )


def change(name: str, *operations: tuple[int, str, str | None], kind: int = TOPIC):
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=text)
            for operation, key, text in operations
        ],
    )


async def alter(handlers: Handlers, *changes, validate_only: bool = False, version: int = 1):
    request = IncrementalAlterConfigsRequest(resources=changes, validate_only=validate_only)
    return (await handlers.ask(INCREMENTAL, version, request)).responses


@pytest.mark.parametrize("version", versions(ALTER))
def test_keys_that_a_replacement_does_not_name_are_reset(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await handlers.broker.topics.changes.create(
                INTERNAL, "t", configs={"retention.ms": "1000", "segment.ms": "7", "key.format": "string"}
            )
            new = {"retention.ms": "2000", "retention.bytes": "9", "key.format": "string"}
            for validate_only in (True, False):
                request = AlterConfigsRequest(resources=[replacement("t", new)], validate_only=validate_only)
                (answer,) = (await handlers.ask(ALTER, version, request)).responses
                assert (answer.error_code, answer.error_message) == (0, None)
                assert (answer.resource_type, answer.resource_name) == (TOPIC, "t")
                assert (topic.config_overrides == new) is not validate_only
            request = AlterConfigsRequest(resources=[replacement("t", {})])
            assert (await handlers.ask(ALTER, version, request)).responses[0].error_code == 0
            assert topic.config_overrides == {}

    run(scenario())


def test_replacements_that_are_refused_change_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topics = [
                await handlers.broker.topics.changes.create(INTERNAL, name, configs={"segment.ms": "7"})
                for name in "abc"
            ]
            resources = [
                replacement("a", {"retention.ms": "1", "no.key": "1"}),
                replacement("b", {"retention.ms": None}),
                replacement("c", {}),
                replacement("c", {}),
                replacement("gone", {}),
                replacement("0", {"num.partitions": "2"}, BROKER),
                replacement("x", {}, 16),
            ]
            answer = await handlers.ask(ALTER, 2, AlterConfigsRequest(resources=resources))
            assert {one.resource_name: one.error_code for one in answer.responses} == {
                "a": INVALID_CONFIG,
                "b": INVALID_REQUEST,
                "c": INVALID_REQUEST,
                "gone": UNKNOWN,
                "0": INVALID_REQUEST,
                "x": INVALID_REQUEST,
            }
            assert [topic.config_overrides for topic in topics] == [{"segment.ms": "7"}] * 3

    run(scenario())


@pytest.mark.parametrize("version", versions(INCREMENTAL))
def test_keys_are_set_reset_appended_to_and_subtracted_from(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await handlers.broker.topics.changes.create(INTERNAL, "t", configs={"segment.ms": "7"})

            async def altered(*operations: tuple[int, str, str | None], validate_only: bool = False) -> None:
                (answer,) = await alter(
                    handlers, change("t", *operations), version=version, validate_only=validate_only
                )
                assert (answer.error_code, answer.error_message) == (0, None)

            await altered((SET, "retention.ms", "1000"), (REMOVE, "segment.ms", None), validate_only=True)
            assert topic.config_overrides == {"segment.ms": "7"}
            await altered((SET, "retention.ms", "1000"), (REMOVE, "segment.ms", None))
            assert topic.config_overrides == {"retention.ms": "1000"}
            await altered((APPEND, "cleanup.policy", "compact"))
            assert await value(handlers, "cleanup.policy") == "compact,delete"
            await altered((APPEND, "cleanup.policy", "compact, delete"))
            assert await value(handlers, "cleanup.policy") == "compact,delete"
            await altered((SUBTRACT, "cleanup.policy", "delete"))
            assert await value(handlers, "cleanup.policy") == "compact"
            assert topic.config_overrides == {"retention.ms": "1000", "cleanup.policy": "compact"}

    run(scenario())


def test_changes_that_are_refused_change_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied(["hidden"]))) as handlers:
            names = ["a", "b", "c", "d", "e", "f", "g", "h", "hidden"]
            topics = [await handlers.broker.topics.changes.create(INTERNAL, name) for name in names]
            answers = await alter(
                handlers,
                change("a", (SET, "segment.ms", "5"), (SET, "retention.ms", "soon")),
                change("b", (APPEND, "retention.ms", "1")),
                change("c", (SUBTRACT, "cleanup.policy", "delete")),
                change("d", (9, "retention.ms", "1")),
                change("e", (SET, "retention.ms", None)),
                change("f", (SET, "retention.ms", "1"), (SET, "retention.ms", "2")),
                change("g", (SET, "retention.ms", "1")),
                change("g", (SET, "segment.ms", "1")),
                change("h", (SET, "flush.ms", "1")),
                change("hidden", (SET, "retention.ms", "1")),
                change("__consumer_offsets", (SET, "retention.ms", "1")),
                change("0", (SET, "num.partitions", "2"), kind=BROKER),
            )
            assert {one.resource_name: one.error_code for one in answers} == {
                "a": INVALID_CONFIG,
                "b": INVALID_CONFIG,
                "c": INVALID_CONFIG,
                "d": INVALID_REQUEST,
                "e": INVALID_REQUEST,
                "f": INVALID_REQUEST,
                "g": INVALID_REQUEST,
                "h": INVALID_CONFIG,
                "hidden": NOT_ALLOWED,
                "__consumer_offsets": UNKNOWN,
                "0": INVALID_REQUEST,
            }
            assert all(one.error_message for one in answers)
            assert all(topic.config_overrides == {} for topic in topics)

    run(scenario())


def test_the_stores_own_topics_are_not_changed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await handlers.broker.topics.changes.internal(INTERNAL, "__audit", partitions=1, configs={})
            (answer,) = await alter(handlers, change("__audit", (SET, "retention.ms", "1")))
            assert answer.error_code == INVALID_TOPIC

    run(scenario())


def test_the_keys_of_a_group_are_the_stores_settings_and_are_not_changed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, group_consumer_session_timeout_ms=50_000) as handlers:
            (found,) = await describe(handlers, (GROUP, "g"))
            assert (found.error_code, found.error_message) == (0, None)
            assert [(one.name, one.value, one.config_source, one.read_only) for one in found.configs] == [
                ("consumer.heartbeat.interval.ms", "5000", 5, True),
                ("consumer.session.timeout.ms", "50000", 4, True),
            ]
            (only,) = await describe(handlers, (GROUP, "g"), keys=["consumer.session.timeout.ms"], more=False)
            assert [one.name for one in only.configs] == ["consumer.session.timeout.ms"]
            change = IncrementalAlterConfigsRequest.AlterableConfig(
                name="consumer.session.timeout.ms", config_operation=SET, value="60000"
            )
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=GROUP, resource_name="g", configs=[change]
            )
            answer = await handlers.ask(INCREMENTAL, 1, IncrementalAlterConfigsRequest(resources=[resource]))
            (refused,) = answer.responses
            assert refused.error_code == INVALID_REQUEST
            assert "group.consumer.session.timeout.ms" in refused.error_message

    run(scenario())
