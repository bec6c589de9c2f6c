"""The Outbox gathers the effects of an event of a group."""

from consumer_offsets.effects import AppendRecord, ArmTimer, CancelTimer, Effect, Respond
from consumer_offsets.groups.group_record import GroupRecord, Tombstone
from consumer_offsets.groups.responses import Response


class Outbox:
    """The effects of the present event, and the timers that are armed. One event appends at most one record: the last
    one is the state.
    """

    def __init__(self) -> None:
        self.deadlines: dict[str, int] = {}
        self._effects: list[Effect] = []
        self._record: GroupRecord | Tombstone | None = None

    def take(self) -> list[Effect]:
        """Return the effects since the last call, with a record before all others."""
        effects, self._effects = self._effects, []
        if self._record is not None:
            effects.insert(0, AppendRecord(self._record))
            self._record = None
        return effects

    def answer(self, request: int, response: Response) -> None:
        self._effects.append(Respond(request, response))

    def append(self, record: GroupRecord | Tombstone) -> None:
        self._record = record

    def arm(self, key: str, at_ms: int) -> None:
        if self.deadlines.get(key) != at_ms:
            self.deadlines[key] = at_ms
            self._effects.append(ArmTimer(key, at_ms))

    def arm_if_absent(self, key: str, at_ms: int) -> None:
        if key not in self.deadlines:
            self.arm(key, at_ms)

    def cancel(self, key: str) -> None:
        if self.deadlines.pop(key, None) is not None:
            self._effects.append(CancelTimer(key))

    def cancel_all(self) -> None:
        for key in list(self.deadlines):
            self.cancel(key)

    def is_due(self, key: str, now_ms: int) -> bool:
        """Return whether the timer that fired is armed and due, and disarm it then. If it fired early, it is armed
        again.
        """
        deadline = self.deadlines.get(key)
        if deadline is None:
            return False
        if deadline > now_ms:
            self._effects.append(ArmTimer(key, deadline))
            return False
        del self.deadlines[key]
        return True
