"""A cluster of brokers, played by small HTTP servers on real sockets, for tests of the client.

The brokers share one log of each partition: all replicas have what a leader acknowledges. Leaders move, brokers die and
come back, respond late, lose responses and refuse requests as a test orders. Producers' sequences are judged as in the
store (KIP-98): each partition remembers five batches of each producer, and a repetition gets its first offset.
"""

import json
import re
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

from benchmarks.free_port import free_port
from logstore import errors
from logstore.errors import LogStoreError
from logstore.protocol.error_codes import code_of, kind_of
from logstore.protocol.fetch_response import PartitionData, encode_fetch_response
from logstore.protocol.record_batch import RecordBatch, encode_batches

NOBODY = -1
#: A test's action for a request, before or after it is carried out: an error to return, "cut" the connection, None.
Fault = Callable[["Request"], "LogStoreError | str | None"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request; with ``never`` the client wants no forwarding."""

    broker: int
    method: str
    path: str
    never: bool
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def is_produce(self) -> bool:
        return self.method == "POST" and re.fullmatch(r"/topics/[^/]+", self.path) is not None


@dataclass(slots=True)
class Partition:
    leader: int
    epoch: int = 0
    #: Messages as producers sent them, with their records' values, by base offset.
    batches: list[tuple[int, bytes, list[bytes]]] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    #: By producer id: its epoch, the next sequence, and (sequence, count, base offset) of the last batches.
    producers: dict[int, tuple[int, int, deque[tuple[int, int, int]]]] = field(default_factory=dict)

    @property
    def values(self) -> list[bytes]:
        return [value for _, _, values in self.batches for value in values]


class PlayedCluster:
    """``brokers`` brokers, numbered from 1, and ``topics`` (names to numbers of partitions), led in turn."""

    def __init__(self, brokers: int = 3, topics: dict[str, int] | None = None) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.topics = {
            name: [Partition(1 + at % brokers) for at in range(count)]
            for name, count in ({"t": 3} if topics is None else topics).items()
        }
        self.ids = {name: f"id-of-{name}" for name in self.topics}
        self.coordinators: dict[str, int] = {}
        self.committed: dict[str, dict[tuple[str, int], int]] = {}
        self.commits: list[tuple[int, bool]] = []
        self.requests: list[Request] = []
        #: Fetches under way at each broker, and the largest number that there was.
        self.fetching: Counter[int] = Counter()
        self.fetching_most: Counter[int] = Counter()
        self.fetching_together = 0
        self.before: Fault = lambda _: None
        self.after: Fault = lambda _: None
        self.next_producer_id = 100
        #: Brokers that do not know any topic yet.
        self.deaf: set[int] = set()
        #: This many descriptions of topics have no offsets, as if the leaders did not answer.
        self.untold = 0
        #: Brokers in the metadata; it contains a dead broker until its session has ended.
        self.registered = set(range(1, brokers + 1))
        self.advertised: dict[int, str] = {}
        self.brokers = {number: _Broker(self, number, free_port()) for number in self.registered}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.stop()

    @property
    def bootstrap(self) -> str:
        """The address of the first broker."""
        return self.brokers[1].url

    def url(self, number: int) -> str:
        return self.advertised.get(number, self.brokers[number].url)

    # ---- what happens to it -----------------------------------------------------------------------------------------

    def lead(self, number: int, topic: str = "t", partition: int = 0) -> None:
        """Let another broker (or NOBODY) lead."""
        with self.changed:
            led = self.topics[topic][partition]
            led.leader, led.epoch = number, led.epoch + 1
            self.changed.notify_all()

    def kill(self, number: int, *, elect: bool = True) -> None:
        """Cut all connections of a broker, and refuse new ones; with ``elect`` its session ends and others lead at
        once.
        """
        self.brokers[number].stop()
        if elect:
            self.forget(number)

    def forget(self, number: int) -> None:
        """End the session of a killed broker: others lead."""
        with self.lock:
            self.registered.discard(number)
            heirs = sorted(self.registered)
            for topic, partitions in self.topics.items():
                for at, partition in enumerate(partitions):
                    if partition.leader == number:
                        self.lead(heirs[at % len(heirs)] if heirs else NOBODY, topic, at)
            for group, coordinator in self.coordinators.items():
                if coordinator == number:
                    self.coordinators[group] = heirs[0]

    def restart(self, number: int) -> None:
        """Start a broker again on the same port."""
        self.brokers[number] = _Broker(self, number, self.brokers[number].port)
        with self.lock:
            self.registered.add(number)

    def append(self, values: list[bytes], topic: str = "t", partition: int = 0) -> None:
        """Append records as another client's."""
        from logstore.records.schema import WIRE_SCHEMA

        batch = pa.RecordBatch.from_pylist([{"value": value} for value in values], WIRE_SCHEMA)
        with self.changed:
            self._append(self.topics[topic][partition], batch)

    def asked(self, path: str = "", *, method: str = "", broker: int | None = None) -> list[Request]:
        """Return the requests whose paths begin with ``path``."""
        return [
            request
            for request in list(self.requests)
            if request.path.startswith(path) and method in ("", request.method) and broker in (None, request.broker)
        ]

    # ---- answers ----------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> tuple[int, bytes]:
        """Return status and body. Raises LogStoreError."""
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        match parts:
            case ["metadata"]:
                return 200, self._metadata(request)
            case ["producers"]:
                with self.lock:
                    asked = json.loads(request.body) if request.body else {}
                    if asked:
                        return 200, _json({**asked, "producer_epoch": asked["producer_epoch"] + 1})
                    self.next_producer_id += 1
                    return 200, _json({"producer_id": self.next_producer_id, "producer_epoch": 0})
            case ["fetch"]:
                return 200, self._fetch(request)
            case ["topics", topic]:
                if request.method == "POST":
                    return 200, self._produce(request, topic)
                return 200, self._describe(topic)
            case ["topics", topic, "partitions", number, "offsets"]:
                partition = self._partition(topic, int(number))
                self._require_leader(request, partition)
                ends = {"beginning_offset": partition.log_start, "end_offset": partition.log_end}
                return 200, _json({**ends, "last_stable_offset": partition.log_end})
            case ["groups", group, "offsets"]:
                return 200, self._group_offsets(request, group)
        raise errors.UnknownTopicError(f"There is nothing at {request.path}")

    def _metadata(self, request: Request) -> bytes:
        with self.lock:
            names = [name for name in request.query.get("topics", "").split(",") if name]
            group = request.query.get("group")
            return _json(
                {
                    "cluster_id": "played",
                    "controller_id": min(self.registered, default=NOBODY),
                    "brokers": [
                        {"broker_id": number, "url": self.url(number), "rack": None}
                        for number in sorted(self.registered)
                    ],
                    "topics": [self._topic(name, request.broker in self.deaf) for name in names],
                    "coordinator_id": None if group is None else self.coordinators.get(group, NOBODY),
                }
            )

    def _topic(self, name: str, is_unheard_of: bool) -> dict[str, Any]:
        if name not in self.topics or is_unheard_of:
            missing = {"topic_id": None, "error_code": 40401, "message": f"Topic {name!r} not found."}
            return {"name": name, **missing, "partitions": []}
        led = [
            {"partition": number, "leader": partition.leader, "leader_epoch": partition.epoch}
            for number, partition in enumerate(self.topics[name])
        ]
        return {"name": name, "topic_id": self.ids[name], "error_code": None, "message": None, "partitions": led}

    def _describe(self, topic: str) -> bytes:
        with self.lock:
            if topic not in self.topics:
                raise errors.UnknownTopicError(f"Topic {topic!r} not found.")
            numbers = dict.fromkeys(("sealed_offset", "segments", "size_bytes", "unsealed_bytes"), 0)
            self.untold, is_untold = max(0, self.untold - 1), self.untold > 0
            partitions = [
                {
                    "partition": number,
                    "leader": partition.leader,
                    "leader_epoch": partition.epoch,
                    "replicas": [],
                    "log_start_offset": -1 if is_untold else partition.log_start,
                    "high_watermark": -1 if is_untold else partition.log_end,
                    "log_end_offset": partition.log_end,
                    "last_stable_offset": partition.log_end,
                    **numbers,
                }
                for number, partition in enumerate(self.topics[topic])
            ]
            about = {"name": topic, "topic_id": self.ids[topic], "location": "", "is_internal": False, "configs": {}}
            return _json({**about, "partitions": partitions})

    def _partition(self, topic: str, number: int) -> Partition:
        if topic not in self.topics:
            raise errors.UnknownTopicError(f"Topic {topic!r} not found.")
        if number >= len(self.topics[topic]):
            raise errors.UnknownPartitionError(f"Partition {number} not found.")
        return self.topics[topic][number]

    def _require_leader(self, request: Request, partition: Partition) -> None:
        """Raise an error, or forward the request to the leader, on a broker that does not lead."""
        self._require(request, partition.leader, errors.LeaderNotAvailableError("There is no leader."))

    def _require(self, request: Request, right: int, missing: LogStoreError) -> None:
        if request.broker in self.deaf:
            raise errors.UnknownTopicError("Topic 't' not found.")
        if right == request.broker:
            return
        if request.never:
            url = self.url(right) if right != NOBODY else None
            raise errors.WrongBrokerError(f"Broker {right} answers this.", broker_id=right, url=url)
        if right == NOBODY or self.brokers[right].is_stopped:
            raise missing

    def _produce(self, request: Request, topic: str) -> bytes:
        stream = pa.ipc.open_stream(request.body)
        sequences = {
            int(partition): int(sequence)
            for partition, sequence in (
                entry.split("=") for entry in request.headers.get("logstore-base-sequences", "").split(",") if entry
            )
        }
        ranges = []
        with self.changed:
            if self.ids.get(topic) != request.headers.get("logstore-topic-id"):
                raise errors.UnknownTopicIdError(f"Topic {topic!r} is another one.")
            batches = []
            while True:
                try:
                    batch, metadata = stream.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break
                batches.append((int(metadata["partition"]), batch))
            numbers = {number for number, _ in batches}
            if request.never and not any(self._partition(topic, n).leader == request.broker for n in numbers):
                self._require_leader(request, self._partition(topic, min(numbers)))
            for number, batch in batches:
                refusal: LogStoreError | None = None
                base = -1
                try:
                    partition = self._partition(topic, number)
                    self._require_leader(request, partition)
                    if sequences:
                        base = self._append_idempotent(request, partition, batch, sequences[number])
                        sequences[number] += batch.num_rows
                    else:
                        base = self._append(partition, batch)
                except LogStoreError as error:
                    refusal = error
                ranges.append(
                    {
                        "partition": number,
                        "base_offset": None if refusal else base,
                        "count": batch.num_rows,
                        "error_code": code_of(refusal) if refusal else None,
                        "error": refusal.message if refusal else None,
                    }
                )
        return _json({"ranges": ranges})

    def _append_idempotent(self, request: Request, partition: Partition, batch: pa.RecordBatch, sequence: int) -> int:
        producer_id = int(request.headers["logstore-producer-id"])
        epoch = int(request.headers["logstore-producer-epoch"])
        # An unknown producer may begin at any number (KIP-360).
        known, expected, recent = partition.producers.get(producer_id, (epoch, sequence, deque(maxlen=5)))
        if epoch < known:
            raise errors.InvalidProducerEpochError("An older epoch.")
        if epoch > known:
            expected, recent = 0, deque(maxlen=5)
        for first, count, base in recent:
            if (first, count) == (sequence, batch.num_rows):
                return base
        if sequence != expected:
            raise errors.OutOfOrderSequenceError(f"Sequence {sequence} does not follow {expected}.")
        base = self._append(partition, batch)
        recent.append((sequence, batch.num_rows, base))
        partition.producers[producer_id] = (epoch, sequence + batch.num_rows, recent)
        return base

    def _append(self, partition: Partition, batch: pa.RecordBatch) -> int:
        base = partition.log_end
        values = batch.column("value").to_pylist()
        partition.batches.append((base, batch.serialize().to_pybytes(), values))
        partition.log_end += batch.num_rows
        self.changed.notify_all()
        return base

    def _fetch(self, request: Request) -> bytes:
        asked = json.loads(request.body)
        give_up = time.monotonic() + asked["max_wait_ms"] / 1000
        with self.changed:
            self.fetching[request.broker] += 1
            self.fetching_most[request.broker] = max(self.fetching_most[request.broker], self.fetching[request.broker])
            self.fetching_together = max(self.fetching_together, sum(n > 0 for n in self.fetching.values()))
            try:
                while True:
                    found = [self._read(request, index, one) for index, one in enumerate(asked["partitions"])]
                    responses = [one for one in found if one is not None]
                    left = give_up - time.monotonic()
                    if responses or left <= 0 or self.brokers[request.broker].is_stopped:
                        return b"".join(bytes(piece) for piece in encode_fetch_response(responses))
                    self.changed.wait(left)
            finally:
                self.fetching[request.broker] -= 1

    def _read(self, request: Request, index: int, asked: dict[str, Any]) -> PartitionData | None:
        try:
            partition = self._partition(asked["topic"], asked["partition"])
            self._require_leader(request, partition)
            offset = asked["offset"]
            if not partition.log_start <= offset <= partition.log_end:
                raise errors.OffsetOutOfRangeError(
                    "Out of range.", log_start_offset=partition.log_start, high_watermark=partition.log_end
                )
        except LogStoreError as error:
            return PartitionData.of_error(index, error)
        for base, message, values in partition.batches:
            if base + len(values) > offset:
                content = encode_batches([RecordBatch(base, 1, len(values), 0, message)])
                ends = partition.log_start, partition.log_end, partition.log_end
                return PartitionData(index, 0, *ends, base + len(values), content)
        return None

    def _group_offsets(self, request: Request, group: str) -> bytes:
        with self.lock:
            missing = errors.CoordinatorNotAvailableError("There is no coordinator.")
            self._require(request, self.coordinators.get(group, NOBODY), missing)
            known = self.committed.setdefault(group, {})
            if request.method == "POST":
                self.commits.append((request.broker, request.never))
                for entry in json.loads(request.body)["offsets"]:
                    known[entry["topic"], entry["partition"]] = entry["offset"]
            offsets = [
                {"topic": topic, "partition": n, "offset": at, "metadata": "", "leader_epoch": -1, "timestamp": 0}
                for (topic, n), at in known.items()
            ]
            return _json({"offsets": offsets})


class _Broker:
    """One server; its connections are cut when it stops."""

    def __init__(self, cluster: PlayedCluster, number: int, port: int) -> None:
        self._connections: set[socket.socket] = set()
        self.is_stopped = False

        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(cluster, self, number))
        self._server.daemon_threads = True
        self._cluster = cluster
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def stop(self) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._cluster.changed:
            self._cluster.changed.notify_all()


def _handler(cluster: PlayedCluster, broker: "_Broker", number: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # A response is sent in two pieces: do not wait for the client's acknowledgement of the first.
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            broker._connections.add(self.connection)
            if broker.is_stopped:
                self.cut()

        def finish(self) -> None:
            broker._connections.discard(self.connection)
            super().finish()

        def handle(self) -> None:
            with suppress(OSError):  # the client, or the test, has cut the connection
                super().handle()

        def cut(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            url = urlsplit(self.path)
            length = int(headers.get("content-length", 0))
            body = self.rfile.read(length)
            request = Request(
                number,
                self.command,
                url.path,
                headers.get("logstore-forward") == "never",
                {name: values[0] for name, values in parse_qs(url.query).items()},
                headers,
                body,
            )
            if broker.is_stopped or len(body) < length:
                self.cut()
                return
            cluster.requests.append(request)
            fault = cluster.before(request)
            try:
                if isinstance(fault, LogStoreError):
                    raise fault
                if fault is None:
                    status, body = cluster.answer(request)
                    fault = cluster.after(request)
                    if isinstance(fault, LogStoreError):
                        raise fault
            except LogStoreError as error:
                code = code_of(error)
                status, body = kind_of(code), _json({"error_code": code, "message": error.message})
            if fault == "cut" or broker.is_stopped:
                self.cut()
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler


def _json(content: object) -> bytes:
    return json.dumps(content).encode()


@contextmanager
def unreachable_address() -> Iterator[str]:
    """Yield a URL where connections are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
