"""A log store with Kafka's model (topics, partitions, offsets) whose every topic is a plain Delta table.

``logstore.Producer``, ``Consumer`` and ``Admin`` are imported when they are first used: the command line starts without
them, and ``Admin`` without Arrow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logstore.client.admin import Admin as Admin
    from logstore.client.consumer import Consumer as Consumer
    from logstore.client.consumer import ConsumerRebalanceListener as ConsumerRebalanceListener
    from logstore.client.metadata import TopicPartition as TopicPartition
    from logstore.client.producer import Producer as Producer

__version__ = "0.7.0"
__all__ = ["Admin", "Consumer", "ConsumerRebalanceListener", "Producer", "TopicPartition", "__version__"]

_MODULES = {
    "Admin": "logstore.client.admin",
    "Consumer": "logstore.client.consumer",
    "ConsumerRebalanceListener": "logstore.client.consumer",
    "Producer": "logstore.client.producer",
    "TopicPartition": "logstore.client.metadata",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
