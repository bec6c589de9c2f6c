"""One partition that HTTP producers and Kafka clients write to in turns, against a list: every reader gets every
record.

The steps include rolls, restarts and crashes (a copy of the data directory while the broker runs), both timestamp
types, every codec, and idempotent producers whose sequences pass 2^31 - 1 and who send through either interface.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logstore.broker.context import INTERNAL
from logstore.broker.produce.batches import TopicBatches
from logstore.kafka_batches.header import Compression
from logstore.records.batch import DecodedRecords
from logstore.records.batch_identity import (
    SEQUENCE_MAX,
    BatchIdentity,
    ProducerIdentity,
    next_sequence,
)
from logstore.settings import Settings
from tests.support import every_reader
from tests.support.data_directory import copy_of_one_moment
from tests.support.examples import examples
from tests.support.kafka_batches import client_batch, kafka_rows
from tests.support.manual_clock import ManualClock
from tests.support.records import Row, rows, wire_batch
from tests.support.running_broker import CLIENT, start_broker, stop_broker

#: A Kafka record may also have no timestamp (-1).
of_kafka = st.lists(
    st.builds(lambda row, bare: replace(row, timestamp=None) if bare else row, kafka_rows, st.booleans()),
    min_size=1,
    max_size=6,
)
of_http = st.lists(rows, min_size=1, max_size=6)
compressions = st.sampled_from(Compression)
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


class KafkaBatchesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="logstore-kafka-batches-"))
        self.data = self.root / "0"
        self.crashes = 0
        self.clock = ManualClock()
        self.model: list[Row] = []
        self.log_append_time = False
        #: The idempotent producer, its next sequence, and its last batches with their base offsets.
        self.producer_id = -1
        self.sequence = 0
        self.sent: list[tuple[int, list[Row], int]] = []

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def open(self) -> None:
        self.broker = self.run(start_broker(Settings(data=self.data), clock=self.clock))

    @property
    def topic(self) -> Any:
        return self.broker.topics.served.topic(INTERNAL, "t")

    @initialize(segment_bytes=st.sampled_from([1, 2_000, 10_000_000]))
    def begin(self, segment_bytes: int) -> None:
        self.open()
        configs = {"segment.bytes": str(segment_bytes), "segment.ms": "100000000"}
        self.run(self.broker.topics.changes.create(INTERNAL, "t", partitions=1, configs=configs))
        self.producer_id, _ = self.run(self.broker.produce.records.init_producer(CLIENT))

    # ---- writers ----------------------------------------------------------------------------------------------------

    def by_kafka(self, batch: bytes) -> int:
        ((outcome,),) = self.run(
            self.broker.produce.batches.produce(CLIENT, [TopicBatches("t", [(0, batch)])])
        ).outcomes
        assert outcome.error is None, outcome.error
        assert (outcome.log_append_time_ms >= 0) == self.log_append_time
        return int(outcome.base_offset)

    def by_http(self, records: Sequence[Row], identity: ProducerIdentity | None = None) -> int:
        decoded = DecodedRecords(wire_batch(list(records)), None)
        told = self.run(
            self.broker.produce.records.produce(CLIENT, self.topic, decoded, partition=0, identity=identity)
        )
        told.require_stored()
        return int(told.partitions[0].base_offset)

    def take(self, records: Sequence[Row], base_offset: int) -> None:
        assert base_offset == len(self.model)
        now = self.clock.now_ms()
        for row in records:
            given = row.timestamp
            self.model.append(replace(row, timestamp=now if given is None or self.log_append_time else given))
        self.clock.advance(1)

    @rule(records=of_kafka, compression=compressions)
    def produce_by_kafka(self, records: list[Row], compression: Compression) -> None:
        self.take(records, self.by_kafka(client_batch(records, compression=compression)))

    @rule(records=of_http)
    def produce_by_http(self, records: list[Row]) -> None:
        self.take(records, self.by_http(records))

    @rule(batches=st.lists(of_kafka, min_size=2, max_size=5), records=of_http)
    def produce_at_once(self, batches: list[list[Row]], records: list[Row]) -> None:
        async def all_at_once() -> list[Any]:
            sent = [
                self.broker.produce.batches.produce(CLIENT, [TopicBatches("t", [(0, client_batch(batch))])])
                for batch in batches
            ]
            decoded = DecodedRecords(wire_batch(records), None)
            return await asyncio.gather(
                *sent, self.broker.produce.records.produce(CLIENT, self.topic, decoded, partition=0)
            )

        *produced, told = self.run(all_at_once())
        bases = [one.outcomes[0][0].base_offset for one in produced] + [told.partitions[0].base_offset]
        for base, some in sorted(zip(bases, [*batches, records], strict=True), key=lambda pair: pair[0]):
            self.take(some, base)
            self.clock.advance(-1)
        self.clock.advance(1)

    @rule(records=of_kafka, compression=compressions, http=st.booleans())
    def produce_idempotent(self, records: list[Row], compression: Compression, http: bool) -> None:
        if not self.sent:
            # A producer that the broker does not know may begin with any sequence.
            self.sequence = SEQUENCE_MAX - 7
        base_offset = self.numbered(records, self.sequence, compression, http=http)
        self.take(records, base_offset)
        self.sent = [*self.sent[-4:], (self.sequence, records, base_offset)]
        self.sequence = next_sequence(self.sequence, len(records))

    @precondition(lambda self: self.sent)
    @rule(which=st.integers(0, 4), compression=compressions, http=st.booleans())
    def repeat(self, which: int, compression: Compression, http: bool) -> None:
        sequence, records, base_offset = self.sent[which % len(self.sent)]
        assert self.numbered(records, sequence, compression, http=http) == base_offset

    def numbered(self, records: list[Row], sequence: int, compression: Compression, *, http: bool) -> int:
        if http:
            return self.by_http(records, ProducerIdentity(self.producer_id, 0, {0: sequence}))
        identity = BatchIdentity(self.producer_id, 0, sequence)
        return self.by_kafka(client_batch(records, compression=compression, identity=identity))

    # ---- the store --------------------------------------------------------------------------------------------------

    @rule(log_append_time=st.booleans())
    def alter(self, log_append_time: bool) -> None:
        configs = {"message.timestamp.type": TIMESTAMP_TYPES[log_append_time]}
        self.run(self.broker.topics.changes.alter_configs(INTERNAL, "t", configs))
        self.log_append_time = log_append_time

    @rule()
    def roll(self) -> None:
        self.run(self.broker.topics.tables.roll(INTERNAL, self.topic))

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

    # ---- readers ----------------------------------------------------------------------------------------------------

    @rule(max_bytes=st.sampled_from([1, 300, 1 << 20]))
    def read(self, max_bytes: int) -> None:
        expected = dict(enumerate(self.model))
        assert self.run(every_reader.decoded(self.broker, self.topic, max_bytes=max_bytes)) == expected
        assert self.run(every_reader.stored(self.broker, self.topic, max_bytes=max_bytes)) == expected

    @rule(share=st.floats(0, 1))
    def find_time(self, share: float) -> None:
        if self.model:
            wanted = self.model[int((len(self.model) - 1) * share)].timestamp
            assert wanted is not None
            times = [row.timestamp for row in self.model]
            first = next(at for at, time in enumerate(times) if time is not None and time >= wanted)
            found = self.run(self.broker.fetch.offset_for_timestamp(INTERNAL, self.topic, 0, wanted))
            assert found == (first, times[first])

    @invariant()
    def the_log_is_whole(self) -> None:
        if hasattr(self, "broker"):
            (log,) = self.topic.partitions
            log.check()
            assert log.high_watermark == len(self.model)

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.read(1 << 20)
            self.run(stop_broker(self.broker))
            assert every_reader.in_table(self.data, "t") == dict(enumerate(self.model)), "all is in Delta after a stop"
        self.loop.close()
        shutil.rmtree(self.root)


TestKafkaBatchesModel = KafkaBatchesModel.TestCase
TestKafkaBatchesModel.settings = settings(
    max_examples=examples(20), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
