"""A store of lists that writes the history of a correct store: the checker must be silent on it.

Every call has three moments, ``begin``, ``act`` and ``end``, which may be interleaved with those of others; ``do`` runs
all three. Events are plain JSON objects, so that a test can make one of them wrong.
"""

import itertools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Told = dict[str, Any]
SentRecord = tuple[str, str | None, str | None, int | None]
_STEP_NS = 1_000_000
#: The bytes of a row in the table.
_ROW_BYTES = 1_000


@dataclass(slots=True)
class Pending:
    number: str
    process: str
    op: str
    asked: Told
    act: Callable[[], Told | None]
    told: Told | None = None
    acted: bool = False
    answered: bool = False


@dataclass(slots=True)
class ModelLog:
    """A log: ``rows`` by rising offset are the remaining ones of [start, end)."""

    rows: dict[int, list[Any]] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    sealed: int = 0
    cleaned: int = 0


@dataclass(slots=True)
class ModelTopic:
    name: str
    configs: Mapping[str, str]
    logs: list[ModelLog]
    version: int = 0

    @property
    def compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")


@dataclass(slots=True)
class ModelStream:
    """The offsets at which the last batch of a query began and ended, by partition."""

    batch: int = -1
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


class ModelStore:
    def __init__(self) -> None:
        self.events: list[Told] = []
        self.topics: dict[str, ModelTopic] = {}
        self.groups: dict[tuple[str, str], dict[str, int]] = {}
        self.streams: dict[tuple[str, str], ModelStream] = {}
        #: By group and topic, the member that owns each partition; and the generation of each group.
        self.owners: dict[tuple[str, str], dict[int, str]] = {}
        self.generations: dict[str, int] = {}
        self.pending: list[Pending] = []
        self._numbers = itertools.count()
        self._records = itertools.count()
        self._time = 0
        self.tell("bench", "start")

    @property
    def now_ms(self) -> int:
        return 1_700_000_000_000 + self._time // 1_000_000

    def wait(self, seconds: float) -> None:
        self._time += int(seconds * 1e9)

    def tell(self, process: str, op: str, phase: str = "ok", number: str | None = None, **fields: Any) -> str:
        self._time += _STEP_NS
        number = f"e{next(self._numbers)}" if number is None else number
        event = {"t": self._time, "process": process, "op": op, "phase": phase, "id": number, **fields}
        self.events.append(event)
        return number

    # ---- calls ------------------------------------------------------------------------------------------------------

    def begin(self, process: str, op: str, act: Callable[[], Told | None], **asked: Any) -> Pending:
        call = Pending(self.tell(process, op, "invoke", **asked), process, op, asked, act)
        self.pending.append(call)
        return call

    def act(self, call: Pending) -> None:
        """Give the call its effect; its answer is ready then."""
        call.told, call.acted = call.act(), True
        if call.answered:
            self.pending.remove(call)

    def end(self, call: Pending, phase: str = "ok") -> Told:
        """End the call with its answer, or with ``info`` if none came.

        A call that ends with ``info`` may have its effect later, until a restart.
        """
        if phase == "ok" and call.told is None:
            phase = "fail"
        call.answered = True
        if call.acted or phase == "fail":
            self.pending.remove(call)
        told = call.told if phase == "ok" and call.told else {}
        self.tell(call.process, call.op, phase, call.number, **call.asked, **told)
        return told

    def do(self, call: Pending, phase: str = "ok", *, acts: bool = True) -> Told:
        if acts:
            self.act(call)
        told = self.end(call, phase)
        if call in self.pending:
            self.pending.remove(call)
        return told

    def restart(self) -> None:
        """Restart: calls without an effect so far will have none."""
        self.pending.clear()
        self.tell("nemesis", "fault", kind="kill")
        self.tell("nemesis", "start")

    # ---- topics -----------------------------------------------------------------------------------------------------

    def topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.topics[name] = ModelTopic(name, named, [ModelLog() for _ in range(partitions)])
        self.tell("bench", "topic", topic=name, partitions=partitions, configs=named, now_ms=self.now_ms)
        self._entry(self.topics[name])
        return name

    def record(self, key: str | None = None, value: str | None = "", timestamp_ms: int | None = None) -> SentRecord:
        """Return a new record; ``value`` "" is replaced by a generated one, None is a tombstone."""
        number = next(self._records)
        return f"r{number}", key, f"v{number}" if value == "" else value, timestamp_ms

    def records(self, count: int) -> list[SentRecord]:
        return [self.record() for _ in range(count)]

    def produce(
        self,
        topic: str,
        records: list[SentRecord] | int,
        partition: int | None = 0,
        *,
        process: str = "producer",
        acks: str = "all",
    ) -> Pending:
        """Begin a produce; ``records`` may be their number."""
        found = self.topics[topic]
        sent = self.records(records) if isinstance(records, int) else records

        def act() -> Told:
            places = []
            for record_id, key, value, timestamp_ms in sent:
                at = partition
                if at is None:
                    at = 0 if key is None else zlib.crc32(key.encode()) % len(found.logs)
                log = found.logs[at]
                appends = found.configs.get("message.timestamp.type") == "LogAppendTime"
                time_ms = self.now_ms if appends or timestamp_ms is None else timestamp_ms
                log.rows[log.end] = [log.end, time_ms, record_id, key, value]
                places.append([at, log.end])
                log.end += 1
            return {} if acks == "0" else {"places": places}

        asked = {"topic": topic, "partition": partition, "acks": acks, "format": "json"}
        return self.begin(process, "produce", act, **asked, records=[list(record) for record in sent])

    def fetch(
        self, topic: str, offset: int, partition: int = 0, *, count: int = 1000, process: str = "reader"
    ) -> Pending:
        log = self.topics[topic].logs[partition]

        def act() -> Told | None:
            if not log.start <= offset <= log.end:
                return None
            rows = [row for row in log.rows.values() if row[0] >= offset]
            following = rows[count][0] if count < len(rows) else log.end
            ends = {"high_watermark": log.end, "log_start": log.start}
            return {"records": [list(row) for row in rows[:count]], "next_offset": following, **ends}

        return self.begin(process, "fetch", act, topic=topic, partition=partition, offset=offset)

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> Pending:
        log = self.topics[topic].logs[partition]

        def act() -> Told:
            return {"offset": next((row[0] for row in log.rows.values() if row[1] >= timestamp), None)}

        return self.begin("reader", "offset_for_time", act, topic=topic, partition=partition, timestamp=timestamp)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int], *, process: str = "reader") -> Pending:
        named = {str(partition): offset for partition, offset in offsets.items()}

        def act() -> Told:
            self.groups.setdefault((group, topic), {}).update(named)
            return {}

        return self.begin(process, "commit", act, group=group, topic=topic, offsets=named)

    def committed(self, group: str, topic: str, *, process: str = "reader", op: str = "committed") -> Pending:
        def act() -> Told:
            return {"offsets": dict(self.groups.get((group, topic), {}))}

        return self.begin(process, op, act, group=group, topic=topic)

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> Pending:
        found = self.topics[topic]
        log = found.logs[partition]

        def act() -> Told | None:
            if before_offset > log.end:
                return None
            log.sealed = max(log.sealed, log.end if before_offset > log.sealed else 0)
            self._cut(log, before_offset)
            self._commit(found)
            return {"log_start": log.start}

        asked = {"topic": topic, "partition": partition, "before_offset": before_offset}
        return self.begin("reader", "delete_records", act, **asked)

    # ---- members of groups ------------------------------------------------------------------------------------------

    def group(self, group: str, topic: str, session_ms: int = 2_000) -> None:
        self.tell("bench", "group", group=group, topics=[topic], session_ms=session_ms)
        self.owners[group, topic] = {}
        self.generations[group] = 0

    def assign(self, member: str, group: str, topic: str, *partitions: int) -> None:
        self.generations[group] += 1
        self.owners[group, topic].update(dict.fromkeys(partitions, member))
        self.tell(member, "assigned", group=group, partitions=[(topic, p) for p in partitions])

    def give_up(self, member: str, group: str, topic: str, *partitions: int, op: str = "revoked") -> None:
        """Give up partitions; ``op`` is "revoked", or "lost" for a member that was fenced."""
        for partition in partitions:
            if self.owners[group, topic].get(partition) == member:
                del self.owners[group, topic][partition]
        self.tell(member, op, group=group, partitions=[(topic, p) for p in partitions])

    def process(self, member: str, group: str, topic: str, partition: int, *, commits: bool = True) -> None:
        """Process all records from the committed offset on."""
        log = self.topics[topic].logs[partition]
        first = self.groups.get((group, topic), {}).get(str(partition), 0)
        rows = [(row[0], row[2]) for row in log.rows.values() if row[0] >= first]
        self.tell(member, "processed", group=group, topic=topic, partition=partition, rows=rows)
        if commits:
            self.do(self.commit(group, topic, {partition: log.end}, process=member))

    def describe(self, group: str, topic: str, *, live: list[str] | None = None) -> None:
        members: dict[str, list[tuple[str, int]]] = {}
        for partition, member in self.owners[group, topic].items():
            members.setdefault(member, []).append((topic, partition))

        def act() -> Told:
            told = {"state": "Stable", "generation": self.generations[group], "members": members}
            return told if live is None else {**told, "live": live}

        self.do(self.begin("watch", "described", act, group=group))

    # ---- the table --------------------------------------------------------------------------------------------------

    def roll(self, topic: str) -> None:
        found = self.topics[topic]
        for log in found.logs:
            log.sealed = log.end
        self._commit(found)

    def retention(self, topic: str, before_offset: int, partition: int = 0) -> None:
        self._job("retention", topic, lambda log: self._cut(log, min(before_offset, log.sealed)), partition)

    def compact(self, topic: str, partition: int = 0) -> None:
        """Compact the log. Tombstones go at once where ``delete.retention.ms`` is 0, else never."""

        def clean(log: ModelLog) -> None:
            below = [row for row in log.rows.values() if row[0] < log.sealed]
            latest = {row[3]: row[0] for row in below}
            drops = self.topics[topic].configs.get("delete.retention.ms") == "0"
            for row in below:
                if latest[row[3]] != row[0] or (drops and row[4] is None):
                    del log.rows[row[0]]
            log.cleaned = log.sealed

        self._job("compact", topic, clean, partition)

    def statement(self, topic: str, values: Mapping[int, str | None], partition: int = 0) -> Pending:
        """Run a statement of another writer: sealed records get these values; those whose value is None are deleted."""
        found = self.topics[topic]
        log = found.logs[partition]
        rows = [list(log.rows[offset]) for offset in sorted(values.keys() & log.rows.keys()) if offset < log.sealed]
        stays = {row[0]: values[row[0]] for row in rows if values[row[0]] is not None}

        def act() -> Told | None:
            if not rows:
                return None
            for row in rows:
                del log.rows[row[0]]
                if row[0] in stays:
                    log.rows[row[0]] = [*row[:4], stays[row[0]]]
            log.rows = dict(sorted(log.rows.items()))
            self._commit(found)
            return {"version": found.version}

        asked = {"topic": topic, "partition": partition, "how": "merge", "rows": rows}
        return self.begin("nemesis", "statement", act, **asked, values={str(at): value for at, value in stays.items()})

    def look(
        self, topic: str, since: Mapping[int, int] | None = None, *, op: str = "delta", tells_cleaned: bool = True
    ) -> None:
        found = self.topics[topic]
        logs = list(enumerate(found.logs))
        told: Told = {
            "version": found.version,
            "sealed": {str(p): log.sealed for p, log in logs},
            "log_start": {str(p): log.start for p, log in logs},
            "rows": [
                [p, *row]
                for p, log in logs
                for row in log.rows.values()
                if (since or {}).get(p, 0) <= row[0] < log.sealed
            ],
        }
        if not found.compacted:
            told["bytes"] = {str(p): _ROW_BYTES * sum(at < log.sealed for at in log.rows) for p, log in logs}
        if tells_cleaned:
            told["cleaned"] = {str(p): log.cleaned for p, log in logs}
        if since is not None:
            told["from"] = {str(p): offset for p, offset in since.items()}
        self.tell("observer", op, topic=topic, **told)

    def stream(self, topic: str, query: str = "delta", *, again: bool = False) -> None:
        """Give a streaming query a batch with all new records, or its last batch again."""
        logs = self.topics[topic].logs
        stream = self.streams.setdefault((topic, query), ModelStream())
        if not again or stream.batch < 0:
            stream.batch += 1
            stream.begins = stream.ends or [0] * len(logs)
            stream.ends = [log.sealed if query == "delta" else log.end for log in logs]
        rows = [
            [p, *row]
            for p, log in enumerate(logs)
            for row in log.rows.values()
            if stream.begins[p] <= row[0] < stream.ends[p]
        ]
        self.tell(f"stream-{query}", "stream", query=query, topic=topic, batch=stream.batch, rows=rows)

    def _job(self, job: str, topic: str, work: Callable[[ModelLog], None], partition: int) -> None:
        number = self.tell("jobs", "job", "invoke", job=job, topics=[topic])
        found = self.topics[topic]
        work(found.logs[partition])
        self._commit(found)
        self.tell("jobs", "job", "ok", number, job=job, topics=[topic])

    def _cut(self, log: ModelLog, before_offset: int) -> None:
        log.start = max(log.start, before_offset)
        log.rows = {offset: row for offset, row in log.rows.items() if offset >= log.start}

    def _commit(self, topic: ModelTopic) -> None:
        topic.version += 1
        self._entry(topic)

    def _entry(self, topic: ModelTopic) -> None:
        self.tell("observer", "entry", topic=topic.name, version=topic.version, sha256=f"{topic.name} {topic.version}")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> list[Told]:
        """Add the last reads; return all events."""
        self.pending.clear()
        self.tell("bench", "heal")
        for name, topic in self.topics.items():
            for partition in range(len(topic.logs)):
                self.do(self.produce(name, [self.record("last")], partition, process="healed"))
                self.do(self.fetch(name, topic.logs[partition].end - 1, partition, process="healed"))
        for (group, name), owners in self.owners.items():
            for partition, member in owners.items():
                self.process(member, group, name, partition)
            self.describe(group, name, live=sorted(set(owners.values())))
        for name, topic in self.topics.items():
            for partition, log in enumerate(topic.logs):
                rows = [list(row) for row in log.rows.values()]
                ends: Told = {"log_start": log.start, "high_watermark": log.end}
                self.tell("final", "final", topic=name, partition=partition, rows=rows, **ends)
            self.roll(name)
            self.look(name, op="final_delta")
        for topic_name, query in self.streams:
            self.stream(topic_name, query)
        for group, topic_name in self.groups:
            self.do(self.committed(group, topic_name, process="final", op="final_commits"))
        return self.events
