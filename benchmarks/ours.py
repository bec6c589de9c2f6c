"""Our side of the comparisons: loads of a store over HTTP and through the Python client."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.run import Stage
from benchmarks.server import (
    ROOT,
    BenchmarkError,
    Result,
    Storage,
    Store,
    Turn,
    python_of,
    result_of,
    run_command,
    run_load,
    turn_of,
)
from benchmarks.workload import CONTENT_TYPES, Form, Workload, write_bodies

TOPIC = "bench"
#: A machine that fills a topic more slowly than this is not fit for benchmarks.
_FILL_BYTES_S = 10_000_000


@dataclass(frozen=True, slots=True)
class HttpProduce:
    """Bodies made beforehand, posted as fast as responses come, each after its fsync, in a cluster on all replicas."""

    workload: Workload
    form: Form = "json"
    name: str = "ours"
    needs: tuple[str, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)
    brokers: int = 1

    def start(self, stage: Stage) -> Turn:
        store = stage.storage(self.name, self.brokers)
        store.create_topic(TOPIC, self.workload.partitions, self.configs)
        specification = http_specification(stage, store, self.workload, self.form)
        store.pause()
        load = _checked_load("http_produce", specification, store)
        return turn_of(store, self.workload.record_bytes, load, lambda: store.roll(TOPIC))


@dataclass(frozen=True, slots=True)
class WrkProduce:
    """wrk with one thread, the leanest client for small requests."""

    workload: Workload
    form: Form = "json"
    name: str = "ours"
    needs: tuple[str, ...] = ("wrk",)

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        store.create_topic(TOPIC, self.workload.partitions)
        store.pause()
        bodies = write_bodies(stage.directory, self.workload, self.form)
        wrk = stage.peers.wrk or shutil.which("wrk") or "wrk"

        def load(seconds: float) -> Result:
            options = ["-t1", f"-c{self.workload.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
            url = f"{store.url}{self.workload.paths(TOPIC)[0]}"
            script = ["-s", "benchmarks/load/wrk.lua", url, "--", CONTENT_TYPES[self.form], *bodies]
            output = run_command([wrk, *options, *script], timeout=3 * seconds + 60)
            found = json.loads(output.strip().splitlines()[-1])
            if found["refused"] or found["broken"]:
                raise BenchmarkError(f"wrk saw requests fail: {found}")
            return result_of({**found, "records": found["requests"] * self.workload.batch})

        return turn_of(store, self.workload.record_bytes, load, lambda: store.roll(TOPIC))


@dataclass(frozen=True, slots=True)
class HttpLatency:
    """Single-record requests at a fixed rate, an open loop."""

    workload: Workload
    rate: int = 1_000
    name: str = "ours"
    needs: tuple[str, ...] = ()
    brokers: int = 1

    def start(self, stage: Stage) -> Turn:
        store = stage.storage(self.name, self.brokers)
        store.create_topic(TOPIC, self.workload.partitions)
        specification = http_specification(stage, store, self.workload, "json")
        store.pause()

        def load(seconds: float) -> Result:
            return run_load("http_latency", {**specification, "rate": self.rate, "seconds": seconds, "keep": None})

        return turn_of(store, self.workload.record_bytes, load)


@dataclass(frozen=True, slots=True)
class ClientProduce:
    """``logstore.Producer``: columns (``send_batch``), or one record per call (``send``)."""

    workload: Workload
    call: str = "send_batch"
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        store.create_topic(TOPIC, self.workload.partitions)
        store.pause()
        bodies = write_bodies(stage.directory, self.workload, "arrow")
        specification = {"url": store.url, "topic": TOPIC, "bodies": bodies, "call": self.call}
        load = _checked_load("logstore_client", specification, store, stage.checkout)
        return turn_of(store, self.workload.record_bytes, load, lambda: store.roll(TOPIC))


@dataclass(frozen=True, slots=True)
class HttpFetch:
    """The whole topic from its beginning as Arrow, from the journal (``sealed`` False) or from Parquet."""

    workload: Workload
    records: int
    sealed: bool
    max_bytes: int = 4 * 1024 * 1024
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = filled_store(stage, self.name, self.workload, self.records, sealed=self.sealed)
        specification = {
            **store.address,
            "topic": TOPIC,
            "partitions": self.workload.partitions,
            "max_bytes": self.max_bytes,
        }
        return turn_of(
            store,
            self.workload.record_bytes,
            lambda seconds: run_load("http_fetch", {**specification, "seconds": seconds}),
        )


@dataclass(frozen=True, slots=True)
class ClientConsume:
    """``logstore.Consumer`` over the whole topic: columns (``poll_arrow``) or one object per record (``poll``)."""

    workload: Workload
    records: int
    sealed: bool
    call: str = "poll_arrow"
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = filled_store(stage, self.name, self.workload, self.records, sealed=self.sealed)
        specification = {"url": store.url, "topic": TOPIC, "call": self.call, "records": self.records}
        return turn_of(
            store,
            self.workload.record_bytes,
            lambda seconds: run_client({**specification, "seconds": seconds}, stage.checkout),
        )


def run_client(specification: Mapping[str, Any], checkout: Path) -> Result:
    """Run the Python client of ``checkout``."""
    return run_load("logstore_client", specification, python=python_of(checkout), checkout=checkout)


def http_specification(
    stage: Stage, store: Storage, workload: Workload, form: Form, topic: str = TOPIC
) -> dict[str, object]:
    """Return the arguments of the HTTP load programs, except the time."""
    return {
        "servers": store.servers(topic, workload),
        "content_type": CONTENT_TYPES[form],
        "bodies": write_bodies(stage.directory, workload, form),
        "connections": workload.connections,
        "records": workload.batch,
        "limit": 0,
    }


#: Configuration of a topic that rolls only on request.
NO_ROLL = {"segment.bytes": str(2**31 - 1), "segment.ms": str(86_400_000)}


def fill(stage: Stage, store: Storage, workload: Workload, records: int, topic: str = TOPIC) -> None:
    """Post ``records`` records in Arrow, and check that they are stored."""
    before = store.stored(topic)
    specification = http_specification(stage, store, workload, "arrow", topic)
    seconds = max(300, records * workload.record_bytes // _FILL_BYTES_S)
    run_load("http_produce", {**specification, "limit": records, "seconds": seconds})
    if (stored := store.stored(topic) - before) < records:
        raise BenchmarkError(f"{records:,} records were sent to fill a topic, {stored:,} are there")


def filled_store(
    stage: Stage,
    name: str,
    workload: Workload,
    records: int,
    *,
    sealed: bool,
    settings: Mapping[str, str] | None = None,
) -> Store:
    """Return a paused store with this many records: all in the journal, or all in Parquet."""
    store = stage.store(name, settings)
    store.create_topic(TOPIC, workload.partitions, NO_ROLL)
    fill(stage, store, workload, records)
    if sealed:
        store.roll(TOPIC)
    store.pause()
    return store


def _checked_load(
    program: str, specification: Mapping[str, Any], store: Storage, checkout: Path = ROOT
) -> Callable[[float], Result]:
    """Return a load that fails if the store does not show all records that it has ever acknowledged."""
    acknowledged = 0

    def load(seconds: float) -> Result:
        nonlocal acknowledged
        given = {**specification, "seconds": seconds}
        result = run_client(given, checkout) if program == "logstore_client" else run_load(program, given)
        acknowledged += result.records
        check_stored(store, acknowledged)
        return result

    return load


def check_stored(store: Storage, acknowledged: int, topic: str = TOPIC) -> None:
    """Raise BenchmarkError unless readers see every acknowledged record."""
    if (stored := store.stored(topic)) < acknowledged:
        raise BenchmarkError(f"{acknowledged:,} records were acknowledged, {stored:,} are there")
