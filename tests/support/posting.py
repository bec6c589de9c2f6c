"""Records written to a store without the store's clients."""

from collections.abc import Mapping, Sequence

import httpx
import pyarrow as pa

from logstore.records.schema import WIRE_SCHEMA

_ARROW = "application/vnd.apache.arrow.stream"


def post(
    url: str,
    topic: str,
    partition: int,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_ms: Sequence[int | None] | None = None,
    headers: Sequence[list[tuple[str, bytes | None]] | None] | None = None,
    compression: str | None = None,
) -> int:
    """Post the records as one batch and return its base offset."""
    nothing = [None] * len(values)
    columns = (timestamps_ms or nothing, keys or nothing, values, headers or nothing)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, WIRE_SCHEMA, strict=True)], schema=WIRE_SCHEMA
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, WIRE_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    answer = httpx.post(
        f"{url}/topics/{topic}/partitions/{partition}",
        content=sink.getvalue().to_pybytes(),
        headers={"Content-Type": _ARROW},
    )
    answer.raise_for_status()
    (produced,) = answer.json()["ranges"]
    return int(produced["base_offset"])


def commit(url: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit the next offsets to read, by partition, as a client of REST Proxy: they may be beyond the end."""
    instance = f"{url}/consumers/{group}/instances/c"
    partitions = [{"topic": topic, "partition": partition} for partition in offsets]
    finished = [{"topic": topic, "partition": partition, "offset": offset - 1} for partition, offset in offsets.items()]
    for address, body in (
        (f"{url}/consumers/{group}", {"name": "c"}),
        (f"{instance}/assignments", {"partitions": partitions}),
        (f"{instance}/offsets", {"offsets": finished}),
    ):
        httpx.post(address, json=body).raise_for_status()
    httpx.delete(instance).raise_for_status()
