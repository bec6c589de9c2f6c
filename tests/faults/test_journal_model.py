"""The journal against a model, through failing calls, killed processes and power cuts at any moment.

After each start every acknowledged record that is not sealed exists, as it was sent. No record that was refused, or
that an earlier start did not find, ever comes back. Only sent records exist, the offsets of a partition have no gap,
and no crash is taken for corruption.
"""

import asyncio
import errno
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from logstore.errors import LogStoreError, StorageFullError
from logstore.inspection.journal import verify
from logstore.journal.frame import FrameType
from logstore.records.transactions import ControlType, EndTransactionMarker
from tests.support.examples import examples
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.journals import (
    TOPIC,
    MemoryRecord,
    control_frame,
    data_frame,
    new_journal,
    relocate_oldest,
    snapshot_frame,
)

PARTITIONS = 3
POINTS = [
    "journal.written",
    "journal.synced",
    "journal.file_created",
    "journal.snapshotted",
    "journal.file_freed",
    "journal.recovery_half",
]
CALLS = ["allocate", "write_at", "fdatasync", "fsync", "truncate", "create", "unlink", "sync_directory"]
partitions = st.integers(0, PARTITIONS - 1)


class JournalMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="journal-model-"))
        self.directory = self.root / "0"
        self.loop = asyncio.new_event_loop()
        self.filesystem = FaultyFileSystem(self.directory)
        self.sent = 0
        self.sealed = [0] * PARTITIONS
        self.end = [0] * PARTITIONS
        # (partition, offset) → payload
        self.acked = {}
        self.open = {}
        self.locations = {}
        self.journal = None
        self.broken = False
        self.start()

    # ---- a process's life --------------------------------------------------------------------------------------

    @property
    def may_fail(self):
        """True if the disk fails, or failed before it healed, which is final for the journal until its next start."""
        return self.filesystem.crashed or self.filesystem.faulty or self.broken

    def start(self):
        self.broken = False
        self.journal = new_journal(self.directory, self.filesystem, file_bytes=3000)
        try:
            frames = list(self.journal.recover())
        except LogStoreError as e:
            if not self.may_fail:
                raise AssertionError("refused to start") from e
            self.stop()
            return
        self.check(frames)
        for partition, sealed in enumerate(self.sealed):
            self.journal.release(TOPIC, partition, sealed)
        try:
            self.loop.run_until_complete(
                self.journal.start(
                    lambda: [snapshot_frame(self.sealed[p], partition=p) for p in range(PARTITIONS)], MemoryRecord()
                )
            )
        except (LogStoreError, OSError):
            assert self.may_fail
            self.stop()

    def stop(self):
        if self.journal is not None:
            journal, self.journal = self.journal, None
            try:
                self.loop.run_until_complete(journal.close())
            except LogStoreError:
                assert self.may_fail
        self.filesystem.close_all()

    def check(self, frames):
        found = {}
        for header, location, recovered in frames:
            if not header.takes_offsets:
                continue
            key = (header.partition, header.base_offset)
            # A crash while reading here is in the test's own read, not in the journal's.
            payload = bytes(self.journal.read(location).payload)
            assert recovered == (payload if header.type is FrameType.CONTROL else None)
            assert found.setdefault(key, payload) == payload, f"two records at {key}"
            self.locations[key] = location
        for key, payload in self.acked.items():
            if key[1] >= self.sealed[key[0]]:
                assert found.get(key) == payload, f"lost {key}"
        for key, payload in found.items():
            if key in self.acked:
                assert payload == self.acked[key], f"changed {key}"
            else:
                assert payload in self.open.get(key, ()), f"{key} was refused, or not found before, or never sent"
        # Records that a start has found count from now on; others must never come back.
        self.acked.update(found)
        self.open.clear()
        for partition in range(PARTITIONS):
            offsets = sorted(offset for p, offset in found if p == partition and offset >= self.sealed[partition])
            self.end[partition] = self.sealed[partition] + len(offsets)
            assert offsets == list(range(self.sealed[partition], self.end[partition])), "a hole"

    running = precondition(lambda self: self.journal is not None)
    stopped = precondition(lambda self: self.journal is None)

    # ---- what a broker does ------------------------------------------------------------------------------------

    @running
    @rule(
        appends=st.lists(
            st.lists(st.tuples(partitions, st.integers(0, 1200)), min_size=1, max_size=3), min_size=1, max_size=4
        )
    )
    def append(self, appends):
        pending = []

        async def scenario():
            end = list(self.end)
            for batch in appends:
                frames, keys = [], []
                for partition, size in batch:
                    self.sent += 1
                    payload = b"%d." % self.sent + bytes(size)
                    frame = data_frame(end[partition], payload, partition=partition)
                    if size % 3 == 0:
                        payload = EndTransactionMarker(ControlType.COMMIT, self.sent).encode()
                        frame = control_frame(end[partition], partition=partition)._replace(payload=payload)
                    key = (partition, end[partition])
                    frames.append(frame)
                    keys.append((key, payload))
                    end[partition] += 1
                pending.append((keys, self.journal.append(frames)))
            await asyncio.wait([future for _, future in pending])
            # This lets the journal's own callback run, and the work that it gave its thread.
            await asyncio.sleep(0)
            await self.journal._positions.written()
            await self.journal._thread.run(lambda: None)
            await asyncio.sleep(0)

        self.loop.run_until_complete(scenario())
        failed = None
        for keys, future in pending:
            error = future.exception()
            assert failed is None or error is not None, "stored after something that failed"
            failed = failed or error
            if error is None:
                for (key, payload), location in zip(keys, future.result(), strict=True):
                    self.acked[key] = payload
                    self.locations[key] = location
                    self.end[key[0]] = key[1] + 1
            elif not isinstance(error, StorageFullError):
                for key, payload in keys:
                    self.open.setdefault(key, []).append(payload)
        if failed is not None:
            assert self.may_fail
        if failed is None or isinstance(failed, StorageFullError):
            return
        assert self.journal.failed or self.filesystem.crashed

    @running
    @rule(partition=partitions, back=st.integers(0, 3))
    def seal(self, partition, back):
        self.sealed[partition] = max(self.sealed[partition], self.end[partition] - back)
        self.in_loop(lambda: self.journal.release(TOPIC, partition, self.sealed[partition]))

    @running
    @rule()
    def relocate(self):
        async def scenario():
            try:
                moved = await relocate_oldest(self.journal)
            except LogStoreError:
                assert self.may_fail
                return
            for header, location in moved:
                self.locations[header.partition, header.base_offset] = location
            await self.journal._positions.written()
            await self.journal._thread.run(lambda: None)

        self.loop.run_until_complete(scenario())

    def in_loop(self, work):
        async def scenario():
            work()
            await asyncio.sleep(0)
            await self.journal._positions.written()
            await self.journal._thread.run(lambda: None)
            await asyncio.sleep(0)

        self.loop.run_until_complete(scenario())

    @invariant()
    def what_counts_is_readable(self):
        if self.journal is None:
            return
        self.in_loop(lambda: None)  # the journal may still work in its thread, and die there
        if self.filesystem.crashed or self.filesystem.faulty:
            return
        keys = [key for key in self.acked if key[1] >= self.sealed[key[0]]]
        frames = self.journal.read_many([self.locations[key] for key in keys])
        assert [(f.header.partition, f.header.base_offset) for f in frames] == keys
        assert [bytes(f.payload) for f in frames] == [self.acked[key] for key in keys]

    # ---- what goes wrong ---------------------------------------------------------------------------------------

    @rule(call=st.sampled_from(CALLS), full=st.booleans(), nth=st.integers(1, 4), written=st.integers(0, 800))
    def disk_fails(self, call, full, nth, written):
        self.filesystem.fail(call, errno.ENOSPC if full else errno.EIO, nth=nth, written=written)

    @rule(free_bytes=st.integers(0, 6000))
    def disk_fills(self, free_bytes):
        self.filesystem.fill(free_bytes)

    @rule()
    def disk_heals(self):
        self.broken |= self.journal is not None and self.journal.failed is not None
        self.filesystem.heal()

    @rule(point=st.sampled_from(POINTS), count=st.integers(1, 3))
    def process_will_die(self, point, count):
        self.filesystem.crash_at(point, count)

    @running
    @rule()
    def clean_restart(self):
        self.stop()
        self.filesystem.restart()
        self.start()

    @running
    @rule()
    def kill(self):
        self.filesystem.crash()
        self.stop()

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed):
        self.filesystem.crash()
        self.stop()
        self.filesystem.power_cut(random.Random(seed))
        self.filesystem = FaultyFileSystem(self.directory)
        self.start()

    @stopped
    @rule(dies=st.none() | st.sampled_from(POINTS))
    def restart(self, dies):
        self.filesystem.restart()
        if dies:
            self.filesystem.crash_at(dies)
        self.start()

    def teardown(self):
        self.filesystem.restart()
        self.stop()
        self.start()
        if self.journal is not None:
            self.stop()
        assert verify(self.directory).damage is None
        self.loop.close()
        shutil.rmtree(self.root)


JournalMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestJournalModel = JournalMachine.TestCase
