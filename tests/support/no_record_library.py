"""A pytest plugin: the record codec has no library, as on a machine without a C compiler."""

from pathlib import Path
from unittest import mock

from logstore.kafka_batches import native
from logstore.kafka_batches.numpy_codec import NumpyCodec

with mock.patch.object(native.NativeCodec.__init__, "__defaults__", (Path("no library"),)):
    from logstore.kafka_batches.codec import CODEC

assert isinstance(CODEC, NumpyCodec)
