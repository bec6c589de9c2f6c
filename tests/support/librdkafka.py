"""librdkafka's producer by its C interface: confluent-kafka does not report the status of a failed message.

The status says whether such a message is certainly not stored, or may be. The library is the one that confluent-kafka
includes. Layouts and numbers are those of ``rdkafka.h``. Invariant: every message that ``send`` accepts is in exactly
one result of ``poll``.
"""

import ctypes
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

_NEW_PRODUCER: Final = 0
_CONF_OK: Final = 0
_TOPIC, _PARTITION, _VALUE, _KEY, _OPAQUE, _FLAGS, _TIMESTAMP, _HEADER = 1, 3, 4, 5, 6, 7, 8, 9
_COPY: Final = 2
_ANY_PARTITION: Final = -1
_PURGE_ALL: Final = 1 | 2
_TEXT_BYTES: Final = 512


class Status(IntEnum):
    NOT_PERSISTED = 0
    POSSIBLY_PERSISTED = 1
    PERSISTED = 2


class Delivery(NamedTuple):
    """The outcome of the message with this number; ``code`` is 0 if it was acknowledged, otherwise Kafka's or
    librdkafka's.
    """

    number: int
    code: int
    reason: str
    status: Status
    partition: int
    offset: int


class _Memory(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p), ("size", ctypes.c_ssize_t))


class _Argument(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int),
        ("number32", ctypes.c_int32),
        ("number64", ctypes.c_int64),
        ("memory", _Memory),
        ("header", _Header),
        ("pointer", ctypes.c_void_p),
        ("padding", ctypes.c_char * 64),
    )


class _Tagged(ctypes.Structure):
    _fields_ = (("tag", ctypes.c_int), ("argument", _Argument))


class _Message(ctypes.Structure):
    _fields_ = (
        ("error", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("payload_size", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("opaque", ctypes.c_void_p),
    )


_OnLine = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
_OnDelivery = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Message), ctypes.c_void_p)


class SendError(Exception):
    """The message was not accepted."""


#: Producers that the library's threads call until they are closed, even if their owner has forgotten them.
_open: "set[Producer]" = set()


class Producer:
    """A producer for one thread, which must close it."""

    def __init__(self, config: Mapping[str, Any], on_line: Callable[[str], None] | None = None) -> None:
        """Start a producer; ``on_line`` gets each line of the library's log (see ``log_level``, ``debug``), in any
        thread.
        """
        self._library = _library()
        self._delivered: list[Delivery] = []
        self._numbers = itertools.count(1)
        self._on_delivery = _OnDelivery(self._take)
        conf = self._library.rd_kafka_conf_new()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        for name, value in config.items():
            said = (str(value).lower() if isinstance(value, bool) else str(value)).encode()
            if self._library.rd_kafka_conf_set(conf, name.encode(), said, text, len(text)) != _CONF_OK:
                raise ValueError(text.value.decode())
        self._library.rd_kafka_conf_set_dr_msg_cb(conf, self._on_delivery)
        if on_line is not None:
            self._on_line = _OnLine(lambda _, __, ___, line: on_line(line.decode()))
            self._library.rd_kafka_conf_set_log_cb(conf, self._on_line)
        self._handle = self._library.rd_kafka_new(_NEW_PRODUCER, conf, text, len(text))
        if self._handle is None:
            raise ValueError(text.value.decode())
        #: The number of messages without a delivery report.
        self.in_hand = 0
        _open.add(self)

    def send(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> int:
        """Queue a message and return its number. Raises SendError."""
        number = next(self._numbers)
        wanted: list[tuple[int, str, Any]] = [
            (_TOPIC, "text", topic.encode()),
            (_PARTITION, "number32", _ANY_PARTITION if partition is None else partition),
            (_VALUE, "memory", _Memory(value, 0 if value is None else len(value))),
            (_KEY, "memory", _Memory(key, 0 if key is None else len(key))),
            (_OPAQUE, "pointer", number),
            (_FLAGS, "number", _COPY),
            *((_HEADER, "header", _Header(name.encode(), content, len(content))) for name, content in headers),
        ]
        if timestamp_ms is not None:
            wanted.append((_TIMESTAMP, "number64", timestamp_ms))
        arguments = (_Tagged * len(wanted))(*(_Tagged(tag, _Argument(**{name: what})) for tag, name, what in wanted))
        error = self._library.rd_kafka_produceva(self._handle, arguments, len(arguments))
        if error is not None:
            reason = self._library.rd_kafka_error_string(error).decode()
            self._library.rd_kafka_error_destroy(error)
            raise SendError(reason)
        self.in_hand += 1
        return number

    def poll(self, seconds: float) -> list[Delivery]:
        """Return delivery reports as soon as there are any, or nothing when the time is over."""
        self._library.rd_kafka_poll(self._handle, int(seconds * 1000))
        delivered, self._delivered = self._delivered, []
        self.in_hand -= len(delivered)
        return delivered

    @property
    def fatal_error(self) -> str:
        """The fatal error, empty as long as the producer can continue."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._library.rd_kafka_fatal_error(self._handle, text, len(text))
        return f"{code}: {text.value.decode()}" if code else ""

    def give_up(self) -> None:
        """Let all messages in hand fail at once; ``poll`` returns them."""
        self._library.rd_kafka_purge(self._handle, _PURGE_ALL)

    def close(self) -> None:
        self._library.rd_kafka_destroy(self._handle)
        _open.discard(self)

    def _take(self, _: Any, message: Any, __: Any) -> None:
        told = message.contents
        self._delivered.append(
            Delivery(
                told.opaque,
                told.error,
                self._library.rd_kafka_err2str(told.error).decode() if told.error else "",
                Status(self._library.rd_kafka_message_status(message)),
                told.partition,
                told.offset,
            )
        )


@functools.cache
def _library() -> ctypes.CDLL:
    (path,) = (
        Path(str(file.locate()))
        for file in metadata.files("confluent-kafka") or ()
        if file.name.startswith("librdkafka") and ".so" in file.name
    )
    library = ctypes.CDLL(str(path))
    text, pointer, number, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, ()),
        ("rd_kafka_conf_set", number, (pointer, text, text, text, size)),
        ("rd_kafka_conf_set_dr_msg_cb", None, (pointer, _OnDelivery)),
        ("rd_kafka_conf_set_log_cb", None, (pointer, _OnLine)),
        ("rd_kafka_new", pointer, (number, pointer, text, size)),
        ("rd_kafka_produceva", pointer, (pointer, ctypes.POINTER(_Tagged), size)),
        ("rd_kafka_error_string", text, (pointer,)),
        ("rd_kafka_error_destroy", None, (pointer,)),
        ("rd_kafka_poll", number, (pointer, number)),
        ("rd_kafka_fatal_error", number, (pointer, text, size)),
        ("rd_kafka_message_status", number, (ctypes.POINTER(_Message),)),
        ("rd_kafka_err2str", text, (number,)),
        ("rd_kafka_purge", number, (pointer, number)),
        ("rd_kafka_destroy", None, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
