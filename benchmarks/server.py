"""Server processes under measurement: our store, and the parts that it shares with a Kafka broker.

Invariants: a server runs only during its turn (SIGSTOP before and after), so that the work that it puts off (rolls,
cleaning, garbage) costs its own turns and nobody else's. A server listens on loopback, and is ended by its own pid,
with SIGKILL: its data are thrown away.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import urlopen

from benchmarks.measure import Sample
from logstore.client.admin import Admin

ROOT = Path(__file__).parents[1]
_START_SECONDS = 180
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

Turn = Callable[[float], Sample]


class BenchmarkError(RuntimeError):
    """A server or a load program failed; the message is for the person who runs the benchmark."""


class Server:
    """A process and what /proc knows of it."""

    process: subprocess.Popen[Any]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.resume()
        try:
            yield
        finally:
            self.pause()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def cpu_s(self) -> float:
        """CPU time since its start, of user and system."""
        after_name = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _CLOCK_TICKS

    @property
    def peak_mb(self) -> float:
        return self._status_kib("VmHWM") * 1024 / 1e6

    @property
    def resident_mb(self) -> float:
        return self._status_kib("VmRSS") * 1024 / 1e6

    def _status_kib(self, name: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        raise BenchmarkError("a server ended by itself")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Store(Server):
    """``logstore serve`` on ``data``, with the defaults and ``settings`` (names of LOGSTORE_* without that prefix).

    ``live_s`` is known of one that has a ``port`` of its own.
    """

    live_s: float | None = None

    def __init__(
        self, data: Path, settings: Mapping[str, str] | None = None, *, port: int = 0, checkout: Path = ROOT
    ) -> None:
        self.data = data
        self.checkout = checkout
        self._port = port
        self._settings = {f"LOGSTORE_{name}": value for name, value in (settings or {}).items()}
        self._log = data.parent / f"{data.name}.log"
        self.start()

    def start(self) -> None:
        """Until it is ready; ``ready_s`` is how long that took, ``live_s`` until it first answered."""
        command = [
            python_of(self.checkout),
            "-m",
            "logstore.cli",
            "serve",
            "--data",
            str(self.data),
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
        ]
        # Settings of this shell or of conf/logstore.toml are for another store.
        environment = {name: text for name, text in os.environ.items() if not name.startswith("LOGSTORE_")}
        # An installed store has its modules compiled; the round that warms up compiles those of a checkout.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        began = time.monotonic()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.data.parent,
                env={**environment, "PYTHONPATH": str(self.checkout), **self._settings},
            )
        assert self.process.stdout is not None
        if self._port and self._answers(f"http://127.0.0.1:{self._port}/health/live"):
            self.live_s = time.monotonic() - began
        ready, _, _ = select.select([self.process.stdout], [], [], _START_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        self.ready_s = time.monotonic() - began
        if not line.startswith("listening on "):
            self.kill()
            raise BenchmarkError(f"the store did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
        self.url = line.removeprefix("listening on ").strip()

    def _answers(self, url: str) -> bool:
        """Whether it did before it ended, or was ready."""
        while self.process.poll() is None:
            try:
                with urlopen(url, timeout=_START_SECONDS):
                    return True
            except OSError:
                time.sleep(0.01)
        return False

    def stop(self) -> float:
        """SIGTERM; the seconds until it has ended."""
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(_START_SECONDS)
        return time.monotonic() - began

    @property
    def address(self) -> dict[str, Any]:
        parts = urlsplit(self.url)
        return {"host": parts.hostname, "port": parts.port}

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        with Admin(self.url, request_timeout_ms=120_000) as admin:
            admin.create_topic(topic, partitions=partitions, configs=configs)

    def roll(self, topic: str) -> None:
        with Admin(self.url, request_timeout_ms=300_000) as admin:
            admin.roll(topic)

    def stored(self, topic: str) -> int:
        """Records that readers see."""
        with Admin(self.url, request_timeout_ms=60_000) as admin:
            return sum(
                found.high_watermark - found.log_start_offset for found in admin.describe_topic(topic).partitions
            )


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a load program."""

    records: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    throttled: float | None = None


def python_of(checkout: Path) -> str:
    """The interpreter of a checkout's environment; of this one's it is the one that runs."""
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
    """The stdout of a program that ended with exit code 0 within its time."""
    try:
        done = subprocess.run(
            command, input=input_text, capture_output=True, text=True, timeout=timeout, cwd=directory, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{' '.join(command[:6])} ... did not end within {timeout:.0f} s") from None
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command[:6])} ... failed:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def turn_of(server: Server, record_bytes: int, load: Callable[[float], Result]) -> Turn:
    """A turn in which ``load`` (called with its seconds) runs on ``server`` while all others stand still.

    Pages that it left unwritten are on the disk before the next turn begins. BenchmarkError if no record got through.
    """

    def turn(seconds: float) -> Sample:
        with server.awake():
            server_cpu_s, client_cpu_s = server.cpu_s, _cpu_s_of_loads()
            result = load(seconds)
            server_cpu_s, client_cpu_s = server.cpu_s - server_cpu_s, _cpu_s_of_loads() - client_cpu_s
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
            server_cpu_us=1e6 * server_cpu_s / result.records,
            client_cpu_us=1e6 * client_cpu_s / result.records,
            throttled=result.throttled,
        )

    return turn


def _cpu_s_of_loads() -> float:
    """CPU time of all load programs that have ended, with their start."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
