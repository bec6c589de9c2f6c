"""The effects that a state machine asks its shard for. The effects of one event are atomic."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol


class Record(Protocol):
    """A record that a machine appends."""

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Return key and value."""
        ...


@dataclass(frozen=True, slots=True)
class Respond:
    """``response`` for the request with that token; a LogStoreError is raised to the caller. It is sent once the
    records beside it, and all earlier ones of the machine, are durable.
    """

    request: int
    response: Any


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """A record to append. If that fails, the shard drops the machine, and replays the log into a new one."""

    record: Record


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Send ``TimerFired(key)`` at ``at_ms``; a timer of the same key is replaced."""

    key: Hashable
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    key: Hashable


Effect = Respond | AppendRecord | ArmTimer | CancelTimer


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer of ArmTimer that is due. A machine ignores one that it has cancelled, or armed again for later."""

    key: Any
