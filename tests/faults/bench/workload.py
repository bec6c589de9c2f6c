"""Clients of a store that may die under them, and the answers to them: producers, group readers, final reads.

Every call is two lines of the history. A client's calls depend on its seed and on the answers alone. Invariants: a
client has one request at a time; after an answer that leaves the outcome open it continues under a new name, because
its request may still take effect after its next one.
"""

import contextlib
import dataclasses
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from logstore.records.murmur2 import murmur2
from tests.faults.bench.history import Recorder
from tests.faults.bench.records import (
    ARROW,
    JSON,
    Record,
    arrow_body,
    json_body,
    make_value,
    rows_of_arrow,
    rows_of_json,
    stored,
)
from tests.support.background_load import BackgroundLoad

KEYS = 30
TOMBSTONES = 0.1
_TIMEOUT_S = 15.0
_DOWN_S = 0.2
#: Tries of a request that is stored once however often it comes: enough for a killed store to come back.
_TRIES = 50
_READ_BYTES = (2_000, 20_000, 200_000)
_FORMATS = {"json": JSON, "arrow": ARROW}
#: These statuses mean that a request has changed nothing (docs/http-api.md); every other 5xx leaves it open.
_REFUSED = {429, 503}
_NO_SUCH_GROUP = 40405
#: A sequence number is not the next one: the store has lost an acknowledged batch, or taken one that it refused.
_OUT_OF_STEP = 409


@dataclass(frozen=True, slots=True)
class TopicSpec:
    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    #: Nobody writes to it except a fault that has to know when it is rolled.
    by_hand: bool = False
    #: Only members of consumer groups read it; it may gain partitions.
    shared: bool = False

    @property
    def compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")


def tell_topic(recorder: Recorder, topic: TopicSpec) -> None:
    """Record that the topic was created, or has more partitions now."""
    made = {"partitions": topic.partitions, "configs": dict(topic.configs), "now_ms": time.time_ns() // 1_000_000}
    recorder.tell("bench", "topic", topic=topic.name, **made)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: ``phase`` as in the history; ``http`` is None if none came."""

    phase: str
    http: httpx.Response | None
    reason: str
    #: True if an earlier try was not answered: a refusal of a part then does not decide the outcome of that try.
    is_repeated: bool = False

    @property
    def ok(self) -> bool:
        return self.phase == "ok"


@dataclass(slots=True)
class ProducerIdentity:
    """The identity of an idempotent producer; ``next_sequences`` by topic and partition."""

    producer_id: int
    producer_epoch: int
    next_sequences: Counter[tuple[str, int]] = field(default_factory=Counter)

    def headers(self, topic: str, partition: int) -> dict[str, str]:
        return {
            "Logstore-Producer-Id": str(self.producer_id),
            "Logstore-Producer-Epoch": str(self.producer_epoch),
            "Logstore-Base-Sequences": f"{partition}={self.next_sequences[topic, partition]}",
        }


class Client:
    """A caller with one request at a time, whose calls are in the history."""

    def __init__(
        self, url: str | Sequence[str], name: str, recorder: Recorder, *, timeout_s: float = _TIMEOUT_S
    ) -> None:
        """Create a client; with several addresses each try goes to one of them, as behind a load balancer."""
        self._urls = [url] if isinstance(url, str) else list(url)
        self._chance = random.Random(name)
        self._name = name
        self._recorder = recorder
        self._lives = itertools.count(1)
        self.process = name
        self._http = httpx.Client(timeout=timeout_s)
        self._identity: ProducerIdentity | None = None

    def close(self) -> None:
        self._http.close()

    @property
    def _url(self) -> str:
        return self._chance.choice(self._urls)

    def call(
        self,
        op: str,
        method: str,
        path: str,
        result: Callable[[httpx.Response], Mapping[str, Any]],
        asked: Mapping[str, Any],
        *,
        also_good: Callable[[httpx.Response], bool] = lambda _: False,
        tries: int = 1,
        **request: Any,
    ) -> tuple[Answer, Mapping[str, Any]]:
        """Send a request and wait for its outcome. The history has the values that ``result`` takes from a good answer.

        A request whose outcome is open is sent again, up to ``tries`` times in all.
        """
        number = self._recorder.invoke(self.process, op, **asked)
        answer = self._send(method, path, **request)
        if answer.phase == "info":
            answer = self._send_again(answer, tries - 1, method, path, **request)
        if answer.http is not None and also_good(answer.http):
            answer = Answer("ok", answer.http, "")
        told: Mapping[str, Any] = {"reason": answer.reason, **_error_of(answer.http)}
        if answer.ok:
            assert answer.http is not None
            told = result(answer.http)
            if answer.is_repeated and "places" in told:
                told = {**told, "unknown": [at for at, place in enumerate(told["places"]) if place is None]}
        self._recorder.complete(number, self.process, op, answer.phase, **told)
        if answer.phase == "info":
            self.begin_anew()
        return answer, told

    def begin_anew(self) -> None:
        """Continue as another client."""
        self.process = f"{self._name}.{next(self._lives)}"

    def get(self, path: str, **params: Any) -> Any:
        """Send a GET that is not part of the history."""
        return self._http.get(self._url + path, params=params).raise_for_status().json()

    def _send(self, method: str, path: str, **request: Any) -> Answer:
        try:
            http = self._http.request(method, self._url + path, **request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Answer("fail", None, repr(error))
        except httpx.HTTPError as error:
            return Answer("info", None, repr(error))
        if http.is_success:
            return Answer("ok", http, "")
        return Answer("fail" if _is_known(http.status_code) else "info", http, f"{http.status_code} {http.text[:300]}")

    def _send_again(self, answer: Answer, times: int, method: str, path: str, **request: Any) -> Answer:
        """Send until it is done. A refusal does not decide the outcome of the try before."""
        for _ in range(times):
            time.sleep(_DOWN_S)
            again = self._send(method, path, **request)
            if again.ok:
                return dataclasses.replace(again, is_repeated=True)
            status = again.http.status_code if again.http is not None else None
            assert status is None or status >= 500 or status in {408, 429}, again.reason
        return answer

    # ---- the calls --------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: TopicSpec,
        partition: int | None,
        records: Sequence[Record],
        *,
        acks: str,
        form: str,
        idempotency_key: str | None = None,
        sequenced: bool = False,
    ) -> tuple[Answer, Mapping[str, Any]]:
        """Send a produce request and wait for its outcome.

        It is sent again while its outcome is open if it has an ``idempotency_key`` or sequence numbers. If
        ``sequenced``, ``partition`` is given and the store has assigned an identity.
        """
        asked = {
            "topic": topic.name,
            "partition": partition,
            "acks": acks,
            "format": form,
            "records": [record.in_history() for record in records],
        }

        def places(http: httpx.Response) -> Mapping[str, Any]:
            if acks == "0":
                return {}
            found = http.json()
            if form == "json":
                told = [(row, [row["partition"], row["offset"]]) for row in found["offsets"]]
            else:
                told = _places(found["ranges"], topic, partition, records)
            return {
                "places": [None if part.get("error_code") is not None else place for part, place in told],
                "unknown": [at for at, (part, _) in enumerate(told) if not _is_known(part.get("error_code"))],
            }

        path = f"/topics/{topic.name}" if partition is None else f"/topics/{topic.name}/partitions/{partition}"
        body = json_body(records) if form == "json" else arrow_body(records)
        headers = {"Content-Type": _FORMATS[form]}
        tries = 1
        identity = self._identity if sequenced else None
        if sequenced and identity is None:
            identity = self._identity = self._new_identity(None)
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
            tries = _TRIES
        elif identity is not None and partition is not None:
            headers |= identity.headers(topic.name, partition)
            tries = _TRIES
        answer, told = self.call(
            "produce", "POST", path, places, asked, tries=tries, params={"acks": acks}, content=body, headers=headers
        )
        if identity is not None and partition is not None:
            assert answer.http is None or answer.http.status_code != _OUT_OF_STEP, answer.reason
            if answer.ok:
                identity.next_sequences[topic.name, partition] += len(records)
            elif answer.phase == "info":
                # The outcome is open; a higher epoch begins new sequence numbers.
                self._identity = self._new_identity(identity)
        return answer, told

    def _new_identity(self, old: ProducerIdentity | None) -> ProducerIdentity | None:
        """Return an identity with the next epoch of ``old`` if there was one; None if the store does not answer."""
        asked = None
        if old is not None:
            asked = {"producer_id": old.producer_id, "producer_epoch": old.producer_epoch}
        answer = self._send("POST", "/producers", json=asked)
        return ProducerIdentity(**answer.http.json()) if answer.ok and answer.http is not None else None

    def fetch(
        self, topic: str, partition: int, offset: int, *, form: str, max_bytes: int, max_wait_ms: int
    ) -> tuple[Answer, Mapping[str, Any]]:
        def result(http: httpx.Response) -> Mapping[str, Any]:
            return {
                "records": rows_of_json(http.content) if form == "json" else rows_of_arrow(http.content),
                "next_offset": int(http.headers["Logstore-Next-Offset"]),
                "high_watermark": int(http.headers["Logstore-High-Watermark"]),
                "log_start": int(http.headers["Logstore-Log-Start-Offset"]),
            }

        return self.call(
            "fetch",
            "GET",
            f"/topics/{topic}/partitions/{partition}/records",
            result,
            {"topic": topic, "partition": partition, "offset": offset},
            params={"offset": offset, "max_bytes": max_bytes, "max_wait_ms": max_wait_ms},
            headers={"Accept": _FORMATS[form]},
        )

    def commit(
        self, group: str, topic: str, offsets: Mapping[int, int], member: Mapping[str, Any] | None = None
    ) -> Answer:
        """Commit offsets; ``member`` has the fields of the request by which a member of the group commits."""
        entries = [{"topic": topic, "partition": p, "offset": offset} for p, offset in offsets.items()]
        asked = {"group": group, "topic": topic, "offsets": {str(p): offset for p, offset in offsets.items()}}
        path = f"/groups/{group}/offsets"
        return self.call("commit", "POST", path, lambda _: {}, asked, json={"offsets": entries, **(member or {})})[0]

    def committed(self, group: str, topic: str) -> tuple[Answer, Mapping[str, Any]]:
        def offsets(http: httpx.Response) -> Mapping[str, Any]:
            rows = [] if http.status_code == 404 else http.json()["offsets"]
            return {"offsets": {str(row["partition"]): row["offset"] for row in rows}}

        def no_such_group(http: httpx.Response) -> bool:
            """Return whether the group is unknown, which is an answer: it has committed nothing."""
            return http.status_code == 404 and http.json()["error_code"] == _NO_SUCH_GROUP

        return self.call(
            "committed",
            "GET",
            f"/groups/{group}/offsets",
            offsets,
            {"group": group, "topic": topic},
            also_good=no_such_group,
            params={"topic": topic},
        )

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> None:
        asked = {"topic": topic, "partition": partition, "timestamp": timestamp}
        path = f"/topics/{topic}/partitions/{partition}/offsets"

        def offset(http: httpx.Response) -> Mapping[str, Any]:
            return {"offset": http.json()["offset"]}

        self.call("offset_for_time", "GET", path, offset, asked, params={"timestamp": timestamp})

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        asked = {"topic": topic, "partition": partition, "before_offset": before_offset}
        path = f"/topics/{topic}/partitions/{partition}/delete-records"

        def start(http: httpx.Response) -> Mapping[str, Any]:
            return {"log_start": http.json()["log_start_offset"]}

        self.call("delete_records", "POST", path, start, asked, json={"before_offset": before_offset})


def _error_of(http: httpx.Response | None) -> dict[str, int]:
    """Return the status of an answer, and the error_code of its body if it has one."""
    if http is None:
        return {}
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return {"status": http.status_code, "error_code": int(http.json()["error_code"])}
    return {"status": http.status_code}


def _is_known(code: int | None) -> bool:
    """Return whether a status, or the error_code of a part of an answer, decides the outcome of the records."""
    status = 200 if code is None else code // 100 if code > 999 else code
    return status in _REFUSED or (status < 500 and status != 408)


def _places(
    ranges: Sequence[Mapping[str, Any]], topic: TopicSpec, partition: int | None, records: Sequence[Record]
) -> list[tuple[Mapping[str, Any], list[int]]]:
    """Return the range of each record of a request whose answer has ranges, and its place.

    The records are in the request's order in each partition. A range with an error gives no place.
    """
    told = {r["partition"]: r for r in ranges}
    offsets = {r["partition"]: iter(range(r["base_offset"] or 0, (r["base_offset"] or 0) + r["count"])) for r in ranges}
    places = []
    for record in records:
        chosen = partition
        if chosen is None and record.key is not None:
            chosen = (murmur2(stored(record.key) or b"") & 0x7FFFFFFF) % topic.partitions
        elif chosen is None:
            # Without keys the whole request went to one partition.
            (chosen,) = offsets
        offset = next(offsets.get(chosen, iter(())), -1)
        places.append((told.get(chosen, {}), [chosen, offset]))
    return places


class Workload(BackgroundLoad):
    """Producers and group readers, each in a thread, on topics that exist; runs as long as its block.

    ``acknowledged`` counts records, ``fetches`` answers, by topic and partition. A client that cannot read an answer
    fails, and its error ends the block.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        recorder: Recorder,
        topics: Sequence[TopicSpec],
        *,
        seed: int,
        producers: int,
        readers: int,
        pause_s: float,
        large: float,
        deletes: Sequence[str] = (),
        sent_again: bool = True,
        acks: Sequence[str] = ("all", "all", "1", "0"),
    ) -> None:
        self._acks = acks
        self.acknowledged: Counter[tuple[str, int]] = Counter()
        self.fetches: Counter[tuple[str, int]] = Counter()
        self.groups = [f"group-{n}" for n in range(readers)]
        self._url = url
        self._recorder = recorder
        self._topics = list(topics)
        self._seed = seed
        self._pause_s = pause_s
        self._large = large
        self._deletes = deletes
        self._sent_again = sent_again
        self._counting = threading.Lock()
        self._read_topics = [topic for topic in topics if not topic.shared]
        targets: list[Callable[[], None]] = []
        targets += [_bound(self._produce, number) for number in range(producers)]
        targets += [_bound(self._read, number) for number in range(readers)]
        super().__init__(targets)

    def wait_for_an_acknowledgement(self, *, seconds: float) -> None:
        """Wait until one more record is acknowledged, or the time is over."""
        before, deadline = self._acknowledged_now(), time.monotonic() + seconds
        while self._acknowledged_now() == before and time.monotonic() < deadline and not self.errors:
            self._stop.wait(0.02)

    def _acknowledged_now(self) -> int:
        with self._counting:
            return self.acknowledged.total()

    def wait_for_progress(self, *, seconds: float) -> list[tuple[str, int]]:
        """Wait until each log has taken one more record and answered a fetch; return those that have not in time."""
        waiting = []
        with self._counting:
            for counter, topics in ((self.acknowledged, self._topics), (self.fetches, self._read_topics)):
                then = Counter(counter)
                waiting += [(counter, (at.name, p), then[at.name, p]) for at in topics for p in range(at.partitions)]
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline and not self.errors:
            self._stop.wait(0.02)
            waiting = [(counter, log, then) for counter, log, then in waiting if counter[log] == then]
        return [log for _, log, _ in waiting]

    def grown(self, topic: TopicSpec) -> None:
        """Write also to the new partitions of the shared topic."""
        (at,) = (n for n, known in enumerate(self._topics) if known.name == topic.name)
        self._topics[at] = topic

    # ---- producers --------------------------------------------------------------------------------------------------

    def _produce(self, number: int) -> None:
        chance = random.Random(f"{self._seed} producer {number}")
        client = Client(self._url, f"producer-{number}", self._recorder)
        try:
            for sequence in itertools.count():
                if self._stop.wait(self._pause_s * 2 * chance.random()):
                    return
                topic = chance.choice(self._topics)
                # The partition of a key depends on the number of partitions.
                named = topic.shared or chance.choice([True, True, False])
                keyed = topic.compacted or not named or chance.random() < 0.5
                records = list(
                    some_records(f"{number}-{sequence}", topic, keyed=keyed, large=self._large, chance=chance)
                )
                if not named and not topic.compacted and chance.random() < 0.3:
                    records = [Record(r.record_id, None, r.value, r.timestamp) for r in records]
                acks = chance.choice(self._acks)
                again = chance.choice(["no", "key", "sequences"]) if self._sent_again else "no"
                # Records with acks=0 may be lost, but they count in the sequence.
                sequenced = again == "sequences" and named and acks != "0"
                answer, told = client.produce(
                    topic,
                    chance.randrange(topic.partitions) if named else None,
                    records,
                    acks=acks,
                    form=chance.choice(["json", "arrow"]),
                    idempotency_key=f"{number}-{sequence}" if again != "no" and not sequenced else None,
                    sequenced=sequenced,
                )
                if answer.ok:
                    with self._counting:
                        self.acknowledged.update((topic.name, place[0]) for place in told.get("places", ()) if place)
                else:
                    # A topic whose creation was answered exists.
                    assert answer.http is None or answer.http.status_code != 404, answer.reason
                    self._stop.wait(_DOWN_S)
        finally:
            client.close()

    # ---- group readers ----------------------------------------------------------------------------------------------

    def _read(self, number: int) -> None:
        chance = random.Random(f"{self._seed} reader {number}")
        client = Client(self._url, f"reader-{number}", self._recorder)
        group = self.groups[number]
        form = "arrow" if number % 2 else "json"
        at = {topic.name: dict.fromkeys(range(topic.partitions), 0) for topic in self._read_topics}
        reached = dict.fromkeys(at, True)
        try:
            while not self._stop.wait(self._pause_s):
                topic = chance.choice(self._read_topics)
                positions = at[topic.name]
                if not reached[topic.name] and self._resume(client, group, topic, positions):
                    reached[topic.name] = True
                for partition in chance.sample(range(topic.partitions), topic.partitions):
                    reached[topic.name] &= self._read_on(client, topic.name, partition, positions, form, chance)
                if not reached[topic.name]:
                    self._stop.wait(_DOWN_S)
                    continue
                if topic.name in self._deletes and chance.random() < 0.05:
                    partition = chance.randrange(topic.partitions)
                    client.delete_records(topic.name, partition, positions[partition] // 2)
                if not client.commit(group, topic.name, positions).ok:
                    continue
                if chance.random() < 0.2:
                    client.committed(group, topic.name)
                if chance.random() < 0.1:
                    self._resume(client, group, topic, positions)
        finally:
            client.close()

    @staticmethod
    def _resume(client: Client, group: str, topic: TopicSpec, positions: dict[int, int]) -> bool:
        """Continue from what the group has committed, as a restarted consumer; return whether the store reported it."""
        answer, told = client.committed(group, topic.name)
        if answer.ok:
            client.begin_anew()
            positions.update(dict.fromkeys(range(topic.partitions), 0))
            positions.update({int(p): offset for p, offset in told["offsets"].items()})
        return answer.ok

    def _read_on(
        self,
        client: Client,
        topic: str,
        partition: int,
        positions: dict[int, int],
        form: str,
        chance: random.Random,
    ) -> bool:
        """Fetch once and move on; return whether the store could be reached."""
        answer, told = client.fetch(
            topic,
            partition,
            positions[partition],
            form=form,
            max_bytes=chance.choice(_READ_BYTES),
            max_wait_ms=chance.choice([0, 0, 20]),
        )
        if answer.ok:
            with self._counting:
                self.fetches[topic, partition] += 1
            positions[partition] = told["next_offset"]
            if told["records"] and chance.random() < 0.05:
                client.offset_for_time(topic, partition, chance.choice(told["records"])[1])
            return True
        if answer.http is not None and answer.http.status_code == 416:
            # Retention was faster; the history shows an end below what was read.
            start = int(answer.http.headers["Logstore-Log-Start-Offset"])
            end = int(answer.http.headers["Logstore-High-Watermark"])
            positions[partition] = start if positions[partition] < start else end
            return True
        return False


def some_records(
    prefix: str, topic: TopicSpec, *, keyed: bool, large: float, chance: random.Random
) -> Iterator[Record]:
    """Yield a request's records; with the odds of ``large`` they are few, of 2 to 20 KB."""
    is_large = chance.random() < large
    timed = chance.random() < 0.3
    for n in range(chance.randint(1, 4) if is_large else chance.randint(1, 12)):
        record_id = f"{prefix}-{n}"
        size = chance.randint(2_000, 20_000) if is_large else 0
        tombstone = topic.compacted and chance.random() < TOMBSTONES
        yield Record(
            record_id,
            f"k{chance.randrange(KEYS)}" if keyed else None,
            None if tombstone else make_value(record_id, size, chance),
            time.time_ns() // 1_000_000 - chance.randrange(5_000) if timed else None,
        )


def _bound(work: Callable[[int], None], number: int) -> Callable[[], None]:
    return lambda: work(number)
