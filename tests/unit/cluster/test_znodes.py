"""Documents are written and read back; one that no broker writes is refused by its path; sizes are limited."""

import contextlib
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.cluster import znodes
from logstore.cluster.znodes import (
    BrokerRecord,
    BrokerRegistration,
    PartitionRegistration,
    ProducerIds,
    TopicRegistration,
)
from logstore.errors import ClusterStateError
from logstore.limits import PARTITIONS_PER_TOPIC_MAX

ROW = PartitionRegistration(1, 4, (1, 2), (2, 1, 3))


def topic(*rows: PartitionRegistration) -> TopicRegistration:
    return TopicRegistration(UUID(int=7), 0, False, rows)


def test_the_document_of_a_topic_is_one_short_row_for_each_partition():
    assert znodes.encode("/t", topic(ROW)).decode() == (
        '{"topic_id":"00000000-0000-0000-0000-000000000007","version":0,"deleting":false,'
        '"partitions":[[1,4,[1,2],[2,1,3],[],[],false]]}'
    )


@pytest.mark.parametrize(
    "document",
    [
        topic(ROW, PartitionRegistration(-1, 0, (), (1,), (), (), True)),
        BrokerRegistration("http://h", "h:1", None, "shutting_down", 3, {"t": (0, 2)}),
        BrokerRecord((UUID(int=1),), 9, "r"),
        ProducerIds(1 << 40),
    ],
)
def test_a_document_is_read_back(document):
    assert znodes.decode("/x", znodes.encode("/x", document), type(document)) == document


def test_the_largest_topic_fits_and_what_is_larger_is_refused():
    row = PartitionRegistration(1_001, 2**31 - 1, (1_001, 1_002, 1_003), (1_001, 1_002, 1_003))
    assert znodes.encode("/t", topic(*[row] * PARTITIONS_PER_TOPIC_MAX))
    with pytest.raises(ClusterStateError, match=r"^The document /t would have \d+ bytes.*fewer partitions"):
        znodes.encode("/t", topic(*[row] * 2 * PARTITIONS_PER_TOPIC_MAX))


GOOD = [1, 4, [1, 2], [2, 1, 3], [], [], False]


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (0, 3, "leader 3 is not in the isr"),
        (0, "1", "Expected `int`"),
        (1, -1, "leader epoch -1 is below 0"),
        (2, [1, 4], r"isr \[1, 4\] is not a part of the replicas"),
        (2, [1, 1], "isr"),
        (3, [], "distinct ids"),
        (3, [1, 1, 2], "distinct ids"),
        (3, [-1, 1, 2], "distinct ids"),
        (4, [9], "adding"),
        (5, [9], "removing"),
        (5, [1, 2, 3], "all replicas are being removed"),
        (6, 1, "Expected `bool`"),
    ],
)
def test_a_row_that_no_broker_writes_is_refused(at, value, why):
    row = [value if number == at else one for number, one in enumerate(GOOD)]
    data = msgspec.json.encode(
        {"topic_id": str(UUID(int=7)), "version": 0, "deleting": False, "partitions": [GOOD, row]}
    )
    with pytest.raises(ClusterStateError, match=rf"^/brokers/topics/t in ZooKeeper is not what .*{why}"):
        znodes.decode("/brokers/topics/t", data, TopicRegistration)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b'{"next": 1, "more": 2}', b'{"next": "1"}', b"\xff", b"{"]
)
def test_other_bytes_are_one_error_with_the_path(data):
    with pytest.raises(
        ClusterStateError, match=r"^/producer_ids in ZooKeeper is not what .*put its former content back"
    ):
        znodes.decode("/producer_ids", data, ProducerIds)


@given(st.binary(max_size=200), st.integers(0, 120))
def test_a_damaged_document_is_refused_or_is_a_whole_one(noise, at):
    good = znodes.encode("/t", topic(ROW, ROW))
    damaged = good[:at] + noise + good[at + len(noise) :]
    with contextlib.suppress(ClusterStateError):
        found = znodes.decode("/t", damaged, TopicRegistration)
        assert znodes.decode("/t", znodes.encode("/t", found), TopicRegistration) == found
