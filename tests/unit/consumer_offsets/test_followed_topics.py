"""The topics that regexes match, while topics come and go."""

import contextlib
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from consumer_offsets import followed_topics
from consumer_offsets.followed_topics import FollowedTopics
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.errors import InvalidRegularExpressionError
from tests.support.running_broker import running_broker
from tests.support.virtual_time import run

REGEXES = ("a.*", ".*b", "a|b|ab", "[ab]{2,3}", "c", ".*", "(?i)A+")


@contextlib.asynccontextmanager
async def following(data: Path) -> AsyncIterator[tuple[Broker, FollowedTopics]]:
    async with running_broker(data) as broker:
        topics = FollowedTopics(broker, lambda _: None)
        topics.start()
        try:
            yield broker, topics
        finally:
            topics.close()


@pytest.mark.parametrize("kept", [1_000, 1])
def test_regexes_match_the_topics_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(followed_topics, "_CHANGES_KEPT", kept)
    rng = random.Random(1)

    async def scenario() -> None:
        async with following(tmp_path) as (broker, topics):
            there: set[str] = set()
            for _ in range(40):
                for _ in range(rng.choice((1, 1, 3))):
                    name = "".join(rng.choices("ab", k=rng.randint(1, 3)))
                    if name in there:
                        await broker.topics.changes.delete(INTERNAL, name)
                    else:
                        await broker.topics.changes.create(INTERNAL, name, partitions=1)
                    there ^= {name}
                assert topics.topics.keys() == there
                # Some regexes are asked for often, others rarely.
                for regex in rng.sample(REGEXES, 3):
                    assert topics.matching(regex) == {name for name in there if re.fullmatch(regex, name)}, regex

    run(scenario())


def test_a_change_is_looked_at_and_no_other_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    compiled = followed_topics.compiled

    class Counting:
        def __init__(self, regex: str) -> None:
            self._pattern = compiled(regex)

        def fullmatch(self, name: str) -> Any:
            looked_at.append(name)
            return self._pattern.fullmatch(name)

    monkeypatch.setattr(followed_topics, "compiled", Counting)

    async def scenario() -> None:
        async with following(tmp_path) as (broker, topics):
            for number in range(10):
                await broker.topics.changes.create(INTERNAL, f"t{number}", partitions=1)
            regexes = [f"t[0-{number}]" for number in range(10)]
            before = [topics.matching(regex) for regex in regexes]
            assert [len(names) for names in before] == list(range(1, 11))
            looked_at.clear()
            await broker.topics.changes.create(INTERNAL, "u", partitions=1)
            await broker.topics.changes.delete(INTERNAL, "t9")
            await broker.topics.changes.add_partitions(INTERNAL, "t0", 2)
            after = [topics.matching(regex) for regex in regexes]
            assert sorted(looked_at) == ["u"] * 10
            # The object is the same, because members compare it with theirs.
            assert [now is then for now, then in zip(after, before, strict=True)] == [True] * 9 + [False]
            assert after[-1] == before[-1] - {"t9"}

    run(scenario())


def test_a_regex_that_cannot_be_used_is_refused_without_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with following(tmp_path) as (_, topics):
            with pytest.raises(InvalidRegularExpressionError):
                topics.matching("(")

    run(scenario())
