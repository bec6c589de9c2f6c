"""The history of a simulated run, in the terms of the fault bench's checker; ``t`` is the simulated time."""

import asyncio
import hashlib
import itertools
from typing import Any

import msgspec

from tests.faults.bench.history import Recorder


class History(Recorder):
    """Keeps events in memory instead of a file. ``digest`` is of all of them, and of what is noted beside them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events: list[dict[str, Any]] = []
        #: Of all that happened.
        self.count = 0
        self._loop = loop
        self._prefix = "e"
        self._numbers = itertools.count()
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:32]

    def note(self, *what: object) -> None:
        """Count something below the calls, such as a call of a disk."""
        self.count += 1
        self._digest.update(repr(what).encode())

    def _write(self, process: str, op: str, phase: str, number: str, fields: dict[str, Any]) -> None:
        # Events of one moment keep their order.
        t = max(round(self._loop.time() * 1e9), self.events[-1]["t"] + 1 if self.events else 0)
        event = {"t": t, "process": process, "op": op, "phase": phase, "id": number, **fields}
        self.count += 1
        self._digest.update(msgspec.json.encode(event, order="sorted"))
        self.events.append(event)

    def close(self) -> None:
        """There is no file to close."""
