"""Carries out the faults of a schedule on a server, its disk, its tables and the jobs beside it, and heals them.

Every fault and every start is a line of the history before it can have an effect. Invariants: when ``strike`` returns,
the server takes appends and no fault is pending any more; a fault that the store must survive by itself is not helped
by a restart. Effects that the checker does not see (exit code 0, no acknowledgement after a failed fsync, recovery
without a restart) are checked here; contradictions are in ``broken``.
"""

import contextlib
import itertools
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import httpx

from tests.faults.bench.foreign_commits import entry_path, newest, overwrite_entry
from tests.faults.bench.history import Recorder
from tests.faults.bench.records import Record
from tests.faults.bench.schedule import Fault
from tests.faults.bench.table_entries import lost_entries, table_entries
from tests.faults.bench.workload import Client, TopicSpec
from tests.support.server_process import FaultyServerProcess

#: A healed or started store takes appends again within this time, however busy the machine.
READY_S = 90.0
#: The store notices an error of its disk within this time.
_NOTICED_S = 20.0
#: Within this time a JVM has started beside all other work, and each kind of query has made its first batch.
_STREAMS_S = 300.0
_POLL_S = 0.02


class Neighbour(Protocol):
    """A process beside the server that dies with the machine."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


class Streams(Neighbour, Protocol):
    """Streaming queries; ``batches`` of each since their last start."""

    @property
    def batches(self) -> Mapping[str, int]: ...
    @property
    def log(self) -> str: ...


class StoreBrokenError(Exception):
    """The run cannot go on: the store did not start, or did not take appends again."""


class Nemesis:
    def __init__(
        self,
        server: FaultyServerProcess,
        recorder: Recorder,
        topics: Sequence[TopicSpec],
        neighbours: list[Neighbour],
        jobs: Neighbour | None,
        *,
        streams: Streams | None = None,
        patience_s: float = READY_S,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.broken: list[str] = []
        self._server = server
        self._recorder = recorder
        self._topics = topics
        self._loaded = [topic for topic in topics if not topic.by_hand and not topic.shared]
        self._by_hand = [topic for topic in topics if topic.by_hand]
        self._neighbours = neighbours
        self._jobs = jobs
        self._streams = streams
        self._patience_s = patience_s
        self._log_read = 0
        self._numbers = itertools.count()

    def strike(self, fault: Fault) -> None:
        """Strike one fault with the fault inside it, and heal it. Raises StoreBrokenError."""
        if "after" in fault.settings:
            self._wait_for_hits(*fault.settings["after"])
            time.sleep(fault.settings.get("and_then", 0))
        getattr(self, f"_{fault.kind}")(fault)
        self._heal()
        self._require_ready(f"after {fault.kind}")
        self._recorder.tell("nemesis", "heal")

    # ---- processes --------------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault) -> None:
        self._told(fault)
        self._count_injected()
        self._server.kill()
        self.start()

    def _kill_at(self, fault: Fault) -> None:
        """Kill the server in the middle of a protocol."""
        self._told(fault)
        self._server.control(f"point {fault.settings['point']} kill")
        if not self._wait_until(lambda: self._server.process.poll() is not None, READY_S):
            raise StoreBrokenError(f"the load does not lead to {fault.settings['point']}")
        self._server.kill()
        self.start()

    def _terminate(self, fault: Fault) -> None:
        self._told(fault)
        self._count_injected()
        code = self._server.stop()
        if code:
            self.broken.append(f"SIGTERM ended the server with {code}")
        self.start()

    def _pause(self, fault: Fault) -> None:
        self._told(fault)
        self._server.process.send_signal(signal.SIGSTOP)
        time.sleep(fault.seconds)
        self._server.process.send_signal(signal.SIGCONT)

    def _job_kill(self, fault: Fault) -> None:
        if self._jobs:
            self._told(fault)
            self._jobs.kill()
            self._jobs.start()

    def _stream_kill(self, fault: Fault) -> None:
        """Kill a driver and its JVM, in the middle of a batch or between two; the checkpoints stay."""
        if self._streams:
            self._require_streaming()
            time.sleep(fault.settings["and_then"])
            self._told(fault)
            self._streams.kill()
            self._streams.start()

    def _require_streaming(self) -> None:
        assert self._streams
        streams = self._streams
        if not self._wait_until(lambda: {"logstore", "delta"} <= streams.batches.keys(), _STREAMS_S):
            raise StoreBrokenError(
                f"streaming queries make no batches: {dict(streams.batches)}; their log ends: {streams.log[-6000:]}"
            )

    def _block(self, fault: Fault) -> None:
        self._told(fault)
        self._server.control(f"block {fault.seconds}")
        self._last(fault)

    def _descriptors(self, fault: Fault) -> None:
        """Cause EMFILE: no file or connection can be opened beyond a few."""
        self._told(fault)
        pid = self._server.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        now = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (now + fault.settings["spare"], before[1]))
        self._last(fault)
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._server.process.pid, resource.RLIMIT_NOFILE, before)

    # ---- the disk ---------------------------------------------------------------------------------------------------

    def _power_cut(self, fault: Fault) -> None:
        """Cut the power of the machine, and so end everything that runs on it."""
        self._told(fault)
        self._count_injected()
        for neighbour in self._neighbours:
            neighbour.kill()
        topics = [topic.name for topic in self._topics]
        before = table_entries(self._server.data, topics)
        self._server.power_cut(fault.settings["seed"], strict=fault.settings["strict"])
        for topic, version, left in lost_entries(before, table_entries(self._server.data, topics)):
            # The checker knows whether any reader was shown them.
            self._tell("entry_lost", topic=topic, version=version, left=left)
        self.start()
        for neighbour in self._neighbours:
            neighbour.start()

    def _fsync_error(self, fault: Fault) -> None:
        """Inject EIO once on the journal's fsync: from then on nothing may be acknowledged until a restart."""
        self._told(fault)
        self._server.control(f"fail journal.fdatasync EIO nth={fault.settings['nth']}")
        if not self._wait_until(lambda: any("fdatasync" in said for said in self._server.control("faults")), READY_S):
            raise StoreBrokenError("the load leads to no fsync of the journal")
        if self._wait_until(lambda: not self._is_ready(), _NOTICED_S):
            self._tell("fsync_failed")
            time.sleep(fault.seconds)
        else:
            self.broken.append("a failed fsync of the journal did not make the store refuse appends")
        match fault.settings["restart"]:
            case "power_cut":
                how = {"seed": fault.settings["nth"], "strict": fault.settings.get("strict", False)}
                self._power_cut(Fault("power_cut", 0, 0, how))
            case "terminate":
                self._tell("terminate")
                self._count_injected()
                self._server.stop()
                self.start()
            case _:
                self._kill(Fault("kill", 0, 0))

    def _call_error(self, fault: Fault) -> None:
        self._told(fault)
        settings = fault.settings
        process, struck = self._server.process.pid, len(self._server.control("faults"))
        self._server.control(
            f"fail {settings['call']} {settings['error']} nth={settings['nth']} times={settings['times']} "
            f"written={settings['written']}"
        )
        self._last(fault)
        self._heal()
        if not self._is_ready():
            # A failed write or fsync of the journal is final: only a restart reads the actual content of the disk.
            faults = self._server.control("faults")[struck if self._server.process.pid == process else 0 :]
            if not any(text.startswith("journal.") for text in faults):
                self.broken.append(f"a store stopped taking appends because of {faults or 'nothing'}")
            self._kill(Fault("kill", 0, 0))

    def _read_error(self, fault: Fault) -> None:
        """Let table reads fail or be short.

        A reader gets an error or correct data; appends continue meanwhile, and a restart is not used to help.
        """
        self._told(fault)
        settings = fault.settings
        self._server.control(
            f"fail {settings['call']} {settings['error']} nth={settings['nth']} times={settings['times']}"
        )
        self._last(fault)
        if not self._is_ready():
            self.broken.append(f"a store stopped taking appends because of {settings['call']} {settings['error']}")

    def _disk_full(self, fault: Fault) -> None:
        self._told(fault)
        self._server.control(f"fill {fault.settings['free_bytes']}")
        self._last(fault)

    def _slow_fsync(self, fault: Fault) -> None:
        self._told(fault)
        self._server.control(f"slow fdatasync {fault.settings['seconds']}")
        self._last(fault)

    def _clock(self, fault: Fault) -> None:
        self._told(fault)
        self._server.control(f"clock {fault.settings['offset_ms']}")
        self._last(fault)

    # ---- others' commits --------------------------------------------------------------------------------------------

    def _overwrite(self, fault: Fault) -> None:
        """Overwrite a commit as delta-spark might: it looks before a commit of the store and renames after it."""
        topic = self._loaded[int(fault.settings["which"] * len(self._loaded))].name
        table = self._server.data / "topics" / topic
        # The first commit makes the table, and no Delta writer removes another one's table.
        if not self._wait_until(lambda: newest(table) > 0, READY_S):
            raise StoreBrokenError(f"{topic} is never rolled")
        version = newest(table)
        self._told(fault, topic=topic, version=version)
        overwrite_entry(entry_path(table, version))

    def _overwrite_quietly(self, fault: Fault) -> None:
        """Overwrite a commit of a topic that rolls on request only, and then request the next roll."""
        (topic,) = self._by_hand
        client = Client(self._server.url, "by-hand", self._recorder)
        self._produce(client, topic)
        version = self._roll(topic.name)
        self._produce(client, topic)
        self._told(fault, kind="overwrite", topic=topic.name, version=version, quiet=True)
        overwrite_entry(entry_path(self._server.data / "topics" / topic.name, version))
        if not self._wait_until(lambda: self._roll(topic.name) > version, READY_S):
            self.broken.append(f"no roll of {topic.name} succeeds after an entry of its table was overwritten")
        client.close()

    def _power_cut_after_delete(self, fault: Fault) -> None:
        """Cut the power as soon as delete-records is answered, for a topic to whose table nobody else commits."""
        (topic,) = self._by_hand
        client = Client(self._server.url, "by-hand", self._recorder)
        self._produce(client, topic)
        self._roll(topic.name)
        client.delete_records(topic.name, 0, 2)
        client.close()
        self._power_cut(fault)

    def write_by_hand(self) -> None:
        """Write and read the topics that the load leaves alone."""
        client = Client(self._server.url, "by-hand", self._recorder)
        for topic in self._by_hand:
            self._produce(client, topic)
            start = client.get(f"/topics/{topic.name}/partitions/0/offsets")["beginning_offset"]
            client.fetch(topic.name, 0, start, form="json", max_bytes=1 << 20, max_wait_ms=0)
        client.close()

    def _produce(self, client: Client, topic: TopicSpec, partition: int = 0) -> bool:
        """Produce a few records; return whether they were acknowledged."""
        prefix = f"{topic.name}-{next(self._numbers)}"
        key = "by-hand" if topic.compacted else None
        records = [Record(f"{prefix}-{n}", key, f"v-{prefix}-{n}", None) for n in range(3)]
        return client.produce(topic, partition, records, acks="all", form="json")[0].ok

    def _roll(self, topic: str) -> int:
        """Request a roll; return the version that it led to, -1 if it was refused."""
        answer = httpx.post(f"{self._server.url}/topics/{topic}/roll", timeout=READY_S)
        return int(answer.json()["version"]) if answer.is_success else -1

    # ---- the way back -----------------------------------------------------------------------------------------------

    def start(self, *options: str) -> None:
        """Start the server; ``options`` are further options of ``serve``."""
        try:
            self._server.start(*options)
        except RuntimeError as error:
            raise StoreBrokenError(str(error)) from error
        self._log_read = 0
        self._recorder.tell("nemesis", "start", seconds=round(self._server.seconds_to_start, 2))

    def _last(self, fault: Fault) -> None:
        for point, times in fault.settings.get("for", ()):
            self._wait_for_hits(point, times)
        time.sleep(fault.seconds / 2)
        if fault.inside:
            getattr(self, f"_{fault.inside.kind}")(fault.inside)
        time.sleep(fault.seconds / 2)

    def _heal(self) -> None:
        if self._server.process.poll() is not None:
            raise StoreBrokenError(f"the server ended by itself with {self._server.process.returncode}")
        self._count_injected()
        self._server.control("heal", seconds=READY_S)

    def _require_ready(self, when: str) -> None:
        if not self._wait_until(self._is_ready, READY_S):
            raise StoreBrokenError(f"the store takes no appends {when}")

    def _is_ready(self) -> bool:
        return (answer := self._readiness()) is not None and answer.is_success

    def _readiness(self) -> httpx.Response | None:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self._server.url}/health/ready", timeout=30)
        return None

    @staticmethod
    def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _wait_for_hits(self, point: str, times: int) -> None:
        """Wait until the seam has counted this many more hits, as long as the load causes them."""
        before = self._server.control("hits").get(point, 0)
        if not self._wait_until(lambda: self._server.control("hits").get(point, 0) >= before + times, READY_S):
            raise StoreBrokenError(f"the load does not lead to {times} times {point}")

    def _count_injected(self) -> None:
        """Count the faults that the seam has injected in this process, before the process ends or is healed."""
        with contextlib.suppress(OSError, RuntimeError):
            injected = self._server.control("faults")
            self.injected.update(" ".join(text.split()[:2]) for text in injected[self._log_read :])
            self._log_read = len(injected)

    def _told(self, fault: Fault, **more: object) -> None:
        self.faults[fault.kind] += 1
        self._tell(**{"kind": fault.kind, **fault.settings, **more})

    def _tell(self, kind: str, **fields: object) -> None:
        self._recorder.tell("nemesis", "fault", kind=kind, **fields)
