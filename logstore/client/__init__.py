"""The Python client: HTTP to a running store, no part of the store itself.

``admin`` (topics), ``producer`` and ``consumer`` (records, in Arrow), each over ``transport`` (addresses, errors,
retries).

A record's way out: ``producer`` → ``record_accumulator`` (a ``topic_queue`` for each topic) → ``sender``, which splits
batches by partition (``partition_choice``, ``record_messages``) → ``produce_requests`` → ``transport`` →
``connections``; what became of it comes back as a ``delivery``.
"""
