"""Legal names of topics and groups, by Kafka's rule (``org.apache.kafka.common.internals.Topic``)."""

import re

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def is_legal_name(name: str, length_max: int) -> bool:
    """1 to ``length_max`` of A-Z a-z 0-9 . _ -, but not '.' or '..'."""
    return len(name) <= length_max and _NAME.fullmatch(name) is not None and name not in {".", ".."}
