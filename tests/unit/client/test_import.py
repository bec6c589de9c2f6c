"""A program that imports our client first does not wait for packages that it does not use."""

import subprocess
import sys

import pyarrow as pa
import pytest

from logstore.protocol.record_batch import RecordBatch, encode_batches
from logstore.records.schema import WIRE_SCHEMA, null_headers

#: Each takes a large part of a second to import, where it is installed.
HEAVY = ("pandas", "pyarrow.parquet", "pyarrow.dataset", "deltalake", "pydantic", "rich")
pytestmark = pytest.mark.system

READ = """
import sys
import logstore
logstore.Producer, logstore.Consumer
import pyarrow as pa
from logstore.client.consumer.records import FetchedBatch
from logstore.protocol.record_batch import read_records
(batch,) = read_records(pa.py_buffer(sys.stdin.buffer.read()), 5)
(record,) = FetchedBatch("t", 0, batch, 6, 0, 6).records()
print(record.value.decode(), *[name for name in sys.argv[1:] if name in sys.modules])
"""


def test_importing_the_client_and_reading_a_record_imports_nothing_heavy():
    columns = [pa.nulls(1, WIRE_SCHEMA.field(0).type), pa.nulls(1, pa.binary()), pa.array([b"value"]), null_headers(1)]
    payload = pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA).serialize()
    given = b"".join(map(bytes, encode_batches([RecordBatch(5, 0, 1, 0, payload)])))
    ran = subprocess.run([sys.executable, "-c", READ, *HEAVY], input=given, capture_output=True, timeout=60, check=True)
    assert ran.stdout.decode().split() == ["value"]
