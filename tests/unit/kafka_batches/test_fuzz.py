"""Both codecs take the same damaged batches with a right CRC, and return the same columns."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRecordBatchError
from logstore.kafka_batches.decoding import decode_batches
from logstore.kafka_batches.header import Compression
from logstore.kafka_batches.validation import validate
from tests.support.examples import examples
from tests.support.kafka_batches import CODECS, mutations, raw_batch, seeds

_LIMIT = 1 << 20
both = pytest.mark.skipif(len(CODECS) < 2, reason="the codec in C was not compiled: there is no C compiler")


def outcome(work: Callable[..., object], *arguments: object, **options: object) -> tuple[str, object]:
    try:
        return "taken", work(*arguments, inflated_bytes_max=_LIMIT, **options)
    except InvalidRecordBatchError as error:
        return "refused", type(error)


def same_outcome(batch: bytes, *, log_append_time: bool) -> str:
    found = {
        name: outcome(validate, batch, log_append_time=log_append_time, codec=codec) for name, codec in CODECS.items()
    }
    assert found["native"][0] == found["numpy"][0], batch.hex()
    if found["native"][0] == "taken":
        assert found["native"] == found["numpy"], batch.hex()
    return found["native"][0]


def same_columns(batch: bytes) -> None:
    found = {name: outcome(decode_batches, [batch], codec=codec) for name, codec in CODECS.items()}
    assert found["native"][0] == found["numpy"][0], batch.hex()
    if found["native"][0] == "taken":
        native, numpy = found["native"][1], found["numpy"][1]
        assert native.records.equals(numpy.records), batch.hex()
        assert native.offset_deltas.tolist() == numpy.offset_deltas.tolist(), batch.hex()
        native.records.validate(full=True)


@both
@pytest.mark.parametrize("seed", range(8))
def test_both_codecs_take_and_refuse_the_same(seed: int):
    outcomes = Counter()
    for batch in mutations(seeds()[seed], Random(seed), examples(2_000)):
        for log_append_time in (False, True):
            outcomes[same_outcome(batch, log_append_time=log_append_time)] += 1
        same_columns(batch)
    # A fuzz test with only one outcome tests nothing.
    assert min(outcomes["taken"], outcomes["refused"]) > 0


@both
@given(st.binary(max_size=60), st.integers(0, 4))
def test_both_codecs_agree_on_any_bytes(records: bytes, count: int):
    batch = raw_batch(records, count)
    same_outcome(batch, log_append_time=False)
    same_columns(batch)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_taken(data: bytes):
    for codec in CODECS.values():
        for batch in (data, *(raw_batch(data, 1, compression=kind) for kind in Compression)):
            outcome(validate, batch, codec=codec)
            outcome(decode_batches, [pa.py_buffer(batch)], codec=codec)
