r"""Lone surrogates in JSON: ``"\ud800"`` is a text that RFC 8259 allows (section 8.2) and no decoder of msgspec takes.

A text that is passed on needs no characters for its escapes, so it is decoded with others in their place, of the same
length, and then taken from where it stands among the bytes that were sent. Only what a decoder has refused comes here.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

T = TypeVar("T")

_LENGTH: Final = len(rb"\ud800")
#: The hexadecimal digits of U+FFFD, in the place of those of a surrogate.
_DIGITS: Final = np.frombuffer(b"fffd", np.uint8)
_HIGH, _LOW = (np.isin(np.arange(256), list(letters)) for letters in (b"89abAB", b"cdefCDEF"))


def decode(decoder: msgspec.json.Decoder[T], text: bytes) -> tuple[T, bytes]:
    """``text`` decoded, and the bytes that were decoded: ``text`` itself, or ``masked``. Raises as the decoder."""
    try:
        return decoder.decode(text), text
    except msgspec.DecodeError:
        if (hidden := masked(text)) is None:
            raise
    return decoder.decode(hidden), hidden


def masked(text: bytes) -> bytes | None:
    """``text`` with U+FFFD, as an escape, for each lone surrogate; None if there is none."""
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
    """The lone surrogates in JSON texts."""
    return len(_lone(text))


def _lone(text: bytes) -> np.ndarray:
    """Where they are. Nothing is made for each escape: a body can be full of them."""
    # Without escaped backslashes, each backslash begins an escape.
    data = np.frombuffer(text.replace(rb"\\", b"__"), np.uint8)
    if len(data) < _LENGTH:
        return np.array([], np.int64)
    at = np.flatnonzero((data[: 1 - _LENGTH] == ord("\\")) & (data[1 : 2 - _LENGTH] == ord("u")))
    at = at[(data[at + 2] | 0x20) == ord("d")]
    high, low = at[_HIGH[data[at + 3]]], at[_LOW[data[at + 3]]]
    # A high one and the low one right behind it are one character.
    alone = (~np.isin(high + _LENGTH, low), ~np.isin(low - _LENGTH, high))
    return np.concatenate((high[alone[0]], low[alone[1]]))


def as_sent(raws: Iterable[msgspec.Raw], decoded: bytes, text: bytes) -> list[msgspec.Raw]:
    """Parts of ``decoded`` (of ``decode``), as they stand in ``text``."""
    begin = pa.py_buffer(decoded).address
    found = []
    for raw in raws:
        at = pa.py_buffer(raw).address - begin
        found.append(msgspec.Raw(text[at : at + len(bytes(raw))]) if bytes(raw) else raw)
    return found
