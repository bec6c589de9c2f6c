"""The partitioner: Kafka's choice of a partition, so that a key has the same one here and in Kafka (``murmur2``)."""

import numpy as np

from logstore.records.batch import DecodedRecords
from logstore.records.murmur2 import murmur2_column


def choose_partitions(records: DecodedRecords, num_partitions: int, sticky: int) -> np.ndarray:
    """Return the partition of each record, int32: the named one, or by the key's hash, or ``sticky`` for a record with
    neither. A record may name one that the topic does not have.
    """
    keys = records.batch.column("key")
    if keys.null_count == len(keys):
        chosen = np.full(len(keys), sticky, np.int32)
    else:
        # Kafka computes toPositive(murmur2(key)) % partitions, where toPositive clears the sign bit.
        chosen = ((murmur2_column(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(num_partitions)).astype(np.int32)
        if keys.null_count:
            chosen = np.where(keys.is_valid().to_numpy(zero_copy_only=False), chosen, np.int32(sticky))
    named = records.partitions
    if named is not None:
        chosen = np.where(named >= 0, named, chosen)
    return chosen
