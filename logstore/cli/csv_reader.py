"""Rows of CSV files as records. Text stays text: a column has another type only on request."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv

from logstore.cli.output import counted
from logstore.cli.table_reader import Fields, Rows, require_column, rows_of
from logstore.errors import InvalidRecordError

# Commas between brackets belong to the type.
_COMMA = re.compile(r",(?![^(\[]*[)\]])")
_DECIMAL = re.compile(r"decimal\(([1-9][0-9]?),([0-9]{1,2})\)")
_UTC = re.compile(r"timestamp\[(s|ms|us|ns),UTC\]")
_NAMES = (
    "string, bool, int64 (int8 to uint64), double, float, decimal(P,S), date32, time64[us], duration[s], binary, "
    "timestamp[us], or timestamp[us,UTC] for times with a zone (units: s, ms, us, ns)"
)

# A form of time that no text has.
_NO_TIME = "\0"
_HEADER = "the first line, which has the names of the columns,"
_CONVERT = "convert the file, as in iconv -f WINDOWS-1252 -t UTF-8"
# Patterns for parts of pyarrow's messages.
_PROBLEM = re.compile(r"(?:In CSV column #(\d+)|CSV parse error): (?:Row #(\d+): )?(.*)", re.DOTALL)
_CONVERSION = re.compile(r"CSV conversion error to (.*?): invalid value (.*)", re.DOTALL)
_WIDTH = re.compile(r"Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The form of a CSV file. ``types`` has columns' types by name; ``infer`` infers the others from the first rows."""

    delimiter: str = ","
    types: dict[str, pa.DataType] = field(default_factory=dict)
    infer: bool = False


def parse_types(text: str) -> dict[str, pa.DataType]:
    """Parse ``price=decimal(10,2),count=int64``. Raises ValueError with the reason."""
    types: dict[str, pa.DataType] = {}
    for pair in _COMMA.split(text):
        name, equals, kind = pair.strip().rpartition("=")
        if not equals or not name:
            raise ValueError(f"{pair!r} is not COLUMN=TYPE")
        if name in types:
            raise ValueError(f"column {name!r} is there twice")
        types[name] = _type(kind)
    return types


def read_csv(stream: BinaryIO, block_bytes: int, format: CsvFormat, fields: Fields) -> Iterator[Rows]:
    """Yield rows of a CSV whose first line has the names. An empty field without quotes is null.

    Raises InvalidRecordError with the row and column, or with the column that does not exist.
    """
    names = _names(stream, format.delimiter)
    if not names:
        return
    for name in format.types:
        require_column(name, names)
    types = dict.fromkeys(() if format.infer else names, pa.string()) | format.types
    times = {name: kind for name, kind in format.types.items() if format.infer and pa.types.is_timestamp(kind)}
    options = pa.csv.ConvertOptions(
        column_types=types | dict.fromkeys(times, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        # Otherwise NA (Namibia) is null.
        null_values=None if format.infer else [""],
        # A time without a requested type stays text, with its digits and its zone.
        timestamp_parsers=[_NO_TIME] if format.infer else None,
    )
    try:
        reader = pa.csv.open_csv(
            pa.PythonFile(stream, "r"),
            # Several threads would not know which row is wrong, and are of no use for one block at a time.
            pa.csv.ReadOptions(block_size=block_bytes, column_names=names, use_threads=False),
            pa.csv.ParseOptions(delimiter=format.delimiter, newlines_in_values=True),
            options,
        )
        yield from rows_of(_with_times(reader, times) if times else reader, names, fields)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise InvalidRecordError(_problem(str(error), names)) from error


def _with_times(batches: Iterable[pa.RecordBatch], times: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the text columns ``times`` cast to their types. Raises InvalidRecordError with the row."""
    first = 1
    for batch in batches:
        changed = batch
        for name, kind in times.items():
            column = batch.column(name)
            try:
                cast = column.cast(kind)
            except pa.ArrowInvalid:
                row = next(row for row in range(len(column)) if not _is_castable(column[row], kind))
                raise InvalidRecordError(
                    f"row {first + row}, column {name!r}: {column[row].as_py()!r} is not {kind}"
                ) from None
            changed = changed.set_column(batch.schema.get_field_index(name), name, cast)
        yield changed
        first += batch.num_rows


def _is_castable(value: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _problem(text: str, names: Sequence[str]) -> str:
    """Return pyarrow's message on a row, in terms of the file."""
    found = _PROBLEM.fullmatch(text)
    if found is None:
        return text
    column, row, what = found.groups()
    if "invalid UTF8" in what:
        what = f"not UTF-8 text: {_CONVERT}"
    elif conversion := _CONVERSION.fullmatch(what):
        what = f"{conversion[2]} is not {conversion[1]}"
    elif width := _WIDTH.fullmatch(what):
        what = f"it has {counted(int(width[2]), 'value')}, and the file {counted(int(width[1]), 'column')}: {width[3]}"
    places = [f"row {row}"] if row is not None else []
    if column is not None:
        places.append(f"column {names[int(column)]!r}")
    return f"{', '.join(places)}: {what}" if places else what


def _names(stream: BinaryIO, delimiter: str) -> list[str]:
    """Read the first record from ``stream``; return it as the names of the columns."""

    def lines() -> Iterator[str]:
        encoding = "utf-8-sig"
        for line in stream:
            yield line.decode(encoding)
            encoding = "utf-8"

    try:
        return next((row for row in csv.reader(lines(), delimiter=delimiter) if row), [])
    except UnicodeDecodeError as error:
        raise InvalidRecordError(f"{_HEADER} is not UTF-8 text: {_CONVERT}") from error
    except csv.Error as error:
        raise InvalidRecordError(f"{_HEADER} is not CSV: {error}") from error


def _type(text: str) -> pa.DataType:
    text = text.strip().replace(", ", ",")
    try:
        if found := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(found[1]), int(found[2]))
        if found := _UTC.fullmatch(text):
            return pa.timestamp(found[1], "UTC")
        return pa.type_for_alias(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a type: use {_NAMES}") from error
