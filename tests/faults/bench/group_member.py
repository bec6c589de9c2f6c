"""A process that is a member of a group: it processes records, then commits, and writes both into the history.

    python -m tests.faults.bench.group_member URL HISTORY NAME GROUP TOPICS SECONDS OPTIONS

TOPICS is a list, OPTIONS those of the consumer, both as JSON; SECONDS is the time that a batch takes to process.
SIGTERM closes the consumer. Invariants: ``processed`` is recorded before the commit begins; a commit that was not
acknowledged counts as open, whatever the reason.
"""

import contextlib
import functools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from logstore import Consumer, ConsumerRebalanceListener, TopicPartition
from logstore.errors import LogStoreError, WakeupError
from tests.faults.bench.history import Recorder

POLL_S = 0.2
#: The pause after an error; the store may answer soon again.
REST_S = 0.1
_TICK_S, _STALLED_S = 0.05, 0.4


class Teller:
    """Records in the history what a member does."""

    def __init__(self, recorder: Recorder, name: str, group: str) -> None:
        self._recorder = recorder
        self._name = name
        self._group = group

    def tell(self, op: str, **fields: Any) -> None:
        self._recorder.tell(self._name, op, group=self._group, **fields)

    def commit(
        self, topic: str, offsets: dict[int, int], commit: Callable[[], object], failure: type[Exception]
    ) -> bool:
        """Commit the offsets; return whether the commit was acknowledged."""
        number = self._recorder.invoke(self._name, "commit", group=self._group, topic=topic, offsets=offsets)
        try:
            commit()
        except failure as error:
            # The first of several tries may have been stored.
            self._recorder.complete(number, self._name, "commit", "info", reason=repr(error))
            return False
        self._recorder.complete(number, self._name, "commit", "ok")
        return True

    def watch(self, closed: threading.Event) -> None:
        """Record when the process was stopped, until its consumer is closed: its session may have ended then."""
        last = time.monotonic_ns()
        is_closed = False
        while not is_closed:
            is_closed = closed.wait(_TICK_S)
            now = time.monotonic_ns()
            if now - last > _STALLED_S * 1e9:
                self._recorder.tell(self._name, "stall", since=last)
            last = now


class Positions:
    """The offsets to commit in the partitions that a member owns.

    A failed commit leaves them to the next one: in a rebalance a member may keep a partition and be unable to commit.
    Without more records nothing else would then commit what it has processed.
    """

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._offsets: dict[tuple[str, int], int] = {}

    def processed(self, topic: str, partition: int, rows: Sequence[tuple[int, str | None]]) -> None:
        """Note ``rows``, the offsets with the ids of their records, as processed."""
        self._teller.tell("processed", topic=topic, partition=partition, rows=rows)
        self._offsets[topic, partition] = rows[-1][0] + 1

    def forget(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Forget partitions that were assigned, revoked or lost: another member's commits count now."""
        for each in partitions:
            self._offsets.pop(each, None)

    def commit(self, commit: Callable[[str, dict[int, int]], object], failure: type[Exception]) -> None:
        """Commit each topic by itself."""
        for topic in sorted({topic for topic, _ in self._offsets}):
            offsets = {partition: offset for (name, partition), offset in self._offsets.items() if name == topic}
            if self._teller.commit(topic, offsets, functools.partial(commit, topic, offsets), failure):
                self.forget((topic, partition) for partition in offsets)


@contextlib.contextmanager
def running_member(
    history: str, name: str, group: str, on_stop: Callable[[], object] = lambda: None
) -> Iterator[tuple[Teller, threading.Event]]:
    """Yield the recorder and the event that SIGTERM sets; SIGTERM also calls ``on_stop``."""
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        on_stop()

    with Recorder(Path(history)) as recorder:
        teller = Teller(recorder, name, group)
        closed = threading.Event()
        watching = threading.Thread(target=teller.watch, args=(closed,), daemon=True)
        signal.signal(signal.SIGTERM, stop)
        watching.start()
        try:
            yield teller, stopping
        finally:
            closed.set()
            watching.join()


class Member(ConsumerRebalanceListener):
    def __init__(self, teller: Teller, seconds_a_batch: float) -> None:
        self._teller = teller
        self._positions = Positions(teller)
        self._seconds_a_batch = seconds_a_batch

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._tell("assigned", partitions)

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._tell("revoked", partitions)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._tell("lost", partitions)

    def _tell(self, op: str, partitions: Sequence[TopicPartition]) -> None:
        self._positions.forget(partitions)
        self._teller.tell(op, partitions=list(partitions))

    def work(self, consumer: Consumer) -> None:
        """Poll once, process and commit. Raises WakeupError if the member is to stop."""
        done: dict[TopicPartition, list[tuple[int, str | None]]] = {}
        for record in consumer.poll(timeout_s=POLL_S):
            record_id = next((value.decode() for name, value in record.headers if name == "id" and value), None)
            done.setdefault(TopicPartition(record.topic, record.partition), []).append((record.offset, record_id))
        if done:
            time.sleep(self._seconds_a_batch)
        for (topic, partition), rows in done.items():
            self._positions.processed(topic, partition, rows)

        def commit(topic: str, offsets: dict[int, int]) -> None:
            consumer.commit({TopicPartition(topic, partition): offset for partition, offset in offsets.items()})

        self._positions.commit(commit, LogStoreError)


def main(
    url: str, history: str, name: str, group: str, topics: list[str], seconds_a_batch: float, options: dict[str, Any]
) -> None:
    consumer = Consumer(
        url, group_id=group, client_id=name, auto_offset_reset="earliest", enable_auto_commit=False, **options
    )
    with running_member(history, name, group, consumer.wakeup) as (teller, stopping), consumer:
        member = Member(teller, seconds_a_batch)
        consumer.subscribe(topics, member)
        while not stopping.is_set():
            try:
                member.work(consumer)
            except WakeupError:
                break
            except LogStoreError as error:
                # The store is away, or serves a topic only after it is repaired.
                print(repr(error), file=sys.stderr, flush=True)
                stopping.wait(REST_S)


if __name__ == "__main__":
    main(*sys.argv[1:5], json.loads(sys.argv[5]), float(sys.argv[6]), json.loads(sys.argv[7]))
