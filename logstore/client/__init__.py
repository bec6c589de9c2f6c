"""The Python client: HTTP to a running store, no part of the store itself.

``admin`` (topics), ``producer`` and ``consumer`` (records, in Arrow), each over ``transport`` (addresses, errors,
retries).
"""
