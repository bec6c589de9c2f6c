"""Records as text: lines of values, JSON objects, and templates like kcat's.

Each encoder takes a batch and returns the bytes of its records, each with its line end.
"""

import base64
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from logstore.client.consumer.records import FetchedBatch, Record

LineEncoder = Callable[["FetchedBatch"], bytes]

_PART = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|[^%\\]+", re.DOTALL)
_LINE_END = re.compile(rb"[\r\n]")
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_JSON_TEXT = msgspec.json.Decoder(msgspec.Raw)
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_JSON_BEGINS = tuple(b"%c" % character for character in b'{["-0123456789tfn')


def value_lines(fetched: "FetchedBatch") -> bytes:
    """Return the values; ``null`` for a tombstone."""
    values = fetched.batch.column("value").to_pylist()
    return b"".join([(b"null" if value is None else value) + b"\n" for value in values])


def key_value_lines(fetched: "FetchedBatch") -> bytes:
    """Return lines of key, TAB, value."""
    columns = (fetched.batch.column(name).to_pylist() for name in ("key", "value"))
    lines = [
        b"%b\t%b\n" % (b"null" if key is None else key, b"null" if value is None else value)
        for key, value in zip(*columns, strict=True)
    ]
    return b"".join(lines)


def json_lines(fetched: "FetchedBatch", *, string_keys: bool = False) -> bytes:
    """Return an object per line; key and value as JSON if they are JSON, see ``_object``."""
    encode = msgspec.json.Encoder().encode_lines
    return encode([_object(record, string_keys=string_keys) for record in fetched.records()])


def record_lines(fetched: "FetchedBatch", *, string_keys: bool = False) -> bytes:
    """Return ``json_lines`` without a loss: a key or value whose bytes a JSON field would not keep becomes text."""
    encode = msgspec.json.Encoder().encode_lines
    return encode([_object(record, string_keys=string_keys, is_exact=True) for record in fetched.records()])


def pretty_lines(fetched: "FetchedBatch", *, string_keys: bool = False) -> bytes:
    """Return the same objects, each over several lines."""
    encode = msgspec.json.Encoder().encode
    objects = (encode(_object(record, string_keys=string_keys)) for record in fetched.records())
    return b"".join(_pretty(encoded) + b"\n" for encoded in objects)


def _pretty(text: bytes) -> bytes:
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:
        return text  # half of a surrogate pair, which is not JSON to msgspec


def base64_lines(fetched: "FetchedBatch") -> bytes:
    """Return an object per line, with key and value always as base64."""
    return msgspec.json.Encoder().encode_lines(
        [
            {**_place(record), "key": _base64(record.key), "value": _base64(record.value), "headers": _headers(record)}
            for record in fetched.records()
        ]
    )


def template_lines(template: str) -> LineEncoder:
    r"""Return an encoder for a template like kcat's ``-f``.

    It has ``%t`` topic, ``%p`` partition, ``%o`` offset, ``%T`` timestamp (ms), ``%k`` key, ``%K`` its bytes (-1:
    null), ``%s`` value, ``%S`` its bytes, ``%h`` headers as ``name=value,...``, ``%%``; and ``\n \t \r \0 \xHH \\``.
    Null is nothing. A line end follows unless the template ends with an escape. Raises ValueError for any other letter.
    """
    parts: list[bytes | Callable[[Record], bytes]] = []
    ends_itself = False
    for found in _PART.finditer(template):
        ends_itself = found[2] is not None
        parts.append(_part(found))
    if not ends_itself:
        parts.append(b"\n")

    def line(record: "Record") -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in parts])

    return lambda fetched: b"".join(map(line, fetched.records()))


def _part(found: re.Match[str]) -> "bytes | Callable[[Record], bytes]":
    field, escape = found[1], found[2]
    if escape is not None:
        if len(escape) == 3:
            return bytes.fromhex(escape[1:])
        if escape not in _ESCAPES:
            raise ValueError(rf"{found[0]} is no escape: there are \n \t \r \0 \xHH \\")
        return _ESCAPES[escape]
    if field is None or field == "%":
        return (field or found[0]).encode()
    if field not in _FIELDS:
        raise ValueError(f"{found[0]} is no field: there are {' '.join(f'%{name}' for name in _FIELDS)} %%")
    return _FIELDS[field]


def _header_text(record: "Record") -> bytes:
    return b",".join([b"%b=%b" % (name.encode(), b"NULL" if v is None else v) for name, v in record.headers])


def _length(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


_FIELDS: "dict[str, Callable[[Record], bytes]]" = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "K": lambda record: _length(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: _length(record.value),
    "h": _header_text,
}


def _object(record: "Record", *, string_keys: bool, is_exact: bool = False) -> dict[str, Any]:
    """Return a record as an object. A key or value that is not JSON has ``key_format`` or ``value_format``: ``string``
    for text, ``binary`` for base64.

    ``string_keys`` is set if the topic's ``key.format`` is ``string``, so no key is JSON.
    """
    found = _place(record)
    for name, content, is_string in (("key", record.key, string_keys), ("value", record.value, False)):
        if is_exact and content is not None:
            is_string = is_string or not _keeps_in_field(content)  # noqa: PLW2901
        found[name], stored_as = _readable(content, is_string=is_string)
        if stored_as is not None:
            found[f"{name}_format"] = stored_as
    found["headers"] = _headers(record)
    return found


def _keeps_in_field(content: bytes) -> bool:
    """Return True if a field of an object, on one line, keeps JSON ``content`` byte for byte.

    It does not with line ends or space around it, and a field that is null means no content.
    """
    return content != b"null" and content == content.strip() and not _LINE_END.search(content)


def _place(record: "Record") -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }


def _headers(record: "Record") -> list[dict[str, Any]]:
    return [{"key": key, "value": _base64(value)} for key, value in record.headers]


def _readable(content: bytes | None, *, is_string: bool) -> tuple[Any, str | None]:
    """Return the form of ``content`` in JSON, and its format if it is not JSON itself."""
    if content is None:
        return None, None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return _base64(content), "binary"
    # The first character shows that most other texts are not JSON.
    if not is_string and content.lstrip()[:1] in _JSON_BEGINS:
        from logstore.records import surrogates  # it imports NumPy and Arrow, and `--help` needs neither

        try:
            surrogates.decode(_JSON_TEXT, content)
            # It is kept as it was written (1.0 stays 1.0), but on one line.
            return msgspec.Raw(_on_one_line(content) if b"\n" in content or b"\r" in content else content), None
        except (msgspec.MsgspecError, RecursionError):
            pass
    return text, "string"


def _on_one_line(text: bytes) -> bytes:
    try:
        return msgspec.json.format(text, indent=-1)
    except msgspec.DecodeError:  # half of a surrogate pair; no JSON string has a line end in it
        return text.translate(_ONE_LINE)


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()
