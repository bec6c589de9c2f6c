"""Assignors: which member of a group reads which partitions. Pure functions, with Kafka's names and results.

``registry`` has them by name: those of a classic group, of which the leader takes one, and those that the store takes
for a group of KIP-848.
"""
