"""Frames in a stream, however it is cut; their size limit, and the memory of a connection."""

import random
import resource
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import MalformedMessageError
from logstore.kafka_protocol.frame_reader import FrameReader
from logstore.limits import KIB, MIB


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def frames_of(reader: FrameReader, stream: bytes, pieces: list[int]) -> list[bytes | memoryview]:
    """Return the frames of a stream that arrives in pieces of these sizes; after them, in pieces as large as fit."""
    frames: list[bytes | memoryview] = []
    at = 0
    while at < len(stream):
        buffer = reader.buffer()
        assert len(buffer) > 0
        size = min(len(buffer), len(stream) - at, pieces.pop(0) if pieces else len(stream))
        buffer[:size] = stream[at : at + size]
        # An event loop holds the buffer like this, until it has the next one.
        reader.received(size)
        at += size
        while (frame := reader.next_frame()) is not None:
            frames.append(frame)
    return frames


SIZES = st.one_of(st.integers(0, 40), st.sampled_from([4095, 4096, 4097, 65_531, 65_532, 65_533, 70_000, 200_000]))


@given(
    sizes=st.lists(SIZES, max_size=12), pieces=st.lists(st.integers(1, 70_000), max_size=30), seed=st.integers(0, 99)
)
def test_the_frames_are_those_of_the_stream_however_it_arrives(sizes: list[int], pieces: list[int], seed: int):
    payloads = [random.Random(f"{seed} {number}").randbytes(size) for number, size in enumerate(sizes)]
    frames = frames_of(FrameReader(MIB), b"".join(map(framed, payloads)), pieces)
    assert [bytes(frame) for frame in frames] == payloads


@pytest.mark.parametrize("size", range(65_524, 65_538))
def test_a_length_may_begin_in_the_last_bytes_of_a_buffer(size: int):
    stream = framed(bytes(size)) + framed(b"next") + framed(b"last")
    frames = frames_of(FrameReader(MIB), stream, [])
    assert [bytes(frame) for frame in frames] == [bytes(size), b"next", b"last"]


def test_a_frame_may_arrive_byte_by_byte():
    stream = framed(b"first") + framed(b"") + framed(b"third")
    assert frames_of(FrameReader(100), stream, [1] * len(stream)) == [b"first", b"", b"third"]


def test_frames_that_were_taken_stay_as_they_are():
    """Keep frames while more arrive: buffers are not used again while frames are slices of them."""
    reader = FrameReader(MIB)
    payloads = [random.Random(number).randbytes(20_000) for number in range(40)]
    frames = frames_of(reader, b"".join(map(framed, payloads)), [])
    assert [bytes(frame) for frame in frames] == payloads


def test_a_long_frame_is_received_where_it_stays():
    reader = FrameReader(MIB)
    begin = framed(bytes(200_000))[:100]
    buffer = reader.buffer()
    buffer[:100] = begin
    reader.received(100)
    assert reader.next_frame() is None
    rest = reader.buffer()
    assert len(rest) == 200_000 - 96
    rest[:] = b"x" * len(rest)
    reader.received(len(rest))
    frame = reader.next_frame()
    assert isinstance(frame, memoryview)
    rest[-1] = ord("y")
    assert frame[-1] == ord("y")


def test_a_short_frame_keeps_no_larger_buffer():
    (short, longer) = frames_of(FrameReader(MIB), framed(bytes(4096)) + framed(bytes(4097)), [])
    assert isinstance(short, bytes)
    assert isinstance(longer, memoryview)


@pytest.mark.parametrize("size", [101, 0x7FFFFFFF])
def test_a_frame_above_the_bound_is_refused_before_it_arrives(size: int):
    reader = FrameReader(100)
    reader.buffer()[:4] = size.to_bytes(4, "big")
    reader.received(4)
    with pytest.raises(MalformedMessageError, match=f"A frame of {size} bytes is too long; 100 are allowed"):
        reader.next_frame()


def test_a_negative_length_is_refused():
    reader = FrameReader(100)
    reader.buffer()[:4] = b"\xff\xff\xff\xff"
    reader.received(4)
    with pytest.raises(MalformedMessageError, match="says that it has -1 bytes"):
        reader.next_frame()


def test_another_bound_holds_from_the_next_frame_on():
    reader = FrameReader(10)
    stream = framed(b"hello") + framed(bytes(50))
    reader.buffer()[: len(stream)] = stream
    reader.received(len(stream))
    assert reader.next_frame() == b"hello"
    reader.size_max = 50
    assert reader.next_frame() == bytes(50)


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /topics/a HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP"),
        (bytes.fromhex("160301020001"), "TLS"),
    ],
)
def test_another_protocol_is_reported_by_name(first: bytes, protocol: str):
    reader = FrameReader(100 * MIB)
    reader.buffer()[: len(first)] = first
    reader.received(len(first))
    with pytest.raises(MalformedMessageError, match=f"The first bytes are those of {protocol}"):
        reader.next_frame()


def test_a_connection_without_bytes_on_their_way_holds_no_buffer():
    tracemalloc.start()
    readers = [FrameReader(MIB) for _ in range(200)]
    for reader in readers:
        assert [bytes(frame) for frame in frames_of(reader, framed(b"a request"), [])] == [b"a request"]
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 200 * KIB
    assert peak < MIB


def test_a_long_frame_takes_memory_as_it_arrives():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    readers = [FrameReader(100 * MIB) for _ in range(20)]
    before = resident()
    for reader in readers:
        reader.buffer()[:4] = (100 * MIB).to_bytes(4, "big")
        reader.received(4)
        assert reader.next_frame() is None
        assert len(reader.buffer()) == 100 * MIB
    assert resident() - before < 100 * MIB
