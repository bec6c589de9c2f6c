"""Partition leadership: the state of one node, and the state on which the brokers of a cluster agree through ZooKeeper.

A store of one node imports only ``cluster_state`` and ``embedded_cluster_state``. Brokers of a cluster import the rest.
"""
