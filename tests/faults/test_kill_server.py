"""kill -9 of a real server under load, many times: no acknowledged record is lost, none is doubled, none is moved."""

import random
from pathlib import Path

from tests.support.produce_load import ProduceLoad
from tests.support.served_topic import PARTITIONS, check_everywhere, create_topic, free_port
from tests.support.server_process import ServerProcess

KILLS = 10


def test_kills_at_random_moments(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with ServerProcess(tmp_path / "data", port=free_port()) as server:
        create_topic(server.url, segment_ms="150")
        with ProduceLoad(server.url, "t", producers=6, partitions=PARTITIONS) as load:
            for _ in range(KILLS):
                load.wait_for_acknowledged(chance.randrange(1, 1500))
                server.kill()
                server.start()
                # Seconds, whatever the journal holds; most of it is Python's start-up.
                assert server.seconds_to_start < 30
            load.wait_for_acknowledged(500)
        check_everywhere(server, load.history)
        assert server.stop() == 0
