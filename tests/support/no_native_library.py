"""A pytest plugin: nothing that is compiled from C is there, as on a machine without a C compiler."""

from pathlib import Path
from unittest import mock

from logstore.kafka_batches import native as kafka_native
from logstore.kafka_batches.numpy_codec import NumpyCodec
from logstore.records import native as json_native

with mock.patch.object(kafka_native.NativeCodec.__init__, "__defaults__", (Path("no library"),)):
    from logstore.kafka_batches.codec import CODEC
    from logstore.kafka_batches.plain_pages import PAGE_CODEC

assert isinstance(CODEC, NumpyCodec)
assert PAGE_CODEC is None
json_native.NATIVE = None  # type: ignore[misc]
