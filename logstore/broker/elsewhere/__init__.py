"""The other brokers of a cluster: what they lead, what they are asked for, and what they ask. One node has none."""
