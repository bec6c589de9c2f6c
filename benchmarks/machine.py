"""The machine and versions of a run, so that a result can be understood years later."""

import os
import platform
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.run import Peers
from benchmarks.server import ROOT

_SYNCS = 200


def describe(directory: Path, peers: Peers) -> dict[str, str]:
    """Describe the machine; ``directory`` is where the data will be."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "processor": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": platform.platform(),
        "fdatasync of 4 KB": f"{_sync_ms(directory):.2f} ms",
        "python": platform.python_version(),
        "pyarrow": version("pyarrow"),
        "java": _first_line(peers.kafka.java, "-version") if peers.kafka else "not used",
        "kafka": peers.kafka.version if peers.kafka else "not used",
        "confluent-kafka": _confluent(peers.confluent) if peers.confluent else "not used",
        "wrk": _first_line(peers.wrk, "--version") if peers.wrk else "not used",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _sync_ms(directory: Path) -> float:
    """Return the median time of one fdatasync after an append of 4 KB."""
    times = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def _confluent(python: str) -> str:
    return _first_line(python, "-c", "import confluent_kafka as c; print(c.version(), 'librdkafka', c.libversion()[0])")


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ((done.stdout or done.stderr).strip().splitlines() or ["unknown"])[0]
