"""A topic's Delta table: reading one snapshot of it, and the one commit protocol.

``deltalake`` must not be used in a forked child of a process that used it: child processes are spawned.
"""
