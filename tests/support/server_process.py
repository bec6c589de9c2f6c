"""A real ``logstore serve`` in a separate process, to be killed and started again."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class NotStartedError(RuntimeError):
    """The server ended with ``code`` before it listened (None: it hung), after it wrote ``lines`` to stderr."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(f"server did not start, exit code {code}\n{text[-4000:]}")
        self.code = code
        self.lines = text.splitlines()


class ServerProcess:
    """Use it as ``with ServerProcess(data) as server: server.url``. The process ends when the block ends."""

    _module = "logstore.cli"

    def __init__(self, data: Path, *, port: int = 0, environment: dict[str, str] | None = None) -> None:
        self.data = data
        self._port = port
        self._environment = environment or {}
        self._log = data.parent / f"{data.name}-server.log"
        self.start()

    def start(self, *options: str) -> None:
        """Start the server with further ``options`` of ``serve``, and wait until it listens. Raises NotStartedError if
        it does not within minutes.
        """
        command = [sys.executable, "-m", self._module, "serve", "--data", str(self.data), "--port", str(self._port)]
        command += options
        began = time.monotonic()
        former = getattr(self, "process", None)
        if former is not None and former.stdout is not None:  # it ended by itself
            former.stdout.close()
        with self._log.open("ab") as log:
            logged = log.tell()
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
        ready = waiting.poll(180_000)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("listening on "):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10 if ready else 0)
            code = self.process.poll()
            self.kill()
            raise NotStartedError(code, self._log.read_bytes()[logged:].decode())
        self.url = line.removeprefix("listening on ").strip()
        self.seconds_to_start = time.monotonic() - began

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(120)
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


class FaultyServerProcess(ServerProcess):
    """A server with a controlled disk, clock and event loop: ``server.control("fail fdatasync EIO")``.

    ``faults`` are commands only for its next start; ``mutant`` names what is broken on purpose. The commands are those
    of ``tests.support.faulty_server``.
    """

    _module = "tests.support.faulty_server"

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        environment: dict[str, str] | None = None,
        mutant: str = "",
        faults: str = "",
    ) -> None:
        # The path of a socket may have 107 bytes.
        self._sockets = tempfile.TemporaryDirectory(prefix="control-")
        self._socket = Path(self._sockets.name) / "server"
        self._own = dict(environment or {})
        if mutant:
            self._own["LOGSTORE_MUTANT"] = mutant
        self._faults = faults
        try:
            super().__init__(data, port=port)
        except BaseException:
            self._sockets.cleanup()
            raise

    def start(self, *options: str, faults: str | None = None) -> None:
        faults, self._faults = self._faults if faults is None else faults, ""
        self._environment = {**self._own, "LOGSTORE_CONTROL": str(self._socket), "LOGSTORE_FAULTS": faults}
        super().start(*options)

    def beside(self) -> "FaultyServerProcess":
        """Start a second server on the same directory, at other addresses. Raises NotStartedError."""
        return FaultyServerProcess(self.data, environment={**self._own, "LOGSTORE_KAFKA_LISTENERS": "127.0.0.1:0"})

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            self._sockets.cleanup()

    def close(self) -> None:
        """Kill the server if it runs, and remove everything except its data."""
        if self.process.poll() is None:
            self.kill()
        self.__exit__()

    def control(self, command: str, *, seconds: float = 30) -> Any:
        """Return the result of the command. Raises RuntimeError if it fails, OSError if no server runs."""
        with self.ask(command, seconds) as asking:
            said = b"".join(iter(lambda: asking.recv(1 << 16), b""))
        if not said:
            raise ConnectionError(f"the server has ended before it answered {command!r}")
        answer = json.loads(said)
        if "error" in answer:
            raise RuntimeError(f"{command}: {answer['error']}")
        return answer["ok"]

    def power_cut(self, seed: int, *, strict: bool = False) -> None:
        """Cut the power: unsynced bytes are lost, and the process ends."""
        with self.ask(f"power-cut {seed} {'strict' if strict else ''}"):
            assert self._reap() == -signal.SIGKILL

    def ask(self, command: str, seconds: float | None = None) -> socket.socket:
        """Send a command and return the connection for its response. Raises TimeoutError after ``seconds``."""
        asking = socket.socket(socket.AF_UNIX)
        try:
            asking.settimeout(seconds)
            asking.connect(str(self._socket))
            asking.sendall(command.encode())
            asking.shutdown(socket.SHUT_WR)
        except BaseException:
            asking.close()
            raise
        return asking
