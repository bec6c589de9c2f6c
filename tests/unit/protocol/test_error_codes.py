"""The table of errors, from both ends."""

import inspect

import pytest

from logstore import errors
from logstore.errors import LogStoreError, OffsetOutOfRangeError
from logstore.protocol.error_codes import ERROR_CODES, code_of, error_of, error_of_kafka, kind_of

#: Classes that share their code with another class, which a client creates in their place.
STANDING_FOR_OTHERS = {
    errors.CommitConflictError: errors.CommitStateUnknownError,
    errors.InvalidRequestError: errors.InvalidRecordError,
    errors.NoRecordsError: errors.InvalidRequestError,
    errors.UnknownClusterError: errors.UnknownTopicError,
}


@pytest.mark.parametrize("cls", sorted(ERROR_CODES, key=lambda cls: cls.__name__))
def test_a_client_makes_the_class_that_the_store_raised(cls: type[LogStoreError]):
    made = error_of(ERROR_CODES[cls], "what to do", bad_request=cls)
    assert (type(made), str(made)) == (STANDING_FOR_OTHERS.get(cls, cls), "what to do")


def test_an_error_without_a_code_of_its_own_has_that_of_its_nearest_ancestor():
    assert (
        code_of(errors.StorageError("")) == code_of(errors.CorruptionError("")) == code_of(LogStoreError("")) == 50002
    )
    assert code_of(errors.TopicAuthorizationError("")) == code_of(errors.AuthorizationError("")) == 40301
    assert code_of(errors.InvalidGroupError("")) == code_of(errors.InvalidRequestError("")) == 42206


def test_every_error_has_a_code_and_an_unknown_outcome_is_never_the_requests_fault():
    for _, cls in inspect.getmembers(errors, inspect.isclass):
        if issubclass(cls, LogStoreError):
            code = next(ERROR_CODES[ancestor] for ancestor in cls.__mro__ if ancestor in ERROR_CODES)
            assert 400 <= kind_of(code) < 600
    for cls in (errors.RequestTimedOutError, errors.StorageError, errors.CommitStateUnknownError, LogStoreError):
        assert kind_of(code_of(cls(""))) >= 500


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (404, errors.UnknownTopicError),
        (40499, errors.UnknownTopicError),
        (405, errors.InvalidRequestError),
        (41399, errors.RequestTooLargeError),
        (42299, errors.InvalidRequestError),
        (429, errors.ThrottledError),
        (500, LogStoreError),
        (502, errors.NetworkError),
        (50399, errors.BrokerNotReadyError),
        (504, errors.RequestTimedOutError),
    ],
)
def test_a_code_that_is_not_known_is_taken_for_its_kind(code: int, cls: type[LogStoreError]):
    assert type(error_of(code, "")) is cls


def test_offsets_that_are_not_reported_are_minus_one():
    error = error_of(code_of(OffsetOutOfRangeError("", log_start_offset=1, high_watermark=2)), "outside")
    assert isinstance(error, OffsetOutOfRangeError)
    assert (error.log_start_offset, error.high_watermark) == (-1, -1)


ALL = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, LogStoreError)]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_between_brokers_an_error_keeps_both_codes(cls: type[LogStoreError]):
    """Allow another class if it means the same to a client."""
    code = next(ERROR_CODES[ancestor] for ancestor in cls.__mro__ if ancestor in ERROR_CODES)
    made = error_of_kafka(cls.kafka_code, code, "what to do")
    assert (made.kafka_code, code_of(made), made.message) == (cls.kafka_code, code, "what to do")


def test_an_error_of_both_codes_is_of_its_own_class_and_not_of_its_parent():
    for cls in (
        errors.StorageFullError,
        errors.QuarantinedError,
        errors.StorageError,
        errors.IdempotencyKeyReusedError,
        errors.NotLeaderOrFollowerError,
        errors.UnknownTopicIdError,
        errors.MalformedMessageError,
    ):
        code = next(ERROR_CODES[ancestor] for ancestor in cls.__mro__ if ancestor in ERROR_CODES)
        assert type(error_of_kafka(cls.kafka_code, code, "")) is cls
