"""The Python client. It speaks HTTP to a running store and is not part of the store itself.

``admin`` handles topics and groups, ``producer`` and ``consumer`` handle records in Arrow. All use ``transport``
(addresses, errors, retries) and its ``connections``.
"""
