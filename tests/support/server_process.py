"""A real ``logstore serve`` in a process of its own, to be killed and started again."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """``with ServerProcess(data) as server: server.url``. Ends the process when the block ends."""

    def __init__(self, data: Path, *, port: int = 0, environment: dict[str, str] | None = None) -> None:
        self.data = data
        self._port = port
        self._environment = environment or {}
        self._log = data.parent / f"{data.name}-server.log"
        self.start()

    def start(self) -> None:
        """Returns when the server says that it listens; RuntimeError with its log if it does not within 60 s."""
        command = [sys.executable, "-m", "logstore.cli", "serve", "--data", str(self.data), "--port", str(self._port)]
        began = time.monotonic()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.data.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self._environment},
            )
        assert self.process.stdout is not None
        waiting = select.poll()
        waiting.register(self.process.stdout, select.POLLIN)
        ready = waiting.poll(60_000)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("listening on "):
            self.kill()
            raise RuntimeError(f"server did not start: {line!r}\n{self._log.read_text()[-4000:]}")
        self.url = line.removeprefix("listening on ").strip()
        self.seconds_to_start = time.monotonic() - began

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    @property
    def log(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
