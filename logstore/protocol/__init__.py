"""The protocol between clients, the store and, later, followers: error codes, record batches, fetch responses.

Both ends import it, so that each layout is defined once. The package knows no HTTP, no socket and no disk.
"""
