"""Idempotent producers of one partition against a model that forgets nothing.

The model keeps every batch that was ever appended. The journal is a list of headers and snapshots; a start may find all
of it or only the newest part, with frames copied forward in between. Sequence numbers wrap: batches of 2**30 records
exist as headers only.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from logstore.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    LogStoreError,
    OutOfOrderSequenceError,
    StorageFullError,
)
from logstore.journal.frame import Frame, FrameFlags, FrameHeader, FrameLocation, FrameType
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.journal.scan import RecoveredFrame
from logstore.log.journal_tail import JournalTail
from logstore.log.partition_log import PartitionLog
from logstore.records.batch_identity import BatchIdentity, unpack_batches
from logstore.segments.footer import SegmentFooter
from tests.support.examples import examples
from tests.support.manual_clock import ManualClock

LOOP = 2**31
TOPIC = UUID(int=1)
producer_ids = st.integers(0, 1)
counts = st.sampled_from([1, 2, 2**30, 2**30 - 1])


@dataclass
class Appended:
    epoch: int
    sequence: int
    count: int
    base_offset: int
    is_durable: bool = False


class ProducerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.starts = 0
        self.log = self.new_log()
        self.lead()
        self.journal: list[FrameHeader | PartitionSnapshot] = []
        self.model: dict[int, list[Appended]] = {}
        self.pending: list[Frame] = []
        self.evicted_up_to = -1

    def new_log(self) -> PartitionLog:
        return PartitionLog("t", TOPIC, 0, clock=self.clock, producer_id_expiration_ms=10**9)

    def lead(self) -> None:
        self.starts += 1
        self.log.become_leader(self.starts)

    def expected(
        self, producer_id: int, epoch: int, sequence: int, count: int
    ) -> type[LogStoreError] | Appended | None:
        """Return the outcome by the rules of KIP-98 and KIP-360, given all earlier batches."""
        batches = self.model.get(producer_id, [])
        if not batches:
            return None
        # A durable producer that did not begin at sequence 0 makes the history of all producers up to its id unknown.
        begun = [owner for owner, stored in self.model.items() if stored[0].sequence and stored[0].is_durable]
        whole = producer_id > max(self.evicted_up_to, *begun, -1) and batches[0].sequence == 0
        newest = batches[-1].epoch
        if epoch < newest:
            return InvalidProducerEpochError
        if epoch > newest:
            return OutOfOrderSequenceError if sequence else None
        batches = [batch for batch in batches if batch.epoch == epoch]
        same = [b for b in batches[-5:] if (b.sequence, b.count) == (sequence, count)]
        if same:
            return same[0]
        if sequence == (batches[-1].sequence + batches[-1].count) % LOOP:
            return None
        older = (batches[-5:][0].sequence - sequence - count) % LOOP < LOOP // 2
        return DuplicateSequenceError if older and whole else OutOfOrderSequenceError

    def append(self, producer_id: int, epoch: int, sequence: int, count: int) -> None:
        expected = self.expected(producer_id, epoch, sequence, count)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.log.state.producers.check(producer_id, epoch, sequence, count, self.log.now_ms())
            return
        known = self.log.state.producers.check(producer_id, epoch, sequence, count, self.log.now_ms())
        if isinstance(expected, Appended):
            assert known is not None
            assert known.base_offset == expected.base_offset
            waits = known.base_offset + known.record_count > self.log.high_watermark
            assert waits is not expected.is_durable, "whoever repeats what is being fsynced waits for it"
            return
        assert known is None
        header = FrameHeader(
            FrameType.DATA,
            FrameFlags(0),
            TOPIC,
            0,
            self.log.next_offset,
            count,
            1,
            self.log.now_ms(),
            0,
            0,
            BatchIdentity(producer_id, epoch, sequence),
        )
        frame = Frame(header, b"")
        self.log.track(frame)
        self.pending.append(frame)
        appended = Appended(epoch, sequence, count, header.base_offset)
        self.model.setdefault(producer_id, []).append(appended)

    def last(self, producer_id: int) -> Appended:
        return self.model.get(producer_id, [Appended(0, 0, 0, 0)])[-1]

    @rule(producer_id=producer_ids, batches=st.lists(counts, min_size=1, max_size=4))
    def append_next(self, producer_id: int, batches: list[int]) -> None:
        for count in batches:
            last = self.last(producer_id)
            self.append(producer_id, last.epoch, (last.sequence + last.count) % LOOP, count)

    @rule(producer_id=producer_ids, back=st.integers(1, 8), other_count=st.booleans())
    def repeat(self, producer_id: int, back: int, other_count: bool) -> None:
        batches = self.model.get(producer_id, [])
        if back <= len(batches):
            found = batches[-back]
            self.append(producer_id, found.epoch, found.sequence, found.count + other_count)

    @precondition(lambda self: len(self.model) < 2)
    @rule(producer_id=producer_ids, sequence=st.sampled_from([1, 7, LOOP - 2]), batches=st.lists(counts, max_size=6))
    def begin_anywhere(self, producer_id: int, sequence: int, batches: list[int]) -> None:
        """Let a producer without stored batches continue at its sequence, as in a topic that was deleted and created
        again.
        """
        if producer_id not in self.model:
            for count in batches:
                self.append(producer_id, 0, sequence, count)
                sequence = (sequence + count) % LOOP

    @rule(producer_id=producer_ids, ahead=st.integers(1, 3), count=counts)
    def append_with_a_gap(self, producer_id: int, ahead: int, count: int) -> None:
        last = self.last(producer_id)
        self.append(producer_id, last.epoch, (last.sequence + last.count + ahead) % LOOP, count)

    @rule(producer_id=producer_ids, step=st.sampled_from([-1, 1, 2]), sequence=st.integers(0, 1), count=counts)
    def change_epoch(self, producer_id: int, step: int, sequence: int, count: int) -> None:
        self.append(producer_id, max(0, self.last(producer_id).epoch + step), sequence, count)

    @precondition(lambda self: self.pending)
    @rule(groups=st.integers(1, 9), begins_file=st.booleans())
    def fsync(self, groups: int, begins_file: bool) -> None:
        for frame in self.pending[:groups]:
            self.journal.append(frame.header)
            self.log.stored(frame, FrameLocation(len(self.journal), 1))
            for batches in self.model.values():
                for batch in batches:
                    batch.is_durable |= batch.base_offset == frame.header.base_offset
        del self.pending[:groups]
        if begins_file:
            self.begin_file([])

    def forget_pending(self) -> None:
        self.pending.clear()
        for producer_id, batches in list(self.model.items()):
            self.model[producer_id] = [batch for batch in batches if batch.is_durable]
            if not self.model[producer_id]:
                del self.model[producer_id]

    @precondition(lambda self: self.pending)
    @rule()
    def fail(self) -> None:
        """Fill the disk: no pending frame is stored, and later appends succeed."""
        for frame in self.pending:
            self.log.failed(frame, StorageFullError(""))
        self.forget_pending()

    @rule(copied=st.lists(st.integers(0, 50), min_size=1, max_size=3))
    def begin_file(self, copied: list[int]) -> None:
        """Begin a file; frames of older files are copied into it, so that those files can be deleted."""
        older = [entry for entry in self.journal if isinstance(entry, FrameHeader)]
        self.journal.append(PartitionSnapshot.decode(self.log.snapshot_frame().payload))
        for at in copied if older else ():
            self.journal.append(older[at % len(older)]._replace(flags=FrameFlags.RELOCATED))

    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        """Restart with the newest part of the journal: files go oldest first, and each begins with a snapshot."""
        begins = [0, *(at for at, entry in enumerate(self.journal) if isinstance(entry, PartitionSnapshot))]
        kept = self.journal[data.draw(st.sampled_from(begins)) :]
        end = self.log.log_end_offset
        self.forget_pending()
        self.log = self.new_log()
        tail = JournalTail()
        for at, entry in enumerate(kept):
            if isinstance(entry, PartitionSnapshot):
                header = self.log.snapshot_frame().header
                tail.add(RecoveredFrame(header, FrameLocation(at, 1), entry.encode()))
            else:
                tail.add(RecoveredFrame(entry, FrameLocation(at, 1), None))
        tail.settle()
        assert tail.end_offset == end
        # The table has the records below the journal; other tests check its content.
        self.log.recover(tail, known_sealed=end, sealed_offset=end, leader_epochs=[])
        self.log.finish_recovery()
        self.lead()

    @precondition(lambda self: self.model and not self.pending)
    @rule()
    def lose_journal(self) -> None:
        """Restart without a journal: all records are sealed, and only the newest segment's footer has the producers'
        state.
        """
        end, packed = self.log.log_end_offset, self.log.state.producers.pack()
        self.log = self.new_log()
        tail = JournalTail()
        tail.settle()
        self.log.recover(tail, known_sealed=end, sealed_offset=end, leader_epochs=[])
        footer = SegmentFooter(0, 0, end, 1, (), tuple(unpack_batches(packed)), (), producers_forgotten_up_to=-1)
        self.log.state.recover_from_footers([footer], 1 << 32)
        self.log.finish_recovery()
        self.lead()
        self.journal = []
        self.begin_file([])
        self.evicted_up_to = (1 << 32) - 1

    @invariant()
    def remembered_batches_are_bounded(self) -> None:
        """Check the number of remembered batches.

        Below the committed end more than five batches of a producer are kept for a while: see ``ProducerStates``.
        """
        producers = self.log.state.producers
        assert producers.num_batches <= 3 * 5 * len(self.model) + len(self.pending)
        if self.pending:
            return
        for producer_id, all_ in self.model.items():
            known = producers.known(producer_id)
            newest = [batch for batch in known if batch.epoch == known[-1].epoch]
            assert len(newest) == len([batch for batch in all_ if batch.epoch == all_[-1].epoch][-5:])
        assert len(list(unpack_batches(producers.pack()))) == producers.num_batches <= 5 * len(self.model)


TestProducerModel = ProducerModel.TestCase
TestProducerModel.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
