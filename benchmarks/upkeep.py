"""Upkeep of tables: joining small segments; rolls and starts of an old topic; reads of a table in which another writer
has deleted rows. Contenders like those of ``ours``.
"""

import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.result import percentiles_ms
from benchmarks.measure import Sample
from benchmarks.ours import NO_ROLL, TOPIC, fill, run_client
from benchmarks.run import Stage
from benchmarks.server import BenchmarkError, Turn, python_of, run_command, turn_of
from benchmarks.workload import Workload
from logstore.client.admin import Admin
from logstore.client.producer import Producer
from logstore.delta.log_entries import LogReplay
from logstore.delta.schema import timestamp_stat
from logstore.delta.table_state import AddedFile
from logstore.log.merge import NEWEST_KEPT
from logstore.table_files import open_table
from tests.support.deletion_vectors import commit, stored_vector
from tests.support.table_features import turn_on


@dataclass(frozen=True, slots=True)
class Merge:
    """MB/s of record data of ``logstore job merge``, from beginning to end; the start of Python does not count."""

    workload: Workload
    rolls: int
    records: int
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        made = itertools.count()

        def turn(_seconds: float) -> Sample:
            topic = f"{TOPIC}-{next(made)}"
            store.create_topic(topic, self.workload.partitions, NO_ROLL)
            for _ in range(self.rolls):
                fill(stage, store, self.workload, self.records, topic)
                store.roll(topic)
            command = [python_of(stage.checkout), "-m", "logstore.cli", "job", "merge", "--json", "--topic", topic]
            output = run_command([*command, "--data", str(store.data)], timeout=600, directory=stage.checkout)
            (report,) = json.loads(output)["topics"]
            if report["after"]["segments"] != self.workload.partitions * (1 + NEWEST_KEPT):
                raise BenchmarkError(f"not all segments were joined to one of each partition: {report}")
            rate = self.records * (self.rolls - NEWEST_KEPT) / report["seconds"]
            return Sample(records_s=rate, mb_s=rate * self.workload.record_bytes / 1e6)

        return turn


@dataclass(frozen=True, slots=True)
class MaskedConsume:
    """``ClientConsume`` of sealed history that was rolled many times. With ``masked`` each tenth file has a deletion
    vector for a hundredth of its rows.
    """

    workload: Workload
    records: int
    rolls: int
    masked: bool
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        # A merge would rewrite the files with vectors.
        store.create_topic(TOPIC, self.workload.partitions, NO_ROLL | {"merge.target.bytes": "0"})
        for _ in range(self.rolls):
            fill(stage, store, self.workload, self.records // self.rolls)
            store.roll(TOPIC)
        left = store.stored(TOPIC)
        if self.masked:
            left -= mask_rows(store.data / "topics" / TOPIC)
        store.pause()
        specification = {"url": store.url, "topic": TOPIC, "call": "poll_arrow", "records": left}
        return turn_of(
            store,
            self.workload.record_bytes,
            lambda seconds: run_client({**specification, "seconds": seconds}, stage.checkout),
        )


def mask_rows(table: Path, *, each_file: int = 10, each_row: int = 100) -> int:
    """Delete rows of a table as Spark does with deletion vectors on; return how many."""
    files = open_table(table)
    state = LogReplay(files).state().table
    assert state is not None
    turn_on(table, "deletionVectors")
    lines: list[dict[str, object]] = []
    deleted = 0
    for file in sorted(state.files)[::each_file]:
        assert file.num_records is not None
        rows = range(0, file.num_records, each_row)
        same = {"path": file.path, "partitionValues": {"partition": str(file.partition)}, "size": file.size}
        bounds = {"numRecords": file.num_records, "minValues": _bound(file, 0), "maxValues": _bound(file, 1)}
        add = {**same, "modificationTime": 1, "dataChange": True, "stats": json.dumps(bounds)}
        lines.append({"add": add | {"deletionVector": stored_vector(table, rows)}})
        lines.append({"remove": {**same, "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True}})
        deleted += len(rows)
    commit(table, "DELETE", lines)
    return deleted


def _bound(file: AddedFile, at: int) -> dict[str, object]:
    offset, time_us = ((file.min_offset, file.min_timestamp_us), (file.max_offset, file.max_timestamp_us))[at]
    return {"offset": offset, "timestamp": timestamp_stat(time_us or 0)}


@dataclass(frozen=True, slots=True)
class AgedTopic:
    """A topic that was rolled ``rolls`` times, with one record each: a roll (its time, and CPU time of the store per
    record), and the start of the store. The store merges meanwhile, as it always does.
    """

    rolls: int
    measured: int = 200
    name: str = "ours"
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Turn:
        store = stage.store(self.name)
        store.create_topic(TOPIC, 1, NO_ROLL)
        self._roll(store.url, self.rolls)

        def turn(_seconds: float) -> Sample:
            store.stop()
            store.start()
            began = store.cpu_s
            took = self._roll(store.url, self.measured)
            cpu_us = 1e6 * (store.cpu_s - began) / self.measured
            return Sample(
                ready_s=store.ready_s, resident_mb=store.resident_mb, server_cpu_us=cpu_us, **percentiles_ms(took)
            )

        return turn

    def _roll(self, url: str, count: int) -> list[float]:
        took = []
        with Producer(url) as producer, Admin(url, request_timeout_ms=120_000) as admin:
            for _ in range(count):
                producer.send(TOPIC, b"a record").result()
                began = time.monotonic()
                admin.roll(TOPIC)
                took.append(time.monotonic() - began)
        return took
