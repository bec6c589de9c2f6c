import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptionError
from logstore.records.payload import decode_payload, decode_payloads, encode_payload
from logstore.records.schema import WIRE_SCHEMA
from tests.support.records import Row, compressed_payload, rows, wire_batch, wire_rows


@given(st.lists(rows, max_size=20), st.sampled_from([None, "lz4", "zstd"]), st.integers(0, 7))
@settings(deadline=None)
def test_a_payload_gives_back_the_batch_at_any_alignment(records, codec, shift):
    sent = wire_batch(records)
    payload = (compressed_payload(sent, codec) if codec else encode_payload(sent)).to_pybytes()
    batch = decode_payload(memoryview(bytes(shift) + payload)[shift:])
    assert batch.schema.equals(WIRE_SCHEMA)
    assert all(buffer.address % 8 == 0 for column in batch.columns for buffer in column.buffers() if buffer)
    assert wire_rows(batch) == records


def test_a_payload_of_a_slice_holds_only_its_rows():
    batch = wire_batch([Row(None, None, b"x" * 100_000, None), Row(1, b"k", b"v", (("a", None),))])
    payload = encode_payload(batch.slice(1))
    assert len(payload) < 2_000
    assert wire_rows(decode_payload(payload)) == [Row(1, b"k", b"v", (("a", None),))]


@pytest.mark.parametrize("damage", [lambda p: p[:-8], lambda p: b"", lambda p: b"\xff" * len(p), lambda p: p[:40]])
def test_a_payload_that_does_not_parse_is_corruption(damage):
    payload = encode_payload(wire_batch([Row(None, b"k", b"v" * 50, None)])).to_pybytes()
    with pytest.raises(CorruptionError, match="not an Arrow record batch message"):
        decode_payload(damage(payload))


#: Batches, their codec, and bytes after each: a message need not end where the next one may begin.
_parts = st.lists(
    st.tuples(st.lists(rows, max_size=4), st.sampled_from([None, "lz4", "zstd"]), st.sampled_from([0, 0, 0, 3])),
    min_size=1,
    max_size=6,
)


@given(_parts)
@settings(deadline=None)
def test_payloads_together_give_the_records_of_each(parts):
    payloads, expected = [], []
    for records, codec, more in parts:
        sent = wire_batch(records)
        payload = compressed_payload(sent, codec) if codec else encode_payload(sent)
        payloads.append(memoryview(payload.to_pybytes() + bytes(more)))
        expected += records
    batch = decode_payloads(payloads)
    batch.validate(full=True)
    assert batch.schema.equals(WIRE_SCHEMA)
    assert wire_rows(batch) == expected


@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_damaged_payload_among_others_is_corruption(at):
    payload = encode_payload(wire_batch([Row(None, b"k", b"v" * 50, None)])).to_pybytes()
    payloads = [payload] * 3
    payloads[at] = payload[:-8]
    with pytest.raises(CorruptionError, match="not an Arrow record batch message"):
        decode_payloads(payloads)


def test_a_payload_that_holds_an_end_of_the_stream_hides_none_behind_it():
    payload = encode_payload(wire_batch([Row(None, b"k", b"v", None)])).to_pybytes()
    end = b"\xff\xff\xff\xff\0\0\0\0"
    assert len(wire_rows(decode_payloads([payload + end, payload]))) == 2
