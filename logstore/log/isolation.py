"""Kafka's isolation levels: up to where a partition log is read."""

from enum import IntEnum
from typing import Final


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    """Up to the high watermark, including records of open transactions."""
    READ_COMMITTED = 1
    """Up to the last stable offset: every transaction below it has ended."""


#: The numbers of the isolation levels.
ISOLATION_LEVELS: Final = frozenset(map(int, Isolation))
