"""One broker: a ``logstore serve`` process with its environment, port and log."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from logstore.cluster.watched_process import watched
from logstore.cluster_processes.record import ClusterProcessesError

#: A broker that was killed waits until its former session has ended, and recovers its journal.
START_S: Final = 180.0
#: A broker ends requests, hands over its leaders and writes records to Delta, within twenty seconds. Service managers
#: kill after a minute, and ZooKeeper stops after the brokers.
STOP_S: Final = 45.0
_READY: Final = b"listening on "
_LINE_LENGTH_MAX: Final = 500


class BrokerEntry(msgspec.Struct, frozen=True):
    """A running broker, as reported to programs."""

    id: int
    url: str
    pid: int


class BrokerProcess:
    """A broker that can be started again and again on the same port. Its output goes to the file ``log``; with None, to
    our stderr.
    """

    def __init__(self, broker_id: int, environment: Mapping[str, str], data: Path, log: Path | None) -> None:
        self.id = broker_id
        self.log = log
        #: Used from the next start on.
        self.environment = {**os.environ, **environment}
        self._data = data
        self._process: asyncio.subprocess.Process | None = None
        #: The write end of the watcher's pipe; it stays open as long as the process should live.
        self._lifeline: int | None = None
        #: None while the broker does not run, or is not ready.
        self.entry: BrokerEntry | None = None
        #: The task that starts the broker holds it.
        self.changing = asyncio.Lock()

    async def start(self, arguments: list[str]) -> BrokerEntry:
        """Start the broker, and return when it reports that it is ready.

        Raises ClusterProcessesError, with its last line, if it ends or needs longer than ``START_S``; then it does not
        run. A cancelled call leaves it running.
        """
        assert not self.is_running
        with contextlib.ExitStack() as opened:
            # sys.stderr may be something other than a file.
            log = None if self.log is None else opened.enter_context(self.log.open("ab"))
            begin = 0 if log is None else log.tell()
            command = [sys.executable, "-m", "logstore.cli", "serve", "--data", str(self._data), *arguments]
            stdin, lifeline = os.pipe()
            opened.callback(os.close, stdin)
            with contextlib.ExitStack() as failed:
                failed.callback(os.close, lifeline)
                process = await asyncio.create_subprocess_exec(
                    *watched(command, str(self._data)),
                    stdin=stdin,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=self.environment,
                    # Ctrl-C in the terminal is for the process that started the broker, which stops all brokers in
                    # order.
                    start_new_session=True,
                )
                failed.pop_all()
            self._process, self._lifeline = process, lifeline
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
                if not line.startswith(_READY):
                    await process.wait()
        except TimeoutError:
            await self.kill()
            raise ClusterProcessesError(
                f"Broker {self.id} was not ready after {START_S:.0f} seconds and was stopped; start it again"
                f"{self._why(begin)}"
            ) from None
        if not line.startswith(_READY):
            await self.ended()
            raise ClusterProcessesError(f"Broker {self.id} did not start{self._why(begin)}")
        self.entry = BrokerEntry(self.id, line.removeprefix(_READY).decode().strip(), process.pid)
        return self.entry

    def _why(self, begin: int) -> str:
        """Return the end of an error message: the last line of the broker's log, if it has one."""
        if self.log is None:
            return "; its reason is above."
        lines = self.log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:_LINE_LENGTH_MAX]}" if lines else "."
        return f"{last} (the whole log: {self.log})"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def ended(self) -> int:
        """Wait until the broker has ended. Return its exit code, negative for a signal."""
        process = self._process
        assert process is not None
        code = await process.wait()
        # Several tasks may wait, and one may be woken so late that the next process already runs.
        if process is self._process:
            if self._lifeline is not None:
                os.close(self._lifeline)
                self._lifeline = None
            self.entry = None
        return code

    async def stop(self) -> bool:
        """Send SIGTERM, and SIGKILL after ``STOP_S`` seconds. Return True if SIGTERM was enough."""
        if not self.is_running:
            return True
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self.ended()
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            await self.ended()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
