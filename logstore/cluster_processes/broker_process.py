"""One broker: a process of ``logstore serve`` with its environment, its port and its log."""

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

#: A broker that was killed waits for the end of its former session, and recovers its journal.
START_S: Final = 180.0
#: Requests end, leaders are handed over, and records go into Delta as far as there is time: twenty seconds. Service
#: managers kill after a minute, and ZooKeeper stops after the brokers.
STOP_S: Final = 45.0
_READY: Final = b"listening on "
_LINE_LENGTH_MAX: Final = 500


class BrokerEntry(msgspec.Struct, frozen=True):
    """A broker that runs, as programs are told of it."""

    id: int
    url: str
    pid: int


class BrokerProcess:
    """Started again and again with the same port. ``log``: the file that gets what it writes; None: our own stderr."""

    def __init__(self, broker_id: int, environment: Mapping[str, str], data: Path, log: Path | None) -> None:
        self.id = broker_id
        self.log = log
        #: From the next start on.
        self.environment = {**os.environ, **environment}
        self._data = data
        self._process: asyncio.subprocess.Process | None = None
        #: The end of the watcher's pipe that is open while the process is to live.
        self._lifeline: int | None = None
        #: None while it does not run, or is not ready.
        self.entry: BrokerEntry | None = None
        #: Held by who starts it.
        self.changing = asyncio.Lock()

    async def start(self, arguments: list[str]) -> BrokerEntry:
        """Returns when it says that it is ready. ClusterProcessesError, with its last line, if it ends or takes longer
        than ``START_S``; then it does not run. It does when the call is cancelled.
        """
        assert not self.is_running
        with contextlib.ExitStack() as opened:
            # sys.stderr may be no file.
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
                    # Ctrl-C in the terminal is for the process that started it, which stops all of them in order.
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
        """The end of a message: its last line."""
        if self.log is None:
            return "; its reason is above."
        lines = self.log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:_LINE_LENGTH_MAX]}" if lines else "."
        return f"{last} (the whole log: {self.log})"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def ended(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        process = self._process
        assert process is not None
        code = await process.wait()
        # Of those that wait, one may hear of it so late that the next process runs already.
        if process is self._process:
            if self._lifeline is not None:
                os.close(self._lifeline)
                self._lifeline = None
            self.entry = None
        return code

    async def stop(self) -> bool:
        """SIGTERM, and SIGKILL after ``STOP_S``; whether the first was enough."""
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
