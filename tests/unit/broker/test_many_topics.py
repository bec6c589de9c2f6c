"""What a store does for each of many topics: counted, as time would say more about the machine."""

from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.support.running_broker import produce, read_all, run, running_broker

TOPICS = [f"topic-{number:02d}" for number in range(50)]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often delta-rs has read a log from its beginning, by topic."""
    count: Counter[str] = Counter()

    class Counting(deltalake.DeltaTable):
        def __init__(self, table_uri: str, *args: Any, **options: Any) -> None:
            super().__init__(table_uri, *args, **options)
            count[Path(table_uri).name] += 1

    monkeypatch.setattr(deltalake, "DeltaTable", Counting)
    return count


def test_a_start_opens_each_table_once(tmp_path: Path, opened: Counter[str]) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            for name in TOPICS:
                topic = await broker.create_topic(name)
                assert topic
                await produce(broker, topic, [b"a", b"b"])
        opened.clear()
        async with running_broker(tmp_path) as broker:
            assert opened == dict.fromkeys(TOPICS, 1)
            assert await read_all(broker, broker.topic(TOPICS[-1])) == [(0, b"a"), (1, b"b")]

    run(scenario())
