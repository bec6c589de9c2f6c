import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from benchmarks.workload import Payload, Workload, batches, keys, values, write_bodies
from logstore.records.arrow_decoder import decode_arrow
from logstore.records.json_decoder import decode_json
from logstore.records.ndjson_decoder import decode_ndjson

MIB = 1024 * 1024


@pytest.mark.parametrize("payload", ["json", "random"])
@pytest.mark.parametrize("size", [100, 1_000])
def test_values_are_json_of_exactly_the_size(payload: Payload, size: int):
    found = values(Workload(size, payload), 200)
    assert {len(value) for value in found} == {size}
    assert all(json.loads(value) for value in found)
    assert found == values(Workload(size, payload), 200)
    assert found != values(Workload(size, payload), 200, seed=1)


def test_random_values_do_not_compress_and_json_does():
    def compressed(payload: Payload) -> float:
        text = b"".join(values(Workload(1_000, payload), 200))
        return len(zstandard.compress(text)) / len(text)

    assert compressed("random") > 0.74
    assert compressed("json") < 0.4


def test_every_form_holds_the_same_records(tmp_path: Path):
    workload = Workload(batch=50)

    def first(form: str, of: Workload = workload) -> bytes:
        return Path(write_bodies(tmp_path, of, form)[0]).read_bytes()  # type: ignore[arg-type]

    expected = batches(workload)[0]
    assert expected.column("key").to_pylist() == keys(50)
    assert expected.column("value").to_pylist() == values(workload, 50)
    assert decode_json(first("json"), max_message_bytes=MIB).batch.equals(expected)
    for form in ("arrow", "arrow lz4"):
        assert decode_arrow(first(form), max_message_bytes=MIB, max_request_size=MIB).batch.equals(expected)
    unkeyed = decode_ndjson(first("ndjson", replace(workload, keyed=False)), max_message_bytes=MIB).batch
    assert unkeyed.column("value").equals(expected.column("value"))
    assert unkeyed.column("key").null_count == 50


def test_a_compressed_arrow_body_is_smaller(tmp_path: Path):
    sizes = {
        form: Path(write_bodies(tmp_path, Workload(), form)[0]).stat().st_size  # type: ignore[arg-type]
        for form in ("arrow", "arrow lz4")
    }
    assert sizes["arrow lz4"] < 0.7 * sizes["arrow"]


def test_bodies_differ_so_that_nothing_is_served_from_memory(tmp_path: Path):
    bodies = [Path(name).read_bytes() for name in write_bodies(tmp_path, Workload(batch=10), "json")]
    assert len(set(bodies)) == len(bodies) >= 4
    with pa.ipc.open_stream(Path(write_bodies(tmp_path, Workload(batch=10), "arrow")[0])) as reader:
        assert [batch.num_rows for batch in reader] == [10]


def test_a_record_is_its_key_and_its_value():
    assert Workload(100).record_bytes == 100 + len(keys(1)[0])
    assert Workload(100, keyed=False).record_bytes == 100


def test_requests_go_to_the_topic_or_to_each_partition_in_turn():
    assert Workload().paths("t") == ["/topics/t"]
    assert Workload(partitions=2, spread=False).paths("t") == ["/topics/t/partitions/0", "/topics/t/partitions/1"]
