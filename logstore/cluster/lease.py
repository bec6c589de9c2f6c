"""The lease of a broker: while it lasts, ZooKeeper cannot have ended the broker's session (C14).

ZooKeeper ends a session when its timeout has gone by since the last request that the *leader* of the ensemble was told
of. The server that answers reads may have lost its leader, and not know it yet. So a renewal is a ``sync``, which the
leader answers, with an ``exists`` of the broker's own node behind it; and it proves that the leader was told of the
renewal before it, as servers tell of requests every half tick, and a renewal comes a quarter of the timeout after the
last (the shortest timeout that ZooKeeper grants is two ticks). The lease therefore counts from when the last answered
renewal but one was sent. A decision (50) has the whole argument.
"""

from typing import Final

from logstore.clock import Clock

#: Renewals begin this part of the session timeout apart.
RENEWAL: Final = 1 / 4


class Lease:
    """Invariant: nothing but ``renewed`` lets it last longer; time that the process was stopped for counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When the last answered renewal was sent.
        self._sent = 0.0
        self._until = 0.0

    def begin(self, session_began: float, session_timeout_s: float) -> None:
        """A node was created in a session whose first request was sent after ``session_began`` (monotonic clock)."""
        self._sent, self._until = session_began, session_began + session_timeout_s

    def renewed(self, sent: float, session_timeout_s: float) -> None:
        """A renewal that was ``sent`` then was answered: the node has its czxid still."""
        if sent - self._sent >= session_timeout_s * RENEWAL:
            self._until = max(self._until, self._sent + session_timeout_s)
            self._sent = sent

    def end(self) -> None:
        """The session, or the node, is known to be gone."""
        self._sent = self._until = 0.0

    @property
    def has_begun(self) -> bool:
        return self._sent > 0

    @property
    def is_held(self) -> bool:
        return self._clock.monotonic() < self._until
