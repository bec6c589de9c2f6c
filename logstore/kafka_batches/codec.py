"""The record codec of this process: the one in C, or the one in numpy if there is no library."""

from typing import Final

from logstore.kafka_batches.native import NativeCodec
from logstore.kafka_batches.numpy_codec import NumpyCodec
from logstore.kafka_batches.records import RecordCodec
from logstore.native_library import loaded

CODEC: Final[RecordCodec] = loaded(NativeCodec) or NumpyCodec()
