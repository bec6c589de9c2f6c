"""Bad input at a real socket: a defined answer, nothing stored unless it is acknowledged or in doubt, nobody hindered.

``tests/api`` tests the content of requests; these tests send bytes that are broken, cut, slow, or too many at once.
``LOGSTORE_TORTURE=1`` makes the bounded tests long.
"""

import asyncio
import contextlib
import itertools
import random
import resource
from collections.abc import Callable, Iterator

import pytest

from tests.support.bad_requests import (
    ARROW,
    BODY_BYTES_MAX,
    BROKEN_FRAMING,
    GOOD,
    REFUSED,
    BadRequest,
    Ending,
    arrow_body,
    bad,
    chunked,
    head,
    json_body,
    mutated,
    post,
)
from tests.support.eventually import eventually
from tests.support.history import Request
from tests.support.raw_client import RawClient
from tests.support.torture import TORTURE
from tests.support.watched_server import WatchedServer, acknowledge

pytestmark = pytest.mark.system

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module", autouse=True)
def many_files() -> Iterator[None]:
    """Allow as many sockets as this machine does, in this process and in the servers that it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 2**16) if before[1] > 0 else 2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, many_files: None) -> Iterator[WatchedServer]:
    data = tmp_path_factory.mktemp("sockets") / "data"
    with WatchedServer(data, max_request_size=BODY_BYTES_MAX, max_connections=15_000) as running:
        running.create_topic("fuzzed")
        yield running


def each(count: int, concurrency: int, one: Callable[[int], "asyncio.Future[None]"]) -> None:
    """Run ``one(0)`` to ``one(count - 1)``, at most ``concurrency`` of them at once."""

    async def worker(numbers: Iterator[int]) -> None:
        for number in numbers:
            await one(number)

    async def run() -> None:
        numbers = iter(range(count))
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker(numbers))

    asyncio.run(run())


# ---- broken, and odd ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BROKEN_FRAMING)
def test_broken_framing_is_400_and_the_end_of_the_connection(server, name):
    before = server.end_offset()

    async def run() -> None:
        async with server.connected() as client:
            await client.send(GET)
            assert (await client.answer()).status == 200
            # A good request is smuggled in behind the broken one.
            await client.send(BROKEN_FRAMING[name] + post(GOOD))
            answer = await client.answer()
            assert answer.status == 400
            assert answer.headers["connection"] == "close"
            assert await client.rest() == b""

    asyncio.run(run())
    assert server.end_offset() == before


@pytest.mark.parametrize("name", REFUSED)
def test_well_framed_but_wrong_is_4xx_and_the_connection_continues(server, name):
    before = server.end_offset()

    async def run() -> None:
        async with server.connected() as client:
            await client.send(REFUSED[name] + GET)
            assert 400 <= (await client.answer()).status < 500
            assert (await client.answer()).status == 200

    asyncio.run(run())
    assert server.end_offset() == before


def good(value: str) -> dict[str, tuple[bytes, bool]]:
    """Return odd but correct requests, each with whether the connection stays open."""
    body = json_body(value)
    return {
        "trailers": (chunked(body, end=b"0\r\nX: y\r\nContent-Type: text/plain\r\n\r\n"), True),
        "chunk extensions": (chunked(body, extension=b';a=b;c="d\\"e"', end=b"0;x\r\n\r\n"), True),
        "zeros before a chunk size": (chunked(end=b"%025x\r\n%b\r\n0\r\n\r\n" % (len(body), body)), True),
        "zeros before the length": (post(body).replace(b"Length: ", b"Length: 000"), True),
        "empty lines before": (b"\r\n\r\n" + post(body), True),
        "absolute target": (post(body, path=b"http://elsewhere/topics/t"), True),
        "percent-encoded path": (post(body, path=b"/%74opics/%74"), True),
        "HTTP/1.0": (post(body).replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        "HTTP/1.0 without Host": (post(body).replace(b"HTTP/1.1\r\nHost: localhost", b"HTTP/1.0"), False),
        "asks to close": (post(body, b"Connection: close"), False),
    }


@pytest.mark.parametrize("name", good(""))
def test_odd_requests_are_stored_once(server, name):
    request = server.request()
    data, goes_on = good(request.values[0])[name]

    async def run() -> None:
        async with server.connected() as client:
            await client.send(data + GET)
            acknowledge(request, await client.answer())
            assert request.outcome == "ok"
            following = await client.answer()
            assert (following is not None) == goes_on

    asyncio.run(run())
    server.check()


def test_the_end_of_a_large_body_is_no_part_of_the_next_head(server):
    """Send both in one read, whose size says nothing about the head."""

    async def run() -> None:
        async with server.connected() as client:
            for _ in range(20):
                await client.send(post(json_body("x" * 900_000), path=b"/topics/none") + GET[:10])
                assert (await client.answer()).status == 404
                await client.send(GET[10:])
                assert (await client.answer()).status == 200

    asyncio.run(run())


@pytest.mark.parametrize("upgrade", [b"", b"Connection: upgrade\r\nUpgrade: h2c\r\n"])
def test_no_more_than_100_requests_of_a_connection_wait(server, upgrade):
    """Check the bound: otherwise one read of 256 KiB would make 14,000 requests, and nest offers to upgrade."""

    async def run() -> None:
        async with server.connected() as client:
            line = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
            await client.send((line + upgrade + b"\r\n") * 5_000)
            statuses = [200]
            while statuses[-1] == 200:
                statuses.append((await client.answer()).status)
            assert 101 <= len(statuses) - 1 < 5_000
            assert statuses[-1] == 429
            assert await client.rest() == b""

    asyncio.run(run())
    server.check()


def test_a_refusal_is_not_cut_into_an_answer_that_is_under_way(server):
    async def run() -> None:
        async with server.connected() as client:
            for _ in range(8):
                await client.send(post(json_body("x" * 900_000), path=b"/topics/fuzzed"))
                assert (await client.answer()).status == 200
        async with server.connected(receive_bytes=4096) as client:
            # The body of this request is still incomplete while it is answered.
            line = b"GET /topics/fuzzed/partitions/0/records?offset=0&max_bytes=20000000 HTTP/1.1"
            await client.send(head(b"Transfer-Encoding: chunked", line=line))
            reader = client._reader
            beginning = await reader.readuntil(b"\r\n\r\n")
            assert beginning.startswith(b"HTTP/1.1 200")
            await client.send(b"nonsense\r\n\r\n")
            size = int(beginning.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert size > 7_000_000
            assert b"HTTP/1.1" not in await reader.readexactly(size)
            assert (await client.answer()).status == 400

    asyncio.run(run())


# ---- cut ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda value: post(json_body(value)),
        lambda value: post(arrow_body(value), kind=ARROW),
        lambda value: chunked(json_body(value)[:9], json_body(value)[9:], end=b"0\r\nX: y\r\n\r\n"),
        lambda value: post(json_body(value), b"Expect: 100-continue"),
    ],
    ids=["JSON", "Arrow", "chunks", "100-continue"],
)
def test_a_request_cut_at_each_byte_is_not_stored(server, make):
    before = server.end_offset()
    request = server.request("cut ")
    request.outcome = "fail"
    data = make(request.values[0])
    endings = (Ending.CLOSE, Ending.HALF_CLOSE, Ending.RESET)
    cuts = [(at, ending) for at in range(len(data)) for ending in endings]
    if len(data) > 400 and not TORTURE:
        cuts = [(at, endings[at % 3]) for at in range(len(data))]

    async def one(number: int) -> None:
        at, ending = cuts[number]
        async with server.connected() as client:
            await client.send(data[:at])
            await end(client, ending)

    each(len(cuts), 20, one)
    server.settled()
    assert server.end_offset() == before
    server.check()


async def end(client: RawClient, ending: Ending) -> None:
    match ending:
        case Ending.CLOSE:
            client.close()
        case Ending.RESET:
            client.reset()
        case Ending.HALF_CLOSE:
            client.half_close()
            found = await client.rest()
            assert found.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"") == b""


def test_a_request_cut_after_its_body_is_stored_once_or_not_at_all(server):
    """Cut the request at any moment up to the last byte of the answer."""
    rng = random.Random(5)

    async def one(number: int) -> None:
        request = server.request("left ")
        body = (json_body if number % 2 else arrow_body)(request.values[0])
        async with server.connected() as client:
            await client.send(post(body, kind=JSON_OR_ARROW[number % 2]))
            match number % 3:
                case 0:
                    await asyncio.sleep(rng.random() * 0.01)
                case 1:
                    await client._reader.read(rng.randrange(1, 200))
                case _:
                    pass
            await end_after_body(client, rng.choice((Ending.CLOSE, Ending.HALF_CLOSE, Ending.RESET)), request)

    each(10_000 if TORTURE else 600, 20, one)
    server.settled()
    server.check()


JSON_OR_ARROW = (ARROW, b"application/json")


async def end_after_body(client: RawClient, ending: Ending, request: Request) -> None:
    if ending is Ending.HALF_CLOSE:
        client.half_close()
        found = await client.rest()
        assert b"HTTP/1.1 4" not in found
        assert b"HTTP/1.1 5" not in found
        assert found.endswith(b"}"), "the answer, or what was not read of it"
    else:
        await end(client, ending)


def test_requests_before_a_cut_request_are_answered(server):
    requests = [server.request("before ") for _ in range(2)]

    async def run() -> None:
        async with server.connected() as client:
            whole = b"".join(post(json_body(request.values[0])) for request in requests)
            await client.send(whole + post(GOOD)[:-5])
            for request in requests:
                acknowledge(request, await client.answer())
            client.half_close()
            assert await client.rest() == b""

    asyncio.run(run())
    assert [request.outcome for request in requests] == ["ok", "ok"]
    server.check()


# ---- many -----------------------------------------------------------------------------------------------------------

# A leak grows with every lot; the memory of a roll or the allocator grows with one lot only.
LOTS, LOT = 4, 33_000 if TORTURE else 1_000
BYTES_LEFT_MAX = 1_500
GROWTH_BYTES_MAX = 30 * 2**20
# Thread pools grow as needed, up to a bound.
GROWTH_THREADS_MAX = 8


def test_thousands_of_bad_requests_leave_nothing_behind(server):
    """Send all kinds, mixed, over kept connections and new ones, with good requests in between."""
    send_bad(server, LOT, seed=0)
    before = server.settled()
    stored = server.end_offset()
    sent = len(server.history.requests)
    resident = [before.rss_bytes]
    for lot in range(LOTS):
        send_bad(server, LOT, seed=1 + lot)
        resident.append(server.settled().rss_bytes)
    after = server.settled()
    growth = [later - earlier for earlier, later in itertools.pairwise(resident)]
    assert sum(growth) - max(growth) < (LOTS - 1) * LOT * BYTES_LEFT_MAX, resident
    eventually(lambda: server.resources().files <= before.files, "descriptors are left open")
    assert after.threads <= before.threads + GROWTH_THREADS_MAX
    assert server.end_offset() - stored == len(server.history.requests) - sent, "good ones, and no others"
    server.check()


def send_bad(server: WatchedServer, count: int, *, seed: int) -> None:
    rng = random.Random(seed)

    async def one(_: int) -> None:
        """Live a connection's life: a few requests, until one of them ends it."""
        async with server.connected() as client:
            for _ in range(rng.randint(1, 15)):
                request = bad(rng)
                if not await refused(client, request):
                    return
            assert (await server.produce(client)).status == 200

    async def refused(client: RawClient, request: BadRequest) -> bool:
        nonlocal done
        done += 1
        await client.send(request.data)
        if request.ending is not Ending.ANSWER:
            await end(client, request.ending)
            return False
        answer = await client.answer()
        assert answer is not None, request.data[:200]
        assert 400 <= answer.status < 500, answer
        return answer.headers.get("connection") != "close"

    done = 0
    while done < count:
        each(100, 16, one)


def test_mutated_requests_are_answered_and_stored_as_answered(server):
    """Check that a request answered 200 is stored once, a refused one never, and an unanswered one at most once."""
    seed = random.randrange(2**32) if TORTURE else 6
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = server.end_offset("fuzzed")
    path = b"/topics/fuzzed/partitions/0"
    valid = [
        post(json_body("fuzz"), path=path),
        post(arrow_body("fuzz"), path=path, kind=ARROW),
        post(b"fuzz\nfuzz\n", path=path, kind=b"application/x-ndjson"),
        chunked(json_body("fuzz")).replace(b"/topics/t", path),
    ]
    acknowledged: list[int] = []
    in_doubt = 0

    async def one(_: int) -> None:
        nonlocal in_doubt
        async with server.connected() as client:
            await client.send(mutated(rng, rng.choice(valid)))
            answered = False
            try:
                # The mutated head may announce a longer body than was sent, and then no answer comes.
                async with asyncio.timeout(0.05):
                    while (answer := await client.answer()) is not None and answer.status != 100:
                        if answer.status == 200:
                            found = answer.json
                            if "offsets" in found:
                                acknowledged.extend(row["offset"] for row in found["offsets"])
                            elif "ranges" in found:
                                (stored,) = found["ranges"]
                                offset = stored["base_offset"]
                                acknowledged.extend(range(offset, offset + stored["count"]))
                        answered = True
            except TimeoutError:
                pass
            if not answered:
                # The request in doubt has at most the two lines of the third, or a few times its lines.
                in_doubt += 20

    each(200_000 if TORTURE else 1_500, 16, one)
    server.settled()
    assert len(set(acknowledged)) == len(acknowledged)
    stored = server.end_offset("fuzzed") - before
    assert len(acknowledged) <= stored <= len(acknowledged) + in_doubt
    assert acknowledged
    server.check()


@pytest.mark.long
def test_idle_connections_do_not_hinder_producers(server):
    """Open connections of which half have sent nothing, and half had an answer before."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000 if TORTURE else 2_000, soft * 3 // 4 - 300)
    before = server.settled()

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for number in range(count):
                client = await stack.enter_async_context(server.connected())
                if number % 2:
                    await client.send(GET)
                    assert (await client.answer()).status == 200
            async with server.connected() as producer:
                for _ in range(100):
                    assert (await server.produce(producer)).status == 200
            during = server.resources()
            assert during.files >= before.files + count
            assert during.rss_bytes - before.rss_bytes < GROWTH_BYTES_MAX + 20_000 * count

    asyncio.run(run())
    after = server.settled()
    # A roll may have a file open just then.
    eventually(lambda: server.resources().files <= before.files, "descriptors are left")
    assert after.threads <= before.threads + GROWTH_THREADS_MAX
    server.check()
