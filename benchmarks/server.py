"""Server processes under measurement: our store, and the parts that it shares with a Kafka broker and with clusters.

Invariants: a server runs only during its turn (SIGSTOP before and after), so that the work that it puts off (rolls,
cleaning, garbage) costs only its own turns. A server listens on loopback, and is ended by its own pid, with SIGKILL,
because its data are thrown away.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import urlopen

import httpx

from benchmarks.measure import Sample
from benchmarks.workload import Workload
from logstore.client.admin import Admin

ROOT = Path(__file__).parents[1]
_START_SECONDS = 180
#: A server is at rest if it uses less than this part of a core between two looks.
_AT_REST = 0.1
_LOOK_SECONDS = 0.5
_REST_SECONDS = 300
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

Turn = Callable[[float], Sample]


class BenchmarkError(RuntimeError):
    """Raised if a server or a load program failed; the message is for the user who runs the benchmark."""


class Server(ABC):
    """Processes that serve together, and their figures in /proc: CPU time and memory are sums."""

    @property
    @abstractmethod
    def pids(self) -> Sequence[int]:
        """The processes that are measured, and paused together."""

    @abstractmethod
    def kill(self) -> None:
        """End all of them; those that have ended are ignored."""

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.resume()
        try:
            yield
        finally:
            self.pause()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                raise _ended() from None

    @property
    def cpu_s(self) -> float:
        """CPU time since the start, of user and system."""
        return sum(map(cpu_s_of, self.pids))

    @property
    def cpu_s_by_measure(self) -> Mapping[str, float]:
        """CPU time by the measure of a sample for which it counts."""
        return {"server_cpu_us": self.cpu_s}

    @property
    def calls(self) -> int | None:
        """Calls of Python's functions since the start; None if they are not counted."""
        return None

    def rest(self) -> None:
        """Wait until the server does next to nothing: work that it has put off (rolls, merges) counts for its turn.

        Raises BenchmarkError if it does not come to rest.
        """
        deadline = time.monotonic() + _REST_SECONDS
        used = self.cpu_s
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            before, used = used, self.cpu_s
            if used - before <= _AT_REST * _LOOK_SECONDS:
                return
        raise BenchmarkError(f"a server did not come to rest within {_REST_SECONDS} s")

    @property
    def peak_mb(self) -> float:
        return sum(_status_kib(pid, "VmHWM") for pid in self.pids) * 1024 / 1e6

    @property
    def resident_mb(self) -> float:
        return sum(_status_kib(pid, "VmRSS") for pid in self.pids) * 1024 / 1e6

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class SingleServer(Server):
    """A server of one process."""

    process: subprocess.Popen[Any]

    @property
    def pids(self) -> Sequence[int]:
        return (self.process.pid,)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process since its start, of user and system."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except FileNotFoundError:
        raise _ended() from None
    return (int(after_name[11]) + int(after_name[12])) / _CLOCK_TICKS


def _status_kib(pid: int, name: str) -> int:
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    raise _ended()


def _ended() -> BenchmarkError:
    return BenchmarkError("a server ended by itself")


class Storage(Server):
    """Our store: one broker, or those of a cluster. ``url`` has all addresses, separated by commas."""

    url: str

    @abstractmethod
    def servers(self, topic: str, workload: Workload) -> list[dict[str, Any]]:
        """Return the ``servers`` of a load program: where requests of ``workload`` are posted, and their paths."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None: ...

    def roll(self, topic: str) -> None:
        with Admin(self.url, request_timeout_ms=300_000) as admin:
            admin.roll(topic)

    def stored(self, topic: str) -> int:
        """Return the number of records that readers see."""
        with Admin(self.url, request_timeout_ms=60_000) as admin:
            return sum(
                found.high_watermark - found.log_start_offset for found in admin.describe_topic(topic).partitions
            )


class Store(SingleServer, Storage):
    """``logstore serve`` on ``data``, with the defaults and ``settings`` (names of LOGSTORE_* without that prefix).
    ``live_s`` is only known if ``port`` is given. A ``counted`` store counts its calls, and is several times slower.
    """

    live_s: float | None = None

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        checkout: Path = ROOT,
        counted: bool = False,
    ) -> None:
        self.data = data
        self.checkout = checkout
        self._counts = data.parent / f"{data.name}.calls" if counted else None
        self._counted = 0
        self._port = port
        self._settings = {f"LOGSTORE_{name}": value for name, value in (settings or {}).items()}
        self._log = data.parent / f"{data.name}.log"
        self.start()

    def start(self) -> None:
        """Start, and wait until it is ready after ``ready_s``; ``live_s`` is the time until its first response."""
        began = time.monotonic()
        self.process = spawn(
            ["serve", "--data", str(self.data), "--host", "127.0.0.1", "--port", str(self._port)],
            directory=self.data.parent,
            log=self._log,
            settings=self._settings,
            checkout=self.checkout,
            counts=self._counts,
        )
        if self._port and self._answers(f"http://127.0.0.1:{self._port}/health/live"):
            self.live_s = time.monotonic() - began
        line = first_line(self.process)
        self.ready_s = time.monotonic() - began
        if not line.startswith("listening on "):
            self.kill()
            raise BenchmarkError(f"the store did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
        self.url = line.removeprefix("listening on ").strip()

    def _answers(self, url: str) -> bool:
        """Return True if it responded before it ended."""
        while self.process.poll() is None:
            try:
                with urlopen(url, timeout=_START_SECONDS):
                    return True
            except OSError:
                time.sleep(0.01)
        return False

    def stop(self) -> float:
        """Send SIGTERM; return the seconds until it has ended."""
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(_START_SECONDS)
        return time.monotonic() - began

    @property
    def calls(self) -> int | None:
        if self._counts is None:
            return None
        self._counted += 1
        self._signal(signal.SIGUSR1)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                number, calls = map(int, self._counts.read_text().split())
                if number == self._counted:
                    return calls
            time.sleep(0.01)
        raise BenchmarkError("the store did not say how many calls it has made")

    @property
    def address(self) -> dict[str, Any]:
        return address_of(self.url)

    def servers(self, topic: str, workload: Workload) -> list[dict[str, Any]]:
        return [{**self.address, "paths": workload.paths(topic)}]

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        # Our client is not used here, because an earlier store does not know all of its requests.
        with httpx.Client(base_url=self.url, timeout=120) as client:
            (cluster,) = client.get("/v3/clusters").raise_for_status().json()["data"]
            entries = [{"name": name, "value": value} for name, value in (configs or {}).items()]
            body = {"topic_name": topic, "partitions_count": partitions, "configs": entries}
            answer = client.post(f"/v3/clusters/{cluster['cluster_id']}/topics", json=body)
        if answer.is_error:
            raise BenchmarkError(f"the topic {topic} was not made: {answer.text}")


def spawn(
    arguments: Sequence[str],
    *,
    directory: Path,
    log: Path,
    settings: Mapping[str, str],
    checkout: Path,
    counts: Path | None = None,
) -> subprocess.Popen[str]:
    """Start ``logstore`` of a checkout, with stderr in ``log``; ``settings`` are environment variables. With
    ``counts`` it counts its calls (``counted_store``).
    """
    program = ["-m", "logstore.cli"] if counts is None else [str(ROOT / "benchmarks/counted_store.py"), str(counts)]
    # Settings of this shell or of conf/logstore.toml are for another store.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("LOGSTORE_")}
    # An installed store has its modules compiled; the warm-up round compiles those of a checkout.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("ab") as errors:
        return subprocess.Popen(
            [python_of(checkout), *program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=directory,
            env={**environment, "PYTHONPATH": str(checkout), "LOGSTORE_KAFKA_LISTENERS": "", **settings},
        )


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the line that a process prints when it is ready; empty if it ends before, or takes too long."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
    return process.stdout.readline() if ready else ""


def address_of(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a load program."""

    records: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    throttled: float | None = None
    longest_ms: float | None = None
    errors: float | None = None
    first_error: str | None = None
    rest_percent: float | None = None


def python_of(checkout: Path) -> str:
    """Return the interpreter of a checkout's environment; for this checkout it is the running one."""
    return sys.executable if checkout == ROOT else str(checkout / ".venv/bin/python")


def run_load(
    module: str, specification: Mapping[str, Any], *, python: str = sys.executable, checkout: Path = ROOT
) -> Result:
    """Run ``benchmarks.load.<module>`` of ``checkout`` to its end."""
    timeout = 3 * float(specification.get("seconds", 60)) + 120
    output = run_command(
        [python, "-m", f"benchmarks.load.{module}"],
        timeout=timeout,
        input_text=json.dumps(specification),
        directory=checkout,
    )
    return result_of(json.loads(output))


def result_of(found: Mapping[str, Any]) -> Result:
    return Result(**{name: value for name, value in found.items() if name in Result.__dataclass_fields__})


def run_command(command: list[str], *, timeout: float, input_text: str = "", directory: Path = ROOT) -> str:
    """Run a program that must end with exit code 0 within its time; return its stdout."""
    try:
        done = subprocess.run(
            command, input=input_text, capture_output=True, text=True, timeout=timeout, cwd=directory, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{' '.join(command[:6])} ... did not end within {timeout:.0f} s") from None
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command[:6])} ... failed:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def turn_of(
    server: Server, record_bytes: int, load: Callable[[float], Result], roll: Callable[[], None] | None = None
) -> Turn:
    """Return a turn in which ``load`` (called with its seconds) runs on ``server`` while all others are paused.

    With ``roll``, the turn lasts until the records are rolled and the server is at rest, and the CPU time is that of
    all this. Pages that it left unwritten are on the disk before the next turn begins. Raises BenchmarkError if no
    record got through.
    """

    def turn(seconds: float) -> Sample:
        with server.awake():
            calls_before = server.calls
            server_cpu_s, client_cpu_s = server.cpu_s_by_measure, _cpu_s_of_loads()
            result = load(seconds)
            calls = server.calls
            if roll is not None:
                roll()
                server.rest()
            cpu_s = {name: after - server_cpu_s[name] for name, after in server.cpu_s_by_measure.items()}
            client_cpu_s = _cpu_s_of_loads() - client_cpu_s
            peak_mb, resident_mb = server.peak_mb, server.resident_mb
        os.sync()
        if not result.records:
            refused = "" if result.throttled is None else f", {result.throttled:,.0f} answers were 429"
            raise BenchmarkError(f"no record got through in {result.seconds:.1f} s{refused}")
        rate = result.records / result.seconds
        return Sample(
            records_s=rate,
            mb_s=rate * record_bytes / 1e6,
            p50_ms=result.p50_ms,
            p99_ms=result.p99_ms,
            p999_ms=result.p999_ms,
            peak_mb=peak_mb,
            resident_mb=resident_mb,
            **{name: 1e6 * used / result.records for name, used in cpu_s.items()},
            client_cpu_us=1e6 * client_cpu_s / result.records,
            calls=None if calls is None or calls_before is None else (calls - calls_before) / result.records,
            throttled=result.throttled,
        )

    return turn


def _cpu_s_of_loads() -> float:
    """Return the CPU time of all load programs that have ended, including their start."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def allow_open_files(count: int) -> None:
    """Raise the limit of open files for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchmarkError(f"{count} open files are needed, `ulimit -Hn` allows {hard}")
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else count, hard))
