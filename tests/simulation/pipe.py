"""One direction of a connection in the simulated world: messages arrive in order, after delays by the seed."""

import random
from collections import deque
from collections.abc import Callable
from contextvars import Context

from tests.simulation.loop import SimulatedLoop

#: The mean delay of a message in seconds; rarely one takes up to ``_LATE_S`` longer.
_USUAL_S = 0.0003
_LATE_S = 0.4
_LATE = 0.002
#: After a cut is healed, lost messages are sent again within this many seconds, as TCP does.
_SENT_AGAIN_S = 0.4


class Pipe:
    """One direction of a connection. ``context`` is the receiver's.

    While ``is_cut`` returns True nothing arrives; call ``resume`` when the cut is over.
    """

    def __init__(self, loop: SimulatedLoop, rng: random.Random, is_cut: Callable[[], bool], context: Context) -> None:
        self._loop, self._rng, self._is_cut, self._context = loop, rng, is_cut, context
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._is_due = False
        self._is_closed = False

    def send(self, arrive: Callable[[], None], *, late_s: float = 0.0) -> None:
        """Call ``arrive`` when the message arrives, up to ``late_s`` later than usual."""
        if self._is_closed:
            return
        takes = self._rng.expovariate(1 / _USUAL_S) + (self._rng.uniform(0, late_s) if late_s else 0.0)
        if self._rng.random() < _LATE:
            takes += self._rng.uniform(0, _LATE_S)
        self._waiting.append((self._loop.time() + takes, arrive))
        self._wait()

    def resume(self) -> None:
        """Let the messages arrive that waited for the end of a cut."""
        if self._waiting and not self._is_due:
            when, arrive = self._waiting[0]
            again = self._loop.time() + self._rng.uniform(0, _SENT_AGAIN_S)
            self._waiting[0] = (max(when, again), arrive)
            self._wait()

    def lose_rest(self) -> None:
        """Lose a random number of the newest messages in flight."""
        for _ in range(self._rng.randint(0, len(self._waiting))):
            self._waiting.pop()

    def close(self) -> None:
        """Lose all messages in flight and all later ones."""
        self._is_closed = True
        self._waiting.clear()

    def _wait(self) -> None:
        if not self._is_due and self._waiting:
            self._is_due = True
            self._loop.call_at(max(self._waiting[0][0], self._loop.time()), self._arrive, context=self._context)

    def _arrive(self) -> None:
        self._is_due = False
        if not self._waiting or self._is_cut():
            return
        when, arrive = self._waiting[0]
        if when > self._loop.time():  # the timer was set for a message that was lost meanwhile
            self._wait()
            return
        self._waiting.popleft()
        self._wait()
        arrive()
