"""Topics read back without Spark: by delta-rs, which knows nothing of this project, and over HTTP."""

from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from docs.demo.checks import Contents
from docs.demo.posting import CLIENT_ID
from logstore.client.consumer import Consumer
from logstore.client.transport import Transport, topic_path

_ENDS = ("Logstore-Next-Offset", "Logstore-High-Watermark")
_READ_BYTES = 16 * 1024 * 1024


def read_delta(location: str) -> tuple[Contents, bool]:
    """Return the content of the Delta table at a URI, and whether timestamps rise with offsets in each partition."""
    table = _read(location, "partition", "offset", "timestamp")
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    partitions, offsets = table["partition"].to_numpy(), table["offset"].to_numpy()
    numbers, starts, counts = np.unique(partitions, return_index=True, return_counts=True)
    first = offsets[starts]
    dense = bool((offsets == np.arange(len(offsets)) + np.repeat(first - starts, counts)).all())
    same_partition = partitions[1:] == partitions[:-1]
    timestamps = table["timestamp"].to_numpy()
    in_order = bool((timestamps[1:] >= timestamps[:-1])[same_partition].all())
    found = zip(numbers.tolist(), first.tolist(), counts.tolist(), strict=True)
    return Contents({partition: range(at, at + count) for partition, at, count in found}, dense), in_order


def read_records(location: str) -> list[tuple[bytes, bytes]]:
    """Return key and value of every record in the Delta table at a URI."""
    table = _read(location, "key", "value")
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def read_over_http(url: str, topic: str) -> Contents:
    """Read every record that a store serves, in Arrow."""
    offsets, dense = {}, True
    with Consumer(url, client_id=CLIENT_ID) as consumer:
        for partition in consumer.partitions_for(topic):
            consumer.assign([partition])
            consumer.seek_to_beginning()
            first = at = consumer.position(partition)
            end = consumer.end_offsets([partition])[partition]
            while at < end and (fetched := consumer.poll_arrow()):
                dense &= bool((fetched.batch["offset"].to_numpy() == np.arange(at, at + len(fetched))).all())
                at += len(fetched)
            offsets[partition.partition] = range(first, at)
    return Contents(offsets, dense)


def read_at_broker(url: str, topic: str, partitions: int) -> tuple[Contents, Any]:
    """Read every record from offset 0, as one broker of a cluster answers a client that knows no other. The second
    result is a table of them: ``partition: int32``, ``offset: int64``, ``timestamp``, ``value: binary``.
    """
    offsets, tables, dense = {}, [], True
    with Transport(url, client_id=CLIENT_ID) as transport:
        for partition in range(partitions):
            at, end = 0, 1
            while at < end:
                answer = transport.request(
                    "GET",
                    topic_path(topic, f"/partitions/{partition}/records"),
                    params={"offset": at, "max_bytes": _READ_BYTES, "max_wait_ms": 0},
                    headers={"Accept": "application/vnd.apache.arrow.stream"},
                )
                found = pa.ipc.open_stream(answer.content).read_all().select(["offset", "timestamp", "value"])
                dense &= bool((found["offset"].to_numpy() == np.arange(at, at + len(found))).all())
                named = pa.repeat(pa.scalar(partition, pa.int32()), len(found))
                tables.append(found.append_column("partition", named))
                at, end = (int(answer.headers[name]) for name in _ENDS)
            offsets[partition] = range(at)
    return Contents(offsets, dense), pa.concat_tables(tables)


def times_stored(expected: Any, values: Any) -> tuple[int, int, int]:
    """Count the ``expected`` values (all different) that are not among ``values``, those that are there more than once,
    and the ``values`` that are not expected.
    """
    found = pc.index_in(values, value_set=expected.combine_chunks())
    times = np.bincount(found.drop_null().to_numpy(), minlength=len(expected))
    return int((times == 0).sum()), int((times > 1).sum()), found.null_count


def _read(location: str, *columns: str) -> Any:
    return deltalake.DeltaTable(location).to_pyarrow_dataset().to_table(columns=list(columns))
