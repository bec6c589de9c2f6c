"""The log of a topic's partitions: append, roll to Delta, and one read path over history and tail."""
