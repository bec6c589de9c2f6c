"""The order in which Java's HashMap iterates over its keys.

Kafka's sticky assignor asks the members in this order which of them keep one partition more than others. So a leader
that is a Kafka client and one of ours produce the same assignment.
"""

from collections.abc import Collection


def hash_order(names: Collection[str]) -> list[str]:
    """Return ``names`` in the order of a HashMap of default capacity; names in one bucket are sorted."""
    buckets = 16
    while len(names) > buckets * 3 // 4:
        buckets *= 2
    return sorted(names, key=lambda name: (_hash(name) & (buckets - 1), name))


def _hash(name: str) -> int:
    """Return ``String.hashCode`` of ``name``, with its upper half mixed in as HashMap does."""
    code = 0
    units = name.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + units[at] + (units[at + 1] << 8)) & 0xFFFFFFFF
    return code ^ (code >> 16)
