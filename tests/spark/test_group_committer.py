"""Positions of a query are committed to a group of a real store, in the background, whatever the store does."""

import time

import pytest

from logstore.client.admin import Admin
from logstore.spark.source.group_committer import GroupCommitter
from logstore.spark.source.stream_offset import StreamOffset

pytestmark = pytest.mark.system


@pytest.mark.long
def test_the_newest_position_is_committed_and_trouble_is_reported_once(store, caplog):
    topic = store.create("committer", 2)
    store.produce(topic, 0, 0, 20)
    store.produce(topic, 1, 0, 20)
    admin = Admin(store.url)
    ids = {topic: admin.describe_topic(topic).topic_id}
    committer = GroupCommitter("committer", lambda: Admin(store.url, default_api_timeout_ms=200))

    def at(*offsets):
        return StreamOffset({(topic, number): offset for number, offset in enumerate(offsets)}, ids)

    def committed():
        return [o.offset for o in admin.group_offsets("committer")]

    committer.offer(at(1, 2))
    committer.flush(10)
    assert committed() == [1, 2]

    # A deleted group begins again with all positions.
    admin.delete_group("committer")
    committer.offer(at(1, 3))
    committer.flush(10)
    assert committed() == [1, 3]
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "group committer was deleted while a query commits its offsets to it; it is made again"
    ]
    caplog.clear()

    store.server.kill()
    began = time.monotonic()
    for offset in range(5, 10):
        committer.offer(at(offset, offset))
        committer.flush(0.5)
    assert time.monotonic() - began < 30
    store.server.start()
    committer.flush(10)
    committer.offer(at(9, 9))
    committer.flush(10)
    assert committed() == [9, 9]
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith("offsets of a query are not committed to group committer: ")
    assert warning.endswith("; the query continues, and each trigger tries again")

    # Nothing is committed to another topic of the same name.
    store.delete(topic)
    store.create(topic, 2)
    committer.offer(at(10, 10))
    committer.flush(10)
    [_, warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "was deleted and made again" in warning
    assert "committer" not in admin.groups()
    admin.close()
