"""Reading records.

A record's way in: ``fetcher`` (one thread, ahead of the program) → ``consumer``, which hands out ``records`` and keeps
the position of each partition (``subscription_state``). ``offset_fetcher`` finds out where to begin,
``offset_committer`` commits offsets. As a member of a group, its partitions come by ``group_member``, which carries out
what ``membership`` (of a group that the members assign: ``classic_member``; the store: ``consumer_member``) says.
"""

from logstore.client.consumer.consumer import Consumer
from logstore.client.consumer.rebalance_listener import ConsumerRebalanceListener
from logstore.client.metadata import OffsetAndTimestamp

__all__ = ["Consumer", "ConsumerRebalanceListener", "OffsetAndTimestamp"]
