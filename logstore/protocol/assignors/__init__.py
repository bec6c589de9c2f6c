"""Assignors decide which member of a group reads which partitions. Pure functions, with Kafka's names and results.

``registry`` has them by name: those of a classic group, which its leader runs, and those that the store runs for a
group of KIP-848.
"""
