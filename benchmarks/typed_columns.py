"""Columns from the values of the demo's flights, 19 of them: ``python -m benchmarks.typed_columns``.

A figure is the best round's, in microseconds of CPU per value. ``kernel`` is the C library, ``pyarrow.json`` what
machines without a compiler use, and ``one by one`` the rule that decides on odd values. Rounds alternate between them.
"""

import time
from collections.abc import Callable

import pyarrow as pa

from docs.demo.flights import read_flights, record_columns
from logstore.records.columns.derive import KERNEL, Deriver
from logstore.records.columns.schema import Column, ColumnSchema, type_of

_ROUNDS = 7
_VALUES = 64 * 1024
_FEW = 256
_ONE_BY_ONE = 4096
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest"})
#: One of ten values is damaged in one of these ways, in turns.
_DAMAGE: tuple[Callable[[bytes], bytes], ...] = (
    lambda value: value.replace(b'"month":', b'"month":"x', 1).replace(b',"day"', b'","day"', 1),
    lambda value: value[: len(value) // 2],
    lambda _: b"",
    lambda _: b"null",
    lambda value: value + value,
    lambda _: b"\xff\xfe",
    lambda _: b"plain text",
    lambda value: value[:-1] + b',"month":1}',
    lambda value: value.replace(b"2013-", b"2O13-", 1),
)


def flights_schema(names: list[str]) -> ColumnSchema:
    def conversion(name: str) -> str:
        return "timestamp" if name == "time_hour" else "string" if name in _TEXTS else "bigint"

    return ColumnSchema(tuple(Column(name, (name,), conversion(name), type_of(conversion(name))) for name in names))


def damaged(values: pa.Array, one_of: int) -> pa.Array:
    """Return the values with one of ``one_of`` damaged."""
    texts = [
        _DAMAGE[number // one_of % len(_DAMAGE)](value) if number % one_of == 0 else value
        for number, value in enumerate(values.to_pylist())
    ]
    return pa.array(texts, pa.binary())


def main() -> None:
    flights = read_flights().slice(0, _VALUES)
    values = record_columns(flights)["value"].combine_chunks()
    schema = flights_schema([name for name in flights.column_names if name != "scheduled_departure"])
    cases = {
        "clean": values,
        "1 % damaged": damaged(values, 100),
        "10 % damaged": damaged(values, 10),
        "all damaged": damaged(values, 1),
        f"{_FEW} values": values[:_FEW],
    }
    library = Deriver(schema, None)
    ways: dict[str, Callable[[pa.Array], object]] = {"pyarrow.json": library.derive}
    if KERNEL is not None:
        ways["kernel"] = Deriver(schema, KERNEL).derive
    print(f"{values.nbytes / len(values):.0f} bytes a value")
    for case, column in cases.items():
        _print_best(case, column, ways)
    _print_best("clean", values[:_ONE_BY_ONE], {"one by one": library.convert_each})


def _print_best(case: str, column: pa.Array, ways: dict[str, Callable[[pa.Array], object]]) -> None:
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(_ROUNDS):
        for way, work in ways.items():
            started = time.thread_time()
            work(column)
            best[way] = min(best[way], time.thread_time() - started)
    figures = ", ".join(f"{way} {1e6 * seconds / len(column):.2f}" for way, seconds in best.items())
    print(f"{case}: {figures}", flush=True)


if __name__ == "__main__":
    main()
