"""Between the brokers of a cluster: the peer protocol (docs/peer-protocol.md), and copies of partitions over it.

One node imports nothing of it.
"""
