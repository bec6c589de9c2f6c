"""``?key=`` and ``?where=`` select records, and one answer looks at a limited number of them."""

import pyarrow as pa
import pytest

from logstore.log import log_reader, slice_reader
from tests.api.api_client import assert_error
from tests.api.test_fetch import fetch

pytestmark = pytest.mark.anyio

RECORDS = "/topics/t/partitions/0/records"
ARROW = "application/vnd.apache.arrow.stream"


async def read_all(api, **query) -> tuple[list[dict], int]:
    """Return all records that the query selects, and the number of answers that brought them."""
    found, answers, offset = [], 0, 0
    while True:
        answer = await api.get(RECORDS, params={"max_wait_ms": 0, "offset": offset, **query})
        assert answer.status_code == 200, answer.text
        found += answer.json()
        answers += 1
        offset = int(answer.headers["Logstore-Next-Offset"])
        if offset == int(answer.headers["Logstore-High-Watermark"]):
            return found, answers


@pytest.fixture(params=["tail", "history", "both"])
async def filled(api, request) -> str:
    """Append 100 records of four keys, by users 0 to 9."""
    await api.create_topic("t")
    for begin in (0, 50):
        records = [
            {"key": f"k{number % 4}", "value": {"user": number % 10, "n": number}, "timestamp": 1_000 + number}
            for number in range(begin, begin + 50)
        ]
        await api.post("/topics/t/partitions/0", json={"records": records})
        if request.param == "history" or (request.param == "both" and not begin):
            await api.post("/topics/t/roll")
    return request.param


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"key": "k3"}, lambda n: n % 4 == 3),
        ({"key": '"k3"'}, lambda n: n % 4 == 3),
        ({"where": "$.user == 7"}, lambda n: n % 10 == 7),
        ({"where": "timestamp >= 1090 or timestamp < 1002"}, lambda n: n >= 90 or n < 2),
        ({"where": 'key == "k1" and not $.n < 50'}, lambda n: n % 4 == 1 and n >= 50),
        ({"where": "$.user > 5", "key": "k0"}, lambda n: n % 4 == 0 and n % 10 > 5),
        ({"where": "$.absent == 1"}, lambda _: False),
        ({"where": "$.absent == null", "offset": 95}, lambda n: n >= 95),
    ],
)
async def test_only_the_records_that_are_meant(api, filled, query, wanted):
    answer = await api.get(RECORDS, params={"max_wait_ms": 0, **query})
    expected = [number for number in range(100) if wanted(number)]
    offset = query.get("offset", 0)
    found, _ = await read_all(api, **query) if not offset else (answer.json(), 1)
    assert [record["value"]["n"] for record in found] == expected
    assert [record["offset"] for record in found] == expected
    arrow = await api.get(RECORDS, params={"max_wait_ms": 0, **query}, headers={"Accept": ARROW})
    first = pa.ipc.open_stream(arrow.content).read_all().column("offset").to_pylist()
    assert first == expected[: len(first)]


async def test_a_full_response_continues_at_the_next_selected_record(api, filled):
    found, answers = await read_all(api, where="$.user == 3 or $.user == 4", max_bytes=100)
    assert [record["offset"] for record in found] == [n for n in range(100) if n % 10 in (3, 4)]
    assert answers > 5


async def test_an_answer_looks_at_no_more_than_its_bound(api, filled, monkeypatch):
    monkeypatch.setattr(log_reader, "SEARCHED_BYTES_MAX", 1)
    found, answers = await read_all(api, where="$.n == 99")
    assert [record["offset"] for record in found] == [99]
    assert answers >= (1 if filled == "tail" else 2)


async def test_a_row_group_without_the_key_or_the_time_is_passed_over(api, monkeypatch):
    await api.create_topic("t")
    for key in "ab":
        records = [{"key": key, "value": {"n": n}, "timestamp": 1000 * ord(key) + n} for n in range(10)]
        await api.post("/topics/t/partitions/0", json={"records": records})
        await api.post("/topics/t/roll")
    begun = []
    whole = slice_reader.row_group_batches
    monkeypatch.setattr(
        slice_reader, "row_group_batches", lambda files, name, group: begun.append(group) or whole(files, name, group)
    )
    for query in ({"key": "b"}, {"where": f"timestamp >= {1000 * ord('b')}"}, {"where": 'key == "b" and $.n >= 0'}):
        begun.clear()
        found, answers = await read_all(api, **query)
        assert [record["offset"] for record in found] == list(range(10, 20))
        assert [group.first_offset for group in begun] == [10]
        assert answers == 1


async def test_a_wait_ends_with_any_record_and_the_response_continues_after_it(api):
    await api.create_topic("t")
    await api.produce("t", [1])
    answer = await api.get(RECORDS, params={"where": "$ == 2", "max_wait_ms": 60_000})
    assert (answer.json(), answer.headers["Logstore-Next-Offset"]) == ([], "1")


async def test_an_expression_that_cannot_be_read_names_its_position(api):
    await api.create_topic("t")
    assert "Position 8 " in assert_error(await api.get(RECORDS, params={"where": "$.user = 1"}), 422, 42206)
    answer = await api.post("/fetch", json={"partitions": [{"topic": "t", "partition": 0, "offset": 0}], "where": "x"})
    assert "Position 1 " in assert_error(answer, 422, 42206)


async def test_a_fetch_of_many_partitions_has_records_that_are_meant_of_each(api):
    await api.create_topic("t", partitions=2)
    for partition in (0, 1):
        await api.produce("t", [{"n": n} for n in range(10)], partition=partition)
        await api.post("/topics/t/roll")
        await api.produce("t", [{"n": n} for n in range(10)], partition=partition)
    found = await fetch(api, ("t", 0, 0), ("t", 1, 5), where="$.n >= 8")
    values = [b'{"n":8}', b'{"n":9}']
    assert found == {0: (0, values * 2, 20), 1: (0, values * 2, 20)}
    assert await fetch(api, ("t", 0, 10), where="$.n > 9") == {0: (0, [], 20)}
