"""Appends, truncations, rolls, relocations and restarts in random order, against a list of frames for each partition.

At any moment and after each start the log must equal the model, frame by frame. Truncated frames never come back, and
other frames are never lost. A start finds the same log in whatever order it sees the journal's frames and their copies.
"""

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from logstore.broker.topics.recovery import recover_partitions
from logstore.filesystem import FileSystem
from logstore.journal.frame import Frame, FrameLocation
from logstore.journal.journal import Journal, NeededFile
from logstore.journal.scan import RecoveredFrame
from logstore.log.acknowledgements import Acknowledgement
from logstore.log.active_segment import ActiveSegment
from logstore.log.journal_tail import collect_tails
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import counted_at
from logstore.log.relocation import relocate_oldest
from logstore.log.truncation import truncate
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, RememberedBatch, unpack_batches
from logstore.records.schema import WIRE_SCHEMA
from logstore.table_files import open_table
from tests.support.data_directory import copy_of_one_moment
from tests.support.examples import examples
from tests.support.journals import TOPIC, MemoryRecord
from tests.support.manual_clock import ManualClock

PARTITIONS = 2
PRODUCERS = 2
partitions = st.integers(0, PARTITIONS - 1)
shares = st.floats(0, 1)


class Stored(NamedTuple):
    base: int
    end: int
    payload: bytes
    epoch: int
    batch: RememberedBatch | None


def new_logs(clock: ManualClock) -> list[PartitionLog]:
    logs = [PartitionLog("t", TOPIC, p, clock=clock, producer_id_expiration_ms=10**12) for p in range(PARTITIONS)]
    for log in logs:
        log.state.idempotency_keys.remembered_ms = log.state.idempotency_keys.keys_max = 10**12
    return logs


def topic_of(logs: list[PartitionLog], sealed: list[int]) -> Any:
    """Return what recovery needs of a topic: its table is sealed up to ``sealed`` and has no segment files."""
    return SimpleNamespace(
        name="t",
        topic_id=TOPIC,
        partitions=logs,
        table=SimpleNamespace(files=open_table("/nowhere")),
        snapshot=SimpleNamespace(partitions={p: SimpleNamespace(sealed=end) for p, end in enumerate(sealed)}),
    )


class Shuffled:
    """A journal that finds its frames in another order."""

    def __init__(self, frames: list[RecoveredFrame]) -> None:
        self.frames = frames

    def recover(self) -> list[RecoveredFrame]:
        return self.frames

    def release(self, *_: Any) -> None: ...

    forget = truncate = release


def state_of(log: PartitionLog) -> Any:
    places = [(f.base_offset, f.end_offset, f.location) for f in log.index.frames(0, 2**62)]
    remembered = log.state.producers.pack(), log.state.idempotency_keys.pack(), log.state.producers.evicted_up_to
    return repr(log), places, log.state.leader_epochs.entries, remembered, log.now_ms()


class RecoveryModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="logstore-recovery-"))
        self.directory = self.root / "0"
        self.clock = ManualClock()
        self.epoch = 0
        self.sent = 0
        self.starts = 0
        self.model: list[list[Stored]] = [[] for _ in range(PARTITIONS)]
        #: The log end, which differs from the end of the last frame when all frames were truncated.
        self.end = [0] * PARTITIONS
        self.sealed = [0] * PARTITIONS
        self.sequences: dict[tuple[int, int], tuple[int, int]] = {}
        self.logs: list[PartitionLog] = []

    @initialize(file_bytes=st.sampled_from([1500, 6000]))
    def begin(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.open()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    # ---- a process's life -------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.epoch += 1
        self.logs = new_logs(self.clock)
        self.journal = Journal(self.directory, filesystem=FileSystem(), clock=self.clock, file_bytes=self.file_bytes)
        topics = {TOPIC: topic_of(self.logs, self.sealed)}
        tails = collect_tails(self.journal.recover())
        recover_partitions(self.journal, tails, topics, lambda _: False, producer_ids_begin=lambda: 1)
        for log in self.logs:
            log.become_leader(self.epoch)
            self.journal.release(TOPIC, log.partition, log.sealed_offset)
        self.run(self.journal.start(lambda: [log.snapshot_frame() for log in self.logs], MemoryRecord()))

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        self.starts += 1
        after = self.root / str(self.starts)
        if killed:
            copy_of_one_moment(self.directory, after)
        self.run(self.journal.close())
        if killed:
            shutil.rmtree(self.directory)
            self.directory = after
        self.open()

    @rule(seed=st.integers(0, 2**32), by_file=st.booleans())
    def frames_come_in_another_order(self, seed: int, by_file: bool) -> None:
        self.settle()
        copy = self.root / "copy"
        copy_of_one_moment(self.directory, copy)
        journal = Journal(copy, filesystem=FileSystem(), clock=self.clock, file_bytes=self.file_bytes)
        frames = list(journal.recover())
        starts = [start for start, _ in journal.files]
        self.run(journal.close())
        shutil.rmtree(copy)
        rng = random.Random(seed)
        mixed = rng.sample(frames, len(frames))
        if by_file:
            places = rng.sample(starts, len(starts))
            mixed = sorted(frames, key=lambda f: places.index(max(s for s in starts if s <= f.location.position)))
        found = []
        for order in (frames, mixed):
            logs = new_logs(self.clock)
            topics = {TOPIC: topic_of(logs, self.sealed)}
            recover_partitions(journal, collect_tails(order), topics, lambda _: False, producer_ids_begin=lambda: 1)
            found.append([state_of(log) for log in logs])
        assert found[0] == found[1]

    # ---- what happens to a log --------------------------------------------------------------------------------------

    def frame(self, partition: int, producer: int | None, count: int, size: int) -> tuple[Frame, Stored]:
        log = self.logs[partition]
        identity = NO_IDENTITY
        if producer is not None:
            epoch, sequence = self.sequences.get((partition, producer), (0, 0))
            identity = BatchIdentity(producer + 1, epoch, sequence)
            self.sequences[partition, producer] = (epoch, sequence + count)
        self.sent += 1
        payload = b"%d." % self.sent + bytes(size)
        batch = pa.RecordBatch.from_pylist([{}] * count, schema=WIRE_SCHEMA)
        frame = log.next_frame(
            batch, pa.py_buffer(payload), inflated_bytes=size, log_append_time=False, identity=identity
        )
        header = frame.header
        remembered = RememberedBatch(*identity, count, header.base_offset, header.append_time_ms)
        return frame, Stored(
            header.base_offset, header.end_offset, payload, log.leader_epoch, None if producer is None else remembered
        )

    def begin_append(self, partition: int, producer: int | None, count: int, size: int) -> asyncio.Future[Any]:
        self.clock.advance(1)
        frame, stored = self.frame(partition, producer, count, size)
        log = self.logs[partition]
        log.track(frame)
        acknowledged = Acknowledgement(1)
        log.require_leader().acknowledge(stored.end, -1, acknowledged)
        self.journal.store([frame], lambda locations, _: log.stored(frame, locations[0]))
        self.model[partition].append(stored)
        self.end[partition] = stored.end
        return acknowledged.future

    batches = st.tuples(
        partitions, st.none() | st.integers(0, PRODUCERS - 1), st.integers(1, 3), st.sampled_from([0, 1, 300, 900])
    )

    @rule(batches=st.lists(batches, min_size=1, max_size=5), one_by_one=st.booleans())
    def append(self, batches: list[tuple[int, int | None, int, int]], one_by_one: bool) -> None:
        async def scenario() -> None:
            pending = []
            for batch in batches:
                pending.append(self.begin_append(*batch))
                if one_by_one:
                    await pending[-1]
            await asyncio.gather(*pending)

        self.run(scenario())

    @rule(partition=partitions, producer=st.integers(0, PRODUCERS - 1))
    def producer_begins_again(self, partition: int, producer: int) -> None:
        epoch, _ = self.sequences.get((partition, producer), (0, 0))
        self.sequences[partition, producer] = (epoch + 1, 0)

    def target(self, partition: int, share: float) -> int:
        first = max(0, self.sealed[partition] - 2)
        return first + round((self.end[partition] - first) * share)

    async def truncate_to(self, partition: int, offset: int) -> None:
        self.epoch += 1
        log = self.logs[partition]
        log.resign(self.epoch)  # another broker leads with this epoch
        found = await truncate(self.journal, log, offset, self.epoch)
        self.epoch += 1
        log.become_leader(self.epoch)
        end, frames = min(max(offset, self.sealed[partition]), self.end[partition]), self.model[partition]
        dropped = [frame for frame in frames if frame.end > end]
        if dropped:
            end = max(dropped[0].base, self.sealed[partition])
        self.model[partition] = frames[: len(frames) - len(dropped)]
        self.end[partition] = end
        assert found == end

    @rule(partition=partitions, share=shares)
    def truncate(self, partition: int, share: float) -> None:
        self.run(self.truncate_to(partition, self.target(partition, share)))

    @rule(partition=partitions, share=shares)
    def roll(self, partition: int, share: float) -> None:
        """Commit a roll to the table and then seal the log; the process may die between the two."""
        ends = [frame.end for frame in self.model[partition] if frame.end >= self.sealed[partition]]
        if ends:
            self.sealed[partition] = ends[int((len(ends) - 1) * share)]
            self.in_loop(lambda: self.seal(partition))

    def seal(self, partition: int) -> None:
        self.logs[partition].seal(self.sealed[partition])
        self.journal.release(TOPIC, partition, self.sealed[partition])

    def keeper(self, key: tuple[Any, int]) -> ActiveSegment:
        return self.logs[key[1]].active_segment

    @rule()
    def relocate(self) -> None:
        self.run(relocate_oldest(self.journal, self.keeper, 1 << 20))

    @rule()
    def killed_when_copies_are_durable(self) -> None:
        """Kill the process when frames and their copies are durable, and the old file is not yet freed."""
        self.starts += 1
        after = self.root / str(self.starts)
        relocated = self.journal.relocated

        def dies(file: NeededFile) -> None:
            copy_of_one_moment(self.directory, after)
            relocated(file)

        self.journal.relocated = dies  # type: ignore[method-assign]
        self.run(relocate_oldest(self.journal, self.keeper, 1 << 20))
        if not after.exists():
            self.journal.relocated = relocated  # type: ignore[method-assign]
            return
        self.run(self.journal.close())
        shutil.rmtree(self.directory)
        self.directory = after
        self.open()

    @rule(
        partition=partitions,
        share=shares,
        turns=st.integers(0, 6),
        waits=st.booleans(),
        then=st.none() | st.tuples(st.integers(1, 3), st.sampled_from([0, 1, 300])),
    )
    def relocate_while_the_log_is_truncated(
        self, partition: int, share: float, turns: int, waits: bool, then: tuple[int, int] | None
    ) -> None:
        """Truncate before relocation reads the frames, while it reads them, or while it syncs their copies."""

        async def scenario() -> None:
            relocation = asyncio.create_task(relocate_oldest(self.journal, self.keeper, 1 << 20))
            for _ in range(turns):
                await asyncio.sleep(0.0005 if waits else 0)
            await self.truncate_to(partition, self.target(partition, share))
            if then is not None:
                await self.begin_append(partition, None, *then)
            await relocation

        self.run(scenario())

    @rule(partition=partitions, share=shares)
    def a_truncation_is_under_way_when_relocation_reads(self, partition: int, share: float) -> None:
        async def scenario() -> None:
            truncation = asyncio.create_task(self.truncate_to(partition, self.target(partition, share)))
            await asyncio.sleep(0)
            await asyncio.gather(truncation, relocate_oldest(self.journal, self.keeper, 1 << 20))

        self.run(scenario())

    # ---- what must hold ---------------------------------------------------------------------------------------------

    def in_loop(self, work: Any) -> None:
        async def scenario() -> None:
            work()
            await asyncio.sleep(0)
            await self.journal._positions.written()
            await self.journal._thread.run(lambda: None)
            await asyncio.sleep(0)

        self.run(scenario())

    def settle(self) -> None:
        self.in_loop(lambda: None)

    @invariant()
    def the_logs_are_as_the_model_says(self) -> None:
        if self.logs:
            self.settle()
        for partition, log in enumerate(self.logs):
            log.check()
            frames, sealed, end = self.model[partition], self.sealed[partition], self.end[partition]
            ends = (log.sealed_offset, log.high_watermark, log.log_end_offset, log.next_offset)
            assert ends == (sealed, end, end, end)
            tail = [frame for frame in frames if frame.end > sealed]
            places = [(f.base_offset, f.end_offset, f.location) for f in log.index.frames(0, 2**62)]
            assert [place[:2] for place in places] == [(frame.base, frame.end) for frame in tail]
            read = self.journal.read_many([FrameLocation(*location) for _, _, location in places])
            assert [bytes(found.payload) for found in read] == [frame.payload for frame in tail]
            assert [found.header.leader_epoch for found in read] == [frame.epoch for frame in tail]
            assert log.state.leader_epochs.entries == epochs_of(frames)
            self.check_producers(log, frames)

    def check_producers(self, log: PartitionLog, frames: list[Stored]) -> None:
        """Check the last batches of each producer; fewer may be known only of a producer that counts as evicted."""
        known: dict[int, list[RememberedBatch]] = {}
        for batch in counted_at(unpack_batches(log.state.producers.pack()), log.log_end_offset):
            known.setdefault(batch.owner, []).append(batch)
        for producer in range(1, PRODUCERS + 1):
            stored = [f.batch for f in frames if f.batch is not None and f.batch.owner == producer]
            newest = [batch for batch in stored if batch.epoch == stored[-1].epoch][-5:]
            remembered = known.get(producer, [])
            assert remembered == newest[len(newest) - len(remembered) :]
            assert remembered or not newest or producer <= log.state.producers.evicted_up_to
            if len(remembered) < len(newest) and producer > log.state.producers.evicted_up_to:
                assert stored[-1] == remembered[-1], "only older ones may be unknown"

    @invariant()
    def the_journal_keeps_only_needed_files(self) -> None:
        needed = {p for p, log in enumerate(self.logs) if log.sealed_offset < log.log_end_offset}
        if self.logs and not needed:
            assert all(not file.needed_by for file in self.journal._files)

    def teardown(self) -> None:
        if self.logs:
            self.restart(killed=False)
            self.the_logs_are_as_the_model_says()
            self.run(self.journal.close())
        self.loop.close()
        shutil.rmtree(self.root)


def epochs_of(frames: list[Stored]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for frame in frames:
        if not found or frame.epoch > found[-1][0]:
            found.append((frame.epoch, frame.base))
    return tuple(found)


TestRecoveryModel = RecoveryModel.TestCase
TestRecoveryModel.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
