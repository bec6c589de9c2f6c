"""The history of a simulated run, in the form that the fault bench's checker reads; ``t`` is the simulated time."""

import asyncio
import hashlib
import itertools
from typing import Any

import msgspec

from tests.faults.bench.history import Recorder


class History(Recorder):
    """Keeps events in memory instead of a file. ``digest`` covers all events and all notes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events: list[dict[str, Any]] = []
        #: The number of events and notes.
        self.count = 0
        self._loop = loop
        self._prefix = "e"
        self._numbers = itertools.count()
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:32]

    def note(self, *what: object) -> None:
        """Count something below the calls of clients, such as a call of a disk."""
        self.count += 1
        self._digest.update(repr(what).encode())

    def _write(self, process: str, op: str, phase: str, number: str, fields: dict[str, Any]) -> None:
        # Events at one moment keep their order.
        t = max(round(self._loop.time() * 1e9), self.events[-1]["t"] + 1 if self.events else 0)
        event = {"t": t, "process": process, "op": op, "phase": phase, "id": number, **fields}
        self.count += 1
        self._digest.update(msgspec.json.encode(event, order="sorted"))
        self.events.append(event)

    def close(self) -> None:
        """Do nothing: there is no file to close."""
