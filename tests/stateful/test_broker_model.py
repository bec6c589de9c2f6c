"""A broker against a list per partition: produce, roll, delete-records, reads from any offset, restarts, crashes.

A crash is a copy of the data directory while the broker runs, which is what a kill -9 would leave. (tests/faults kills
a
broker in the middle of a disk operation.)
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logstore.broker.context import INTERNAL
from logstore.errors import OffsetOutOfRangeError
from logstore.settings import Settings
from tests.support.data_directory import copy_of_one_moment
from tests.support.examples import examples
from tests.support.running_broker import produce, read_all, start_broker, stop_broker

PARTITIONS = 2
partitions = st.integers(0, PARTITIONS - 1)
# The sizes are an empty value, a small one, and one that is larger than a whole segment.
batches = st.lists(st.sampled_from([b"", b"x", b"y" * 100, b"z" * 5000, None]), min_size=1, max_size=20)


class BrokerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="logstore-model-"))
        self.data = self.root / "0"
        self.crashes = 0
        self.model: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.start = [0] * PARTITIONS

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def open(self) -> None:
        self.broker = self.run(start_broker(Settings(data=self.data)))

    @property
    def topic(self) -> Any:
        return self.broker.topics.served.topic(INTERNAL, "t")

    @initialize(segment_bytes=st.sampled_from([1, 2_000, 10_000_000]))
    def begin(self, segment_bytes: int) -> None:
        self.open()
        configs = {"segment.bytes": str(segment_bytes), "segment.ms": "100000000"}
        self.run(self.broker.topics.changes.create(INTERNAL, "t", partitions=PARTITIONS, configs=configs))

    @rule(partition=partitions, values=batches)
    def produce(self, partition: int, values: list[bytes | None]) -> None:
        base = self.run(produce(self.broker, self.topic, values, partition=partition))
        assert base == len(self.model[partition])
        self.model[partition] += values

    @rule(partition=partitions, requests=st.lists(batches, min_size=2, max_size=5))
    def produce_at_once(self, partition: int, requests: list[list[bytes | None]]) -> None:
        async def all_at_once() -> list[int]:
            return await asyncio.gather(*(produce(self.broker, self.topic, r, partition=partition) for r in requests))

        bases = self.run(all_at_once())
        for base, values in sorted(zip(bases, requests, strict=True), key=lambda pair: pair[0]):
            assert base == len(self.model[partition])
            self.model[partition] += values

    @rule()
    def roll(self) -> None:
        result = self.run(self.broker.topics.tables.roll(INTERNAL, self.topic))
        assert result.sealed == {p: len(self.model[p]) for p in range(PARTITIONS)}

    @rule(partition=partitions, share=st.floats(0, 1))
    def delete_records(self, partition: int, share: float) -> None:
        before = int(len(self.model[partition]) * share)
        start = self.run(self.broker.topics.tables.delete_records(INTERNAL, self.topic, partition, before))
        self.start[partition] = max(self.start[partition], before)
        assert start == self.start[partition]

    @rule(partition=partitions, share=st.floats(0, 1), max_bytes=st.sampled_from([1, 150, 6_000, 10**7]))
    def fetch(self, partition: int, share: float, max_bytes: int) -> None:
        rows, start = self.model[partition], self.start[partition]
        offset = start + int((len(rows) - start) * share)
        result = self.run(
            self.broker.fetch.partition(
                INTERNAL, self.topic, partition, offset, max_bytes=max_bytes, min_bytes=1, max_wait_ms=0
            ),
        )
        count = result.records.num_rows
        assert count >= (1 if offset < len(rows) else 0)
        assert result.records["offset"].to_pylist() == list(range(offset, offset + count))
        assert result.records["value"].to_pylist() == rows[offset : offset + count]
        assert (result.next_offset, result.log_start_offset, result.high_watermark) == (
            offset + count,
            start,
            len(rows),
        )
        if count > 1:
            assert sum(len(v or b"") for v in result.records["value"].to_pylist()) <= max_bytes

    @rule(partition=partitions, beyond=st.integers(1, 3))
    def fetch_out_of_range(self, partition: int, beyond: int) -> None:
        for offset in (len(self.model[partition]) + beyond, self.start[partition] - beyond):
            with pytest.raises(OffsetOutOfRangeError):
                self.run(
                    self.broker.fetch.partition(
                        INTERNAL, self.topic, partition, offset, max_bytes=1, min_bytes=1, max_wait_ms=0
                    ),
                )

    @rule()
    def restart(self) -> None:
        self.run(stop_broker(self.broker))
        self.open()

    @precondition(lambda self: self.crashes < 4)
    @rule()
    def crash(self) -> None:
        self.crashes += 1
        after = self.root / str(self.crashes)
        copy_of_one_moment(self.data, after)
        self.run(stop_broker(self.broker))
        shutil.rmtree(self.data)
        self.data = after
        self.open()

    @invariant()
    def offsets_are_in_order(self) -> None:
        if hasattr(self, "broker"):
            for partition in self.topic.partitions:
                partition.check()
                assert partition.high_watermark == len(self.model[partition.partition])

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            for partition in range(PARTITIONS):
                found = self.run(read_all(self.broker, self.topic, partition, max_bytes=3_000))
                assert found == list(enumerate(self.model[partition]))[self.start[partition] :]
            self.run(stop_broker(self.broker))
            self.check_plain_readers()
        self.loop.close()
        shutil.rmtree(self.root)

    def check_plain_readers(self) -> None:
        """Check that after a clean stop Delta has all records: dense offsets, every record once."""
        table = DeltaTable(self.data / "topics" / "t").to_pyarrow_dataset().to_table()
        rows = sorted(
            zip(*(table[c].to_pylist() for c in ("partition", "offset", "value")), strict=True), key=lambda r: r[:2]
        )
        assert rows == [(p, o, v) for p in range(PARTITIONS) for o, v in enumerate(self.model[p])]


TestBrokerModel = BrokerModel.TestCase
TestBrokerModel.settings = settings(
    max_examples=examples(25), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
