"""The order of Java's HashMap, as Java gave it."""

from logstore.protocol.assignors.hash_order import hash_order


def consumers(*numbers: int) -> list[str]:
    return [f"consumer{number}" for number in numbers]


def test_the_order_is_javas():
    twelve = consumers(*range(1, 13))
    assert hash_order(twelve) == consumers(12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1)
    # The thirteenth name doubles the buckets.
    assert hash_order([*twelve, "consumer13"]) == consumers(12, 11, 10, 9, 8, 7, 6, 13, 5, 4, 3, 2, 1)


def test_names_beyond_ascii_are_hashed_in_utf_16():
    assert hash_order(["名前", "é", "\U0001f600"]) == ["\U0001f600", "é", "名前"]
