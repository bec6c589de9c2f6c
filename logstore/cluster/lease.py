"""The lease of a broker: while it lasts, ZooKeeper cannot have ended the broker's session (C14).

ZooKeeper ends a session when its timeout has passed since the last request that the *leader* of the ensemble knows of.
The server that answers reads may have lost its leader without knowing it. So a renewal is a ``sync``, which the leader
answers, followed by an ``exists`` of the broker's own node. It proves that the leader knows of the previous renewal:
servers report requests every half tick, and a renewal comes a quarter of the timeout after the last (the shortest
timeout that ZooKeeper grants is two ticks). The lease therefore counts from the time when the last answered renewal but
one was sent. A decision (50) has the whole argument.
"""

from typing import Final

from logstore.clock import Clock

#: The share of the session timeout between two renewals.
RENEWAL: Final = 1 / 4


class Lease:
    """Invariant: only ``renewed`` extends the lease, and time for which the process was stopped counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: The time when the last answered renewal was sent.
        self._sent = 0.0
        self._until = 0.0

    def begin(self, session_began: float, session_timeout_s: float) -> None:
        """Begin the lease: the node belongs to a session whose first request was sent after ``session_began``
        (monotonic clock).
        """
        self._sent, self._until = session_began, session_began + session_timeout_s

    def renewed(self, sent: float, session_timeout_s: float) -> None:
        """Extend the lease: a renewal sent at ``sent`` was answered, and the node still has its czxid."""
        if sent - self._sent >= session_timeout_s * RENEWAL:
            self._until = max(self._until, self._sent + session_timeout_s)
            self._sent = sent

    def end(self) -> None:
        """End the lease: the session, or the node, is known to be gone."""
        self._sent = self._until = 0.0

    @property
    def has_begun(self) -> bool:
        return self._sent > 0

    @property
    def is_held(self) -> bool:
        return self._clock.monotonic() < self._until
