"""Kafka's numbers for errors in the responses of groups' APIs, where clients look for a coordinator, not for a
leader.
"""

from collections.abc import Mapping
from typing import Final

from logstore import errors
from logstore.errors import CoordinatorNotAvailableError, LogStoreError, NotCoordinatorError
from logstore.kafka_protocol.error_numbers import number_of

#: Kafka's ``offset.commit.timeout.ms``: clients repeat the request if a load or an append of a coordinator takes
#: longer.
GROUP_TIMEOUT_MS: Final = 5_000

# As in Kafka's GroupCoordinatorService, a failed append of the coordinator is not the client's own error.
_OTHER_NUMBERS: Final[Mapping[type[LogStoreError], int]] = {
    errors.BrokerNotReadyError: CoordinatorNotAvailableError.kafka_code,
    errors.NotControllerError: CoordinatorNotAvailableError.kafka_code,
    errors.LeaderNotAvailableError: CoordinatorNotAvailableError.kafka_code,
    errors.NotEnoughReplicasError: CoordinatorNotAvailableError.kafka_code,
    errors.NotEnoughReplicasAfterAppendError: CoordinatorNotAvailableError.kafka_code,
    errors.RequestTimedOutError: CoordinatorNotAvailableError.kafka_code,
    errors.ThrottledError: CoordinatorNotAvailableError.kafka_code,
    errors.StorageFullError: CoordinatorNotAvailableError.kafka_code,
    errors.NotLeaderOrFollowerError: NotCoordinatorError.kafka_code,
    errors.StorageError: NotCoordinatorError.kafka_code,
    errors.QuarantinedError: NotCoordinatorError.kafka_code,
}


def group_error_number(error: LogStoreError) -> int:
    """Return the number for an error that is about a group as a whole."""
    for cls in type(error).__mro__:
        if cls in _OTHER_NUMBERS:
            return _OTHER_NUMBERS[cls]
    return number_of(error)


def require_first(group: str, seen: set[str]) -> None:
    """Raise InvalidRequestError for a group that was ``seen``: a short request must not ask for one thing for ever."""
    if group in seen:
        raise errors.InvalidRequestError(f"Group {group!r} is there twice: ask for it once.")
    seen.add(group)


def require_group_name(group: str) -> None:
    """Raise InvalidGroupError for the empty name: Kafka lets such a group commit and fetch offsets, and no more."""
    if not group:
        raise errors.InvalidGroupError("The group has no name: set group.id.")
