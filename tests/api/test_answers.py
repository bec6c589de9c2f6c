import asyncio
from typing import Any

from ingest_api.answers import RecordsResponse
from logstore.broker.admission import InFlightBytes


def test_large_pieces_are_sent_as_they_are_and_reserved_until_they_are_taken() -> None:
    in_flight = InFlightBytes(10**9, what="answers", setting="s")
    large = memoryview(bytes(3_000_000))
    pieces = [b"a" * 100, large, b"b" * 10, b"c" * 20, large]
    sent: list[tuple[Any, bool, int]] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append((message["body"], message.get("more_body", False), in_flight.reserved))

    async def receive() -> Any:
        raise AssertionError

    size = sum(map(len, pieces))
    response = RecordsResponse(pieces, in_flight.reserve(size), media_type="x/y", headers={})
    asyncio.run(response({"type": "http"}, receive, send))
    assert b"".join(body for body, _, _ in sent) == b"".join(pieces)
    assert [body is large for body, _, _ in sent] == [False, True, False, True, False]
    # The server sends a piece after the previous ones are taken. The last piece is small; otherwise nothing would wait
    # for it.
    assert [more for _, more, _ in sent] == [True, True, True, True, False]
    assert len(sent[-1][0]) < 1_000
    assert {reserved for _, _, reserved in sent} == {size}
    assert in_flight.reserved == 0
