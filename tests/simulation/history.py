"""The history of a simulated run, in the terms of the fault bench's checker; ``t`` is the simulated time."""

import asyncio
import hashlib
import itertools
import json
from typing import Any


class History:
    """``Recorder``'s calls (``tests.faults.bench.history``), kept in memory. ``digest`` is of all of them, and of
    what is noted beside them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events: list[dict[str, Any]] = []
        #: Of all that happened.
        self.count = 0
        self._loop = loop
        self._numbers = itertools.count()
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:32]

    def note(self, *what: object) -> None:
        """Something below the calls, such as a call of a disk: it counts in the digest."""
        self.count += 1
        self._digest.update(repr(what).encode())

    def invoke(self, process: str, op: str, **fields: Any) -> str:
        """Before the request is sent. Gives the id of the call, for its completion."""
        return self.tell(process, op, "invoke", **fields)

    def complete(self, number: str, process: str, op: str, phase: str, **fields: Any) -> None:
        """After the outcome is known."""
        self._write(process, op, phase, number, fields)

    def tell(self, process: str, op: str, phase: str = "ok", **fields: Any) -> str:
        number = f"e{next(self._numbers)}"
        self._write(process, op, phase, number, fields)
        return number

    def _write(self, process: str, op: str, phase: str, number: str, fields: dict[str, Any]) -> None:
        # Events of one moment keep their order.
        t = max(round(self._loop.time() * 1e9), self.events[-1]["t"] + 1 if self.events else 0)
        event = {"t": t, "process": process, "op": op, "phase": phase, "id": number, **fields}
        self.note(json.dumps(event, sort_keys=True))
        self.events.append(event)
