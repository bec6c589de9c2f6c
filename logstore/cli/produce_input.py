"""Options of ``logstore produce`` about its input: which go together, and the records that they make."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import typer

from logstore.cli.record_blocks import (
    Block,
    csv_blocks,
    line_blocks,
    parquet_blocks,
    with_headers,
    with_key,
    with_partition,
    with_tombstones,
)

if TYPE_CHECKING:
    from logstore.cli.csv_reader import CsvFormat
    from logstore.cli.table_reader import Fields


class Format(StrEnum):
    lines = "lines"
    ndjson = "ndjson"
    record = "record"
    csv = "csv"
    parquet = "parquet"


_SUFFIXES = {".ndjson": Format.ndjson, ".jsonl": Format.ndjson, ".csv": Format.csv, ".parquet": Format.parquet}


def format_of(file: Path | None) -> Format:
    return Format.lines if file is None else _SUFFIXES.get(file.suffix, Format.lines)


@dataclass(frozen=True, slots=True)
class InputOptions:
    """The options, as given on the command line."""

    format: Format
    key: str | None
    key_separator: str | None
    key_field: str | None
    key_json: bool
    headers: Sequence[str]
    tombstone: bool
    value_field: str | None
    timestamp_field: str | None
    headers_field: str | None
    partition_field: str | None
    partition: int | None
    delimiter: str | None
    types: str | None
    infer: bool

    @property
    def is_table(self) -> bool:
        return self.format in (Format.csv, Format.parquet)

    @property
    def unit(self) -> str:
        """The unit in which the input is counted."""
        return "row" if self.is_table else "line"

    def blocks(self, stream: BinaryIO, file: Path | None, batch_bytes: int) -> Iterator[Block]:
        """Return the records of ``stream``, which reads ``file``, lazily; usage errors are raised at once."""
        if self.format is Format.record:
            self._check_no_key()
        else:
            self._check_key()
        self._check_columns()
        headers = [_header(text) for text in self.headers]
        if self.format is Format.parquet:
            assert file is not None
            blocks = parquet_blocks(file, batch_bytes, self._fields())
        elif self.format is Format.csv:
            blocks = csv_blocks(stream, batch_bytes, self._csv_format(), self._fields())
        else:
            blocks = self._lines(stream, batch_bytes)
        if self.tombstone and self.is_table:
            blocks = with_tombstones(blocks)
        if self.key is not None:
            blocks = with_key(self._key_bytes(self.key), blocks)
        if headers:
            blocks = with_headers(headers, blocks)
        if self.partition is not None:
            blocks = with_partition(self.partition, blocks)
        return blocks

    def _check_key(self) -> None:
        sources = {"--key": self.key, "--key-separator": self.key_separator, "--key-field": self.key_field}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) > 1:
            raise typer.BadParameter(f"give one of {', '.join(given)}")
        if self.key_separator is not None and (self.is_table or not self.key_separator):
            raise typer.BadParameter(
                f"rows have columns: the format is {self.format}" if self.is_table else "it has no character",
                param_hint="--key-separator",
            )
        if self.is_table:
            return
        if self.key_json and not given:
            raise typer.BadParameter(f"needs one of {', '.join(sources)}", param_hint="--key-json")
        if self.tombstone and (not given or self.key_field is not None):
            raise typer.BadParameter(
                "needs --key or --key-separator: a tombstone deletes a key"
                if not given
                else "a line with --key-field is a JSON object, so that no value is empty",
                param_hint="--tombstone",
            )

    def _check_no_key(self) -> None:
        given = {
            "--key": self.key,
            "--key-separator": self.key_separator,
            "--key-field": self.key_field,
            "--key-json": self.key_json or None,
            "--tombstone": self.tombstone or None,
            "--header": self.headers or None,
        }
        if names := [name for name, value in given.items() if value is not None]:
            raise typer.BadParameter("a line of --format record has a key, value and headers", param_hint=names[0])

    def _check_columns(self) -> None:
        columns = (self.value_field, self.timestamp_field, self.headers_field, self.partition_field)
        if not self.is_table and any(name is not None for name in columns):
            raise typer.BadParameter(f"lines have no columns: the format is {self.format}", param_hint="--...-field")
        if self.partition is not None and self.partition_field is not None:
            raise typer.BadParameter("give one of --partition and --partition-field")
        if self.headers and self.headers_field is not None:
            raise typer.BadParameter("give one of --header and --headers-field")
        if self.format is Format.csv:
            if self.headers_field is not None:
                raise typer.BadParameter("a column of CSV has no headers: use Parquet", param_hint="--headers-field")
            return
        of_csv = {"--delimiter": self.delimiter, "--types": self.types, "--infer": self.infer or None}
        if given := [name for name, value in of_csv.items() if value is not None]:
            raise typer.BadParameter(f"is for CSV: the format is {self.format}", param_hint=given[0])

    def _lines(self, stream: BinaryIO, batch_bytes: int) -> Iterator[Block]:
        from logstore.cli.line_reader import Skipped
        from logstore.cli.line_records import LineRecords
        from logstore.cli.record_objects import RecordObjects

        if self.format is Format.record:
            return line_blocks(stream, batch_bytes, RecordObjects(), Skipped.blank)
        records = LineRecords(
            is_json=self.format is Format.ndjson,
            key_field=self.key_field,
            key_separator=self.key_separator,
            key_json=self.key_json,
            tombstones=self.tombstone,
        )
        is_json = self.key_field is not None or (self.format is Format.ndjson and self.key_separator is None)
        skipped = Skipped.blank if is_json else Skipped.empty
        if self.tombstone and self.key is not None:
            skipped = Skipped.none  # with a key an empty line can be a tombstone
        return line_blocks(stream, batch_bytes, records, skipped)

    def _fields(self) -> "Fields":
        from logstore.cli.table_reader import Fields

        return Fields(
            self.key_field,
            self.value_field,
            self.timestamp_field,
            self.headers_field,
            self.partition_field,
            key_json=self.key_json,
        )

    def _csv_format(self) -> "CsvFormat":
        from logstore.cli.csv_reader import CsvFormat, parse_types

        delimiter = "," if self.delimiter is None else self.delimiter
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise typer.BadParameter("is one ASCII character, and none of CSV's own", param_hint="--delimiter")
        try:
            types = {} if self.types is None else parse_types(self.types)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--types") from error
        return CsvFormat(delimiter, types, self.infer)

    def _key_bytes(self, key: str) -> bytes:
        import msgspec

        data = _utf8(key, "--key")
        return msgspec.json.encode(key) if self.key_json else data


def unescaped(text: str | None) -> str | None:
    """Return ``text`` with tabs for backslash and t, which shells do not convert."""
    return None if text is None else text.replace("\\t", "\t")


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    _utf8(name, "--header")
    return name, _utf8(value, "--header")


def _utf8(text: str, option: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"is not UTF-8: {error}", param_hint=option) from error
