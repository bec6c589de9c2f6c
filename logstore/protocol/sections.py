"""Sections of a response: a header of fixed size, whose last field is the length of the content, and the content.

Zeros pad the content to a multiple of 8 bytes; the length does not count them.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from logstore.errors import LogStoreError

_ALIGNMENT: Final = 8


def padding(length: int) -> tuple[bytes, ...]:
    """Return the zeros after a content of ``length`` bytes; empty where none are needed."""
    zeros = -length % _ALIGNMENT
    return (bytes(zeros),) if zeros else ()


def read_sections(body: pa.Buffer, header: struct.Struct, name: str) -> Iterator[tuple[tuple[Any, ...], pa.Buffer]]:
    """Yield the header's fields without the length, and the content in place. Raises LogStoreError, which calls a
    section ``name``, if ``body`` is anything else.
    """
    at = 0
    while at < body.size:
        if body.size - at < header.size:
            raise malformed(f"{body.size - at} bytes where a {name} begins")
        *fields, length = header.unpack_from(body, at)
        at += header.size
        if not 0 <= length <= body.size - at:
            raise malformed(f"a {name} of {length} bytes where {body.size - at} are left")
        yield tuple(fields), body.slice(at, length)
        at += length + -length % _ALIGNMENT


def malformed(what: str) -> LogStoreError:
    """Return the error for bytes that do not follow this protocol."""
    return LogStoreError(f"The server is not a log store, or of another version: {what}")
