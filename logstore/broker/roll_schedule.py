"""The schedule of rolls (by size, by age, as records expire, as the journal fills up), and of refreshes of tables."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from logstore.broker.due_topics import PRESSURE, DueTopics
from logstore.clock import Clock
from logstore.errors import LogStoreError, unforeseen
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.limits import MIB
from logstore.log.partition_log import PartitionLog
from logstore.log.relocation import KeepsFrames, relocate_oldest, renew
from logstore.log.roller import Roller
from logstore.log.topic import Topic
from logstore.observability import ROLLS
from logstore.settings import Settings

log = structlog.stdlib.get_logger(__name__)

_TICK_S = 0.1
_REFRESH_S = 5.0
# A table is refreshed when its log has changed, and at the latest after this time: some changes leave no trace.
_LOOK_AT_ALL_S = 600.0
# A roll also seals partitions that are nearly old enough: one commit now replaces a commit for each of them soon.
_NEARLY_OLD = 0.5
# The journal is pinned if at most this part of its bytes is needed: copying that part frees at least as much as it
# fills.
_PINNED_PART = 0.5
#: This is more than there are threads for rolls: each roll also waits for the event loop or for another commit.
ROLLS_AT_A_TIME = 4
#: No roll begins later than this after the beginning of a stop: supervisors kill after ten seconds, and the records are
#: as safe in the journal.
ROLL_AT_STOP_S = 5.0
#: Seconds before a retry in the background: the first pause, doubled each time up to the second.
RETRY_S, RETRY_MAX_S = 1.0, 60.0
# A journal of more files than this is pinned by a slow topic. A small part of a file is worth copying; copies of most
# of a file would fill files as fast as they free them.
_JOURNAL_FILES = 4
_RELOCATE_PART_MAX = 8
_RELOCATE_BYTES_MAX = 8 * MIB


class RollSchedule:
    def __init__(
        self, roller: Roller, journal: Journal, clock: Clock, settings: Settings, topics: Mapping[str, Topic]
    ) -> None:
        self._roller = roller
        self._journal = journal
        self._clock = clock
        self._journal_max_bytes = settings.journal_max_bytes
        self._journal_roll_s = settings.journal_roll_ms / 1000
        self._topics = topics
        #: The journal frames of partitions that are not served.
        self.unserved: Mapping[PartitionKey, KeepsFrames] = {}
        self._due = DueTopics(clock, settings.topic_journal_bytes_max, settings.log_retention_check_interval_ms)
        self._rolling: dict[Topic, asyncio.Task[None]] = {}
        #: The mark of each topic's Delta log before it was last read; topics that were read longest ago come first.
        self._seen: dict[Topic, int] = {}
        self._not_before: dict[Topic, float] = {}
        self._delay_s: dict[Topic, float] = {}
        #: The reason why the last roll of a topic failed.
        self.failures: dict[Topic, str] = {}
        self._pressed = asyncio.Event()
        self._pinned = asyncio.Event()
        #: Bytes of whole files that were copied forward since the journal was last not pinned.
        self._copied = 0
        self._slots = asyncio.Semaphore(ROLLS_AT_A_TIME)
        self._stopping = False
        self._loops: list[asyncio.Task[None]] = []

    def keep_unserved(self, unserved: Mapping[PartitionKey, KeepsFrames]) -> None:
        """Keep the journal frames of these partitions as well: they are not served."""
        self.unserved = unserved

    def mark_all(self) -> None:
        """Mark all logs before their tables are read at the start: a table with the same mark need not be read again.

        Blocking.
        """
        self._seen = {topic: mark for topic in self._topics.values() if (mark := topic.table.log_mark()) is not None}

    def start(self) -> None:
        self._seen = {topic: mark for topic, mark in self._seen.items() if _is_sound(topic)}
        for topic in self._topics.values():
            self.touch(topic)
        loops = (self._roll_loop(), self._refresh_loop(), self._unpin_loop())
        self._loops = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        """End the schedule. Rolls under way finish; waiting ones do not begin."""
        self._stopping = True
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await asyncio.gather(*self._rolling.values(), return_exceptions=True)

    async def roll_at_stop(self) -> None:
        """Seal topics while there is time; the rest stays in the journal, and is rolled after the next start."""
        unsealed = iter([topic for topic in self._topics.values() if topic.has_unsealed])
        left: list[Topic] = []
        end = self._clock.monotonic() + ROLL_AT_STOP_S

        async def roll_one_after_another() -> None:
            for topic in unsealed:
                if self._clock.monotonic() >= end:
                    left.append(topic)
                    continue
                try:
                    await self._roller.roll(topic)
                except Exception as error:
                    log.warning(
                        "broker.not_rolled_at_stop", topic=topic.name, error=str(error), exc_info=unforeseen(error)
                    )

        await asyncio.gather(*(roll_one_after_another() for _ in range(ROLLS_AT_A_TIME)))
        if left:
            records = sum(p.log_end_offset - p.sealed_offset for topic in left for p in topic.partitions)
            log.warning("broker.left_in_journal_at_stop", topics=len(left), records=records, seconds=ROLL_AT_STOP_S)

    def press(self) -> None:
        """Roll now, because the journal is full."""
        self._pressed.set()

    def touch(self, topic: Topic) -> None:
        """Check when the topic should roll, because something has changed."""
        self._due.touch(topic)

    def appended(self, topic: Topic, partitions: Iterable[int]) -> None:
        """Check when the partitions should roll, because records were appended to them."""
        self._due.appended(topic, partitions)

    async def _roll_loop(self) -> None:
        while not self._stopping:  # wait_for may swallow a cancellation that comes together with the event
            pressed = self._pressed.is_set() or self._journal.needed_bytes > PRESSURE * self._journal_max_bytes
            if pressed and self._is_pinned() and self._copied < self._journal_max_bytes:
                self._pinned.set()
            self._pressed.clear()
            now = self._clock.monotonic()
            old_or_big = self._due.take(now)
            for topic in [t for t in self._topics.values() if t.has_unsealed] if pressed else old_or_big:
                if topic in self._rolling:
                    continue  # checked again when that is done
                if now < (not_before := self._not_before.get(topic, now)):
                    self._due.wake_at(topic, not_before)
                else:
                    self._rolling[topic] = asyncio.create_task(self._roll(topic, pressed=pressed))
            try:
                await asyncio.wait_for(self._pressed.wait(), _TICK_S)
            except TimeoutError:
                continue

    async def _roll(self, topic: Topic, *, pressed: bool) -> None:
        config = topic.config
        everything = pressed or self._due.is_pressed(topic)

        def select(partition_log: PartitionLog) -> bool:
            nearly = config.segment_ms * _NEARLY_OLD
            return everything or self._due.ms_until_due(partition_log, config, nearly) <= 0

        try:
            async with self._slots:
                if not self._stopping:
                    await self._roller.roll(topic, select)
            self._forget_failures(topic)
        except Exception as error:
            # After any error the other topics continue, and this one tries again later, on a fresh snapshot: the
            # journal keeps the records.
            ROLLS.count(topic, 1, "failed")
            log.error("roll.failed", topic=topic.name, error=str(error), exc_info=unforeseen(error))
            delay = min(RETRY_MAX_S, 2 * self._delay_s.get(topic, RETRY_S / 2))
            self._delay_s[topic], self._not_before[topic] = delay, self._clock.monotonic() + delay
            self.failures[topic] = str(error)
        finally:
            del self._rolling[topic]
            self.touch(topic)
            if topic.deleted:
                self._forget_failures(topic)

    def rolled(self, topic: Topic, failure: str | None) -> None:
        """Keep the outcome of a roll by request, so that the topic's problems show it."""
        if failure is None or topic.deleted:
            self._forget_failures(topic)
        else:
            self.failures[topic] = failure

    def _forget_failures(self, topic: Topic) -> None:
        self._not_before.pop(topic, None)
        self._delay_s.pop(topic, None)
        self.failures.pop(topic, None)

    async def _refresh_loop(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            turn = int(len(self._seen) * _REFRESH_S / _LOOK_AT_ALL_S) + 1
            for topic in list(itertools.islice(self._seen, turn)):
                del self._seen[topic]
            for topic, mark in await asyncio.to_thread(self._changed, list(self._topics.values())):
                if topic.commit_lock.locked():
                    continue  # a commit under way also reads the table; a commit that hangs holds up no other topic
                try:
                    await self._roller.refresh(topic)
                except Exception as error:
                    log.error("topic.refresh_failed", topic=topic.name, error=str(error), exc_info=unforeseen(error))
                    continue
                self.touch(topic)
                if mark is not None and _is_sound(topic):
                    self._seen[topic] = mark

    def _changed(self, topics: Sequence[Topic]) -> list[tuple[Topic, int | None]]:
        """Return topics whose logs may have changed since they were read, with the current marks of the logs."""
        marks = [(topic, topic.table.log_mark()) for topic in topics]
        return [(topic, mark) for topic, mark in marks if mark is None or mark != self._seen.get(topic)]

    async def _unpin_loop(self) -> None:
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pinned.wait(), _REFRESH_S)
            await self._unpin_journal()
            self._pinned.clear()
            await self._renew_old_journal()

    def _is_pinned(self) -> bool:
        """Return True if the journal fills up with records that are in Delta, in files that also have records still
        needed.
        """
        needed = self._journal.needed_bytes
        if needed <= PRESSURE * self._journal_max_bytes:
            return False
        return sum(topic.journal_bytes for topic in self._topics.values()) <= needed * _PINNED_PART

    async def _unpin_journal(self) -> None:
        """Copy the frames that a slow topic still needs out of old journal files, so that the files can be deleted."""
        end = self._journal.end_position
        if not self._is_pinned():
            self._copied = 0
        while len(self._journal.files) > _JOURNAL_FILES:
            start, size = self._journal.files[0]
            # It goes once round the journal and no more: if that does not help, something else needs the files.
            whole = start < end and self._copied < self._journal_max_bytes and self._is_pinned()
            limit = size if whole else min(_RELOCATE_BYTES_MAX, size // _RELOCATE_PART_MAX)
            try:
                moved = await relocate_oldest(self._journal, self.keepers(), limit)
            except LogStoreError as error:
                log.error("journal.relocation_failed", error=str(error))
                return
            if not moved:
                return
            if whole:
                self._copied += sum(location.length for location in moved)
            await asyncio.sleep(0)
            log.info("journal.relocated", frames=len(moved))

    async def _renew_old_journal(self) -> None:
        """Remove records that are in a table from the journal in time, even if there are too few to fill a file: users
        who delete them from the table rely on it.
        """
        if self._journal.data_age_s < self._journal_roll_s:
            return
        try:
            await renew(self._journal, self.keepers())
        except LogStoreError as error:
            log.warning("journal.not_renewed", error=str(error))

    def keepers(self) -> Callable[[PartitionKey], KeepsFrames | None]:
        """Return a lookup of the object that knows which journal frames of a partition still count."""
        by_id = {topic.topic_id: topic for topic in self._topics.values()}

        def keeper_of(key: PartitionKey) -> KeepsFrames | None:
            topic_id, partition = key
            topic = by_id.get(topic_id)
            if topic is not None and partition < len(topic.partitions) and topic.partitions[partition].recovered:
                return topic.partitions[partition].active_segment
            return self.unserved.get(key)

        return keeper_of


def _is_sound(topic: Topic) -> bool:
    """Return True if no partition is quarantined or lacks records. Other topics are refreshed all the time, as they may
    be mended without a commit.
    """
    return all(p.quarantined is None and not p.missing for p in topic.partitions)
