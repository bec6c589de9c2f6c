"""Error codes: the one table, for both ends, of the classes of ``logstore.errors`` and their codes.

Kafka's name and number of an error are on its class. An error code is ours, in the form of Confluent's REST Proxy:
three digits for the kind of error (its HTTP status), alone or with two more behind them.

Between brokers an error has both codes, Kafka's and ours: together they name its class.

The store looks up the code of an error. A client makes the error of that code, of the same class if the code has only
one.
"""

from collections.abc import Mapping
from typing import Final

from logstore import errors
from logstore.errors import LogStoreError, OffsetOutOfRangeError, UnreadableRecordError


def kind_of(code: int) -> int:
    """Return the first three digits of an error code: from 400 the request is to blame, from 500 the store."""
    return code if code < 1000 else code // 100


#: An error has the code of its nearest ancestor in the table. If several classes share a code, a client makes the
#: first.
ERROR_CODES: Final[dict[type[LogStoreError], int]] = {
    errors.InvalidProducerRequestError: 40003,
    errors.AuthorizationError: 40301,
    errors.UnknownTopicError: 40401,
    errors.UnknownPartitionError: 40402,
    errors.UnknownInstanceError: 40403,
    errors.UnknownGroupError: 40405,
    errors.UnknownTopicIdError: 40406,
    errors.NoReassignmentInProgressError: 40407,
    errors.UnknownErasureError: 40408,
    errors.InstanceExistsError: 40902,
    errors.IllegalStateError: 40903,
    errors.OutOfOrderSequenceError: 40911,
    errors.InvalidProducerEpochError: 40912,
    errors.DuplicateSequenceError: 40913,
    errors.UnknownMemberIdError: 40914,
    errors.IllegalGenerationError: 40915,
    errors.InconsistentGroupProtocolError: 40916,
    errors.RebalanceInProgressError: 40917,
    errors.MemberIdRequiredError: 40918,
    errors.FencedInstanceIdError: 40919,
    errors.UnreleasedInstanceIdError: 40920,
    errors.FencedMemberEpochError: 40921,
    errors.StaleMemberEpochError: 40922,
    errors.GroupMaxSizeReachedError: 40923,
    errors.NonEmptyGroupError: 40924,
    errors.ElectionNotNeededError: 40925,
    errors.RequestTooLargeError: 41301,
    errors.RecordTooLargeError: 41302,
    errors.OffsetOutOfRangeError: 41601,
    errors.InvalidInstanceConfigError: 42204,
    errors.InvalidRecordError: 42206,
    errors.InvalidRequestError: 42206,
    errors.UnreadableRecordError: 42207,
    errors.IdempotencyKeyReusedError: 42211,
    errors.InvalidSessionTimeoutError: 42212,
    errors.UnsupportedAssignorError: 42213,
    errors.InvalidRegularExpressionError: 42214,
    errors.WrongBrokerError: 42102,
    errors.ThrottledError: 42901,
    LogStoreError: 50002,
    errors.CommitStateUnknownError: 50003,
    errors.CommitConflictError: 50003,
    errors.MissingRecordsError: 50004,
    errors.BrokerNotReadyError: 50301,
    errors.StorageFullError: 50302,
    errors.QuarantinedError: 50303,
    errors.NotLeaderOrFollowerError: 50304,
    errors.CoordinatorLoadInProgressError: 50305,
    errors.CoordinatorNotAvailableError: 50306,
    errors.NotCoordinatorError: 50307,
    errors.UnstableOffsetCommitError: 50308,
    errors.LeaderNotAvailableError: 50309,
    errors.NotEnoughReplicasError: 50310,
    errors.OffsetNotAvailableError: 50311,
    errors.NotControllerError: 50312,
    errors.PreferredLeaderNotAvailableError: 50320,
    errors.EligibleLeadersNotAvailableError: 50321,
    errors.RequestTimedOutError: 50401,
    errors.NotEnoughReplicasAfterAppendError: 50402,
    # These share one code: a client knows by its request which one to make (``bad_request`` of ``error_of``).
    errors.InvalidTopicError: 40002,
    errors.TopicExistsError: 40002,
    errors.InvalidPartitionsError: 40002,
    errors.InvalidReplicationFactorError: 40002,
    errors.InvalidConfigError: 40002,
    errors.InvalidReplicaAssignmentError: 40002,
    # These have the kind alone.
    errors.UnknownClusterError: 404,
    errors.NoRecordsError: 422,
}
_BAD_REQUEST: Final = ERROR_CODES[errors.InvalidTopicError]

# These are for codes of three digits, and for codes of a newer store. Other kinds are InvalidRequestError below 500,
# else LogStoreError.
_CLASSES_BY_KIND: Final[Mapping[int, type[LogStoreError]]] = {
    404: errors.UnknownTopicError,
    413: errors.RequestTooLargeError,
    429: errors.ThrottledError,
    502: errors.NetworkError,
    503: errors.BrokerNotReadyError,
    504: errors.RequestTimedOutError,
}
# The order is reversed, so that the first class of a code overwrites the others.
_CLASSES: Final[Mapping[int, type[LogStoreError]]] = {
    code: error for error, code in reversed(ERROR_CODES.items()) if kind_of(code) != code
}


def code_of(error: LogStoreError) -> int:
    """Return the error code of ``error``."""
    return _code_of(type(error))


def _code_of(error: type[LogStoreError]) -> int:
    return next(ERROR_CODES[cls] for cls in error.__mro__ if cls in ERROR_CODES)


def _error_classes() -> list[type[LogStoreError]]:
    """Return all classes of ``logstore.errors``, in their order there."""
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, LogStoreError)]


# Brokers use both codes. The order is reversed, so that of several classes the first remains.
_BY_BOTH_CODES: Final[Mapping[tuple[int, int], type[LogStoreError]]] = {
    (cls.kafka_code, _code_of(cls)): cls for cls in reversed(_error_classes())
}
_BY_KAFKA_CODE: Final[Mapping[int, type[LogStoreError]]] = {
    cls.kafka_code: cls for cls in reversed(_error_classes()) if cls.kafka_code != LogStoreError.kafka_code
}


def error_of(
    code: int,
    message: str,
    *,
    log_start_offset: int = -1,
    high_watermark: int = -1,
    bad_request: type[LogStoreError] = errors.InvalidRequestError,
) -> LogStoreError:
    """Return the error of a response's code. The offsets (-1: unknown) are for OffsetOutOfRangeError. ``bad_request``
    is the class for the code that several share.
    """
    if code == _BAD_REQUEST:
        return bad_request(message)
    kind = kind_of(code)
    found = _CLASSES.get(code) or _CLASSES_BY_KIND.get(kind)
    if found is None:
        found = errors.InvalidRequestError if kind < 500 else LogStoreError
    return _made(found, message, log_start_offset, high_watermark)


def _made(
    error: type[LogStoreError], message: str, log_start_offset: int = -1, high_watermark: int = -1
) -> LogStoreError:
    if issubclass(error, OffsetOutOfRangeError):
        return error(message, log_start_offset=log_start_offset, high_watermark=high_watermark)
    if issubclass(error, UnreadableRecordError):
        return error(message, offset=-1)
    return error(message)


def error_of_kafka(kafka_code: int, code: int, message: str) -> LogStoreError:
    """Return the error that another broker has raised.

    It has that class if this release has one with both codes; else the first class with Kafka's code, or with ours.
    """
    found = _BY_BOTH_CODES.get((kafka_code, code)) or _BY_KAFKA_CODE.get(kafka_code)
    return error_of(code, message) if found is None else _made(found, message)
