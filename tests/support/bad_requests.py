"""Requests as bytes, whole and broken, as a careless or hostile client sends them.

``BAD`` holds requests that must be refused in any context, with a 4xx and nothing stored. ``bad`` picks from it and
from the ways to cut a good request short; ``mutated`` changes bytes of a good request anywhere.
"""

import gzip
import json
import random
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import zstandard

JSON = b"application/json"
ARROW = b"application/vnd.apache.arrow.stream"
#: A size above max.request.size of the servers that get these requests.
BODY_BYTES_MAX = 1_000_000
_LARGE = 2 * BODY_BYTES_MAX


class Ending(StrEnum):
    """The client's step after it has sent a request."""

    ANSWER = "reads the answer"
    CLOSE = "closes"
    HALF_CLOSE = "closes its side, and reads on"
    RESET = "resets the connection"


@dataclass(frozen=True, slots=True)
class BadRequest:
    data: bytes
    ending: Ending = Ending.ANSWER


def head(*headers: bytes, line: bytes = b"POST /topics/t HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"Host: localhost", b"Content-Type: " + JSON, *headers, b"", b""))


def post(body: bytes, *headers: bytes, path: bytes = b"/topics/t", kind: bytes = JSON) -> bytes:
    line = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\nContent-Length: %d" % (path, kind, len(body))
    return b"\r\n".join((line, *headers, b"", body))


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n", extension: bytes = b"") -> bytes:
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return head(b"Transfer-Encoding: chunked") + framed + end


def json_body(value: str) -> bytes:
    return b'{"records":[{"value":"%b"}]}' % value.encode()


def arrow_body(value: str) -> bytes:
    batch = pa.record_batch({"value": [json.dumps(value)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


GOOD = json_body("never stored")
_BOMB = b" " * (1000 * 4096)

#: The server cannot know where the next request would begin: it answers 400 and closes the connection.
BROKEN_FRAMING = {
    # This is ApiVersions, version 0, as Kafka's clients send it first.
    "Kafka's protocol": b"\0\0\0\x0e\0\x12\0\0\0\0\0\1\0\4test",
    "unknown transfer coding": head(b"Transfer-Encoding: xchunked") + chunked(GOOD).partition(b"\r\n\r\n")[2],
    "chunked is not last": head(b"Transfer-Encoding: chunked, identity") + GOOD,
    "identity": head(b"Transfer-Encoding: identity") + GOOD,
    "identity and a length": post(GOOD, b"Transfer-Encoding: identity"),
    "chunked and a length": post(GOOD, b"Transfer-Encoding: chunked"),
    "chunked twice": head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + GOOD,
    "space before the colon": head(b"Transfer-Encoding : chunked") + b"0\r\n\r\n",
    "vertical tab": head(b"Transfer-Encoding:\x0bchunked") + b"0\r\n\r\n",
    "folded header": head(b"Transfer-Encoding:\r\n chunked") + b"0\r\n\r\n",
    "length +": head(b"Content-Length: +25") + GOOD,
    "length list": head(b"Content-Length: 25, 25") + GOOD,
    "length empty": head(b"Content-Length: ") + GOOD,
    "length twice": post(GOOD, b"Content-Length: %d" % len(GOOD)),
    "lengths conflict": post(GOOD, b"Content-Length: 3"),
    "length negative": head(b"Content-Length: -1") + GOOD,
    "length huge": head(b"Content-Length: " + b"9" * 40) + GOOD,
    "line ends without CR": post(GOOD).replace(b"\r\n", b"\n"),
    "line ends without LF": post(GOOD).replace(b"\r\n", b"\r"),
    "chunk ends without CR": chunked(GOOD).replace(GOOD + b"\r\n", GOOD + b"\n"),
    "chunk size 0x": chunked(end=b"0x2\r\n{}\r\n0\r\n\r\n"),
    "chunk size with a space": chunked(end=b"2 \r\n{}\r\n0\r\n\r\n"),
    "chunk size negative": chunked(end=b"-2\r\n{}\r\n0\r\n\r\n"),
    "chunk size 2^64": chunked(end=b"10000000000000002\r\n{}\r\n0\r\n\r\n"),
    "chunk size missing": chunked(end=b"\r\n{}\r\n0\r\n\r\n"),
    "line end in an extension": chunked(end=b"2;a\nb\r\n{}\r\n0\r\n\r\n"),
    "chunk longer than its size": chunked(end=b"2\r\n{}}\r\n0\r\n\r\n"),
    "trailer that is no header": chunked(GOOD, end=b"0\r\nno header\r\n\r\n"),
    "length in the trailer": chunked(GOOD, end=b"0\r\nContent-Length: 3\r\n\r\n"),
    "trailers without end": chunked(GOOD, end=b"0\r\n" + b"a:b\r\n" * 200_000),
    "trailer without end": chunked(GOOD, end=b"0\r\na: " + b"b" * 1_000_000),
    "extension without end": chunked(end=b"2;" + b"x" * 1_000_000),
    "extensions longer than their chunks": chunked(*[b" " * 100] * 2_000, extension=b";" + b"x" * 300),
    "chunks of one byte": chunked(*[b" "] * 200_000),
    "NUL in a header": head(b"X: a\x00b") + GOOD,
    "CR in a header": head(b"X: a\rb") + GOOD,
    "LF in a header": head(b"X: a\nb") + GOOD,
    "NUL in a header's name": head(b"X\x00: a") + GOOD,
    "no Host": b"GET /topics HTTP/1.1\r\n\r\n",
    "two Hosts": head(b"Host: y", line=b"GET /topics HTTP/1.1"),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "lower case": head(line=b"post /topics/t HTTP/1.1"),
    "unknown method": head(line=b"APPEND /topics/t HTTP/1.1"),
    "authority as target": head(line=b"GET x:80 HTTP/1.1"),
    "broken absolute target": head(line=b"GET http://:::/topics HTTP/1.1"),
    "space in the target": head(line=b"GET /topics /t HTTP/1.1"),
}
#: These are well framed, but wrong: the connection stays open.
REFUSED = {
    "no body": head(),
    "JSON cut short": post(GOOD[:-1]),
    "not JSON": post(b"nonsense"),
    "not UTF-8": post(b'{"records":[{"value":"\xff"}]}'),
    "deep": post(b'{"records":[{"value":' + b"[" * 50_000),
    "many fields": post(b'{"records":[{%b}]}' % b",".join(b'"f%d":1' % n for n in range(20_000))),
    "many empty records and a bad one": post(b'{"records":[' + b"{}," * 100_000 + b"1]}"),
    "many headers of a record": post(b'{"records":[{"headers":[' + b'{"key":"","value":""},' * 20_000 + b"1]}]}"),
    "not Arrow": post(GOOD, kind=ARROW),
    "Arrow cut short": post(arrow_body("never stored")[:-20], kind=ARROW),
    "unknown type": post(GOOD, kind=b"text/plain"),
    "unknown topic": post(GOOD, path=b"/topics/none"),
    "a name of Delta's": post(GOOD, path=b"/topics/_delta_log"),
    "unknown partition": post(GOOD, path=b"/topics/t/partitions/77"),
    "unknown path": post(GOOD, path=b"/nowhere"),
    "bad query": post(GOOD, path=b"/topics/t?acks=2"),
    "10 kB path": head(line=b"GET /%b HTTP/1.1" % (b"x" * 10_000)),
    "percent encoded": head(line=b"GET /topics/%00%0d%0aX:%201%ff%zz%2f HTTP/1.1"),
    "wrong method": head(line=b"PATCH /topics HTTP/1.1"),
    "TRACE": head(line=b"TRACE /topics HTTP/1.1"),
    "unknown path, absolute": head(line=b"GET http://x/nowhere HTTP/1.1"),
    "too large": post(b" " * _LARGE),
    "too large, in chunks": chunked(*[b" " * 100_000] * (_LARGE // 100_000)),
    "gzip that is none": post(GOOD, b"Content-Encoding: gzip"),
    "gzip bomb": post(gzip.compress(_BOMB, mtime=0), b"Content-Encoding: gzip"),
    "gzip bomb in a gzip": post(gzip.compress(gzip.compress(_BOMB, mtime=0), mtime=0), b"Content-Encoding: gzip"),
    "zstd bomb": post(zstandard.compress(_BOMB), b"Content-Encoding: zstd"),
    "gzip bomb in a zstd": post(zstandard.compress(gzip.compress(_BOMB, mtime=0)), b"Content-Encoding: zstd"),
}
BAD = BROKEN_FRAMING | REFUSED
#: Each costs client and server megabytes, so a mixture has few of them.
_HEAVY = {name for name, data in BAD.items() if len(data) > 100_000} | {"gzip bomb", "zstd bomb"}
_LIGHT = [data for name, data in BAD.items() if name not in _HEAVY]
_HEAVY_DATA = [BAD[name] for name in sorted(_HEAVY)]


def bad(rng: random.Random) -> BadRequest:
    """Pick one of all kinds: in a quarter of the cases a good request that ends too early, one in 50 a heavy one."""
    if rng.random() < 0.25:
        whole = rng.choice((post(GOOD), chunked(GOOD[:9], GOOD[9:]), post(arrow_body("never stored"), kind=ARROW)))
        return BadRequest(
            whole[: rng.randrange(len(whole))], rng.choice((Ending.CLOSE, Ending.HALF_CLOSE, Ending.RESET))
        )
    return BadRequest(rng.choice(_HEAVY_DATA if rng.random() < 0.02 else _LIGHT))


_TOKENS = (
    b"\r\n",
    b"\r",
    b"\n",
    b"\x00",
    b"\r\n\r\n",
    b" ",
    b":",
    b"0\r\n\r\n",
    b"-1",
    b"99999999999999999999",
    b"%00",
    b"\xff",
    b"HTTP/1.0",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"{",
    b'"',
    b"\\",
    b"Expect: 100-continue\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Content-Encoding: gzip\r\n",
)


def mutated(rng: random.Random, request: bytes) -> bytes:
    """Return ``request`` with one to four changes: bytes flipped, dropped, repeated, exchanged, or a token put in."""
    data = bytearray(request)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        end = min(len(data), at + rng.randint(1, 30))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end] * rng.randint(1, 3)
            case 3:
                data[at:at] = rng.choice(_TOKENS)
            case _:
                data[at] = rng.randrange(256)
        if not data:
            break
    return bytes(data)
