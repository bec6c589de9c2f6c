"""Legal names of topics, by Kafka's rule (``org.apache.kafka.common.internals.Topic``), which of them are reserved, and
legal names of groups.
"""

import re
from typing import Final

#: Kafka's strings have a length of 16 bits.
GROUP_NAME_BYTES_MAX: Final = 2**15 - 1
_NAME = re.compile(r"[A-Za-z0-9._-]+")

#: Kafka's internal topics and the store's own. The names are reserved, whether the topics exist or not; other names
#: that begin with ``__`` are ordinary, as in Kafka.
INTERNAL_TOPICS: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__erasures",
        "__audit",
    }
)


def is_legal_name(name: str, length_max: int) -> bool:
    """Return whether a name is 1 to ``length_max`` of A-Z a-z 0-9 . _ -, but not '.' or '..'."""
    return len(name) <= length_max and _NAME.fullmatch(name) is not None and name not in {".", ".."}


def is_group_name(name: str) -> bool:
    """Return whether a string of Kafka's protocol can hold the name: 1 to 32,767 bytes of UTF-8."""
    try:
        return 1 <= len(name.encode()) <= GROUP_NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def is_internal(name: str) -> bool:
    """Return whether a topic of that name is the store's own: nobody else creates, changes or writes it."""
    return name in INTERNAL_TOPICS
