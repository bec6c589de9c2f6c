"""Sending records.

A record's way out: ``producer`` → ``record_accumulator`` (a ``topic_queue`` for each topic) → ``sender``, which splits
batches by partition (``partitioner``, ``producer_batch``) → ``produce_requests`` → ``logstore.client.transport``. The
outcome comes back as a ``delivery``.
"""

from logstore.client.producer.producer import Producer

__all__ = ["Producer"]
