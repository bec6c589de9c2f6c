"""Kafka's record batches (magic 2): checked before they are stored, converted to the store's columns and back."""
