"""The traffic between brokers of a cluster: the peer protocol (docs/peer-protocol.md), and replication over it.

A store of one node imports nothing of this package.
"""
