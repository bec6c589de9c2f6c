"""The first roll of a leader, whose predecessor rolled more than it could tell: nothing is refused."""

from pathlib import Path

from logstore.broker.context import INTERNAL
from tests.support.captured_logs import captured_logs
from tests.support.running_broker import produce, run, running_broker
from tests.support.topics import roll


def test_the_first_roll_of_an_epoch_goes_on_where_the_table_ends(tmp_path: Path):
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.create_topic(INTERNAL, "orders", partitions=1, configs={"segment.ms": "100000000"})
            for count in (4, 6):  # a roll ends where a batch does
                await produce(broker, topic, [b"v"] * count)
            (log,) = topic.partitions
            assert topic.snapshot.partitions[0].leader_epoch < log.leader_epoch
            roll(topic.table, 0, 0, 4)
            result = await broker.roll(INTERNAL, topic)
            assert result.sealed == {0: 10}

    with captured_logs() as logs:
        run(scenario())
    assert not [line for line in logs if line["event"] == "roll.refused"]
