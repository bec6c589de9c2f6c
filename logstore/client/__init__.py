"""The Python client: HTTP to a running store, no part of the store itself.

``admin`` (topics and groups), ``producer`` and ``consumer`` (records, in Arrow), each over ``transport`` (addresses,
errors, retries) and its ``connections``.
"""
