"""Produce requests: records and Kafka's record batches become frames of the journal."""
