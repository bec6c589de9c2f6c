"""The order in which Java's HashMap goes through its keys.

Kafka's sticky assignor asks the members in this order which of them keep one partition more than others. A leader that
is a Kafka client and one that is ours so come to the same assignment.
"""

from collections.abc import Collection


def hash_order(names: Collection[str]) -> list[str]:
    """``names`` as a HashMap of default capacity has them; names of one bucket are in the order of the names."""
    buckets = 16
    while len(names) > buckets * 3 // 4:
        buckets *= 2
    return sorted(names, key=lambda name: (_hash(name) & (buckets - 1), name))


def _hash(name: str) -> int:
    """``String.hashCode`` of ``name``, with its upper half mixed in as HashMap does."""
    code = 0
    units = name.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + units[at] + (units[at + 1] << 8)) & 0xFFFFFFFF
    return code ^ (code >> 16)
