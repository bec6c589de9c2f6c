"""Who leads what: the coordinator of one node, and the one that agrees with other brokers through ZooKeeper.

One node needs ``coordinator`` and ``embedded_coordinator`` only. Everything else is imported by a broker of a cluster.
"""
