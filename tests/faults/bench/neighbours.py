"""The processes beside the server in a run: jobs and streaming queries, which die with the machine, and a reader of
tables, which waits.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: A reader of tables has every version still to read, a streaming reader its JVM to start, and other processes run
#: beside them.
_END_S = 1_200


class Neighbour:
    """A process ``python -m module DATA HISTORY ...`` that ends when its input does."""

    def __init__(self, module: str, data: Path, history: Path, arguments: Sequence[str] = ()) -> None:
        self._module = module
        self._data = data
        self._history = history
        self._arguments = arguments
        self._name = module.rpartition(".")[2]
        self._log = history.with_name(f"{self._name}.log")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(self._data), str(self._history), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                # The process and its children (Spark's JVM and workers) are one group, to be killed as one.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._following = threading.Thread(target=self._follow, args=(self._process,), daemon=True)
        self._following.start()

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        with process.stdout:
            for line in process.stdout:
                self.said(line)

    def said(self, line: str) -> None:
        """Take the next line of its output."""

    def kill(self) -> None:
        """Kill the process and its children with SIGKILL."""
        if self._process:
            self._signal(signal.SIGKILL)
            self._reap()

    def end(self) -> None:
        """Wait for its end. Raises RuntimeError if it fails."""
        if self._process and (code := self._reap()):
            raise RuntimeError(f"{self._name} ended with {code}:\n{self.log[-3000:]}")

    def _reap(self) -> int:
        assert self._process
        assert self._process.stdin
        self._process.stdin.close()
        code = self._process.wait(_END_S)
        self._following.join(_END_S)
        self._process = None
        return code

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _signal(self, number: int) -> None:
        assert self._process
        os.killpg(self._process.pid, number)


class DeltaObserver(Neighbour):
    """Reads from another machine: while this machine is without power it is stopped."""

    def __init__(self, data: Path, history: Path) -> None:
        super().__init__("tests.faults.bench.delta_observer", data, history)
        self._paused = False

    def kill(self) -> None:
        if self._process:
            self._signal(signal.SIGSTOP)
            self._paused = True

    def start(self) -> None:
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False
        else:
            super().start()


class JobLoop(Neighbour):
    """The jobs; ``commits`` of each job to each topic, over all its lives."""

    def __init__(self, data: Path, history: Path, jobs: Sequence[str], *, pause_s: float) -> None:
        arguments = ["--pause", str(pause_s)]
        for job in jobs:
            arguments += ["--job", job]
        super().__init__("tests.faults.bench.job_loop", data, history, arguments)
        self._before: Counter[tuple[str, str]] = Counter()
        self._now: Counter[tuple[str, str]] = Counter()

    @property
    def commits(self) -> Counter[tuple[str, str]]:
        return self._before + self._now

    def start(self) -> None:
        self._before, self._now = self.commits, Counter()
        super().start()

    def said(self, line: str) -> None:
        if not line.startswith("{"):
            return  # the line is Spark's
        told = json.loads(line)
        self._now = Counter(
            {(job, topic): commits for job, topics in told.items() for topic, commits in topics.items()}
        )


class StreamingReader(Neighbour):
    """Streaming queries; ``batches`` since their last start."""

    def __init__(self, data: Path, history: Path, url: str, topics: Sequence[str]) -> None:
        arguments = ["--url", url]
        for topic in topics:
            arguments += ["--topic", topic]
        super().__init__("tests.faults.bench.streaming_reader", data, history, arguments)
        self.batches: Counter[str] = Counter()

    def start(self) -> None:
        self.batches.clear()
        super().start()

    def said(self, line: str) -> None:
        self.batches[line.strip()] += 1
