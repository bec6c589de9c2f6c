"""A pulse of the machine: a small write with its fsync, again and again.

Brokers hold leases and sessions by their clocks. While the machine stalls, as under a busy disk, a broker may rightly
say that it no longer leads. Such a time is a ``Stall`` in the history.
"""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.faults.bench.history import MACHINE, Recorder

_PAUSE_S = 0.1
_STALLED_S = 0.5


class Pulse:
    """It beats on the disk of ``directory`` while the block runs."""

    def __init__(self, recorder: Recorder, directory: Path) -> None:
        self._recorder = recorder
        self._path = directory / "pulse"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _beat(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while not self._stopping.is_set():
                since = time.monotonic_ns()
                self._stopping.wait(_PAUSE_S)
                file.write(b"beat")
                os.fsync(file.fileno())
                if time.monotonic_ns() - since > (_PAUSE_S + _STALLED_S) * 1e9:
                    self._recorder.tell(MACHINE, "stall", since=since)
