"""The frames of one partition that a scan of the journal found, and the state that they carry.

Recovery has three steps, in this order. *Collect*: frames are added in any order, as rows of columns. *Truncate*
(``settle``): a TRUNCATE frame drops the frames before it in the journal that reach beyond the offset in its header; the
last copy of a frame that was copied forward stays. *Replay*: first the newest snapshot, without the records that were
truncated after it, then the frames after it in the order of their offsets. So the state is a function of the set of
frames, and truncated records count for nothing but the append time, which never falls.
"""

import dataclasses
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from logstore.filesystem import Buffer
from logstore.journal.frame import Frame, FrameFlags, FrameHeader, FrameLocation, FrameType
from logstore.journal.journal_file import PartitionKey
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.journal.scan import RecoveredFrame
from logstore.log.frame_index import FrameIndex
from logstore.log.leader_epochs import LeaderEpochs
from logstore.log.open_transactions import OpenTransactions
from logstore.log.producer_state import ProducerStates
from logstore.log.recent_batches import RecentBatches
from logstore.records.batch_identity import NO_IDENTITY, RememberedBatch, unpack_batches
from logstore.records.transactions import EndTransactionMarker, Marker, OpenTransaction

#: A position after all frames.
_END: Final = (1 << 63) - 1


class _Snapshot(NamedTuple):
    position: int
    header: FrameHeader
    state: PartitionSnapshot


class JournalTail:
    """Collects the frames of a partition: add all of them, ``settle``, then read the state. Only batches with an
    identity have a row in the columns of identities.
    """

    def __init__(self) -> None:
        #: The frames that count, after ``settle``, including those below the sealed offset.
        self.index = FrameIndex()
        self.append_time_ms = 0
        self.truncations: list[tuple[int, int]] = []
        self._snapshot: _Snapshot | None = None
        #: (first row, leader epoch) of each run of rows with the same epoch.
        self._epochs: list[tuple[int, int]] = []
        self._row = array("q")
        self._owner = array("Q")
        self._epoch = array("h")
        self._sequence = array("q")
        self._time = array("q")
        #: The markers and the transactional batches, by row.
        self._markers: dict[int, Marker] = {}
        self._transactional: dict[int, FrameHeader] = {}
        self._kept: np.ndarray | None = None

    # ---- collect ----------------------------------------------------------------------------------------------------

    def add(self, frame: RecoveredFrame) -> None:
        """Add a frame of this partition. Raises CorruptionError for a snapshot that does not parse."""
        header, location, payload = frame
        self.append_time_ms = max(self.append_time_ms, header.append_time_ms)
        if header.type is FrameType.SNAPSHOT:
            assert payload is not None
            if self._snapshot is None or location.position > self._snapshot.position:
                self._snapshot = _Snapshot(location.position, header, PartitionSnapshot.decode(payload))
        elif header.type is FrameType.TRUNCATE:
            self.truncations.append((location.position, header.base_offset))
        else:
            self._add_frame(header, location, payload)

    def _add_frame(self, header: FrameHeader, location: FrameLocation, payload: bytes | None) -> None:
        row = len(self.index)
        if not self._epochs or self._epochs[-1][1] != header.leader_epoch:
            self._epochs.append((row, header.leader_epoch))
        identity = header.identity
        if header.type is FrameType.CONTROL:
            assert payload is not None
            self._markers[row] = marker_of(header, payload)
        elif is_transactional(header):
            self._transactional[row] = header
        if identity != NO_IDENTITY:
            self._row.append(row)
            self._owner.append(identity.owner)
            self._epoch.append(identity.epoch)
            self._sequence.append(identity.sequence)
            self._time.append(header.append_time_ms)
        self.index.add(header, location)

    # ---- truncate ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish adding frames: ``index`` keeps the frames that count, in the order of offsets."""
        self._kept = self.index.settle(self.truncations)

    def whole_to(self, offset: int) -> int:
        """Return the end of the offsets from ``offset`` on that the frames contain without a hole."""
        return self.index.whole_to(offset)

    def end_at(self, offset: int) -> None:
        """Drop the frames from ``offset`` on, as a TRUNCATE frame at the end of the journal does. Call it after
        ``settle``.
        """
        assert self._kept is not None, "not settled"
        self.truncations.append((_END, offset))
        self.index.truncate(offset)
        self._kept = self._kept[: len(self.index)]

    # ---- replay -----------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> PartitionSnapshot | None:
        """The newest snapshot; None without one. Records truncated after it are still in it: see ``snapshot_end``."""
        return None if self._snapshot is None else self._snapshot.state

    @property
    def snapshot_end(self) -> int:
        """The offset below which the newest snapshot has all batches; 0 without one."""
        if self._snapshot is None:
            return 0
        return min((self._snapshot.state.log_end_offset, *self._truncated_to()))

    def _truncated_to(self) -> list[int]:
        """Return the ends of the truncations that were ordered after the newest snapshot."""
        since = -1 if self._snapshot is None else self._snapshot.position
        return [end for position, end in self.truncations if position > since]

    @property
    def sealed_offset(self) -> int:
        return 0 if self._snapshot is None else min((self._snapshot.state.sealed_offset, *self._truncated_to()))

    @property
    def end_offset(self) -> int:
        """The end of the log: everything below it was in the log, whether or not the journal still has it."""
        return max(self.snapshot_end, self.index.end_offset or 0)

    def sealed_beyond(self, in_table: int) -> int:
        """Return the sealed offset: the table's, ``in_table``, or a higher one that follows from the journal.

        The journal frees only what was sealed. If its frames continue above the table's offset, the records between the
        two were sealed; if it has no frame above, all records that it knows of were sealed.
        """
        begin = self.index.lowest_above(in_table)
        return max(in_table, self.sealed_offset, self.end_offset if begin is None else begin)

    @property
    def last_epoch_and_end(self) -> tuple[int, int]:
        """The leader epoch of the last record (-1: none) and ``end_offset``. Of all replicas of a partition, the one
        with the greatest pair has everything that was acknowledged. Read it before ``index`` changes.
        """
        epochs = self.leader_epochs(() if self.snapshot is None else self.snapshot.leader_epochs)
        return epochs.last, self.end_offset

    def batches(self) -> Iterator[RememberedBatch | Marker]:
        """Yield the batches with an identity and the markers after the snapshot, by rising offset. Read them before
        ``index`` changes.
        """
        kept = self._kept
        assert kept is not None, "not settled"
        if not self._row:
            return
        of_row = np.full(int(max(kept.max(initial=0), self._row[-1])) + 1, -1)
        of_row[np.array(self._row)] = np.arange(len(self._row))
        found = of_row[kept]
        spans = self.index.spans()
        for place in np.flatnonzero(found >= 0).tolist():
            base, end = spans[place].tolist()
            if base >= self.snapshot_end:
                at = int(found[place])
                if (marker := self._markers.get(self._row[at])) is not None:
                    yield marker
                    continue
                yield RememberedBatch(
                    self._owner[at], self._epoch[at], self._sequence[at], end - base, base, self._time[at]
                )

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """Return the transactions that the frames leave open. All frames of an open transaction are un-sealed, so the
        journal has them.
        """
        open_ = OpenTransactions()
        assert self._kept is not None, "not settled"
        if self._transactional:
            for row in self._kept.tolist():
                if (header := self._transactional.get(row)) is not None:
                    open_.append(header)
                elif (marker := self._markers.get(row)) is not None:
                    open_.end(marker.producer_id)
        return open_.entries

    def replay_snapshot(self, producers: ProducerStates, idempotency_keys: RecentBatches) -> None:
        """Set both to the state in the newest snapshot, without the batches that were truncated after it."""
        if (snapshot := self.snapshot) is None:
            return
        producers.replace(unpack_batches(snapshot.producers), snapshot.markers)
        producers.evicted_up_to = snapshot.producers_forgotten_up_to
        whole_from = snapshot.producers_whole_from
        producers.whole_from = snapshot.log_end_offset if whole_from is None else whole_from
        idempotency_keys.replace(unpack_batches(snapshot.idempotency_keys))
        if self.snapshot_end < snapshot.log_end_offset:
            producers.forget_from(self.snapshot_end)
            idempotency_keys.forget_from(self.snapshot_end)

    def epochs_before(self, entries: Iterable[tuple[int, int]]) -> LeaderEpochs:
        """Return the epochs of ``entries`` without those that were truncated since the snapshot. ``entries`` are the
        snapshot's if there is one.
        """
        epochs = LeaderEpochs(entries)
        for end in self._truncated_to():
            epochs.truncate(end)
        return epochs

    def leader_epochs(self, before: Iterable[tuple[int, int]]) -> LeaderEpochs:
        """Return the history of leaders: ``before`` the journal's frames, and then of these. Read it before ``index``
        changes.
        """
        kept = self._kept
        assert kept is not None, "not settled"
        epochs = self.epochs_before(before)
        if len(kept):
            starts = np.array([row for row, _ in self._epochs])
            values = np.array([epoch for _, epoch in self._epochs])
            of_frame = values[np.searchsorted(starts, kept, side="right") - 1]
            changes = np.flatnonzero(np.diff(of_frame, prepend=of_frame[0] - 1))
            bases = self.index.spans()[changes, 0]
            for epoch, base in zip(of_frame[changes].tolist(), bases.tolist(), strict=True):
                epochs.assign(epoch, base)
        return epochs

    def snapshot_frame(self) -> Frame | None:
        """Return the newest snapshot without the records truncated after it, as the start of another file; None without
        one.
        """
        if self._snapshot is None:
            return None
        _, header, state = self._snapshot
        if self.snapshot_end < state.log_end_offset:
            producers, keys = ProducerStates("", expiration_ms=0), RecentBatches(0)
            self.replay_snapshot(producers, keys)
            state = dataclasses.replace(
                state,
                log_end_offset=self.snapshot_end,
                leader_epochs=self.epochs_before(state.leader_epochs).entries,
                producers=producers.pack(),
                idempotency_keys=keys.pack(),
                producers_forgotten_up_to=producers.evicted_up_to,
                producers_whole_from=producers.whole_from,
                open_transactions=self.open_transactions(),
                markers=producers.markers,
            )
        return Frame(header, state.encode())


def is_transactional(header: FrameHeader) -> bool:
    """Return whether the frame's records belong to a transaction."""
    return bool(int.__and__(header.flags, FrameFlags.TRANSACTIONAL))  # plain numbers are ten times as fast


def marker_of(header: FrameHeader, payload: Buffer) -> Marker:
    """Return the marker in a CONTROL frame. Raises CorruptionError, and DataDirectoryError for a marker of an unknown
    kind.
    """
    end = EndTransactionMarker.decode(payload, f"the control frame at offset {header.base_offset}")
    producer_id, epoch, _ = header.identity
    return Marker(producer_id, epoch, end.coordinator_epoch, header.base_offset, header.append_time_ms)


def collect_tails(frames: Iterable[RecoveredFrame]) -> dict[PartitionKey, JournalTail]:
    """Return the settled tail of each partition in a journal's frames. Raises CorruptionError, and the errors of the
    scan.
    """
    tails: defaultdict[PartitionKey, JournalTail] = defaultdict(JournalTail)
    for frame in frames:
        tails[frame.header.topic_id, frame.header.partition].add(frame)
    for tail in tails.values():
        tail.settle()
    return dict(tails)
