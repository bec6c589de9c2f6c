"""Reading records.

A record's way in: ``fetcher`` (threads that read ahead of the program) → ``consumer``, which hands out ``records`` and
keeps the position of each partition (``subscription_state``). ``offset_fetcher`` finds the offsets to begin at,
``offset_committer`` commits offsets. A member of a group gets its partitions through ``group_member``, which carries
out the steps of ``membership``: ``classic_member`` if the members assign, ``consumer_member`` if the store does.
"""

from logstore.client.consumer.consumer import Consumer
from logstore.client.consumer.rebalance_listener import ConsumerRebalanceListener
from logstore.client.metadata import OffsetAndTimestamp

__all__ = ["Consumer", "ConsumerRebalanceListener", "OffsetAndTimestamp"]
