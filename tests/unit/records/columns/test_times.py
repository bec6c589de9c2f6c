import json
from random import Random

import pyarrow as pa
import pytest

from logstore.records.columns.derive import KERNEL
from logstore.records.columns.field_tree import field_tree
from logstore.records.columns.native import UNSURE, KernelConverter
from logstore.records.columns.times import read_date, read_dates, read_timestamp, read_timestamps
from tests.support.column_values import schema_of

TIMES = {
    "1970-01-01T00:00:00Z": 0,
    "1970-01-01 00:00:00": 0,
    "1970-01-01t00:00:00.5z": 500_000,
    "1970-01-01T01:00:00+01:00": 0,
    "1969-12-31T23:59:59.9999999Z": -1,
    "1970-01-01T00:00:00.000001999999999999999-23:59": 86_340_000_001,
    "2024-02-29T12:00:00.123456Z": 1_709_208_000_123_456,
    "2000-02-29T23:59:59Z": 951_868_799_000_000,
    "0001-01-01T00:00:00Z": -62_135_596_800_000_000,
    "9999-12-31T23:59:59.9999999Z": 253_402_300_799_999_999,
}
NO_TIMES = [
    *("", "1970-01-01", "1970-01-01T00:00", "1970-01-01T00:00Z", "1970-01-01T00:00:00.", "1970-01-01T00:00:00.Z"),
    *("1970-01-01T24:00:00Z", "1970-01-01T00:60:00Z", "1970-01-01T00:00:60Z", "1970-02-30T00:00:00Z"),
    *("2023-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "1970-00-01T00:00:00Z", "1970-13-01T00:00:00Z"),
    *("1970-01-00T00:00:00Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"),
    *("1970-01-01T00:00:00+24:00", "1970-01-01T00:00:00+00:60", "1970-01-01T00:00:00+0000", "1970-01-01T00:00:00+00"),
    *("1970-01-01T00:00:00ZZ", " 1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z\n", "1970-01-01_00:00:00Z"),
    *("1970-01-01T00:00:00.1.2Z", "1970-01-01T00:00:00.12+00:00Z", "٠١٢٣-01-01T00:00:00Z", "1970-1-1T00:00:00Z"),
    *("+970-01-01T00:00:00Z", "1970-01-01T00:00:00,5Z", "1970-01-01T-1:00:00Z", "1970-01-01T00:00:00.5\u221201:00"),
]


@pytest.mark.parametrize(("text", "micros"), TIMES.items())
def test_a_timestamp(text: str, micros: int):
    assert read_timestamp(text) == micros


@pytest.mark.parametrize("text", NO_TIMES)
def test_no_timestamp(text: str):
    assert read_timestamp(text) is None


def damaged_times() -> list[str | None]:
    random = Random(1)
    texts: list[str | None] = [None, *TIMES, *NO_TIMES, "1970-01-01", "2000-02-30", "2000-02-29"]
    letters = "0123456789-:TtZz+. /éx"
    for text in random.choices([*TIMES, *["2024-02-29"] * 9], k=30_000):
        damaged = list(text)
        for _ in range(random.randrange(3)):
            damaged[random.randrange(len(damaged))] = random.choice(letters)
        texts.append("".join(damaged)[: random.choice([None, None, None, random.randrange(40)])])
    return texts


def test_columns_are_read_as_their_texts_are():
    texts = damaged_times()
    for kind, read, read_one in (
        (pa.timestamp("us", "UTC"), read_timestamps, read_timestamp),
        (pa.date32(), read_dates, read_date),
    ):
        # A slice begins in the middle of the column's buffers.
        array, bad = read(pa.array(["x", *texts], pa.string()).slice(1))
        expected = [None if text is None else read_one(text) for text in texts]
        assert array.type == kind
        assert array.view(pa.int64() if kind.bit_width == 64 else pa.int32()).to_pylist() == expected
        assert bad.tolist() == [text is not None and found is None for text, found in zip(texts, expected, strict=True)]
        assert 0.2 < bad.mean() < 0.95


def test_the_kernel_reads_what_these_texts_are():
    if KERNEL is None:
        pytest.skip("the kernel is not compiled")
    texts = damaged_times()
    values = pa.array([json.dumps({"t": text}, ensure_ascii=False).encode() for text in texts], pa.binary())
    for conversion, read_one, number in (("timestamp", read_timestamp, pa.int64()), ("date", read_date, pa.int32())):
        converter = KernelConverter(KERNEL, field_tree(schema_of(f"t {conversion}")))
        rows, codes = converter.convert(values)
        expected = [None if text is None else read_one(text) for text in texts]
        assert rows.field("t").view(number).to_pylist() == expected
        misfit = [text is not None and found is None for text, found in zip(texts, expected, strict=True)]
        # The escape of a line end is left to others.
        assert [
            code > 0 or bool(code == UNSURE and "\n" in text) for code, text in zip(codes, texts, strict=True)
        ] == misfit


def test_a_long_text_is_left_to_the_caller():
    text = f"1970-01-01T00:00:00.{'0' * 100}Z"
    assert read_timestamp(text) == 0
    assert read_timestamps(pa.array([text]))[1].tolist() == [True]
