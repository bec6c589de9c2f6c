"""A client sends again over HTTP, to a real server that is killed and started again in between."""

import base64
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from logstore.crc32c import crc32c
from logstore.records.schema import WIRE_SCHEMA
from tests.api.api_client import ARROW, BINARY_V2, JSON_V2, NDJSON, assert_error
from tests.support.records import arrow_stream
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.system


class Store:
    """A server, with a new topic for each test."""

    def __init__(self, server: ServerProcess, http: httpx.Client) -> None:
        self.server = server
        self.http = http
        self._topics = 0

    def create_topic(self, partitions: int = 1, **configs: str) -> str:
        self._topics += 1
        name = f"t{self._topics}"
        cluster = self.http.get(f"{self.server.url}/v3/clusters").json()["data"][0]["cluster_id"]
        body = {
            "topic_name": name,
            "partitions_count": partitions,
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        answer = self.http.post(f"{self.server.url}/v3/clusters/{cluster}/topics", json=body)
        assert answer.status_code == 201, answer.text
        return name

    def alter_configs(self, topic: str, changes: dict[str, str]) -> None:
        cluster = self.http.get(f"{self.server.url}/v3/clusters").json()["data"][0]["cluster_id"]
        body = {"data": [{"name": name, "value": value} for name, value in changes.items()]}
        url = f"{self.server.url}/v3/clusters/{cluster}/topics/{topic}/configs:alter"
        assert self.http.post(url, json=body).status_code == 204

    def post(self, path: str, body: Any, media_type: str = JSON_V2, **headers: str) -> httpx.Response:
        """Post a body; ``headers`` have Python's spelling."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(
            f"{self.server.url}{path}", content=content, headers={"Content-Type": media_type, **named}
        )

    def producer(self) -> dict[str, int]:
        answer = self.http.post(f"{self.server.url}/producers")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def end_offsets(self, topic: str) -> list[int]:
        partitions = self.http.get(f"{self.server.url}/topics/{topic}/partitions").json()
        return [partition["log_end_offset"] for partition in partitions]

    def values(self, topic: str) -> list[Any]:
        found = []
        for partition, end in enumerate(self.end_offsets(topic)):
            at = 0
            while at < end:
                answer = self.http.get(f"{self.server.url}/topics/{topic}/partitions/{partition}/records?offset={at}")
                found += [record["value"] for record in answer.json()]
                at = int(answer.headers["Logstore-Next-Offset"])
        return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    data: Path = tmp_path_factory.mktemp("idempotence") / "data"
    with ServerProcess(data) as server, httpx.Client(timeout=60) as http:
        yield Store(server, http)


def of_producer(producer: dict[str, int], sequences: str) -> dict[str, str]:
    return {
        "Logstore_Producer_Id": str(producer["producer_id"]),
        "Logstore_Producer_Epoch": str(producer["producer_epoch"]),
        "Logstore_Base_Sequences": sequences,
    }


def arrow_body() -> bytes:
    rows = [{"value": b"1", "key": b"7"}, {"value": b"2", "key": b"8"}, {"value": b"3", "key": None}]
    full = [{"timestamp": None, "headers": None, **row} for row in rows]
    return arrow_stream(pa.RecordBatch.from_pylist(full, schema=WIRE_SCHEMA))


BODIES = {
    "json": (JSON_V2, {"records": [{"key": "a", "value": 1}, {"key": "b", "value": 2}, {"value": 3}]}),
    "binary": (BINARY_V2, {"records": [{"value": base64.b64encode(b"%d" % n).decode()} for n in range(1, 4)]}),
    "ndjson": (NDJSON, b"1\n2\n3\n"),
    "arrow": (ARROW, arrow_body()),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("query", ["", "?acks=1", "?acks=0"])
def test_a_key_makes_the_same_request_one_in_every_format(store: Store, kind: str, query: str) -> None:
    topic = store.create_topic(partitions=4)
    media_type, body = BODIES[kind]
    first, *others = (store.post(f"/topics/{topic}{query}", body, media_type, Idempotency_Key="k-1") for _ in range(4))
    assert first.status_code == (202 if query == "?acks=0" else 200), first.text
    assert "Idempotent-Replayed" not in first.headers
    for other in others:
        assert (other.status_code, other.content) == (first.status_code, first.content)
        assert other.headers["Idempotent-Replayed"] == "true"
    waited = store.post(f"/topics/{topic}", body, media_type, Idempotency_Key="k-1")
    assert (waited.status_code, waited.headers["Idempotent-Replayed"]) == (200, "true")
    assert sorted(store.values(topic)) == [1, 2, 3]
    new = store.post(f"/topics/{topic}{query}", body, media_type, Idempotency_Key="k-2")
    assert "Idempotent-Replayed" not in new.headers
    store.post(f"/topics/{topic}", body, media_type, Idempotency_Key="k-2")
    assert sorted(store.values(topic)) == [1, 1, 2, 2, 3, 3]


def test_the_body_counts_as_it_is_without_its_coding(store: Store) -> None:
    topic = store.create_topic()
    body = b'{"records": [{"value": 1}]}'
    store.post(f"/topics/{topic}", body, Idempotency_Key="k")
    for level in (1, 9):
        zipped = gzip.compress(body, level, mtime=level)
        answer = store.post(f"/topics/{topic}", zipped, Content_Encoding="gzip", Idempotency_Key="k")
        assert answer.headers["Idempotent-Replayed"] == "true"
    assert store.values(topic) == [1]


def test_a_key_of_another_request_is_422(store: Store) -> None:
    topic = store.create_topic(partitions=2)
    body = {"records": [{"value": 1, "partition": 0}]}
    store.post(f"/topics/{topic}", body, Idempotency_Key="k")
    others = [
        {"records": [{"value": 2, "partition": 0}]},
        {"records": [{"value": 1, "partition": 0}, {"value": 2, "partition": 0}]},
        {"records": [{"value": 1, "partition": 1}]},
    ]
    for other in others:
        message = assert_error(store.post(f"/topics/{topic}", other, Idempotency_Key="k"), 422, 42211)
        assert "was used for another request" in message
    assert store.end_offsets(topic) == [1, 0]
    # Another topic has its own keys.
    elsewhere = store.create_topic()
    assert "Idempotent-Replayed" not in store.post(f"/topics/{elsewhere}", body, Idempotency_Key="k").headers


def with_the_same_crc(body: bytes) -> bytes:
    """Return ``body`` with some of its zeros turned into ones, and with the same CRC-32C."""
    of_zeros = crc32c(bytes(len(body)))
    # The CRC of several flips is the XOR of their CRCs. Keep one combination of positions by the highest bit of its
    # CRC.
    found: dict[int, tuple[int, frozenset[int]]] = {}
    for position in [at for at, byte in enumerate(body) if byte == ord("0")]:
        flip = bytes(position) + b"\1" + bytes(len(body) - position - 1)
        crc, positions = crc32c(flip) ^ of_zeros, frozenset({position})
        while crc and crc.bit_length() in found:
            other, others = found[crc.bit_length()]
            crc, positions = crc ^ other, positions ^ others
        if not crc:
            return bytes(byte ^ (at in positions) for at, byte in enumerate(body))
        found[crc.bit_length()] = crc, positions
    raise AssertionError("33 zeros are enough")


def test_another_body_is_another_request_also_if_its_checksum_is_the_same(store: Store) -> None:
    topic = store.create_topic()
    body = json.dumps({"records": [{"value": "0" * 33}]}).encode()
    other = with_the_same_crc(body)
    assert (other != body, crc32c(other), len(other)) == (True, crc32c(body), len(body))
    assert store.post(f"/topics/{topic}", body, Idempotency_Key="k").status_code == 200
    assert_error(store.post(f"/topics/{topic}", other, Idempotency_Key="k"), 422, 42211)
    assert store.post(f"/topics/{topic}", other, Idempotency_Key="k-2").status_code == 200
    assert store.values(topic) == ["0" * 33, json.loads(other)["records"][0]["value"]]


@pytest.mark.parametrize("change", [{"max.message.bytes": "1"}, {"cleanup.policy": "compact"}])
@pytest.mark.parametrize("kind", BODIES)
def test_a_retry_after_a_change_of_the_configuration_gets_its_first_answer(
    store: Store, kind: str, change: dict[str, str]
) -> None:
    """Send a retry when a new request like it would be refused."""
    topic = store.create_topic()
    path, (media_type, body) = f"/topics/{topic}/partitions/0", BODIES[kind]
    names = ({"Idempotency_Key": "k"}, of_producer(store.producer(), "0=0"))
    first = [store.post(path, body, media_type, **name) for name in names]
    store.alter_configs(topic, change)
    again = [store.post(path, body, media_type, **name) for name in names]
    assert [answer.headers.get("Idempotent-Replayed") for answer in again] == ["true", "true"]
    assert [answer.content for answer in again] == [answer.content for answer in first]
    too_small = kind in ("binary", "ndjson") and "max.message.bytes" in change  # records of one byte
    new = ({}, {"Idempotency_Key": "other"}, of_producer(store.producer(), "0=0"))
    refused = [store.post(path, body, media_type, **name).status_code for name in new]
    assert too_small or refused == [413 if "max.message.bytes" in change else 422] * 3


def test_a_retry_after_another_key_format_gets_its_first_answer(store: Store) -> None:
    topic = store.create_topic(partitions=16)
    body = {"records": [{"key": f"user-{n}", "value": n} for n in range(20)]}
    named, plain = f"/topics/{topic}?key_format=json", f"/topics/{topic}"
    first = {path: store.post(path, body, Idempotency_Key=path) for path in (named, plain)}
    store.alter_configs(topic, {"key.format": "string"})
    before = store.end_offsets(topic)
    for path, answer in first.items():
        again = store.post(path, body, Idempotency_Key=path)
        assert (again.content, again.headers["Idempotent-Replayed"]) == (answer.content, "true")
    other = {"records": [{"key": f"user-{n}", "value": n + 1} for n in range(20)]}
    assert_error(store.post(plain, other, Idempotency_Key=plain), 422, 42211)
    assert store.end_offsets(topic) == before


def test_the_same_bytes_in_another_form_are_another_request(store: Store) -> None:
    topic = store.create_topic()
    body = {"records": [{"value": "aGk="}]}
    path = f"/topics/{topic}"
    assert store.post(path, body, Idempotency_Key="k").status_code == 200
    binary = "application/vnd.kafka.binary.v2+json"
    for again in (
        store.post(path, body, Idempotency_Key="k", Content_Type=binary),
        store.post(f"{path}?key_format=string", body, Idempotency_Key="k"),
    ):
        assert_error(again, 422, 42211)
    assert store.end_offsets(topic) == [1]


def test_at_the_bound_new_keys_are_429_and_known_ones_are_answered(store: Store) -> None:
    topic = store.create_topic(idempotency_keys_max="2")
    body = {"records": [{"value": 1}]}
    for key in ("a", "b"):
        assert store.post(f"/topics/{topic}", body, Idempotency_Key=key).status_code == 200
    refused = store.post(f"/topics/{topic}", body, Idempotency_Key="c")
    assert "idempotency.keys.max is 2" in assert_error(refused, 429, 42901)
    assert int(refused.headers["Retry-After"]) > 1
    assert store.post(f"/topics/{topic}", body, Idempotency_Key="a").headers["Idempotent-Replayed"] == "true"
    assert store.post(f"/topics/{topic}", body).status_code == 200, "without a key there is nothing to remember"
    assert store.end_offsets(topic) == [3]


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"Idempotency_Key": ""}, "1 to 255 printable"),
        ({"Idempotency_Key": "x" * 256}, "1 to 255 printable"),
        ({"Idempotency_Key": "a\tb"}, "1 to 255 printable"),
        ({"Idempotency_Key": "k", "Logstore_Producer_Id": "1"}, "send one of them"),
        ({"Logstore_Producer_Id": "1"}, "Logstore-Producer-Epoch, Logstore-Base-Sequences is missing"),
        ({"Logstore_Base_Sequences": "0=0"}, "Logstore-Producer-Id, Logstore-Producer-Epoch is missing"),
        (of_producer({"producer_id": -1, "producer_epoch": 0}, "0=0"), "Logstore-Producer-Id cannot hold '-1'"),
        (of_producer({"producer_id": 2**63, "producer_epoch": 0}, "0=0"), "Logstore-Producer-Id cannot hold"),
        (of_producer({"producer_id": 2**62, "producer_epoch": 0}, "0=0"), "was not issued by this store"),
        (of_producer({"producer_id": 1, "producer_epoch": 32768}, "0=0"), "from 0 to 32767"),
        (of_producer({"producer_id": 1, "producer_epoch": 0}, "0"), "partition=sequence pairs"),
        (of_producer({"producer_id": 1, "producer_epoch": 0}, "0=0,"), "partition=sequence pairs"),
        (of_producer({"producer_id": 1, "producer_epoch": 0}, "0=+1"), "cannot hold '+1'"),
        (of_producer({"producer_id": 1, "producer_epoch": 0}, "0=01"), "cannot hold '01'"),
        (of_producer({"producer_id": 1, "producer_epoch": 0}, "0=2147483648"), "from 0 to 2147483647"),
        (of_producer({"producer_id": 1, "producer_epoch": 0}, "0=0,0=1"), "names partition 0 twice"),
        (of_producer({"producer_id": 1, "producer_epoch": 0}, "10000=0"), "from 0 to 9999"),
        (of_producer({"producer_id": 1, "producer_epoch": 0}, "1=0"), "names partitions 1, and the records go to 0"),
    ],
)
def test_headers_are_read_strictly(store: Store, headers: dict[str, str], says: str) -> None:
    topic = store.create_topic()
    answer = store.post(f"/topics/{topic}/partitions/0", {"records": [{"value": 1}]}, **headers)
    assert says in assert_error(answer, 400, 40003)
    assert store.end_offsets(topic) == [0]


def test_a_header_that_is_there_twice_is_refused(store: Store) -> None:
    topic = store.create_topic()
    url = f"{store.server.url}/topics/{topic}"
    headers = [("Content-Type", JSON_V2), ("Idempotency-Key", "a"), ("Idempotency-Key", "a")]
    answer = store.http.post(url, content=b'{"records": [{"value": 1}]}', headers=headers)
    assert "Idempotency-Key is given twice" in assert_error(answer, 400, 40003)


def test_producers_get_ids_and_epochs(store: Store) -> None:
    first, second = store.producer(), store.producer()
    assert first["producer_id"] != second["producer_id"]
    assert (first["producer_epoch"], second["producer_epoch"]) == (0, 0)
    bumped = store.post("/producers", first, "application/json")
    assert bumped.json() == {"producer_id": first["producer_id"], "producer_epoch": 1}
    last = store.post("/producers", {**first, "producer_epoch": 32767}, "application/json").json()
    assert last["producer_epoch"] == 0
    assert last["producer_id"] > second["producer_id"]
    for bad in ({}, {"producer_id": 1}, {**first, "producer_epoch": 32768}, {**first, "more": 1}, {"producer_id": "1"}):
        assert_error(store.post("/producers", bad, "application/json"), 422, 42206)
    unknown = {"producer_id": 2**62, "producer_epoch": 0}
    assert_error(store.post("/producers", unknown, "application/json"), 400, 40003)


def test_sequences_are_checked_as_kafkas(store: Store) -> None:
    topic = store.create_topic(partitions=2)
    producer = store.producer()

    def send(sequences: str, *values: int, epoch: int = 0) -> httpx.Response:
        records = [{"value": value, "partition": value % 2} for value in values]
        return store.post(
            f"/topics/{topic}", {"records": records}, **of_producer({**producer, "producer_epoch": epoch}, sequences)
        )

    first = send("0=0,1=0", 0, 1, 2)
    assert first.status_code == 200
    again = send("0=0,1=0", 0, 1, 2)
    assert again.content == first.content
    assert again.headers["Idempotent-Replayed"] == "true"
    mixed = send("0=2,1=0", 4, 1)
    assert [entry["offset"] for entry in mixed.json()["offsets"]] == [2, 0]
    assert "Idempotent-Replayed" not in mixed.headers
    assert "4 (1 records), and 3 is next" in assert_error(send("0=4", 6), 409, 40911)
    for n in range(3, 9):
        assert send(f"0={n}", 2 * n).status_code == 200
    assert "stored sequence 2 before" in assert_error(send("0=2", 4), 409, 40913)
    assert send("0=0", 10, epoch=1).status_code == 200
    assert "the epoch is 1" in assert_error(send("0=9", 12), 409, 40912)
    assert sorted(store.values(topic)) == sorted([0, 1, 2, 4, *(2 * n for n in range(3, 9)), 10])
    one_nameless = {"records": [{"value": 1, "partition": 0}, {"value": 2}]}
    answer = store.post(f"/topics/{topic}", one_nameless, **of_producer(producer, "0=9"))
    assert "where each record goes" in assert_error(answer, 400, 40003)


def at_once(count: int, work: Callable[[], httpx.Response]) -> list[httpx.Response]:
    start = threading.Barrier(count)

    def one(_: int) -> httpx.Response:
        start.wait()
        return work()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def test_a_retry_that_overtakes_its_first_try_is_stored_once(store: Store) -> None:
    topic = store.create_topic(partitions=3)
    for n in range(10):
        body = {"records": [{"value": [n, i], "key": i} for i in range(20)]}
        answers = at_once(4, lambda n=n, body=body: store.post(f"/topics/{topic}", body, Idempotency_Key=f"k{n}"))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert sum("Idempotent-Replayed" in answer.headers for answer in answers) == 3
    found = [tuple(value) for value in store.values(topic)]
    assert sorted(found) == sorted((n, i) for n in range(10) for i in range(20))


@pytest.mark.long
def test_nothing_is_stored_twice_when_the_server_is_killed_between_two_tries(store: Store) -> None:
    topic = store.create_topic(partitions=3)
    producer, fenced = store.producer(), store.producer()
    newer = store.post("/producers", fenced, "application/json").json()
    keyed = {"records": [{"value": n, "key": n} for n in range(50)]}
    sequenced = {"records": [{"value": 50 + n, "partition": n % 3} for n in range(3)]}
    first = store.post(f"/topics/{topic}", keyed, Idempotency_Key="k")
    other = store.post(f"/topics/{topic}", sequenced, **of_producer(producer, "0=0,1=0,2=0"))
    assert store.post(f"/topics/{topic}", sequenced, **of_producer(newer, "0=0,1=0,2=0")).status_code == 200
    ends = store.end_offsets(topic)
    for end in ("kill", "stop"):
        getattr(store.server, end)()
        store.server.start()
        assert store.producer()["producer_id"] > newer["producer_id"]
        again = store.post(f"/topics/{topic}", keyed, Idempotency_Key="k")
        assert again.content == first.content
        assert again.headers["Idempotent-Replayed"] == "true"
        assert (
            store.post(f"/topics/{topic}", sequenced, **of_producer(producer, "0=0,1=0,2=0")).content == other.content
        )
        gap = store.post(f"/topics/{topic}", sequenced, **of_producer(producer, "0=2,1=2,2=2"))
        assert_error(gap, 409, 40911)
        assert_error(store.post(f"/topics/{topic}", sequenced, **of_producer(fenced, "0=1,1=1,2=1")), 409, 40912)
        assert store.end_offsets(topic) == ends
