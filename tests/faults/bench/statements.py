"""Records that statements of other writers changed or deleted, and the values that each reader may be shown of them.

A record goes through states, from statement to statement. A Delta reader of a version sees the state of that version. A
reader of the store sees the state before the statement, the one after it from when it was served, and either meanwhile.
"""

from collections import defaultdict
from dataclasses import dataclass

from tests.faults.bench.history import Statement


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment of a read: between two times, or in a ``version`` of the table."""

    begin: int
    end: int
    version: int | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """A state; ``value`` None: the record is deleted. ``begin``, ``served``, ``version`` are those of its statement."""

    value: str | None
    begin: int
    served: int
    version: int | None


class Changes:
    """The records of a partition by offset, in the order of the statements."""

    def __init__(self) -> None:
        self._states: dict[int, list[_State]] = defaultdict(list)

    def add(self, statement: Statement, served: int, version: int | None) -> None:
        """Add a statement.

        Readers that ask after ``served`` are shown it. ``version`` None: it is not known whether it was done.
        """
        for offset, _, _, _, value in statement.rows:
            states = self._states[offset]
            if not states:
                states.append(_State(value, -1, -1, -1))
            states.append(_State(statement.values.get(offset), statement.t, served, version))

    def __bool__(self) -> bool:
        return bool(self._states)

    def __contains__(self, offset: int) -> bool:
        return offset in self._states

    def before(self, offset: int) -> str | None:
        """Return the value before the first statement."""
        return self._states[offset][0].value

    def values(self, offset: int) -> set[str | None]:
        """Return all values that the record ever had."""
        return {state.value for state in self._states[offset]}

    def may_be(self, offset: int, moment: Moment) -> set[str | None]:
        """Return the values that may be shown at the moment, None for a missing record."""
        found: set[str | None] = set()
        for state in self._states[offset]:
            if moment.version is not None and state.version is not None:
                sure = possible = state.version <= moment.version
            else:
                sure, possible = state.served < moment.begin, state.begin <= moment.end
            if sure:
                found.clear()
            if possible:
                found.add(state.value)
        return found

    def may_lack(self, offset: int, moment: Moment) -> bool:
        return offset in self._states and None in self.may_be(offset, moment)

    def ends_gone(self, offset: int) -> bool:
        return offset in self._states and self._states[offset][-1].value is None
