"""A process that is a member of a group: it processes records, then commits, and writes both into the history.

    python -m tests.faults.bench.group_member URL HISTORY NAME GROUP TOPICS SECONDS OPTIONS

TOPICS is a list, OPTIONS those of the consumer, both as JSON; SECONDS are what it takes to process a batch. SIGTERM
closes the consumer. Invariants: ``processed`` is told before the commit is begun; a commit that was not acknowledged
counts as open, whatever the reason.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from logstore import Consumer, ConsumerRebalanceListener, TopicPartition
from logstore.errors import LogStoreError, WakeupError
from tests.faults.bench.history import Recorder

_POLL_S = 0.2
_TICK_S, _STALLED_S = 0.05, 0.4
#: After an error, which an answer may be soon again.
_REST_S = 0.1


class Member(ConsumerRebalanceListener):
    def __init__(self, recorder: Recorder, name: str, group: str, seconds_a_batch: float) -> None:
        self._recorder = recorder
        self._seconds_a_batch = seconds_a_batch
        self._name = name
        self._group = group

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._tell("assigned", partitions=list(partitions))

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._tell("revoked", partitions=list(partitions))

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._tell("lost", partitions=list(partitions))

    def _tell(self, op: str, **fields: Any) -> None:
        self._recorder.tell(self._name, op, group=self._group, **fields)

    def work(self, consumer: Consumer) -> None:
        """Poll once, process and commit. WakeupError."""
        done: dict[TopicPartition, list[tuple[int, str | None]]] = {}
        for record in consumer.poll(timeout_s=_POLL_S):
            record_id = next((value.decode() for name, value in record.headers if name == "id" and value), None)
            done.setdefault(TopicPartition(record.topic, record.partition), []).append((record.offset, record_id))
        if not done:
            return
        time.sleep(self._seconds_a_batch)
        for (topic, partition), rows in done.items():
            self._tell("processed", topic=topic, partition=partition, rows=rows)
        for topic in sorted({topic for topic, _ in done}):
            self._commit(consumer, topic, {p: rows[-1][0] + 1 for (name, p), rows in done.items() if name == topic})

    def _commit(self, consumer: Consumer, topic: str, offsets: dict[int, int]) -> None:
        asked = {"group": self._group, "topic": topic, "offsets": offsets}
        number = self._recorder.invoke(self._name, "commit", **asked)
        try:
            consumer.commit({TopicPartition(topic, partition): offset for partition, offset in offsets.items()})
        except LogStoreError as error:
            # The first of several tries may have been stored.
            self._recorder.complete(number, self._name, "commit", "info", reason=repr(error))
        else:
            self._recorder.complete(number, self._name, "commit", "ok")

    def watch(self, stopping: threading.Event) -> None:
        """Tell when the process has stood still: then its session may have ended."""
        last = time.monotonic_ns()
        while not stopping.wait(_TICK_S):
            now = time.monotonic_ns()
            if now - last > _STALLED_S * 1e9:
                self._recorder.tell(self._name, "stall", since=last)
            last = now


def main(
    url: str, history: str, name: str, group: str, topics: list[str], seconds_a_batch: float, options: dict[str, Any]
) -> None:
    stopping = threading.Event()
    with Recorder(Path(history)) as recorder:
        member = Member(recorder, name, group, seconds_a_batch)
        watching = threading.Thread(target=member.watch, args=(stopping,), daemon=True)
        consumer = Consumer(
            url, group_id=group, client_id=name, auto_offset_reset="earliest", enable_auto_commit=False, **options
        )

        def stop(_: int, __: FrameType | None) -> None:
            stopping.set()
            consumer.wakeup()

        signal.signal(signal.SIGTERM, stop)
        watching.start()
        with consumer:
            consumer.subscribe(topics, member)
            while not stopping.is_set():
                try:
                    member.work(consumer)
                except WakeupError:
                    break
                except LogStoreError as error:
                    # The store is away, or answers for a topic only after it is mended.
                    print(repr(error), file=sys.stderr, flush=True)
                    stopping.wait(_REST_S)
        watching.join()


if __name__ == "__main__":
    main(*sys.argv[1:5], json.loads(sys.argv[5]), float(sys.argv[6]), json.loads(sys.argv[7]))
