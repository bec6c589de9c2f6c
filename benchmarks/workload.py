"""The records that are sent, the same for every contender, and request bodies of them made beforehand.

Values and keys are drawn from a fixed seed, so that two runs send the same bytes.
"""

import string
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from logstore.records.schema import WIRE_SCHEMA, null_headers

Form = Literal["json", "ndjson", "arrow", "arrow lz4"]
Payload = Literal["json", "text", "random"]

_KEYS = 100_000
_TEXT = "the order was packed and sent by air to a warehouse near new york where rain kept it over the weekend"
#: It has letters of two and of three bytes.
_TEXT_NOT_ASCII = "das paket wurde über zürich nach københavn geschickt 東京 の 倉庫 で 雨 に 濡れた"
_LETTERS = np.frombuffer((string.ascii_letters + string.digits + "-_").encode(), np.uint8)


@dataclass(frozen=True, slots=True)
class Workload:
    """A load. ``payload`` is JSON objects with much in common (``text``: their text is not ASCII), or JSON strings of
    random letters, which do not compress to less than three quarters. ``headers``: each record of a JSON body has two.
    ``batch`` is the records per request. ``spread``: the records of a request may go to
    all partitions (by key); else each request goes to one, all partitions in turn.
    """

    value_bytes: int = 100
    payload: Payload = "json"
    keyed: bool = True
    partitions: int = 4
    batch: int = 1_000
    connections: int = 8
    spread: bool = True
    headers: bool = False

    @property
    def record_bytes(self) -> int:
        """The size of key and value of one record."""
        return self.value_bytes + (len(_key(0)) if self.keyed else 0)

    def paths(self, topic: str) -> list[str]:
        if self.spread:
            return [f"/topics/{topic}"]
        return [f"/topics/{topic}/partitions/{partition}" for partition in range(self.partitions)]


def values(workload: Workload, count: int, seed: int = 0) -> list[bytes]:
    """Return JSON texts of exactly ``value_bytes`` bytes each."""
    rng = np.random.default_rng(seed)
    size = workload.value_bytes
    if workload.payload == "random":
        letters = _LETTERS[rng.integers(0, len(_LETTERS), (count, size - 2))].tobytes()
        return [b'"%b"' % letters[row * (size - 2) : (row + 1) * (size - 2)] for row in range(count)]
    words = (_TEXT_NOT_ASCII if workload.payload == "text" else _TEXT).split(" ")
    text = " ".join(rng.choice(words, 4 * size + 1000).tolist())
    numbers = rng.integers((10**9, 0, 0, 0), (2**31, 100_000, 1_000, len(text) - size), (count, 4)).tolist()
    texts = []
    for number, user, milliseconds, start in numbers:
        head = f'{{"id":{number},"user":"user-{user:05d}","ms":{milliseconds},"note":"'
        note = text[start : start + size - len(head) - 2].encode()[: size - len(head) - 2].decode(errors="ignore")
        filled = note.encode().ljust(size - len(head) - 2, b".")
        texts.append(b'%b%b"}' % (head.encode(), filled))
    return texts


def keys(count: int, seed: int = 0) -> list[bytes]:
    """Return JSON texts, evenly drawn from a hundred thousand."""
    return [_key(number) for number in np.random.default_rng(seed).integers(0, _KEYS, count).tolist()]


def _key(number: int) -> bytes:
    return b'"user-%06d"' % number


def batches(workload: Workload) -> list[pa.RecordBatch]:
    """Return several requests' worth of records in the wire schema."""
    return [_columns(workload, *records) for records in _requests(workload)]


def write_bodies(directory: Path, workload: Workload, form: Form) -> list[str]:
    """Write files of several bodies, to be sent in turn, in a new directory below ``directory``; return their paths."""
    place = Path(tempfile.mkdtemp(prefix="bodies-", dir=directory))
    paths = []
    for number, (body_keys, body_values) in enumerate(_requests(workload)):
        path = place / f"{number}.body"
        path.write_bytes(_ENCODERS[form](workload, body_keys, body_values))
        paths.append(str(path))
    return paths


CONTENT_TYPES: dict[Form, str] = {
    "json": "application/vnd.kafka.json.v2+json",
    "ndjson": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.stream",
    "arrow lz4": "application/vnd.apache.arrow.stream",
}


def _requests(workload: Workload) -> list[tuple[list[bytes], list[bytes]]]:
    count = min(256, max(4, 8_000 // workload.batch))
    return [(keys(workload.batch, seed), values(workload, workload.batch, seed)) for seed in range(count)]


_HEADERS = b',"headers":[{"key":"source","value":"c2hvcA=="},{"key":"trace","value":"MDAtYTNjZTkyOWQwZTBlNDczNg=="}]'


def _json(workload: Workload, body_keys: Sequence[bytes], body_values: Sequence[bytes]) -> bytes:
    tail = _HEADERS if workload.headers else b""
    if workload.keyed:
        records = [b'{"key":%b,"value":%b%b}' % (*pair, tail) for pair in zip(body_keys, body_values, strict=True)]
    else:
        records = [b'{"value":%b%b}' % (value, tail) for value in body_values]
    return b'{"records":[%b]}' % b",".join(records)


def _ndjson(_workload: Workload, _keys: Sequence[bytes], body_values: Sequence[bytes]) -> bytes:
    return b"\n".join(body_values) + b"\n"


def _arrow(
    workload: Workload, body_keys: Sequence[bytes], body_values: Sequence[bytes], codec: str | None = None
) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, WIRE_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(_columns(workload, body_keys, body_values))
    return bytes(sink.getvalue())


def _arrow_lz4(workload: Workload, body_keys: Sequence[bytes], body_values: Sequence[bytes]) -> bytes:
    return _arrow(workload, body_keys, body_values, "lz4")


def _columns(workload: Workload, body_keys: Sequence[bytes], body_values: Sequence[bytes]) -> pa.RecordBatch:
    rows = len(body_values)
    columns = {
        "key": pa.array(body_keys, pa.binary()) if workload.keyed else pa.nulls(rows, pa.binary()),
        "value": pa.array(body_values, pa.binary()),
    }
    nulls = {"headers": null_headers(rows), "timestamp": pa.nulls(rows, WIRE_SCHEMA.field("timestamp").type)}
    others = (columns.get(field.name, nulls.get(field.name)) for field in WIRE_SCHEMA)
    return pa.RecordBatch.from_arrays(list(others), schema=WIRE_SCHEMA)


_ENCODERS: dict[Form, Callable[[Workload, Sequence[bytes], Sequence[bytes]], bytes]] = {
    "json": _json,
    "ndjson": _ndjson,
    "arrow": _arrow,
    "arrow lz4": _arrow_lz4,
}
