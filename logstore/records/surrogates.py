r"""Lone surrogates in JSON: ``"\ud800"`` is a text that RFC 8259 allows (section 8.2) and msgspec refuses.

A text that is passed on does not need the characters of its escapes. So it is decoded with others in their place, of
the same length, and then taken from its place in the bytes that were sent. Only texts that a decoder has refused come
here.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

T = TypeVar("T")

_LENGTH: Final = len(rb"\ud800")
#: The hexadecimal digits of U+FFFD, which replace those of a surrogate.
_DIGITS: Final = np.frombuffer(b"fffd", np.uint8)
_HIGH, _LOW = (np.isin(np.arange(256), list(letters)) for letters in (b"89abAB", b"cdefCDEF"))


def decode(decoder: msgspec.json.Decoder[T], text: bytes) -> tuple[T, bytes]:
    """Decode ``text``, and return also the decoded bytes: ``text`` itself, or ``masked``. Raises the errors of the
    decoder.
    """
    try:
        return decoder.decode(text), text
    except msgspec.DecodeError:
        if (hidden := masked(text)) is None:
            raise
    return decoder.decode(hidden), hidden


def masked(text: bytes) -> bytes | None:
    """Return ``text`` with U+FFFD, as an escape, for each lone surrogate; None if it has none."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return None
    at = _lone(text)
    if not len(at):
        return None
    changed = np.frombuffer(text, np.uint8).copy()
    for digit, letter in enumerate(_DIGITS, 2):
        changed[at + digit] = letter
    return changed.tobytes()


def count(text: bytes) -> int:
    """Return the number of lone surrogates in JSON texts."""
    return len(_lone(text))


def _lone(text: bytes) -> np.ndarray:
    """Return the places of lone surrogates. Nothing is made for each escape, because a body can be full of them."""
    # Without escaped backslashes, each backslash begins an escape.
    data = np.frombuffer(text.replace(rb"\\", b"__"), np.uint8)
    if len(data) < _LENGTH:
        return np.array([], np.int64)
    at = np.flatnonzero((data[: 1 - _LENGTH] == ord("\\")) & (data[1 : 2 - _LENGTH] == ord("u")))
    at = at[(data[at + 2] | 0x20) == ord("d")]
    high, low = at[_HIGH[data[at + 3]]], at[_LOW[data[at + 3]]]
    # A high surrogate followed by a low one is one character.
    alone = (~np.isin(high + _LENGTH, low), ~np.isin(low - _LENGTH, high))
    return np.concatenate((high[alone[0]], low[alone[1]]))


def as_sent(raws: Iterable[msgspec.Raw], decoded: bytes, text: bytes) -> list[msgspec.Raw]:
    """Return parts of ``decoded`` (of ``decode``) as they are in ``text``."""
    begin = pa.py_buffer(decoded).address
    found = []
    for raw in raws:
        at = pa.py_buffer(raw).address - begin
        found.append(msgspec.Raw(text[at : at + len(bytes(raw))]) if bytes(raw) else raw)
    return found
