"""Random produce requests in JSON, damaged ones among them, and what the scanner in C must have in common with the
decoder, the partitioner and the answers in Python.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from ingest_api import record_responses
from logstore.broker.produce.result import PartitionResponse, ProduceResult
from logstore.errors import LogStoreError
from logstore.records import json_decoder
from logstore.records.batch import DecodedRecords, partition_batches
from logstore.records.partitioner import choose_partitions
from logstore.records.scanned import ScannedRecords, scan_json

_TEXTS = ("", "a", "user-17", "ä", "日本", "😀", '"', "\\", "\n", "\x7f", "null", "x" * 40, "aé" * 9, "\x00", "/", "=")
_NUMBERS = (0, -1, 1.5, 1e300, -2.5e-7, 12345678901234567890, 10**40)
_TIMESTAMPS = (None, 0, 1_732_000_000_000, 253_402_300_799_999, 253_402_300_800_000, -5, 1.5, 2**63, 2**64)
_PARTITIONS = (None, 0, 1, 3, 2**31 - 1, 2**31, -1, 2.0)
_HEADERS: tuple[Any, ...] = (
    None,
    [],
    [{"key": "h", "value": "QUI="}],
    [{"key": "é"}, {"value": None, "key": ""}],
    [{"key": "k", "value": "QUJD"}] * 3,
    [{"value": "QQ=="}],
    [{"key": "a", "value": "Q"}],
    [{"key": "q\\"}],
    {},
)
#: Pieces that are put anywhere into a body.
_PIECES = (
    *(b"null", b"true", b"false", b"nul", b"-0", b"01", b"1.", b".5", b"+1", b"1e5", b"1E+", b"-", b"9" * 30, b"NaN"),
    *(b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ude00"', b'"\\u00e9"', b'"\\uD83D"', b"\\", b'\\"', b'"\\x"', b'"\\u12"'),
    *(b'"\x01"', b"\0", b"\xff", b"\xc3\xa9", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x0b"),
    *(b"{}", b"[]", b'{"a":1,"a":2}', b"[" * 511 + b"]" * 511, b"[" * 513 + b"]" * 513, b'"key"', b'"value"'),
    *(b'"key":1,', b'"value":null,', b'"k\\u0065y":1,', b'"records":[],', b'"key_schema":null,', b'"headers":[],'),
    *(b'"partition":0,', b'"timestamp":null,', b",", b":", b"{", b"}", b"[", b"]", b'"', b" ", b"\t", b"\r\n"),
    *(b'"QQ=="', b'"QR=="', b'"QUI="', b'"QUJD"', b'"QU=="', b'"Q==="', b'"QU JD"', b"\xef\xbb\xbf"),
)
_SEPARATORS = ((",", ":"), (", ", ": "), (" ,\n", "\t: "))


def _json(random: Random, depth: int = 0) -> Any:
    match random.randrange(8 if depth < 3 else 5):
        case 0:
            return None
        case 1:
            return random.choice((True, False))
        case 2:
            return random.choice(_NUMBERS)
        case 3 | 4:
            return random.choice(_TEXTS)
        case 5 | 6:
            names = ("a", "key", "é", "b\\", "")
            return {random.choice(names): _json(random, depth + 1) for _ in range(random.randrange(4))}
        case _:
            return [_json(random, depth + 1) for _ in range(random.randrange(4))]


def _record(random: Random) -> dict[str, Any]:
    makers: dict[str, Callable[[], Any]] = {
        "key": lambda: _json(random),
        "value": lambda: _json(random),
        # Most numbers and headers are right, so that many bodies are.
        "partition": lambda: random.choice(_PARTITIONS[: random.choice((3, 3, 3, len(_PARTITIONS)))]),
        "timestamp": lambda: random.choice(_TIMESTAMPS[: random.choice((4, 4, 4, len(_TIMESTAMPS)))]),
        "headers": lambda: random.choice(_HEADERS[: random.choice((5, 5, 5, len(_HEADERS)))]),
    }
    return {name: makers[name]() for name in random.sample(sorted(makers), random.choice((0, 1, 2, 2, 2, 3, 5)))}


def body(random: Random) -> bytes:
    """Return a request, in many cases with some damage."""
    records = [_record(random) for _ in range(random.choice((0, 1, 1, 1, 2, 3, 70)))]
    ascii_only, separators = random.random() < 0.5, random.choice(_SEPARATORS)
    found = json.dumps({"records": records}, ensure_ascii=ascii_only, separators=separators).encode()
    for _ in range(random.choice((0, 0, 0, 1, 1, 2, 4))):
        found = _damaged(random, found)
    return found


def _damaged(random: Random, whole: bytes) -> bytes:
    at = random.randrange(len(whole) + 1)
    end = min(len(whole), at + random.randrange(1, 30))
    match random.randrange(5):
        case 0:
            return whole[:at] + random.choice(_PIECES) + whole[at:]
        case 1:
            return whole[:at] + whole[at + random.randrange(1, 4) :]
        case 2:
            return whole[:at] + bytes([random.randrange(256)]) + whole[at + 1 :]
        case 3:
            return whole[:end] + whole[at:end] + whole[end:]
        case _:
            return whole[:at] + random.choice(_PIECES) + whole[end:]


def decoded(whole: bytes, *, string_keys: bool) -> DecodedRecords | None:
    """Return what ``json_decoder`` makes of a body; None if it refuses it."""
    try:
        return json_decoder.decode_json(whole, max_message_bytes=1 << 30, string_keys=string_keys)
    except LogStoreError:
        return None


def compare(whole: bytes, random: Random, *, string_keys: bool) -> str:
    """Require that the scanner does with a body what Python does. Return ``taken``, ``refused`` (by Python as well), or
    ``left`` to Python, which takes it.
    """
    expected, scanned = decoded(whole, string_keys=string_keys), scan_json(whole, string_keys=string_keys)
    if scanned is None:
        return "refused" if expected is None else "left"
    assert expected is not None, whole
    scanned.batch.validate(full=True)
    assert scanned.batch.equals(expected.batch), whole
    assert (scanned.num_rows, scanned.null_keys) == (expected.num_rows, expected.null_keys), whole
    partitions = random.choice((1, 4, 1000))
    _compare_parts(whole, scanned, expected, partitions, random.randrange(partitions), random)
    return "taken"


def _compare_parts(
    whole: bytes, scanned: ScannedRecords, expected: DecodedRecords, partitions: int, sticky: int, random: Random
) -> None:
    if expected.partitions is None:
        assert scanned.partitions is None, whole
    else:
        assert scanned.partitions is not None, whole
        assert scanned.partitions.tolist() == expected.partitions.tolist(), whole
    chosen = choose_partitions(expected, partitions, sticky)
    parts = scanned.split(partitions, sticky)
    if parts is None:
        assert chosen.max() >= partitions, whole
        return
    for part, wanted in zip(parts, partition_batches(expected, chosen), strict=True):
        assert part.partition == wanted.partition, whole
        assert part.batch.equals(wanted.batch), whole
        assert np.array_equal(part.rows, wanted.rows) if part.rows is not None else wanted.rows is None, whole
    result = ProduceResult(
        tuple(
            PartitionResponse(p.partition, random.randrange(10 ** random.randrange(1, 19)), p.batch.num_rows, p.rows)
            for p in parts
        ),
        scanned.num_rows,
    )
    places = [numbers.tolist() for numbers in result.places()]
    assert record_responses.produced_offsets(result) == record_responses.offsets_of(*places), whole
