"""``logstore produce --dry-run`` shows the first records as they would be stored."""

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from logstore.cli.output import counted, print_json, print_table
from logstore.cli.record_blocks import Block, first_records

_RECORDS_SHOWN = 10


def show_first(blocks: Iterator[Block], unit: str, *, json: bool) -> None:
    """Print the records on stdout. Raises InvalidRecordError and InvalidRequestError as sending does."""
    from logstore.client.producer.record_columns import from_columns
    from logstore.errors import InvalidRequestError

    records: list[dict[str, Any]] = []
    for block in first_records(_RECORDS_SHOWN, blocks):
        try:
            batch, partitions = from_columns(block.columns)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{unit} {block.numbers[0]} and on: {error.message}") from error
        named = [-1] * batch.num_rows if partitions is None else partitions.tolist()
        records += [
            {unit: number, "partition": None if partition < 0 else partition, **record}
            for number, partition, record in zip(block.numbers.tolist(), named, batch.to_pylist(), strict=True)
        ]
    if json:
        print_json([{name: _of_json(value) for name, value in record.items()} for record in records])
        return
    columns = [unit, "key", "value"]
    columns += [name for name in ("timestamp", "partition", "headers") if any(record[name] for record in records)]
    print(f"The first {counted(len(records), 'record')} as they would be stored; nothing was sent")
    print_table(columns, ([_of_people(record[name]) for name in columns] for record in records))


def _of_json(value: Any) -> Any:
    """Return bytes as text, or as base64 in an object if they are not UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, list):
        return [{"key": header["key"], "value": _of_json(header["value"])} for header in value]
    return value


def _of_people(value: Any) -> object:
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, list):
        return ", ".join(f"{header['key']}={_of_people(header['value'])}" for header in value)
    if isinstance(value, bytes):
        shown = _of_json(value)
        return shown if isinstance(shown, str) else f"base64:{shown['base64']}"
    return value
