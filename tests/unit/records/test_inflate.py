import gzip
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRequestError, RequestTooLargeError
from logstore.limits import MIB
from logstore.records.inflate import STREAMS_PER_BODY_MAX, Inflater

_COMPRESS = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress, None: bytes}
_ENCODINGS = st.sampled_from(sorted(_COMPRESS, key=str))


def _inflate(encoding: str | None, body: bytes, max_bytes: int = MIB, chunk: int = 1 << 16) -> bytes:
    inflater = Inflater(encoding, max_bytes)
    pieces = [inflater.feed(body[position : position + chunk]) for position in range(0, len(body), chunk)]
    return b"".join([*pieces, inflater.finish()])


@given(_ENCODINGS, st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.integers(1, 400))
@settings(deadline=None)
def test_any_chunks_of_one_or_more_streams(encoding, parts, chunk):
    body = b"".join(_COMPRESS[encoding](part) for part in parts)
    assert _inflate(encoding, body, chunk=chunk) == b"".join(parts)


@pytest.mark.parametrize("encoding", ["GZIP", " x-gzip ", "zstd", "identity", "", None])
def test_names_of_encodings(encoding):
    compress = _COMPRESS.get({"GZIP": "gzip", " x-gzip ": "gzip", "zstd": "zstd"}.get(encoding or ""), bytes)
    assert _inflate(encoding, compress(b"body")) == b"body"


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "*", "x" * 10_000])
def test_other_encodings_are_refused(encoding):
    with pytest.raises(InvalidRequestError, match="send gzip, zstd or no encoding"):
        Inflater(encoding, MIB)


@pytest.mark.parametrize("encoding", ["gzip", "zstd", None])
def test_the_limit_is_exact(encoding):
    data = bytes(range(256)) * 40
    assert _inflate(encoding, _COMPRESS[encoding](data), max_bytes=len(data)) == data
    with pytest.raises(RequestTooLargeError, match=r"max\.request\.size = 10239"):
        _inflate(encoding, _COMPRESS[encoding](data), max_bytes=len(data) - 1)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("chunk", [1 << 16, 1 << 30])
def test_a_bomb_never_inflates(encoding, chunk):
    compressor = zlib.compressobj(9, wbits=31) if encoding == "gzip" else zstandard.ZstdCompressor().compressobj()
    body = b"".join([*(compressor.compress(bytes(MIB)) for _ in range(96)), compressor.flush()])
    assert len(body) < MIB
    tracemalloc.start()
    with pytest.raises(RequestTooLargeError):
        _inflate(encoding, body, chunk=chunk)
    # This covers the body, the inflated part and its copy, and one step of zstd (16 MiB). The memory of zstd is its
    # window, at most 8 MiB.
    assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_every_truncation_is_refused(encoding):
    body = _COMPRESS[encoding](b"some body to be cut short, some body")
    for length in range(1, len(body)):
        with pytest.raises(InvalidRequestError, match="cut short"):
            _inflate(encoding, body[:length])


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("tail", [b"garbage, and quite some of it", b"{}", b"\0" * 20])
def test_garbage_after_the_end_is_refused(encoding, tail):
    with pytest.raises(InvalidRequestError):
        _inflate(encoding, _COMPRESS[encoding](b"body") + tail)


@given(st.sampled_from(["gzip", "zstd"]), st.binary(max_size=60), st.booleans())
@settings(deadline=None)
def test_other_bytes_give_the_named_errors(encoding, noise, with_magic):
    body = _COMPRESS[encoding](b"x" * 100)[:10] * with_magic + noise
    try:
        _inflate(encoding, body)
    except (InvalidRequestError, RequestTooLargeError):
        return
    assert not body


def test_a_window_beyond_the_rfc_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=24, compression_level=3)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = compressor.compress(b"x" * 1_000) + compressor.flush()
    with pytest.raises(InvalidRequestError, match="not valid zstd"):
        _inflate("zstd", body)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_streams_in_a_body_are_bounded(encoding):
    empty = _COMPRESS[encoding](b"")
    assert _inflate(encoding, empty * STREAMS_PER_BODY_MAX) == b""
    with pytest.raises(InvalidRequestError, match="streams"):
        _inflate(encoding, empty * (STREAMS_PER_BODY_MAX + 1))
