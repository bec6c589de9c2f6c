"""Reading records.

A record's way in: ``fetcher`` (one thread, ahead of the program) → ``consumer``, which hands out ``records`` and keeps
the position of each partition (``subscription_state``). ``offset_fetcher`` finds out where to begin,
``offset_committer`` commits offsets.
"""

from logstore.client.consumer.consumer import Consumer, OffsetAndTimestamp

__all__ = ["Consumer", "OffsetAndTimestamp"]
