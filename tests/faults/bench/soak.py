"""``python -m tests.faults.bench.soak --seconds 3600``: half of the peak load for a long time, with all jobs and merges
at work. Exit code 1 if something grew that must not, or acknowledgements became slow.

``--pairs 3 --seconds 30`` compares instead: p99 of acknowledgements with jobs and merges at work, by p99 without them,
on a new store for each, one after the other.

Two loads at a fixed rate (open loops, each a process of its own) write to a topic with retention and to a compacted
one, on a store that rolls every second and runs ``--jobs`` with short pauses. Each second the figures of both processes
and of the disk are taken. Of what must stay flat the middle third of the time is compared with the last tenth: before,
caches fill. Latencies are compared between the first tenth and the last.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pyarrow as pa

from benchmarks.load.result import percentiles_ms
from logstore import Admin
from logstore.limits import MIB
from logstore.records.schema import WIRE_SCHEMA
from tests.support.server_process import ROOT, ServerProcess

RECORDS, VALUE_BYTES, BODIES, PARTITIONS = 200, 100, 32, 4
KEPT_BYTES = 512 * 1024
TOPICS = {
    "events": {"retention.bytes": str(KEPT_BYTES)},
    "users": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5", "delete.retention.ms": "1000"},
}
#: Settings of both topics: rolls every second, and removed files go a few seconds later.
COMMON = {"segment.ms": "1000", "file.delete.delay.ms": "5000"}
JOURNAL_BYTES_MAX = 512 * MIB
ENVIRONMENT = {
    "LOGSTORE_JOBS_ENABLE": "true",
    "LOGSTORE_LOG_RETENTION_CHECK_INTERVAL_MS": "2000",
    "LOGSTORE_LOG_CLEANER_BACKOFF_MS": "1000",
    "LOGSTORE_JOURNAL_MAX_BYTES": str(JOURNAL_BYTES_MAX),
}
#: The disk may hold more data than the topics keep: what was written in this time and is not yet removed.
_BEHIND_S = 60
#: Nothing is worth a merge, and nobody starts jobs.
NO_MERGES = {"merge.target.bytes": "1"}
NO_JOBS = {**ENVIRONMENT, "LOGSTORE_JOBS_ENABLE": "false"}
#: The peak is measured for a sixtieth of the time, and for at least this time: an hour's load is compared with a rate
#: that rolls keep up with, not with what the journal takes for a moment.
_PEAK_S_MIN = 3.0
_P99_FACTOR = 1.5
JOBS = ("retention", "compact", "vacuum")
#: Jobs have this much time after the load.
_JOBS_S = 120


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one moment; memory and disk in bytes. ``jobs_*`` are those of the jobs' process, 0 while there is
    none.
    """

    at: float
    store_rss: int
    store_files: int
    jobs_rss: int
    jobs_files: int
    journal: int
    disk: int
    #: Parquet files of topics, active or not. Log entries are kept for a day, so their number rises until then.
    data_files: int


@dataclass
class SoakReport:
    seconds: float
    #: Records per second, and the peak of which it is a share.
    rate: float
    peak: float
    samples: list[Sample] = field(default_factory=list)
    #: Pairs of the time when a request was due (as ``Sample.at``) and its latency, in seconds.
    latencies: list[tuple[float, float]] = field(default_factory=list)
    jobs: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def between(self, begin: float, end: float, figure: Callable[[Sample], float]) -> list[float]:
        """Return the figures of a part of the time, from 0 to 1."""
        first = self.samples[0].at
        span = self.samples[-1].at - first
        return [figure(s) for s in self.samples if begin * span <= s.at - first <= end * span]

    def p99_ms(self, begin: float, end: float) -> float:
        first, last = self.latencies[0][0], self.latencies[-1][0]
        low, high = (first + share * (last - first) for share in (begin, end))
        return percentiles_ms([latency for due, latency in self.latencies if low <= due <= high])["p99_ms"]

    def judge(self, *, latencies: bool = True, jobs: Sequence[str] = JOBS) -> list[str]:
        """Return what is wrong, in words; nothing for a good run.

        ``jobs`` must have changed something. ``latencies`` count on a machine that does nothing else.
        """
        found = list(self.faults)
        flat: tuple[tuple[str, Callable[[Sample], float], float, float], ...] = (
            ("memory of the store", lambda s: s.store_rss, 1.15, 32 * MIB),
            ("memory of the jobs", lambda s: s.jobs_rss, 1.15, 64 * MIB),
            ("open files of the store", lambda s: s.store_files, 1.1, 20),
            ("open files of the jobs", lambda s: s.jobs_files, 1.1, 20),
            ("data files", lambda s: s.data_files, 1.5, 200),
        )
        for name, figure, factor, slack in flat:
            middle, end = (statistics.median(self.between(*part, figure)) for part in ((1 / 3, 2 / 3), (0.9, 1)))
            if end > factor * middle + slack:
                found.append(f"{name} grew from {middle:,.0f} to {end:,.0f}")
        journal, disk = max(s.journal for s in self.samples), max(s.disk for s in self.samples)
        if journal > JOURNAL_BYTES_MAX:
            found.append(f"the journal had {journal:,} bytes")
        kept = PARTITIONS * KEPT_BYTES + JOURNAL_BYTES_MAX
        if disk > kept + 2 * _BEHIND_S * self.rate * (VALUE_BYTES + 30):
            found.append(f"the disk had {disk:,} bytes")
        begin, end = self.p99_ms(0, 0.1), self.p99_ms(0.9, 1)
        if latencies and end > _P99_FACTOR * begin:
            found.append(f"p99 of acknowledgements rose from {begin:.1f} to {end:.1f} ms")
        found += [f"{job} has changed nothing" for job in jobs if not self.jobs.get(_changed(job))]
        failed = (name for name, value in self.jobs.items() if value and 'outcome="failed"' in name)
        found += [f"a job has failed: {name}" for name in failed]
        if self.jobs.get("logstore_jobs_process_ended_total"):
            found.append("the process of jobs died")
        return found

    def __str__(self) -> str:
        def tenths(figure: Callable[[Sample], float]) -> str:
            parts = (self.between(n / 10, (n + 1) / 10, figure) for n in range(10))
            return " ".join(f"{statistics.median(part):,.0f}" if part else "-" for part in parts)

        rows = {
            "store MiB": tenths(lambda s: s.store_rss / MIB),
            "store files": tenths(lambda s: s.store_files),
            "jobs MiB": tenths(lambda s: s.jobs_rss / MIB),
            "jobs files": tenths(lambda s: s.jobs_files),
            "journal MiB": tenths(lambda s: s.journal / MIB),
            "disk MiB": tenths(lambda s: s.disk / MIB),
            "data files": tenths(lambda s: s.data_files),
            "p99 ms": " ".join(f"{self.p99_ms(n / 10, (n + 1) / 10):.1f}" for n in range(10)),
        }
        head = f"{self.rate:,.0f} records/s for {self.seconds:.0f} s; medians of each tenth of the time:"
        jobs = (f"{name} {value:,.0f}" for name, value in sorted(self.jobs.items()) if "_timestamp" not in name)
        return "\n".join([head, *(f"  {name:14} {row}" for name, row in rows.items()), *jobs])


def soak(
    directory: Path,
    seconds: float,
    *,
    share: float = 0.5,
    peak: float | None = None,
    upkeep: bool = True,
    jobs: Sequence[str] = JOBS,
) -> SoakReport:
    """Run on a new store in ``directory``, for ``seconds`` at ``share`` of the peak (records per second).

    The peak is measured before if it is not given. Without ``upkeep`` there are rolls, but neither jobs nor merges. The
    ``jobs`` get time after the load to change something, if a busy machine gave them none before.
    """
    bodies = {topic: _bodies(directory, topic) for topic in TOPICS}
    common = COMMON if upkeep else {**COMMON, **NO_MERGES}
    with ServerProcess(directory / "data", environment=ENVIRONMENT if upkeep else NO_JOBS) as server:
        with Admin(server.url) as admin:
            for topic, configs in TOPICS.items():
                admin.create_topic(topic, partitions=PARTITIONS, configs={**common, **configs})
        peak = peak or _peak(server, bodies["events"], max(_PEAK_S_MIN, seconds / 60))
        with Admin(server.url) as admin:
            # Records of the peak are not rolled beside the load.
            admin.roll("events")
        rate = share * peak / RECORDS / len(TOPICS)
        report = SoakReport(seconds, share * peak, peak)
        ending = threading.Event()
        sampling = threading.Thread(target=_sample, args=(server, report, ending))
        sampling.start()
        keep = {topic: directory / f"{topic}.latencies" for topic in TOPICS}
        loads = [
            _load("http_latency", server, topic, bodies[topic], rate=rate, seconds=seconds, keep=str(keep[topic]))
            for topic in TOPICS
        ]
        sent = [_result(load, seconds + 120, report) for load in loads]
        ending.set()
        sampling.join()
        for kept in keep.values():
            done = array("d")
            done.frombytes(kept.read_bytes() if kept.exists() else b"")
            report.latencies += zip(done[0::2], done[1::2], strict=True)
        report.latencies.sort()
        until = time.monotonic() + _JOBS_S
        report.jobs = _job_metrics(server)
        while upkeep and time.monotonic() < until and not all(report.jobs.get(_changed(job)) for job in jobs):
            time.sleep(0.5)
            report.jobs = _job_metrics(server)
        _count(server, dict(zip(TOPICS, sent, strict=True)), report)
        if server.stop():
            report.faults.append("the store did not end well")
        report.faults += [line for line in server.log.splitlines() if "[error" in line or "[critical" in line][:5]
    return report


def _bodies(directory: Path, topic: str) -> list[str]:
    names = []
    for number in range(BODIES):
        count = range(number * RECORDS, (number + 1) * RECORDS)
        batch = pa.RecordBatch.from_pydict(
            {
                "timestamp": [None] * RECORDS,
                "key": [f"key {n}".encode() for n in count] if topic == "users" else [None] * RECORDS,
                "value": [os.urandom(VALUE_BYTES) for _ in count],
                "headers": [None] * RECORDS,
            },
            schema=WIRE_SCHEMA,
        )
        path = directory / f"{topic}-{number}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, WIRE_SCHEMA) as writer:
            writer.write_batch(batch)
        names.append(str(path))
    return names


def _load(
    program: str, server: ServerProcess, topic: str, bodies: Sequence[str], **spec: object
) -> subprocess.Popen[str]:
    """Start a load program of the benchmarks, which ends by itself after its ``seconds``."""
    url = httpx.URL(server.url)
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.load.{program}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    target = {"host": url.host, "port": url.port, "paths": [f"/topics/{topic}"]}
    common: dict[str, object] = {"servers": [target], "bodies": list(bodies)}
    common |= {"content_type": "application/vnd.apache.arrow.stream", "connections": 8}
    assert process.stdin
    process.stdin.write(json.dumps({**common, **spec}))
    process.stdin.close()
    process.stdin = None
    return process


def _result(load: subprocess.Popen[str], seconds: float, report: SoakReport) -> int:
    """Return the number of requests that were sent and acknowledged."""
    try:
        output, errors = load.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        load.kill()
        output, errors = load.communicate()
    if load.returncode:
        report.faults.append(f"a load ended with code {load.returncode}: {errors.strip().splitlines()[-1:]}")
        return -1
    return int(json.loads(output)["records"])


def _peak(server: ServerProcess, bodies: Sequence[str], seconds: float) -> float:
    """Return the records per second that one topic takes from connections that send as fast as they can."""
    load = _load("http_produce", server, "events", bodies, records=RECORDS, seconds=seconds, limit=0)
    output, errors = load.communicate(timeout=seconds + 90)
    assert not load.returncode, errors
    result = json.loads(output)
    return float(result["records"]) / float(result["seconds"])


def _sample(server: ServerProcess, report: SoakReport, ending: threading.Event) -> None:
    store = psutil.Process(server.process.pid)
    while not ending.wait(1):
        jobs = [child for child in store.children() if _is_jobs(child)]
        journal = server.data / "brokers/0/journal/0"
        sizes = [size for path in server.data.rglob("*") if (size := _size(path)) is not None]
        report.samples.append(
            Sample(
                time.monotonic(),
                store.memory_info().rss,
                store.num_fds(),
                _of(jobs, lambda process: process.memory_info().rss),
                _of(jobs, lambda process: process.num_fds()),
                sum(_size(path) or 0 for path in journal.glob("*.log")),
                sum(sizes),
                sum(1 for _ in server.data.glob("topics/*/partition=*/*.parquet")),
            )
        )


def _is_jobs(process: psutil.Process) -> bool:
    try:
        return "compaction_jobs.background" in process.cmdline()
    except psutil.Error:
        return False


def _of(processes: Sequence[psutil.Process], figure: Callable[[psutil.Process], int]) -> int:
    try:
        return sum(figure(process) for process in processes)
    except psutil.Error:
        return 0


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None  # it was deleted meanwhile


def _changed(job: str) -> str:
    return f'logstore_job_topics_total{{operation="{job}",outcome="changed"}}'


def _job_metrics(server: ServerProcess) -> dict[str, float]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    wanted = (line.rpartition(" ") for line in lines if line.startswith("logstore_job"))
    return {name: float(value) for name, _, value in wanted}


def _count(server: ServerProcess, sent: dict[str, int], report: SoakReport) -> None:
    """Check that every acknowledged request took its offsets, and no other did; ``events`` also has the peak's
    requests.
    """
    with Admin(server.url) as admin:
        for topic, requests in sent.items():
            ends = sum(partition.high_watermark for partition in admin.describe_topic(topic).partitions)
            exact = topic != "events"
            if requests >= 0 and (ends != requests * RECORDS if exact else ends < requests * RECORDS):
                report.faults.append(f"{requests * RECORDS} records were sent to {topic}, and it has {ends} offsets")


def compare(pairs: int, seconds: float, share: float) -> None:
    """Print p99 of acknowledgements beside jobs and merges by p99 without them, one line per pair; the peak is the
    first's.
    """
    peak: float | None = None
    for _ in range(pairs):
        p99 = {}
        for upkeep in (False, True):
            with tempfile.TemporaryDirectory(prefix="soak-") as directory:
                report = soak(Path(directory), seconds, share=share, peak=peak, upkeep=upkeep)
            peak, p99[upkeep] = report.peak, report.p99_ms(0.1, 1)
        print(f"p99 {p99[True]:.1f} / {p99[False]:.1f} ms = {p99[True] / p99[False]:.2f}, {report.rate:,.0f} records/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--share", type=float, default=0.5, help="of the peak load")
    parser.add_argument("--pairs", type=int, help="compare runs with jobs and merges to runs without")
    given = parser.parse_args()
    if given.pairs:
        compare(given.pairs, given.seconds, given.share)
        return 0
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        report = soak(Path(directory), given.seconds, share=given.share)
    found = report.judge()
    print(report)
    print("\n".join(found) or "all is flat")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
