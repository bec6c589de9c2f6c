"""Producers, a consumer group, rolls every second, retention and compaction in a loop, all at once on one store.

In the end nothing that was acknowledged is lost, doubled or reordered: what producers were told, the log over HTTP, a
plain delta-rs read of the table, and what a consumer read meanwhile agree (invariants A1, A4, A5, B1, B2, C1, D2, G3,
I1 and I3).
"""

import functools
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deltalake import DeltaTable
from rich.console import Console

from compaction_jobs.applications import SparkApplication
from compaction_jobs.context import JobContext
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import Progress
from logstore.client.admin import Admin
from logstore.client.consumer import Consumer
from logstore.clock import SystemClock
from tests.support.keyed_load import KeyedLoad, Place, Sent
from tests.support.server_process import ServerProcess

PARTITIONS = 2
OFFSETS = "__consumer_offsets"
GROUP = "readers"
COMPACT = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
TOPICS = {
    "plain": {"retention.bytes": "40000"},
    "compacted": {"cleanup.policy": "compact", **COMPACT},
    # Compaction leaves little: so small a bound takes it away, while compaction works on it.
    "both": {"cleanup.policy": "compact,delete", "retention.bytes": "3000", **COMPACT},
}
#: The load goes on until every job has committed this often to every topic of its own.
COMMITS = 2
SECONDS_MAX = 120
#: Between two runs of a job: a compaction must have a chance against retention that takes its files away.
PAUSES_S = {"compact": 0.0, "retention": 2.0}

Rows = dict[Place, Sent]


class Reader:
    """A consumer group of one: reads everything once, commits after every batch, remembers both."""

    def __init__(self, url: str) -> None:
        self.rows: dict[str, Rows] = {topic: {} for topic in TOPICS}
        self.committed: dict[tuple[str, int], int] = {}
        self._url = url

    def run(self, stopped: threading.Event) -> None:
        """Until it is stopped, and then to the end."""
        with Admin(self._url) as admin, Consumer(self._url, auto_offset_reset="earliest") as consumer:
            for topic in TOPICS:
                consumer.assign(topic, start="earliest")
            expected = dict.fromkeys(consumer.assignment(), 0)
            while True:
                last_turn = stopped.is_set()
                fetched = consumer.poll(timeout_s=0.3)
                if fetched is None:
                    if last_turn:
                        return
                    continue
                place = fetched.topic, fetched.partition
                for record in fetched.records():
                    assert record.offset >= expected[place], "a record came twice, or out of order"
                    expected[place] = record.offset + 1
                    self.rows[fetched.topic][fetched.partition, record.offset] = Sent(record.key, record.value)
                admin.commit_offsets(GROUP, {place: fetched.next_offset})
                self.committed[place] = fetched.next_offset


class Jobs:
    """A job run again and again, and how often it committed to each topic."""

    def __init__(self, job: str, data: Path, spark) -> None:
        self.job = job
        self.commits: dict[str, int] = {}
        self._data = data
        application = SparkApplication("test")
        # The session of the tests, in whatever thread.
        application._session = spark
        self._context = JobContext(application, Progress(Console(file=io.StringIO())), SystemClock())

    def run_once(self) -> None:
        report = run_job(self.job, topics_of(self.job, self._data, [], {}), self._context)
        for topic in report.topics:
            # Retention may take a compaction's files away as often as it plans: it says so, and nothing has happened.
            assert topic.error is None or "overtaken" in topic.error, topic.error
            self.commits[topic.topic] = self.commits.get(topic.topic, 0) + len(topic.versions)

    def run(self, stopped: threading.Event) -> None:
        while not stopped.wait(PAUSES_S[self.job]):
            self.run_once()


def delete_and_roll(url: str, stopped: threading.Event) -> None:
    """Rolls of the group offsets every second as of the others, and a log start inside segments."""
    with Admin(url) as admin:
        for turn in itertools.count():
            if stopped.wait(1.0):
                return
            if OFFSETS in {topic.topic_name for topic in admin.topics()}:
                admin.roll(OFFSETS)
            partition = turn % PARTITIONS
            ends = admin.offsets("plain", partition)
            if ends.end_offset > ends.beginning_offset + 10:
                admin.delete_records("plain", partition, ends.beginning_offset + 7)


@contextmanager
def in_background(*work: Callable[[threading.Event], None]) -> Iterator[Callable[[], None]]:
    """Threads that are stopped when the block ends; what it gives raises what any of them raised."""
    stopped = threading.Event()
    failures: list[BaseException] = []

    def run(part: Callable[[threading.Event], None]) -> None:
        try:
            part(stopped)
        except BaseException as failure:  # noqa: BLE001 (raised by ``check``)
            failures.append(failure)

    def check() -> None:
        if failures:
            raise failures[0]

    threads = [threading.Thread(target=run, args=(part,)) for part in work]
    for thread in threads:
        thread.start()
    try:
        yield check
    finally:
        stopped.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "it hangs"
    check()


def over_http(url: str, topic: str) -> Rows:
    with Consumer(url) as consumer:
        consumer.assign(topic, start="earliest")
        rows = []
        while fetched := consumer.poll(timeout_s=0):
            rows += [
                ((record.partition, record.offset), Sent(record.key, record.value)) for record in fetched.records()
            ]
    assert len(dict(rows)) == len(rows), "a record came twice"
    return dict(rows)


def from_delta(data: Path, topic: str) -> Rows:
    table = DeltaTable(data / "topics" / topic).to_pyarrow_dataset()
    columns = table.to_table(["partition", "offset", "key", "value"]).to_pydict()
    rows = [((p, o), Sent(key, value)) for p, o, key, value in zip(*columns.values(), strict=True)]
    assert len(dict(rows)) == len(rows), f"two rows of {topic} have one place"
    return dict(rows)


def check_so_far(rows: Rows, load: KeyedLoad) -> None:
    """What the answer to a producer has not named yet is no contradiction."""
    acknowledged = dict(load.acknowledged)
    assert all(acknowledged.get(place, sent) == sent for place, sent in rows.items())


def check_plain(rows: Rows, acknowledged: Rows, starts: list[int]) -> None:
    assert rows == {place: sent for place, sent in acknowledged.items() if place[1] >= starts[place[0]]}


def check_compacted(rows: Rows, acknowledged: Rows, starts: list[int]) -> None:
    """Nothing but what was acknowledged, in its place; of each key exactly its last record."""
    assert rows.items() <= acknowledged.items()
    last: dict[tuple[int, bytes], int] = {}
    for (partition, offset), sent in sorted(acknowledged.items()):
        last[partition, sent.key] = offset
    latest = {(partition, offset) for (partition, _), offset in last.items() if offset >= starts[partition]}
    assert set(rows) <= latest
    assert all(acknowledged[place].value is None for place in latest - set(rows))


def check_reader(reader: Reader, topic: str, acknowledged: Rows, starts: list[int]) -> None:
    """It saw only what was acknowledged, in its place; in a plain topic all of it but what retention took first."""
    rows = reader.rows[topic]
    assert rows.items() <= acknowledged.items()
    if topic == "plain":
        assert all(offset < starts[partition] for partition, offset in acknowledged.keys() - rows.keys())


def check_group(admin: Admin, data: Path, committed: dict[tuple[str, int], int]) -> None:
    """The store, and the table for readers of storage alone, have what was committed last."""
    assert {(found.topic, found.partition): found.offset for found in admin.group_offsets(GROUP)} == committed
    table = DeltaTable(data / "topics" / OFFSETS).to_pyarrow_dataset().to_table().to_pylist()
    rows = sorted(table, key=lambda row: row["offset"])
    assert {(row["topic"], row["topic_partition"]): row["committed_offset"] for row in rows} == committed
    assert len(rows) == len(committed), "compaction left more than the latest"
    assert {row["group"] for row in rows} == {GROUP}


def test_nothing_is_lost_doubled_or_reordered(spark, tmp_path):
    with ServerProcess(tmp_path / "data") as server, Admin(server.url) as admin:
        for topic, configs in TOPICS.items():
            admin.create_topic(topic, partitions=PARTITIONS, configs={"segment.ms": "1000", **configs})
        retention, compaction = (Jobs(job, server.data, spark) for job in ("retention", "compact"))
        reader = Reader(server.url)
        loads = {
            topic: KeyedLoad(
                server.url, topic, producers=2, partitions=PARTITIONS, tombstones=topic != "plain", pause_s=0.05
            )
            for topic in TOPICS
        }
        wanted = [(retention, "plain"), (retention, "both")]
        wanted += [(compaction, topic) for topic in ("compacted", "both", OFFSETS)]
        work = (reader.run, retention.run, compaction.run, functools.partial(delete_and_roll, server.url))
        with in_background(*work) as check, ExitStack() as producing:
            for load in loads.values():
                producing.enter_context(load)
            deadline = time.monotonic() + SECONDS_MAX
            while any(jobs.commits.get(topic, 0) < COMMITS for jobs, topic in wanted):
                check()
                assert time.monotonic() < deadline, f"too slow: {retention.commits}, {compaction.commits}"
                time.sleep(0.5)
                # At any time: no place twice, and no value that is not its place's.
                check_so_far(from_delta(server.data, "both"), loads["both"])
        for topic in (*TOPICS, OFFSETS):
            admin.roll(topic)
        retention.run_once()
        # The second one takes the tombstones that the first has kept.
        compaction.run_once()
        compaction.run_once()
        print({topic: len(load.acknowledged) for topic, load in loads.items()}, retention.commits, compaction.commits)

        for topic, load in loads.items():
            rows = from_delta(server.data, topic)
            deadline = time.monotonic() + SECONDS_MAX
            while over_http(server.url, topic) != rows:
                assert time.monotonic() < deadline, f"the log of {topic} over HTTP and the table differ"
                time.sleep(0.5)
            partitions = admin.describe_topic(topic).partitions
            starts = [found.log_start_offset for found in partitions]
            ends = [found.high_watermark for found in partitions]
            assert load.acknowledged.keys() == {(p, o) for p, end in enumerate(ends) for o in range(end)}
            check_rows = check_plain if topic == "plain" else check_compacted
            check_rows(rows, load.acknowledged, starts)
            check_reader(reader, topic, load.acknowledged, starts)
            assert all(starts) == (topic != "compacted"), "retention did nothing"
        check_group(admin, server.data, reader.committed)
