"""Small JSON requests that arrive together share one append, and each gets the answer that it would get alone."""

import asyncio
import json

import msgspec
import pytest

from logstore.broker.context import INTERNAL
from logstore.errors import StorageError, ThrottledError
from logstore.log.frame_records import frame_records
from logstore.protocol.messages.records import ProducedOffsets
from logstore.records.batch_identity import NO_IDENTITY
from logstore.records.json_decoder import decode_plain, plain_columns
from logstore.records.murmur2 import murmur2
from tests.api.api_client import JSON_V2, assert_error, held_appends
from tests.support.eventually import eventually_async, loop_turns

pytestmark = pytest.mark.anyio


def body(*records: tuple[str | None, object]) -> bytes:
    return json.dumps({"records": [{"key": key, "value": value} for key, value in records]}).encode()


async def post(api, content: bytes, topic: str = "t", **query):
    return await api.post(f"/topics/{topic}", content=content, headers={"Content-Type": JSON_V2}, params=query)


@pytest.fixture
def appends(api, monkeypatch) -> list[int]:
    """Return the number of records of each append."""
    produce = api.broker.produce.records.produce
    counts: list[int] = []

    async def counted(context, topic, records, **options):
        counts.append(records.num_rows)
        return await produce(context, topic, records, **options)

    monkeypatch.setattr(api.broker.produce.batcher, "_produce", counted)
    return counts


async def test_each_request_learns_where_its_own_records_are(api, appends):
    await api.create_topic("t", partitions=3)
    requests = [[(f"k{n}-{i}" if n % 3 else None, f"{n}-{i}") for i in range(1 + n % 4)] for n in range(40)]
    answers = await asyncio.gather(*(post(api, body(*records)) for records in requests))
    told = {}
    for records, answer in zip(requests, answers, strict=True):
        assert answer.status_code == 200, answer.text
        places = answer.json()["offsets"]
        assert [place["error_code"] for place in places] == [None] * len(records)
        told |= {
            (place["partition"], place["offset"]): value for place, (_, value) in zip(places, records, strict=True)
        }
    stored = {
        (partition, offset): value
        for partition in range(3)
        for offset, value in enumerate(await api.values("t", partition))
    }
    assert told == stored
    assert len(stored) == sum(map(len, requests))
    assert sum(appends) == len(stored)
    assert len(appends) < len(requests) / 2, "they were not appended together"


async def test_requests_for_one_partition_join(api, appends):
    await api.create_topic("t", partitions=3)
    content = [body((f"k{n}", n)) for n in range(20)]
    answers = await asyncio.gather(
        *(
            api.post(f"/topics/t/partitions/{n % 2}", content=content[n], headers={"Content-Type": JSON_V2})
            for n in range(20)
        )
    )
    for partition in range(2):
        places = [answer.json()["offsets"][0] for answer in answers[partition::2]]
        assert {place["partition"] for place in places} == {partition}
        stored = await api.values("t", partition)
        assert [stored[place["offset"]] for place in places] == list(range(partition, 20, 2))
    assert sum(appends) == 20
    assert len(appends) < 10, "they were not appended together"


async def test_only_plain_requests_share_a_frame(api, appends):
    """Check that requests with a sender get their own frame, because a frame has one sender."""
    await api.create_topic("t")
    producers = [(await api.post("/producers")).json()["producer_id"] for _ in range(2)]
    senders = {
        f"producer {number}": {
            "Logstore-Producer-Id": str(producer),
            "Logstore-Producer-Epoch": "0",
            "Logstore-Base-Sequences": "0=0",
        }
        for number, producer in enumerate(producers)
    } | {f"key {number}": {"Idempotency-Key": f"a key {number}"} for number in range(3)}

    async def send(value: str, headers: dict[str, str]) -> None:
        record = {"value": value} | ({"partition": 0} if "Logstore-Producer-Id" in headers else {})
        content = json.dumps({"records": [record] * 2}).encode()
        answer = await api.post("/topics/t", content=content, headers={"Content-Type": JSON_V2} | headers)
        assert answer.status_code == 200, answer.text

    plain = {f"plain {number}": {} for number in range(9)}
    # They alternate, so that a plain request waits beside each of the others.
    mixed = [pair for both in zip(plain.items(), senders.items(), strict=False) for pair in both]
    await asyncio.gather(*(send(*request) for request in [*mixed, *list(plain.items())[len(senders) :]]))

    log = api.broker.topics.served.topic(INTERNAL, "t").partition(0)
    frames = api.broker.journal.read_many([frame.location for frame in log.index.frames(0, log.next_offset)])
    joined = 0
    seen = set()
    for frame in frames:
        (batch,) = frame_records([frame])
        values = {json.loads(value) for value in batch.column("value").to_pylist()}
        if frame.header.identity == NO_IDENTITY:
            assert values <= plain.keys()
            joined += len(values) > 1
        else:
            (sender,) = values & senders.keys()
            assert values == {sender}
            assert (frame.header.record_count, frame.header.identity.is_keys) == (2, sender.startswith("key"))
        seen |= values
    assert seen == plain.keys() | senders.keys()
    assert joined, "the plain ones were appended together"
    assert sum(appends) == 2 * len(plain), "no other came to the batcher"


async def test_a_wrong_request_spoils_no_other(api):
    await api.create_topic("t", partitions=2, max_message_bytes="100")
    wrong = {
        b'{"records":[{"value":1': 422,
        b'{"records":[]}': 422,
        b'{"records":[{"value":1,"vlaue":2}]}': 422,
        b'{"records":[{"value":"\xff"}]}': 422,
        b'{"records":[{"value":1,"partition":7}]}': 404,
        body((None, "x" * 200)): 413,
    }
    good = [post(api, body((f"k{n}", n))) for n in range(20)]
    answers = await asyncio.gather(*good, *(post(api, content) for content in wrong))
    assert [answer.status_code for answer in answers[:20]] == [200] * 20
    for answer, status in zip(answers[20:], wrong.values(), strict=True):
        assert_error(answer, status)
    assert sorted(await api.values("t", 0) + await api.values("t", 1)) == list(range(20))


async def test_a_compacted_topic_refuses_the_request_without_a_key_alone(api):
    await api.create_topic("t", cleanup_policy="compact")
    keyed, keyless = await asyncio.gather(post(api, body(("k", 1))), post(api, body((None, 2))))
    assert keyed.status_code == 200
    assert_error(keyless, 422)
    assert await api.values("t") == [1]


@pytest.mark.parametrize(("error", "status"), [(StorageError("broken"), 500), (ThrottledError("full"), 429)])
async def test_every_request_gets_the_error_of_the_append(api, monkeypatch, error, status):
    await api.create_topic("t")

    async def fail(*_, **__):
        raise error

    monkeypatch.setattr(api.broker.produce.batcher, "_produce", fail)
    answers = await asyncio.gather(*(post(api, body((None, n))) for n in range(10)))
    for answer in answers:
        assert_error(answer, status)
        assert answer.json()["message"] == error.message
        assert ("Retry-After" in answer.headers) == (status == 429)


async def test_each_request_waits_as_long_as_it_asked_to(api, monkeypatch):
    await api.create_topic("t")
    durable = held_appends(api, monkeypatch)
    patient = asyncio.create_task(post(api, body((None, "patient"))))
    impatient = await post(api, body((None, "impatient")), timeout_ms=20)
    assert_error(impatient, 504)
    durable.set()
    assert (await patient).status_code == 200
    assert sorted(await api.values("t")) == ["impatient", "patient"], "in doubt means: it may be stored"


@pytest.mark.parametrize("query", [{"acks": "0"}, {"acks": "1"}, {"acks": "all"}])
async def test_acks_are_what_they_are(api, query):
    await api.create_topic("t")
    answers = await asyncio.gather(*(post(api, body((None, n)), **query) for n in range(5)))
    assert {answer.status_code for answer in answers} == {202 if query["acks"] == "0" else 200}
    await eventually_async(lambda: api.broker.topics.served.topic(INTERNAL, "t").partition(0).high_watermark == 5)
    assert sorted(await api.values("t")) == list(range(5))


async def test_a_stopped_client_costs_only_its_own_answer(api):
    await api.create_topic("t")
    gone = asyncio.create_task(post(api, body((None, "gone"))))
    await asyncio.sleep(0)
    staying = asyncio.create_task(post(api, body((None, "staying"))))
    gone.cancel()
    assert (await staying).status_code == 200
    assert "staying" in await api.values("t")


async def test_a_request_given_up_before_the_append_is_not_stored_and_holds_nothing(api, monkeypatch):
    await api.create_topic("t")
    durable = held_appends(api, monkeypatch)
    begun = [asyncio.create_task(post(api, body((None, "first"))))]
    await loop_turns()
    begun.append(asyncio.create_task(post(api, body((None, "second")))))
    await loop_turns()
    for answer in await asyncio.gather(*(post(api, body((None, n)), timeout_ms=20) for n in range(30))):
        assert_error(answer, 504)
    queues = api.broker.produce.batcher._queues
    assert [len(queue.waiting) for queue in queues.values()] == [0]
    durable.set()
    assert [answer.status_code for answer in await asyncio.gather(*begun)] == [200, 200]
    assert await api.values("t") == ["first", "second"]
    assert not queues


async def test_two_appends_are_under_way_if_the_second_is_as_large_as_the_first(api, monkeypatch):
    """Check that the third append waits for one of the two, however large it is; each record is stored once and
    answered.
    """
    await api.create_topic("t")
    durable = held_appends(api, monkeypatch)
    posts: list[asyncio.Task] = []

    async def under_way(*values: int) -> tuple[int, int]:
        posts.extend(asyncio.create_task(post(api, body((None, value)))) for value in values)
        await loop_turns()
        (queue,) = api.broker.produce.batcher._queues.values()
        return queue.appends, len(queue.waiting)

    assert await under_way(0, 1, 2) == (1, 0)
    assert await under_way(3) == (1, 1)
    assert await under_way(4) == (1, 2)
    assert await under_way(5) == (2, 0)
    assert await under_way(*range(6, 20)) == (2, 14)
    durable.set()
    answers = await asyncio.gather(*posts)
    offsets = [answer.json()["offsets"][0]["offset"] for answer in answers]
    assert sorted(offsets) == list(range(20))
    stored = await api.values("t")
    assert [stored[offset] for offset in offsets] == list(range(20))
    assert not api.broker.produce.batcher._queues


async def test_an_append_is_bounded_in_records(api, appends):
    await api.create_topic("t")
    many = json.dumps({"records": [{}] * 600}, separators=(",", ":")).encode()
    answers = await asyncio.gather(*(post(api, many) for _ in range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert sum(appends) == 12_000
    assert 600 < max(appends) <= 2_048


async def test_a_request_of_many_tiny_records_goes_its_own_way(api, appends):
    """Count the appends: decoding ten thousand records takes milliseconds, and must happen once, and not on arrival."""
    await api.create_topic("t")
    for count in (1_023, 1_025, 10_000):
        many = json.dumps({"records": [{}] * count}, separators=(",", ":")).encode()
        assert (await post(api, many)).status_code == 200
    assert appends == [1_023]
    assert api.end_offsets("t") == [12_048]


async def test_an_append_is_bounded_in_bytes(api, appends):
    await api.create_topic("t")
    large = body((None, "x" * 32_000))
    answers = await asyncio.gather(*(post(api, large) for _ in range(100)))
    assert [answer.status_code for answer in answers] == [200] * 100
    assert sum(appends) == 100
    assert 10 < max(appends) <= 32
    # A request one byte over the limit for joining is appended alone.
    assert (await post(api, body((None, "x" * 32_768)))).status_code == 200
    assert sum(appends) == 100


async def test_a_partition_that_takes_nothing_spoils_no_other_of_those_that_joined(api, appends):
    await api.create_topic("t", partitions=2)
    topic = api.broker.topics.served.topic(INTERNAL, "t")
    answers = await asyncio.gather(*(post(api, body(("a", n))) for n in range(3)))
    (used,) = {answer.json()["offsets"][0]["partition"] for answer in answers}
    other = next(key for key in "bcdefgh" if murmur2(f'"{key}"'.encode()) & 0x7FFFFFFF & 1 != used)
    topic.partition(used).quarantine("a test", "end it")
    both = [("a", 3), (other, 3), ("a", 4)]
    answers = await asyncio.gather(post(api, body(("a", 5))), post(api, body(both[1])), post(api, body(*both)))
    refused, taken, mixed = answers
    assert "t-" in assert_error(refused, 503, 50303)
    assert taken.json()["offsets"][0]["partition"] == 1 - used
    assert mixed.status_code == 200
    msgspec.json.decode(mixed.content, type=ProducedOffsets)
    first, second, third = mixed.json()["offsets"]
    assert (first["partition"], first["offset"], first["error_code"]) == (None, None, 50303)
    assert first["error"].startswith(f"t-{used} is quarantined")
    assert third == first
    assert (second["partition"], second["error_code"], second["error"]) == (1 - used, None, None)
    assert len(appends) < 6
    assert await api.values("t", 1 - used) == [3, 3]


async def test_a_callback_that_fails_leaves_the_other_requests_and_the_topic_alone(api):
    await api.create_topic("t")
    topic = api.broker.topics.served.topic(INTERNAL, "t")
    records = decode_plain(body((None, 1)))
    assert records

    def fail(*_):
        raise RuntimeError("a bug")

    api.broker.produce.batcher.begin(
        INTERNAL, topic, records, plain_columns, num_bytes=30, timeout_ms=10_000, callback=fail
    )
    assert (await post(api, body((None, 2)))).status_code == 200
    assert (await post(api, body((None, 3)))).status_code == 200
    assert await api.values("t") == [1, 2, 3]


async def test_a_topic_that_is_altered_while_requests_wait_refuses_those_without_a_key_alone(api, monkeypatch):
    await api.create_topic("t")
    going_on = held_appends(api, monkeypatch)
    first = asyncio.create_task(post(api, body(("k", 0))))
    await loop_turns()
    keyed, keyless = (asyncio.create_task(post(api, body((key, 1)))) for key in ("k", None))
    await loop_turns()
    await api.broker.topics.changes.alter_configs(INTERNAL, "t", {"cleanup.policy": "compact"})
    going_on.set()
    assert (await first).status_code == 200
    assert (await keyed).status_code == 200
    assert "Record 0 has no key" in assert_error(await keyless, 422)
    assert await api.values("t") == [0, 1]


async def test_requests_that_go_alone_because_of_another_still_share_an_fsync(api, monkeypatch):
    await api.create_topic("t")
    going_on = held_appends(api, monkeypatch)
    commit, groups = api.broker.journal._commit, []

    async def counted(group):
        groups.append(len(group))
        await commit(group)

    monkeypatch.setattr(api.broker.journal, "_commit", counted)
    waiting = [asyncio.create_task(post(api, body((key, n)))) for n, key in enumerate([None, *["k"] * 20])]
    await loop_turns()
    await api.broker.topics.changes.alter_configs(INTERNAL, "t", {"cleanup.policy": "compact"})
    going_on.set()
    answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [422] + [200] * 20
    assert await api.values("t") == list(range(1, 21))
    assert sum(groups) == 20
    assert len(groups) <= 3
