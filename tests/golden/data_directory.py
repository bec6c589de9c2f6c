"""Writes a small data directory with everything that a store keeps, and the content that must be read from it.

In its first life the store seals all its records, when it stops; jobs work on them; the records of its second life are
only in the journal, as a kill leaves them.
"""

import asyncio
import base64
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx

from logstore.limits import TIMESTAMP_MS_MAX
from tests.api.api_client import ARROW, BINARY_V2, ApiClient
from tests.golden.observed import CLOCK_MS, in_table, observed, store_at
from tests.support.data_directory import copy_of_one_moment
from tests.support.records import Row, arrow_stream, wire_batch
from tests.support.server_process import ROOT

CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
ARROW_CODECS = (None, "lz4", "zstd")
#: A little more than the number of commits after which a Delta log gets a checkpoint.
CHECKPOINTED_VERSIONS = 105


class Writer:
    """Sends requests to a running store. ``repeated`` keeps those that a later store must recognise."""

    def __init__(self, api: ApiClient) -> None:
        self.api = api
        self.repeated: list[dict[str, Any]] = []

    async def post(self, path: str, body: bytes, content_type: str, *, repeat: bool = False, **headers: str) -> Any:
        """Post a body; ``headers`` have Python's spelling."""
        named = {"Content-Type": content_type, **{name.replace("_", "-"): text for name, text in headers.items()}}
        answer = _checked(await self.api.post(path, content=body, headers=named))
        if repeat:
            text = base64.b64encode(body).decode()
            self.repeated.append({"path": path, "headers": named, "body": text, "answer": answer.json()})
        return answer.json()

    async def produce(self, topic: str, rows: list[Row], partition: int = 0, codec: str | None = None) -> None:
        body = arrow_stream(wire_batch(rows), compression=codec)
        await self.post(f"/topics/{topic}/partitions/{partition}", body, ARROW)

    async def produce_sequence(
        self, topic: str, producer: dict[str, int], sequence: int, values: Iterable[str]
    ) -> None:
        """Produce to partition 0; the same request must be recognised later."""
        await self.post(
            f"/topics/{topic}/partitions/0",
            binary_body(values),
            BINARY_V2,
            repeat=True,
            Logstore_Producer_Id=str(producer["producer_id"]),
            Logstore_Producer_Epoch=str(producer["producer_epoch"]),
            Logstore_Base_Sequences=f"0={sequence}",
        )

    async def produce_with_key(self, topic: str, key: str, values: Iterable[str]) -> None:
        """Produce, spread over the partitions; the same request must be recognised later."""
        await self.post(f"/topics/{topic}", binary_body(values), BINARY_V2, repeat=True, Idempotency_Key=key)

    async def commit(self, group: str, *offsets: tuple[str, int, int, str]) -> None:
        names = ("topic", "partition", "offset", "metadata")
        rows = [dict(zip(names, offset, strict=True)) for offset in offsets]
        _checked(await self.api.post(f"/groups/{group}/offsets", json={"offsets": rows}))

    async def new_producer(self) -> dict[str, int]:
        return dict(_checked(await self.api.post("/producers")).json())


def binary_body(values: Iterable[str]) -> bytes:
    records = ",".join(f'{{"value":"{base64.b64encode(value.encode()).decode()}"}}' for value in values)
    return f'{{"records":[{records}]}}'.encode()


def every_kind_of_record(marker: str) -> list[Row]:
    """Return records with null, empty and full keys, values and headers, with and without the producer's timestamps."""
    return [
        Row(CLOCK_MS - 5_000, b"key", f"{marker} value".encode(), (("a", b"1"), ("a", None), ("ä", b""))),
        Row(None, None, None, None),
        Row(0, b"", b"", ()),
        Row(TIMESTAMP_MS_MAX, b"key", None, None),
        Row(CLOCK_MS + 86_400_000, bytes(range(256)), f"{marker} ".encode() * 200, (("", b"\x00\xff"),)),
    ]


def write_data_directory(directory: Path, archive: Path) -> dict[str, Any]:
    """Make a store in ``directory``, and put it into ``archive``; return what must be read from it. The jobs need a
    Spark.
    """
    data, copy = directory / "writing", directory / "data"
    state: dict[str, Any] = asyncio.run(_first_life(data))
    for job in ("compact", "retention"):
        command = [sys.executable, "-m", "logstore.cli", "job", job, "--data", str(data)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    expected = asyncio.run(_second_life(data, copy, state))
    with tarfile.open(archive, "w:gz", compresslevel=9) as packed:
        # A lock names the process and the machine that hold it, so it is not a part of the stored data.
        packed.add(copy, "data", filter=lambda entry: None if entry.name.endswith("/lock") else entry)
    tables = {name: in_table(copy, name) for name in expected["topics"]}
    return {"clock_ms": CLOCK_MS, **expected, "tables": tables}


async def _first_life(data: Path) -> dict[str, Any]:
    async with store_at(data) as api:
        writer = Writer(api)
        await api.create_topic("events", partitions=2)
        for round_ in range(2):
            for partition in range(2):
                await writer.produce("events", every_kind_of_record(f"sealed {round_}"), partition)
            await _roll(api, "events")
        for codec in CODECS:
            await api.create_topic(f"codec-{codec}", compression_type=codec)
            await writer.produce(f"codec-{codec}", every_kind_of_record(codec))
        await api.create_topic("append-time", message_timestamp_type="LogAppendTime")
        await writer.produce("append-time", every_kind_of_record("append time"))

        await api.create_topic("compacted", cleanup_policy="compact")
        for round_ in range(3):
            keys = [b"k%d" % number for number in range(round_, 5)]
            rows = [Row(CLOCK_MS, key, None if round_ == 2 and key == b"k3" else b"%d" % round_, None) for key in keys]
            await writer.produce("compacted", rows)
            await _roll(api, "compacted")
        await api.create_topic("retained", retention_bytes="0")
        await api.create_topic("deleted-records", partitions=2)
        for topic in ("retained", "deleted-records"):
            for _ in range(2):
                await writer.produce(topic, [Row(CLOCK_MS, None, b"%d" % n, None) for n in range(10)])
                await _roll(api, topic)
        await _delete_records(api, "deleted-records", 0, 13)
        await api.create_topic("checkpointed")
        await writer.produce("checkpointed", every_kind_of_record("before"))
        await _roll(api, "checkpointed")
        for number in range(CHECKPOINTED_VERSIONS):
            changes = {"data": [{"name": "retention.ms", "value": str(10**10 + number)}]}
            _checked(await api.post(f"{api.topics_url}/checkpointed/configs:alter", json=changes))

        await api.create_topic("idempotent")
        sealed = await writer.new_producer()
        both = await writer.new_producer()
        await writer.produce_sequence("idempotent", sealed, 0, ["s0", "s1"])
        await writer.produce_sequence("idempotent", sealed, 2, ["s2"])
        await writer.produce_sequence("idempotent", both, 0, ["b0"])
        await api.create_topic("keyed", partitions=3)
        await writer.produce_with_key("keyed", "sealed-key", ["a", "b", "c", "d"])
        await writer.commit("sealed-group", ("events", 0, 3, "sealed"), ("events", 1, 10, ""))
        await writer.commit("both-group", ("events", 0, 1, "sealed"), ("compacted", 0, 5, ""))
        await writer.commit("deleted-group", ("events", 0, 1, ""))
        return {"repeated": writer.repeated, "both": both}


async def _second_life(data: Path, copy: Path, state: dict[str, Any]) -> dict[str, Any]:
    async with store_at(data) as api:
        writer = Writer(api)
        for codec in ARROW_CODECS:
            await writer.produce("events", every_kind_of_record(f"tail {codec}"), codec=codec)
        # One table has a log that has grown beyond a checkpoint, and one topic has no records in a table.
        for topic in ("checkpointed", "append-time"):
            await writer.produce(topic, every_kind_of_record("tail"))
        await api.create_topic("unsealed")
        await writer.produce("unsealed", every_kind_of_record("never sealed"))
        await writer.produce("compacted", [Row(CLOCK_MS, b"k1", b"tail", None)])
        await writer.produce("deleted-records", [Row(CLOCK_MS, None, b"%d" % n, None) for n in range(4)], 1)
        await _delete_records(api, "deleted-records", 1, 2)
        await api.create_topic("gone")
        await writer.produce("gone", every_kind_of_record("gone"))
        _checked(await api.delete(f"{api.topics_url}/gone"))
        _checked(await api.patch(f"{api.topics_url}/codec-zstd", json={"partitions_count": 3}))
        await writer.produce("codec-zstd", every_kind_of_record("grown"), 2)

        both, tail = state["both"], await writer.new_producer()
        await writer.produce_sequence("idempotent", both, 1, ["b1", "b2"])
        await writer.produce_sequence("idempotent", tail, 0, ["t0"])
        await writer.produce_with_key("keyed", "tail-key", ["e", "f"])
        await writer.commit("both-group", ("events", 0, 20, "tail"))
        await writer.commit("tail-group", ("unsealed", 0, 2, "ä"))
        _checked(await api.delete("/groups/deleted-group"))
        copy_of_one_moment(data, copy)
        return {**await observed(api), "repeated": state["repeated"] + writer.repeated}


async def _roll(api: ApiClient, topic: str) -> None:
    _checked(await api.post(f"/topics/{topic}/roll"))


async def _delete_records(api: ApiClient, topic: str, partition: int, before: int) -> None:
    path = f"/topics/{topic}/partitions/{partition}/delete-records"
    _checked(await api.post(path, json={"before_offset": before}))


def _checked(answer: httpx.Response) -> httpx.Response:
    assert answer.is_success, answer.text
    return answer
