import threading
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from logstore.native_library import loaded
from logstore.records.columns import native
from logstore.records.columns.derive import Deriver
from logstore.records.columns.native import UNSURE, Kernel, KernelConverter
from logstore.records.columns.schema import ColumnSchema
from tests.support.column_values import ODD_SCHEMA, mutated, odd_values, random_schema, random_value, schema_of

KERNEL = loaded(Kernel)
pytestmark = pytest.mark.skipif(KERNEL is None, reason="the kernel is not compiled")


def compared(schema: ColumnSchema, values: list[bytes]) -> tuple[int, int]:
    """Compare the kernel with the rule, value by value. Return how many values fit, and how many the kernel left."""
    with_kernel, without = Deriver(schema, KERNEL), Deriver(schema, None)
    array = pa.array(values, pa.binary())
    kernel = with_kernel._kernel
    assert kernel is not None
    rows, codes = kernel.convert(array)
    rows.validate(full=True)
    reasons = [kernel.reason(int(code)) if code > 0 else None for code in codes]
    found = with_kernel.batch(rows, pa.array(reasons, pa.string()))
    expected = without.batch(*without.convert_each(array))
    sure = codes != UNSURE
    # The rows of values that it leaves are null, as those of misfits are.
    assert all(row == dict.fromkeys(row) for row in found.filter(pa.array(~sure)).to_pylist())
    found, expected = found.filter(pa.array(sure)), expected.filter(pa.array(sure))
    if not found.equals(expected) or repr(found.to_pylist()) != repr(expected.to_pylist()):
        for value, row, right in zip(
            array.filter(pa.array(sure)), found.to_pylist(), expected.to_pylist(), strict=True
        ):
            assert repr(row) == repr(right), (schema, value)
    return int(np.sum(codes == 0)), int(np.sum(~sure))


def run_odd_values(seed: int, count: int) -> tuple[int, int]:
    return compared(schema_of(ODD_SCHEMA), list(odd_values(Random(seed), count)))


def run_random_schema(seed: int, count: int) -> tuple[int, int]:
    random = Random(seed)
    schema = random_schema(random)
    root = Deriver(schema, None)._root.conversion
    values = [random_value(random, root) for _ in range(count)]
    return compared(schema, [mutated(random, value) if random.random() < 0.2 else value for value in values])


@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_and_the_rule_agree_on_odd_values(seed: int):
    fit, left = run_odd_values(seed, 1_500)
    assert fit > 300
    assert left < 300


@pytest.mark.parametrize("seed", range(25))
def test_the_kernel_and_the_rule_agree_on_any_schema(seed: int):
    run_random_schema(seed, 200)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_the_kernel_and_the_rule_agree_on_a_million_values(part: int):
    fit = left = 0
    for seed in range(10):
        found = run_odd_values(1_000 + part * 10 + seed, 5_000)
        fit, left = fit + found[0], left + found[1]
    for seed in range(50):
        found = run_random_schema(1_000 + part * 50 + seed, 1_000)
        fit, left = fit + found[0], left + found[1]
    assert fit > 20_000
    assert left < 20_000


def test_the_kernel_decides_on_everything_but_oddities():
    """See which values it leaves to slower ways, because their cost is several times higher."""
    kernel = KernelConverter(
        _kernel(), Deriver(schema_of("i bigint, s string, t timestamp, m decimal(38,0)"), None)._root
    )
    sure = [
        b'{"i":1,"s":"\\u00e9\\ud83d\\ude00\\n","x":{"\\u0069":[1e999]}}',
        *(
            b"",
            b"null",
            b"[1]",
            b"\xff",
            b'{"i":1',
            b'{"i":1}x',
            b'{"i":1.5}',
            b'{"i":1,"i":1}',
            b'{"t":"x"}',
            b'{"m":0.5}',
        ),
    ]
    unsure = [
        *(b'{"\\u0069":1}', b'{"t":"1970-01-01T00:00:00\\u005a"}', b'{"s":"\\ud800"}', b'{"m":' + b"1" * 39 + b"}"),
        *(b"[" * 100, b'{"x":' + b"[" * 64 + b"]" * 64 + b"}"),
    ]
    _, codes = kernel.convert(pa.array(sure + unsure, pa.binary()))
    assert (codes == UNSURE).tolist() == [False] * len(sure) + [True] * len(unsure)


def _kernel() -> Kernel:
    assert KERNEL is not None
    return KERNEL


@pytest.mark.parametrize("size", [1, 1_000])
def test_memory_grows_with_strings_and_arrays(size: int):
    schema = schema_of("s string, l array<struct<t:string,l:array<bigint>>>, b array<boolean>")
    element = '{"t":"' + "x" * size + '","l":[' + ",".join(map(str, range(size))) + "]}"
    value = f'{{"s":"{"é" * size}","l":[{",".join([element] * 20)}],"b":[{",".join(["true", "null"] * size)}]}}'
    values = [b'{"s":"a"}', value.encode(), b"{}", value.encode()[:-1], value.encode(), value.encode() + b"x"] * 3
    assert compared(schema, values) == (12, 0)


def test_a_row_that_does_not_fit_leaves_nothing_behind():
    """Let misfits come after fields and elements that were written already."""
    schema = schema_of("i bigint, b boolean, s string, l array<struct<b:boolean,s:string>>, z bigint")
    good = b'{"i":1,"b":true,"s":"abc","l":[{"b":true,"s":"d"},{"b":true}],"z":1}'
    bad = good.replace(b'"z":1', b'"z":""')
    values = [bad, b"{}", good, bad, bad, b'{"l":[{},{},{}]}', bad]
    assert compared(schema, values) == (3, 0)
    rows, _ = KernelConverter(_kernel(), Deriver(schema, None)._root).convert(pa.array(values, pa.binary()))
    assert len(rows.field("l").values) == 5
    # A null has the bytes of zero, so that equal columns have equal files.
    assert np.frombuffer(rows.field("i").buffers()[1], np.int64).tolist() == [0, 0, 1, 0, 0, 0, 0]


def test_threads_share_a_converter():
    schema = schema_of(ODD_SCHEMA)
    deriver = Deriver(schema, KERNEL)
    parts = [pa.array(list(odd_values(Random(seed), 2_000)), pa.binary()) for seed in range(4)]
    expected = [deriver.derive(part) for part in parts]
    found: list[list[pa.RecordBatch]] = [[] for _ in parts]

    def run(number: int) -> None:
        found[number] = [deriver.derive(parts[number]) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(batch.equals(right) for batches, right in zip(found, expected, strict=True) for batch in batches)
    assert [len(batches) for batches in found] == [5] * 4


def test_a_library_of_another_source_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    changed = tmp_path / native.SOURCE.name
    changed.write_bytes(native.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(native, "SOURCE", changed)
    with pytest.raises(OSError, match="compiled from another"):
        Kernel()
    assert loaded(Kernel) is None


def test_without_a_library_there_is_no_kernel(tmp_path: Path):
    with mock.patch.object(Kernel.__init__, "__defaults__", (tmp_path / "none.so",)):
        assert loaded(Kernel) is None
