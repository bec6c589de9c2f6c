"""A replica's producer state after truncations depends only on the frames that it still has (C16)."""

import asyncio
import shutil
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from logstore.broker.topics.recovery import recover_partitions
from logstore.filesystem import FileSystem
from logstore.journal.frame import Frame
from logstore.journal.journal import Journal
from logstore.log.journal_tail import collect_tails
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import ProducerStates, counted_at
from logstore.log.truncation import truncate
from logstore.records.batch_identity import BatchIdentity, RememberedBatch, unpack_batches
from tests.stateful.test_recovery_model import topic_of
from tests.support.examples import examples
from tests.support.journals import TOPIC, MemoryRecord, data_frame
from tests.support.manual_clock import ManualClock

PRODUCERS = 3


def counted(found: ProducerStates) -> list[RememberedBatch]:
    return counted_at(unpack_batches(found.pack()), 1 << 62)


class Follower(RuleBasedStateMachine):
    """A follower's log in a journal: frames arrive, the high watermark rises, the log end is truncated, the broker
    restarts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="logstore-producers-"))
        self.clock = ManualClock()
        self.epoch = 1
        #: The batches of all frames that were not truncated.
        self.stored: list[RememberedBatch] = []
        self.committed = 0
        self.next: dict[int, tuple[int, int]] = {}

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    @initialize(file_bytes=st.sampled_from([1000, 4000, 1 << 20]))
    def begin(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.open()

    def open(self) -> None:
        self.log = PartitionLog("t", TOPIC, 0, clock=self.clock, producer_id_expiration_ms=10**13)
        self.log.state.idempotency_keys.remembered_ms = self.log.state.idempotency_keys.keys_max = 10**12
        self.journal = Journal(self.directory, filesystem=FileSystem(), clock=self.clock, file_bytes=self.file_bytes)
        topics = {TOPIC: topic_of([self.log], [0])}
        tails = collect_tails(self.journal.recover())
        recover_partitions(self.journal, tails, topics, lambda _: False, producer_ids_begin=lambda: 1)
        self.run(self.journal.start(lambda: [self.log.snapshot_frame()], MemoryRecord()))

    @rule(producers=st.lists(st.integers(1, PRODUCERS), min_size=1, max_size=12))
    def append(self, producers: list[int]) -> None:
        for producer in producers:
            epoch, sequence = self.next.get(producer, (0, 0))
            self.next[producer] = epoch, sequence + 1
            at = len(self.stored)
            identity = BatchIdentity(producer, epoch, sequence)
            stored = data_frame(at)
            stored = stored._replace(header=stored.header._replace(leader_epoch=self.epoch, identity=identity))
            self.store([stored])
            self.stored.append(RememberedBatch(*identity, 1, at, stored.header.append_time_ms))

    def store(self, frames: list[Frame]) -> None:
        async def scenario() -> None:
            self.log.track_replicated(frames)
            for one, location in zip(frames, await self.journal.append(frames), strict=True):
                self.log.stored(one, location)

        self.run(scenario())

    @rule(producer=st.integers(1, PRODUCERS))
    def producer_begins_again(self, producer: int) -> None:
        epoch, _ = self.next.get(producer, (0, 0))
        self.next[producer] = epoch + 1, 0

    @rule(share=st.floats(0, 1))
    def high_watermark_rises(self, share: float) -> None:
        self.committed += round((len(self.stored) - self.committed) * share)
        self.log.follow_leader(self.committed, 0, 0)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        end = self.committed + round((len(self.stored) - self.committed) * share)
        self.epoch += 1
        assert self.run(truncate(self.journal, self.log, end, self.epoch)) == end
        for lost in reversed(self.stored[end:]):
            self.next[lost.owner] = lost.epoch, lost.sequence
        del self.stored[end:]

    @rule()
    def restart(self) -> None:
        self.run(self.journal.close())
        self.open()

    @invariant()
    def it_knows_what_the_frames_tell(self) -> None:
        if not hasattr(self, "log"):
            return
        last = {one.owner: one.base_offset for one in self.stored}
        by_owner = sorted(self.stored, key=lambda one: (last[one.owner], one.base_offset))
        expected = counted_at(by_owner, len(self.stored))
        assert counted(self.log.state.producers) == expected
        assert self.log.state.producers.evicted_up_to == -1
        of_owner = {owner: list(batches) for owner, batches in groupby(expected, key=lambda one: one.owner)}
        for owner, batches in of_owner.items():
            known = self.log.state.producers.known(owner)
            assert [one for one in known if one.epoch == known[-1].epoch] == batches

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.restart()
            self.it_knows_what_the_frames_tell()
            self.run(self.journal.close())
        self.loop.close()
        shutil.rmtree(self.directory)


TestFollower = Follower.TestCase
TestFollower.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
