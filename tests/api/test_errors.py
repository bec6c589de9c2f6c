import inspect

import pytest

import ingest_api.errors
import logstore.errors
from ingest_api.errors import HttpError, http_error, log_store_error_response
from logstore.errors import LogStoreError
from logstore.journal.errors import JournalRangeFreedError
from tests.api.api_client import assert_error, running_api

pytestmark = pytest.mark.anyio


def test_an_error_without_a_line_of_its_own_has_its_ancestors():
    assert http_error(logstore.errors.InvalidRecordError("")) == HttpError(422, 42206)
    assert http_error(logstore.errors.NoRecordsError("")) == HttpError(422, 422)
    assert http_error(JournalRangeFreedError("")) == HttpError(500, 50002)
    assert http_error(ingest_api.errors.NoSuchResourceError("")) == HttpError(404, 404)


@pytest.mark.parametrize(
    "name",
    [
        name
        for module in (logstore.errors, ingest_api.errors)
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, LogStoreError)
    ],
)
def test_every_error_has_an_answer_and_unknown_outcomes_are_5xx(name):
    cls = getattr(logstore.errors, name, None) or getattr(ingest_api.errors, name)
    extra = {
        "OffsetOutOfRangeError": {"log_start_offset": 1, "high_watermark": 2},
        "UnreadableRecordError": {"offset": 1},
        "RecordDeserializationError": {"topic": "t", "partition": 0, "offset": 1},
        "MethodNotAllowedError": {"allow": "GET"},
    }
    answer = log_store_error_response(cls("what to change", **extra.get(name, {})))
    # A caller cannot be wrong about versions and epochs of a partition's state: brokers and ZooKeeper settle them.
    between_brokers = (logstore.errors.InvalidUpdateVersionError, logstore.errors.UnknownLeaderEpochError)
    of_kafkas_protocol = (logstore.errors.InvalidFetchSessionEpochError,)
    elsewhere = issubclass(cls, (logstore.errors.NetworkError, *between_brokers, *of_kafkas_protocol))
    caller_is_wrong = issubclass(cls, logstore.errors.InvalidRequestError) or (
        name.startswith(("Unknown", "Invalid")) and not elsewhere
    )
    unknown_outcome = name in {"RequestTimedOutError", "StorageError", "CommitStateUnknownError", "LogStoreError"}
    if caller_is_wrong:
        assert 400 <= answer.status_code < 500
    if unknown_outcome:
        assert answer.status_code >= 500
    assert b"what to change" in answer.body


def test_a_message_is_bounded_and_may_hold_any_text():
    answer = log_store_error_response(LogStoreError("\ud800" + "x" * 5_000))
    assert len(answer.body) < 1_100
    assert b"\\\\ud800" in answer.body


async def test_the_routers_own_errors_have_the_same_shape(api):
    await api.create_topic("t")
    assert "/openapi.json" in assert_error(await api.get("/nothing"), 404, 404)
    answer = await api.delete("/topics/t")
    assert_error(answer, 405, 405)
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    for method in ("PUT", "PATCH", "TRACE", "PROPFIND"):
        assert_error(await api.request(method, "/topics/t"), 405, 405)


async def test_a_bug_is_500_with_the_request_id_and_no_traceback(api, monkeypatch, caplog):
    def broken(**_):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(api.broker.topics.served, "all", broken)
    answer = await api.get("/topics", headers={"X-Request-Id": "find-me"})
    message = assert_error(answer, 500, 500)
    assert "find-me" in message
    assert "secret" not in message
    monkeypatch.undo()
    assert (await api.get("/topics")).status_code == 200


@pytest.mark.parametrize("error", [logstore.errors.StorageError, logstore.errors.StorageFullError])
async def test_storage_failures_of_a_produce(api, monkeypatch, error):
    await api.create_topic("t")

    async def failing(*_, **__):
        raise error("the disk said no")

    monkeypatch.setattr(api.broker.produce.batcher, "_produce", failing)
    answer = await api.post("/topics/t", json={"records": [{"value": 1}]})
    status, code = {"StorageError": (500, 50002), "StorageFullError": (503, 50302)}[error.__name__]
    assert "the disk said no" in assert_error(answer, status, code)
    assert ("Retry-After" in answer.headers) == (status == 503)


async def test_a_store_that_stops_is_not_ready_and_takes_nothing(api):
    await api.create_topic("t")
    assert (await api.get("/health/ready")).json() == {"status": "ready", "problems": []}
    api.broker.admission.close("the store is stopping")
    for answer in (await api.get("/health/ready"), await api.post("/topics/t", json={"records": [{"value": 1}]})):
        assert "stopping" in assert_error(answer, 503, 50301)
        assert answer.headers["Retry-After"] == "1"
    assert (await api.get("/health/live")).json() == {"status": "live"}
    assert (await api.get("/topics/t")).status_code == 200


async def test_a_second_store_on_one_data_directory_is_refused(tmp_path):
    async with running_api(tmp_path / "data"):
        with pytest.raises(logstore.errors.DataDirectoryError, match="Another process"):
            async with running_api(tmp_path / "data"):
                pass
    async with running_api(tmp_path / "data") as again:
        assert (await again.get("/health/ready")).status_code == 200
