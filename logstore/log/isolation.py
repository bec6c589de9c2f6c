"""Kafka's isolation levels: up to where a partition log is read."""

from enum import IntEnum


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    """Up to the high watermark: records of open transactions, too."""
    READ_COMMITTED = 1
    """Up to the last stable offset: every transaction below it has ended."""
