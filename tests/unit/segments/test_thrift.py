"""Thrift as in Parquet's footers: real footers, any structs, and bytes that are no Thrift."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.segments import thrift
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.topics import log_batch

INTEGERS = st.integers(-(2**63), 2**63 - 1)
BYTES = st.binary(max_size=200)
LEAVES = [
    st.tuples(st.just(thrift.I64), INTEGERS),
    st.tuples(st.just(thrift.I32), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(thrift.BINARY), BYTES),
    st.tuples(st.just(thrift.BYTE), st.integers(0, 255)),
    st.tuples(st.just(thrift.DOUBLE), st.binary(min_size=8, max_size=8)),
    st.just((thrift.TRUE, True)),
    st.just((thrift.FALSE, False)),
]


def structs(values: st.SearchStrategy) -> st.SearchStrategy:
    numbered = st.dictionaries(st.integers(1, 2**15 - 1), values, max_size=20)
    return numbered.map(lambda fields: dict(sorted(fields.items())))


STRUCTS = structs(
    st.recursive(
        st.one_of(LEAVES),
        lambda values: st.one_of(
            st.tuples(st.just(thrift.STRUCT), structs(values)),
            st.tuples(st.just(thrift.LIST), st.tuples(st.just(thrift.STRUCT), st.lists(structs(values), max_size=20))),
            st.tuples(st.just(thrift.LIST), st.tuples(st.just(thrift.I64), st.lists(INTEGERS, max_size=20))),
            st.tuples(st.just(thrift.SET), st.tuples(st.just(thrift.BINARY), st.lists(BYTES, max_size=20))),
        ),
        max_leaves=10,
    )
)


@given(STRUCTS)
def test_an_encoded_struct_is_decoded_again(struct: thrift.Struct) -> None:
    assert thrift.decode(thrift.encode(struct)) == struct


@given(STRUCTS, st.data())
def test_a_part_of_a_struct_is_refused(struct: thrift.Struct, data: st.DataObject) -> None:
    encoded = thrift.encode(struct)
    with pytest.raises(ValueError, match=r"where|middle|follow|no type|too long"):
        thrift.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(ValueError, match="follow the struct"):
        thrift.decode(encoded + b"\0")


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_a_struct(data: bytes) -> None:
    try:
        struct = thrift.decode(data)
    except ValueError:
        return
    assert thrift.decode(thrift.encode(struct)) == struct


def test_structs_within_structs_without_end_are_refused() -> None:
    with pytest.raises(ValueError, match="without end"):
        thrift.decode(b"\x1c" * 100_000)
    with pytest.raises(ValueError, match="without end"):
        thrift.decode(b"\x19" + b"\x19" * 100_000)


def test_a_list_is_not_believed_to_be_longer_than_the_bytes() -> None:
    with pytest.raises(ValueError, match="a list of"):
        thrift.decode(b"\x19\xf6\xff\xff\xff\xff\x0f")


@pytest.mark.parametrize("row_groups", [1, 40])
def test_a_real_footer_is_written_to_the_byte(tmp_path: Path, row_groups: int) -> None:
    with SegmentWriter(open_table(tmp_path), 0, 0, 10 * row_groups, 0) as writer:
        for at in range(row_groups):
            writer.write(log_batch(range(10 * at, 10 * at + 10)))
            writer._flush()  # a separate row group
        content = (tmp_path / writer.finish().path).read_bytes()
    footer = content[-pq.read_metadata(pa.BufferReader(content)).serialized_size - 8 : -8]
    struct = thrift.decode(footer)
    assert thrift.encode(struct) == footer
    assert struct[3] == (thrift.I64, 10 * row_groups)
