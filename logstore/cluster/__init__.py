"""Partition leadership: the coordinator of one node, and the one that agrees with other brokers through ZooKeeper.

A store of one node imports only ``coordinator`` and ``embedded_coordinator``. Brokers of a cluster import the rest.
"""
