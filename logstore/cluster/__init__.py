"""Partition leadership: the state of one node, and the state that a broker agrees on with other brokers through ZooKeeper.

A store of one node imports only ``cluster_state`` and ``embedded_cluster_state``. Brokers of a cluster import the rest.
"""
