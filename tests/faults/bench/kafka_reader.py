"""A reader of assigned partitions with Kafka's protocol (librdkafka's), whose reads and commits are in the history.

A fetch begins when the partition is assigned, and ends after its last record has come: the records that a consumer has
fetched ahead belong to an assignment. Invariant: no call waits for the store without an end.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.faults.bench.history import Recorder
from tests.faults.bench.kafka_producer import COMMON
from tests.faults.bench.records import id_of, shown, text_of
from tests.faults.bench.workload import TopicSpec

_POLL_S: Final = 0.05
#: A partition that gives nothing for this long counts as not answered if others answer; otherwise all are asked again.
_ANSWERED_S: Final = 5.0
_ASKED_ANEW_S: Final = 45.0
_ASK_S: Final = 5.0


@dataclass(slots=True)
class _Read:
    """The records that a reader got from a partition by one assignment; ``end`` if the end of the partition was
    reported.

    The start and the high watermark are the last reported ones; an answer with an error has none.
    """

    number: str
    offset: int
    rows: list[list[object]] = field(default_factory=list)
    end: int | None = None
    log_start: int = -1
    high_watermark: int = -1
    error: KafkaError | None = None
    error_offset: int = -1

    @property
    def is_answered(self) -> bool:
        return self.high_watermark >= 0 and (bool(self.rows) or self.end is not None)

    @property
    def is_over(self) -> bool:
        return self.is_answered or self.error is not None

    @property
    def next_offset(self) -> int:
        last = int(str(self.rows[-1][0])) + 1 if self.rows else self.offset
        return max(last, self.end or 0)


class KafkaReader:
    """One consumer of librdkafka; it is no member of its group."""

    def __init__(self, bootstrap: str, recorder: Recorder, name: str, group: str) -> None:
        self._recorder = recorder
        self._name = name
        self._group = group
        self._consumer = Consumer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                "max.partition.fetch.bytes": 100_000,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def read(self, positions: dict[tuple[str, int], int], seconds: float, most: int) -> int:
        """Read from all partitions at once, until each has answered and the time is over or there are enough records.

        Return the number of answers. ``positions`` move on.
        """
        reads = {}
        for (topic, partition), offset in positions.items():
            number = self._recorder.invoke(self._name, "fetch", topic=topic, partition=partition, offset=offset)
            reads[topic, partition] = _Read(number, offset)
        self._consumer.assign([TopicPartition(*at, one.offset) for at, one in reads.items()])
        began, count = time.monotonic(), 0
        while (waited := time.monotonic() - began) < _ASKED_ANEW_S:
            for message in self._consumer.consume(most, _POLL_S):
                count += 1
                if (at := (message.topic(), message.partition())) in reads:
                    self._take(message, reads[at])
            over = [one.is_over for one in reads.values()]
            if (count >= most or waited > seconds) and (all(over) or (waited > _ANSWERED_S and any(over))):
                break
        answers = 0
        for at, one in reads.items():
            answers += one.is_answered
            self._tell(one)
            if one.error is not None and one.error.code() == KafkaError._AUTO_OFFSET_RESET:
                positions[at] = self._reset(TopicPartition(*at), one)
            elif one.is_answered:
                positions[at] = one.next_offset
        self._consumer.unassign()
        return answers

    def _take(self, message: Message, one: _Read) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            one.error, one.error_offset = error, message.offset()
            return
        log_start, high_watermark = self._consumer.get_watermark_offsets(
            TopicPartition(message.topic(), message.partition()), cached=True
        )
        if high_watermark >= 0:
            one.log_start, one.high_watermark = log_start, high_watermark
        if error is not None:
            one.end = message.offset()
            return
        if high_watermark < 0:  # an error was answered since, so the end in the record's answer is no longer known
            one.high_watermark = max(one.high_watermark, message.offset() + 1)
        _, timestamp_ms = message.timestamp()
        record_id, key, value = id_of(message.headers() or ()), text_of(message.key()), text_of(message.value())
        one.rows.append([message.offset(), timestamp_ms, record_id, key, shown(value)])

    def _tell(self, one: _Read) -> None:
        if not one.is_answered:
            reason = "no answer" if one.error is None else str(one.error)
            self._recorder.complete(one.number, self._name, "fetch", "info", reason=reason)
            return
        told = {
            "records": one.rows,
            "next_offset": one.next_offset,
            "high_watermark": one.high_watermark,
            "log_start": one.log_start,
        }
        self._recorder.complete(one.number, self._name, "fetch", "ok", **told)

    def _reset(self, at: TopicPartition, one: _Read) -> int:
        """Move on after retention was faster than the reader; the history shows an end below what was read.

        librdkafka reports a late error of an earlier assignment to the current one: the offset shows which one it is.
        """
        try:
            log_start, end = self._consumer.get_watermark_offsets(at, timeout=_ASK_S, cached=False)
        except KafkaException:
            return one.next_offset
        return max(log_start, one.next_offset) if one.error_offset < log_start else int(end)

    def commit(self, topic: str, positions: Mapping[int, int]) -> None:
        offsets = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        asked = {"group": self._group, "topic": topic, "offsets": {str(p): offset for p, offset in positions.items()}}
        call = self._recorder.invoke(self._name, "commit", **asked)
        try:
            told = self._consumer.commit(offsets=offsets, asynchronous=False)
            failed = next((one.error for one in told or () if one.error is not None), None)
        except KafkaException as error:
            failed = error
        # The first of several tries may have been stored.
        phase, said = ("ok", {}) if failed is None else ("info", {"reason": repr(failed)})
        self._recorder.complete(call, self._name, "commit", phase, **said)

    def committed(self, topic: TopicSpec) -> Mapping[tuple[str, int], int]:
        """Return committed offsets; empty for partitions without one, or if there was no answer."""
        wanted = [TopicPartition(topic.name, partition) for partition in range(topic.partitions)]
        call = self._recorder.invoke(self._name, "committed", group=self._group, topic=topic.name)
        try:
            told = self._consumer.committed(wanted, timeout=_ASK_S)
            failed = next((one.error for one in told if one.error is not None), None)
        except KafkaException as error:
            told, failed = [], error
        if failed is not None:
            self._recorder.complete(call, self._name, "committed", "info", reason=repr(failed))
            return {}
        offsets = {one.partition: one.offset for one in told if one.offset != OFFSET_INVALID}
        in_history = {str(partition): offset for partition, offset in offsets.items()}
        self._recorder.complete(call, self._name, "committed", "ok", offsets=in_history)
        return {(topic.name, partition): offset for partition, offset in offsets.items()}
