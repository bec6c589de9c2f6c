"""One request, retried until the response is final: which errors are retried, how often, and when.

Invariant: a request ends within its time, and at once when the producer stops.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from logstore import errors
from logstore.client.producer.delivery import Outcome
from logstore.errors import LogStoreError

T = TypeVar("T")


class RetryOptions(Protocol):
    """The options of a producer, or of another writer, that limit retries."""

    @property
    def retries(self) -> int: ...
    @property
    def retry_backoff_ms(self) -> float: ...
    @property
    def retry_backoff_max_ms(self) -> float: ...
    @property
    def request_timeout_ms(self) -> float: ...
    @property
    def delivery_timeout_ms(self) -> float: ...


class Retries:
    """The retries of one producer. Safe from several threads."""

    def __init__(self, options: RetryOptions) -> None:
        self._options = options
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Send nothing any more."""
        self._stopped.set()

    def ask(self, once: Callable[[float], T], give_up: float, outcomes: Iterable[Outcome] = ()) -> T:
        """Call ``once(timeout_s)`` until it succeeds or is refused for good, or the time (``give_up``, monotonic) or
        the retries are used up.

        ``outcomes`` wait for it, and receive the error that delays it. Raises what the last try raised, or
        RequestTimedOutError if there was none.
        """
        failed: LogStoreError | None = None
        for attempt, backoff in enumerate(self._backoffs()):
            remaining = give_up - time.monotonic()
            if self._stopped.is_set() or remaining <= 0:
                raise failed or errors.RequestTimedOutError(f"{self._too_late()}: it is not stored")
            try:
                return once(min(remaining, self._options.request_timeout_ms / 1000))
            except LogStoreError as error:
                if not error.retriable or attempt >= self._options.retries:
                    raise
                failed = error
                for outcome in outcomes:
                    outcome.last_error = error
            wait = max(backoff, failed.retry_after_s) if isinstance(failed, errors.ThrottledError) else backoff
            if time.monotonic() + wait > give_up or self._stopped.wait(wait):
                raise failed
        raise AssertionError

    def _too_late(self) -> str:
        if self._stopped.is_set():
            return "The producer was closed before this was sent"
        return f"Not sent within delivery_timeout_ms = {self._options.delivery_timeout_ms}"

    def _backoffs(self) -> Iterator[float]:
        wait, longest = self._options.retry_backoff_ms / 1000, self._options.retry_backoff_max_ms / 1000
        while True:
            # Jitter keeps many producers from retrying in the same moment.
            yield min(wait, longest) * random.uniform(0.8, 1.2)  # noqa: S311 (not a secret)
            wait *= 2


def may_be_stored(error: LogStoreError) -> bool:
    """Return True if a request that failed with ``error`` may have taken effect. After a 4xx or 503 it has not."""
    if isinstance(error, errors.StoreUnreachableError):
        return False
    unknown = (
        errors.NetworkError,
        errors.RequestTimedOutError,
        errors.NotEnoughReplicasAfterAppendError,
        errors.CommitStateUnknownError,
        errors.StorageError,
    )
    return type(error) is LogStoreError or isinstance(error, unknown)
