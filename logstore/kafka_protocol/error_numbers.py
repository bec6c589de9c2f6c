"""Kafka's numbers for errors, as its protocol has them in responses.

An error has its number on its class (``logstore.errors``). This table has the numbers for clients where the class's own
number would mean something else to them.
"""

from collections.abc import Mapping
from typing import Final

from logstore import errors
from logstore.errors import LogStoreError

NONE: Final = 0

# Clients give up at the number of the class, though the same request may succeed soon.
_OTHER_NUMBERS: Final[Mapping[type[LogStoreError], int]] = {
    # The outcome is unknown, as after a time-out.
    errors.CommitConflictError: errors.RequestTimedOutError.kafka_code,
    errors.CommitStateUnknownError: errors.RequestTimedOutError.kafka_code,
    errors.ZooKeeperUnavailableError: errors.RequestTimedOutError.kafka_code,
    # The broker starts or stops: clients look for the leader again.
    errors.BrokerNotReadyError: errors.NotLeaderOrFollowerError.kafka_code,
}


def number_of(error: Exception) -> int:
    """Return the number for a response; UNKNOWN_SERVER_ERROR for an error that is not a LogStoreError."""
    if not isinstance(error, LogStoreError):
        return LogStoreError.kafka_code
    for cls in type(error).__mro__:
        if cls in _OTHER_NUMBERS:
            return _OTHER_NUMBERS[cls]
    return error.kafka_code
