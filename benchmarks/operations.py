"""Operations of a store besides requests: rolls, starts, recovery, waiting readers. Contenders like in ``ours``."""

import itertools
import socket
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.kafka import Broker
from benchmarks.load.result import percentiles_ms
from benchmarks.measure import Sample
from benchmarks.ours import NO_ROLL, TOPIC, fill, filled_store, http_specification
from benchmarks.rivals import filled_topic
from benchmarks.run import Stage
from benchmarks.server import BenchmarkError, Store, Turn, allow_open_files, run_load, turn_of
from benchmarks.workload import Workload
from logstore.client.admin import Admin
from logstore.client.producer import Producer

# After these seconds the work that a start leaves for later is done.
_AT_REST_SECONDS = 12


@dataclass(frozen=True, slots=True)
class LatencyWhileRolling:
    """Single-record requests at a fixed rate. Only requests that were due while another topic rolled count."""

    workload: Workload
    rolled: Workload
    rolled_records: int
    rate: int = 1_000
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        store.create_topic(TOPIC, self.workload.partitions, NO_ROLL)
        store.create_topic("rolled", self.rolled.partitions, NO_ROLL)
        store.pause()
        kept = stage.directory / "latencies"
        specification = {
            **http_specification(stage, store, self.workload, "json"),
            "rate": self.rate,
            "keep": str(kept),
        }

        def turn(seconds: float) -> Sample:
            with store.awake(), ThreadPoolExecutor(1) as loading:
                fill(stage, store, self.rolled, self.rolled_records, "rolled")
                load = loading.submit(run_load, "http_latency", {**specification, "seconds": max(4.0, seconds)})
                time.sleep(1.5)
                began = time.monotonic()
                store.roll("rolled")
                ended = time.monotonic()
                load.result()
            pairs = array("d", kept.read_bytes())
            during = [took for due, took in zip(pairs[::2], pairs[1::2], strict=True) if began <= due < ended]
            if not during:
                raise BenchmarkError("no request was due while the roll ran: let it run for more seconds")
            return Sample(records_s=self.rate, **percentiles_ms(during))

        return turn


@dataclass(frozen=True, slots=True)
class Roll:
    """How fast unsealed records become a Delta table's: from the roll request until its response."""

    workload: Workload
    records: int
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        store.create_topic(TOPIC, self.workload.partitions, NO_ROLL)
        store.pause()

        def turn(_seconds: float) -> Sample:
            with store.awake():
                fill(stage, store, self.workload, self.records)
                began, cpu_s = time.monotonic(), store.cpu_s
                store.roll(TOPIC)
                seconds, cpu_s = time.monotonic() - began, store.cpu_s - cpu_s
                rate = self.records / seconds
                return Sample(
                    records_s=rate,
                    mb_s=rate * self.workload.record_bytes / 1e6,
                    server_cpu_us=1e6 * cpu_s / self.records,
                    peak_mb=store.peak_mb,
                    resident_mb=store.resident_mb,
                )

        return turn


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The start of a process on an empty directory, until it responds."""

    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        def turn(_seconds: float) -> Sample:
            with stage.store(f"{self.name}-{time.monotonic_ns()}") as store:
                return Sample(ready_s=store.ready_s, resident_mb=store.resident_mb)

        return turn


@dataclass(frozen=True, slots=True)
class BrokerColdStart:
    """The same for a broker; formatting its directory does not count."""

    name: str = "kafka"
    needs: tuple[str, ...] = ("kafka",)

    def start(self, stage: Stage) -> Turn:
        kafka = stage.peers.kafka
        assert kafka is not None

        def turn(_seconds: float) -> Sample:
            with Broker(kafka, stage.directory / f"kafka-{time.monotonic_ns()}") as broker:
                return Sample(ready_s=broker.ready_s, resident_mb=broker.resident_mb)

        return turn


@dataclass(frozen=True, slots=True)
class Recovery:
    """The start after kill -9 with this many records only in the journal, until it responds; then all must exist."""

    workload: Workload
    records: int
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = filled_store(stage, self.name, self.workload, self.records, sealed=False)
        stored = self.records

        def turn(_seconds: float) -> Sample:
            nonlocal stored
            store.kill()
            store.start()
            found = store.stored(TOPIC)
            if found < stored:
                raise BenchmarkError(f"{stored:,} records were acknowledged, {found:,} are there after a kill -9")
            stored = found
            sample = Sample(ready_s=store.ready_s, peak_mb=store.peak_mb, resident_mb=store.resident_mb)
            store.pause()
            return sample

        return turn


@dataclass(frozen=True, slots=True)
class BrokerRecovery:
    """The same for a broker: a killed one reads the last segment of every partition again, and waits until its former
    session is over (broker.session.timeout.ms, 9 s by default).
    """

    workload: Workload
    records: int
    name: str = "kafka"
    needs: tuple[str, ...] = ("kafka",)

    def start(self, stage: Stage) -> Turn:
        kafka = stage.peers.kafka
        assert kafka is not None
        broker = stage.stack.enter_context(Broker(kafka, stage.directory / "kafka", session_timeout_ms=9_000))
        filled_topic(stage, broker, self.workload, self.records)

        def turn(_seconds: float) -> Sample:
            broker.kill()
            broker.start()
            sample = Sample(ready_s=broker.ready_s, peak_mb=broker.peak_mb, resident_mb=broker.resident_mb)
            broker.pause()
            return sample

        return turn


@dataclass(frozen=True, slots=True)
class ManyTopics:
    """The cost of many topics: the start, a core at rest, another topic, and a stop with records in all of them."""

    topics: int = 1_000
    created: int = 20
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        store = Store(stage.directory / self.name, port=port, checkout=stage.checkout)
        stage.stack.enter_context(store)
        with Admin(store.url, request_timeout_ms=120_000) as admin:
            for number in range(self.topics):
                admin.create_topic(f"{TOPIC}-{number}", partitions=1, configs=NO_ROLL)
        self._produce(store)
        store.stop()
        made = itertools.count()

        def turn(seconds: float) -> Sample:
            store.start()
            time.sleep(_AT_REST_SECONDS)
            began, cpu_s = time.monotonic(), store.cpu_s
            time.sleep(max(10.0, seconds))
            rest_percent = 100 * (store.cpu_s - cpu_s) / (time.monotonic() - began)
            took = []
            with Admin(store.url, request_timeout_ms=120_000) as admin:
                for _ in range(self.created):
                    began = time.monotonic()
                    admin.create_topic(f"created-{next(made)}", partitions=1, configs=NO_ROLL)
                    took.append(time.monotonic() - began)
            self._produce(store)
            resident_mb = store.resident_mb
            return Sample(
                ready_s=store.ready_s,
                live_s=store.live_s,
                rest_percent=rest_percent,
                resident_mb=resident_mb,
                stop_s=store.stop(),
                **percentiles_ms(took),
            )

        return turn

    def _produce(self, store: Store) -> None:
        with Producer(store.url) as producer:
            for number in range(self.topics):
                producer.send(f"{TOPIC}-{number}", b"a record")


@dataclass(frozen=True, slots=True)
class IdlePolls:
    """The resident memory of a store with many long polls at the end of a topic that is only in the journal."""

    workload: Workload
    records: int
    polls: int = 1_000
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        allow_open_files(2 * self.polls + 200)
        store = filled_store(stage, self.name, self.workload, self.records, sealed=False)
        host, port = store.address["host"], store.address["port"]
        with store.awake():
            end = store.stored(TOPIC)
        if self.workload.partitions != 1:
            raise BenchmarkError("the polls wait at the end of one partition")
        request = (
            f"GET /topics/{TOPIC}/partitions/0/records?offset={end}&max_wait_ms=60000 HTTP/1.1\r\n"
            f"Host: {host}:{port}\r\nAccept: application/vnd.apache.arrow.stream\r\n\r\n"
        ).encode()

        def turn(seconds: float) -> Sample:
            with store.awake():
                polls = [socket.create_connection((host, port)) for _ in range(self.polls)]
                try:
                    for poll in polls:
                        poll.sendall(request)
                    time.sleep(min(seconds, 10))
                    sample = Sample(resident_mb=store.resident_mb, peak_mb=store.peak_mb)
                    for poll in polls:
                        poll.setblocking(False)
                    if answered := sum(_has_answer(poll) for poll in polls):
                        raise BenchmarkError(f"{answered} of {self.polls} polls were answered, though nothing came")
                finally:
                    for poll in polls:
                        poll.close()
            return sample

        return turn


@dataclass(frozen=True, slots=True)
class EventStreams:
    """Many Server-Sent Events clients on one topic, and records at a fixed rate: every client gets all, in one order.

    Records of the sample are the sum over all clients; the latency counts from when a record was due to be produced.
    """

    streams: int = 1_000
    rate: int = 100
    value_bytes: int = 100
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        allow_open_files(2 * self.streams + 200)
        store = stage.store(self.name)
        store.create_topic(TOPIC, 1)
        store.pause()
        specification = {**store.address, "topic": TOPIC, "streams": self.streams, "rate": self.rate}
        specification |= {"value_bytes": self.value_bytes, "connections": 16}
        return turn_of(
            store,
            self.value_bytes,
            lambda seconds: run_load("event_streams", {**specification, "seconds": seconds}),
        )


def _has_answer(connection: socket.socket) -> bool:
    try:
        connection.recv(1)
    except BlockingIOError:
        return False
    return True
