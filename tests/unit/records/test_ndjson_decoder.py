import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRequestError, RecordTooLargeError, RequestTooLargeError
from logstore.limits import REQUEST_RECORDS_MAX
from logstore.records.decode import decode_ndjson
from logstore.records.schema import WIRE_SCHEMA
from tests.support.records import Row, wire_rows


def _lines(body: bytes) -> list[bytes]:
    *ended, last = body.split(b"\n")
    return [line for line in [*(line.removesuffix(b"\r") for line in ended), last] if line.strip(b" \t\r")]


@given(
    st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b'{"b":1}', b"\xff", b" ", b"\t"]), max_size=12).map(
        b"".join
    )
)
@example(b"\r")
@example(b"a\r\r\n")
@example(b"\n\r\n\r")
@settings(deadline=None)
def test_each_line_is_a_value(body):
    expected = [Row(None, None, line, None) for line in _lines(body)]
    if not expected:
        with pytest.raises(InvalidRequestError, match="records may not be empty"):
            decode_ndjson(body, max_message_bytes=100)
        return
    decoded = decode_ndjson(body, max_message_bytes=100)
    assert decoded.batch.schema.equals(WIRE_SCHEMA)
    decoded.batch.validate(full=True)
    assert wire_rows(decoded.batch) == expected
    assert (decoded.partitions, decoded.verbatim) == (None, None)


def test_a_long_line_is_named():
    with pytest.raises(RecordTooLargeError, match=r"Record 1 .* has 11 bytes"):
        decode_ndjson(b"short\n\n" + b"x" * 11, max_message_bytes=10)


def test_lines_are_bounded_even_when_they_are_empty():
    with pytest.raises(RequestTooLargeError, match="lines"):
        decode_ndjson(b"\n" * (REQUEST_RECORDS_MAX + 1) + b"a", max_message_bytes=10)
