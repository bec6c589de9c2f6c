import msgspec
import pytest
from jsonschema import Draft202012Validator

from logstore import __version__
from logstore.broker.context import INTERNAL
from logstore.broker.topics.problems import ProblemState, TopicProblem
from logstore.client.metadata import decode
from logstore.open_files import connections_within, open_files_shortage
from logstore.protocol.messages.status import StoreStatus
from logstore.protocol.messages.status import StoreStatus as ClientStatus
from tests.api.api_client import ApiClient

pytestmark = pytest.mark.anyio


async def status(api: ApiClient) -> ClientStatus:
    answer = await api.get("/status")
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=StoreStatus)
    document = (await api.get("/openapi.json")).json()
    schema = document["paths"]["/status"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
    return decode(answer.content, ClientStatus)


async def test_a_store_that_is_new(api):
    found = await status(api)
    assert (found.version, found.cluster_id, found.broker_id) == (__version__, api.broker.cluster_id, 0)
    assert (found.topics, found.problems, found.not_ready_reason) == ((), (), None)
    assert 0 <= found.uptime_ms < 60_000
    assert found.journal.max_bytes == api.broker.settings.journal_max_bytes
    assert found.connections_taken_max <= found.max_connections


async def test_topics_in_numbers_before_and_after_a_roll(api):
    for name in ("b", "a"):
        await api.create_topic(name, partitions=2)
    empty, _ = (await status(api)).topics
    assert (empty.name, empty.partitions, empty.records, empty.newest_timestamp) == ("a", 2, 0, None)
    for partition, times in ((0, [10, 70, 20]), (1, [50])):
        records = [{"value": 1, "timestamp": at} for at in times]
        await api.post(f"/topics/b/partitions/{partition}", json={"records": records})
    _, tail = (await status(api)).topics
    assert (tail.records, tail.unsealed_records, tail.size_bytes, tail.newest_timestamp) == (4, 4, 0, 70)
    assert tail.unsealed_bytes > 0
    assert (await status(api)).journal.needed_bytes > 0
    await api.post("/topics/b/roll")
    _, sealed = (await status(api)).topics
    assert (sealed.records, sealed.unsealed_records, sealed.unsealed_bytes, sealed.newest_timestamp) == (4, 0, 0, 70)
    assert (
        sealed.size_bytes
        == sum(log.segments.size_bytes for log in api.broker.topics.served.topic(INTERNAL, "b").partitions)
        > 0
    )
    await api.produce("b", [1], partition=1)
    await api.post("/topics/b/partitions/0/delete-records", json={"before_offset": 2})
    _, both = (await status(api)).topics
    assert (both.records, both.unsealed_records) == (3, 1)
    assert both.newest_timestamp > 70


async def test_internal_topics_say_so(api):
    await api.create_topic("t")
    await api.post("/groups/g/offsets", json={"offsets": [{"topic": "t", "partition": 0, "offset": 0}]})
    assert [(topic.name, topic.is_internal) for topic in (await status(api)).topics] == [
        ("__consumer_offsets", True),
        ("t", False),
    ]


async def test_problems_and_why_a_store_is_not_ready(api, monkeypatch):
    problem = TopicProblem("t", 1, ProblemState.QUARANTINED, "two files overlap", "logstore topic delete t")
    monkeypatch.setattr(api.broker.topics.problems, "all", lambda _: [problem])
    found = await status(api)
    assert [(p.topic, p.partition, p.state, p.reason, p.remedy) for p in found.problems] == [
        ("t", 1, "quarantined", "two files overlap", "logstore topic delete t")
    ]
    api.app.state.api.stopping.set()
    assert (await status(api)).not_ready_reason == "the server is shutting down"


async def test_records_that_compaction_took_out_do_not_count(api, monkeypatch):
    await api.create_topic("t")
    await api.produce("t", [1, 2, 3, 4])
    await api.post("/topics/t/roll")
    log = api.broker.topics.served.topic(INTERNAL, "t").partition(0)
    (segment,) = log.segments
    monkeypatch.setattr(log.segments, "files", (segment._replace(num_records=1, min_offset=3, max_offset=3),))
    await api.produce("t", [5, 6])
    assert (await status(api)).topics[0].records == 3


@pytest.mark.parametrize(
    ("limit", "taken", "low"), [(None, 1000, False), (1024, 768, True), (1400, 1000, False), (1300, 975, True)]
)
def test_open_files_are_enough_for_the_connections_or_not(limit, taken, low):
    assert connections_within(1000, limit) == taken
    shortage = open_files_shortage(limit, 1000)
    assert (shortage is not None) == low
    if shortage:
        assert f"{limit} files" in shortage
        assert "ulimit -n 1334" in shortage
