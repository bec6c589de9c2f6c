"""Bounded inflation of compressed request bodies (``Content-Encoding``), chunk by chunk as they arrive.

A few kilobytes can inflate to gigabytes, so the bound is on the output: at most one step beyond ``max_bytes`` is ever
held (gzip: one byte; zstd: ZSTD_STEP_BYTES of input, at most 16 MiB of output, and a window of 8 MiB).
"""

import zlib
from typing import Protocol

import zstandard

from logstore.errors import InvalidRequestError, RequestTooLargeError
from logstore.limits import ZSTD_WINDOW_BYTES_MAX

# A zstd block of 4 bytes may represent 128 KiB (RFC 8878, RLE block), and the decoder returns the output of all its
# input.
ZSTD_STEP_BYTES = 512

# Bytes after the end of a stream are copied: small pieces and few streams keep that cheap.
_PIECE_BYTES = 64 * 1024
STREAMS_PER_BODY_MAX = 4_096
_GZIP_WBITS = 16 + zlib.MAX_WBITS


class Inflater:
    """Inflates one body. ``feed`` inflates a chunk; ``finish`` checks that the body is complete.

    ``encoding``: None, ``identity``, ``gzip``, ``x-gzip`` or ``zstd``; raises InvalidRequestError for another one.
    ``max_bytes`` bounds the body as sent and inflated (max.request.size).
    """

    def __init__(self, encoding: str | None, max_bytes: int) -> None:
        self._encoding = (encoding or "identity").strip().lower()
        if self._encoding != "identity" and self._encoding not in _STREAMS:
            raise InvalidRequestError(
                f"Content-Encoding {self._encoding[:40]!r} is not supported: send gzip, zstd or no encoding"
            )
        self._max_bytes = max_bytes
        self._received = 0
        self._inflated = 0
        self._stream: _Stream | None = None
        self._streams = 0

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that ``chunk`` adds to the inflated body. Raises InvalidRequestError and
        RequestTooLargeError.
        """
        self._received += len(chunk)
        self._check(self._received)
        if self._encoding == "identity":
            return chunk
        out = []
        for position in range(0, len(chunk), _PIECE_BYTES):
            piece = chunk[position : position + _PIECE_BYTES]
            while piece:
                inflated, piece = self._inflate(piece)
                out.append(inflated)
        return b"".join(out)

    def finish(self) -> bytes:
        """End the body, and return the rest, which is always empty. Raises InvalidRequestError if it was cut short."""
        if self._stream is not None and not self._stream.eof:
            raise InvalidRequestError(f"The {self._encoding} body ends too early: it was cut short on the way")
        return b""

    def _inflate(self, piece: bytes) -> tuple[bytes, bytes]:
        """Return some output, and the input that is left."""
        # A body may be several streams one after the other (RFC 1952 section 2.2, RFC 8878 section 3.1).
        if self._stream is None or self._stream.eof:
            self._streams += 1
            if self._streams > STREAMS_PER_BODY_MAX:
                raise InvalidRequestError(
                    f"The body has more than {STREAMS_PER_BODY_MAX} {self._encoding} streams in it"
                )
            self._stream = _STREAMS[self._encoding]()
        try:
            inflated, rest = self._stream.inflate(piece, self._max_bytes - self._inflated + 1)
        except (zlib.error, zstandard.ZstdError) as error:
            raise InvalidRequestError(f"The body is not valid {self._encoding}: {error}") from error
        self._inflated += len(inflated)
        self._check(self._inflated)
        return inflated, rest

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise RequestTooLargeError(
                f"The request body has more than max.request.size = {self._max_bytes} bytes: "
                "send several smaller requests"
            )


class _Stream(Protocol):
    @property
    def eof(self) -> bool: ...

    def inflate(self, chunk: bytes, max_length: int) -> tuple[bytes, bytes]:
        """Return some output (near ``max_length`` at most) and the input not used yet."""
        ...


class _Gzip:
    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj(_GZIP_WBITS)

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    def inflate(self, chunk: bytes, max_length: int) -> tuple[bytes, bytes]:
        out = self._decompressor.decompress(chunk, max_length)
        return out, self._decompressor.unused_data or self._decompressor.unconsumed_tail


class _Zstd:
    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).decompressobj()

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    def inflate(self, chunk: bytes, max_length: int) -> tuple[bytes, bytes]:
        view = memoryview(chunk)
        out = []
        inflated = position = 0
        while position < len(view) and inflated < max_length and not self.eof:
            piece = self._decompressor.decompress(view[position : position + ZSTD_STEP_BYTES])
            position += ZSTD_STEP_BYTES
            inflated += len(piece)
            out.append(piece)
        return b"".join(out), self._decompressor.unused_data + bytes(view[position:])


_STREAMS: dict[str, type[_Stream]] = {"gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd}
