"""One broker: topics, produce and fetch over the partition logs, background rolls, recovery."""
