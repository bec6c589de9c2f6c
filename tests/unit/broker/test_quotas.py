"""Bytes are charged after the fact, as in Kafka: a client over its quota gets a time to wait, and errors until then."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL, Principal, RequestContext
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition
from logstore.broker.produce.batcher import RecordPlaces
from logstore.broker.quotas import QuotaKind
from logstore.errors import RequestTimedOutError, ThrottledError
from logstore.records.batch import DecodedRecords
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import CLIENT, records, running_broker
from tests.support.virtual_time import run

OTHER = RequestContext("2", "", "HTTP", "127.0.0.1", None, Principal("User", "other"))
LIMITS = FetchLimits(100_000, 100_000, 1, 0)


def quota_of(broker: Broker, monkeypatch: pytest.MonkeyPatch, kind: QuotaKind) -> list[int]:
    """Charge CLIENT a millisecond for every byte that it sends (or gets); return the charged amounts."""
    charged: list[int] = []

    def charge(context: RequestContext, charged_kind: QuotaKind, amount: int) -> float:
        if charged_kind is not kind or context is not CLIENT:
            return 0.0
        charged.append(amount)
        return amount / 1000

    monkeypatch.setattr(broker.quotas, "charge", charge)
    return charged


def columns(requests: Sequence[list[bytes | None]]) -> DecodedRecords:
    return records([value for values in requests for value in values])


def test_a_producer_over_its_quota_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=1)
            assert topic
            charged = quota_of(broker, monkeypatch, QuotaKind.PRODUCED_BYTES)
            result = await broker.produce.records.produce(CLIENT, topic, records([bytes(1500)]))
            assert result.throttle_ms == charged[0] >= 1500
            assert result.partitions[0].base_offset == 0
            told: list[object] = []
            for _ in range(2):
                with pytest.raises(ThrottledError, match="over its quota of PRODUCED_BYTES") as refused:
                    await broker.produce.records.produce(CLIENT, topic, records([b"x"]))
                assert refused.value.retry_after_s == 2
                with pytest.raises(ThrottledError):
                    broker.produce.batcher.begin(
                        CLIENT,
                        topic,
                        [b"x"],
                        columns,
                        num_bytes=1,
                        timeout_ms=1000,
                        callback=lambda *of: told.append(of),
                    )
            # Other clients do not wait for it, and neither do its fetches.
            for context in (OTHER, INTERNAL):
                assert (await broker.produce.records.produce(context, topic, records([b"y"]))).throttle_ms == 0
            fetched = await broker.fetch.stored(CLIENT, [FetchPartition("t", 0, 0)], LIMITS)
            fetched.reservation.release()
            assert (len(charged), told) == (1, [])
            clock.advance(charged[0] + 1)
            places = await broker.produce.batcher.produce(
                CLIENT, topic, [b"z"], columns, num_bytes=700, timeout_ms=60_000
            )
            assert places == RecordPlaces([0], [3], {})
            assert charged[1:] == [700]
            with pytest.raises(ThrottledError):
                await broker.produce.records.produce(CLIENT, topic, records([b"x"]))

    run(scenario())


def test_a_client_that_does_not_wait_for_the_answer_is_charged_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, clock=ManualClock()) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=1)
            assert topic
            charged = quota_of(broker, monkeypatch, QuotaKind.PRODUCED_BYTES)
            with pytest.raises(RequestTimedOutError):
                await broker.produce.records.produce(CLIENT, topic, records([bytes(1500)]), timeout_ms=0)
            assert len(charged) == 1
            with pytest.raises(ThrottledError):
                await broker.produce.records.produce(CLIENT, topic, records([b"x"]))

    run(scenario())


def test_a_fetcher_over_its_quota_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=1)
            assert topic
            await broker.produce.records.produce(INTERNAL, topic, records([bytes(1500)]))
            charged = quota_of(broker, monkeypatch, QuotaKind.FETCHED_BYTES)
            wanted = [FetchPartition("t", 0, 0)]
            fetched = await broker.fetch.records(CLIENT, wanted, LIMITS)
            assert fetched.throttle_ms == charged[0] >= 1500
            fetched.reservation.release()
            for fetch in (broker.fetch.records, broker.fetch.stored):
                with pytest.raises(ThrottledError, match="FETCHED_BYTES"):
                    await fetch(CLIENT, wanted, LIMITS)
            assert (await broker.produce.records.produce(CLIENT, topic, records([b"x"]))).throttle_ms == 0
            (await broker.fetch.stored(OTHER, wanted, LIMITS)).reservation.release()
            clock.advance(charged[0] + 1)
            (await broker.fetch.stored(CLIENT, wanted, LIMITS)).reservation.release()
            assert broker.admission.answers.reserved == 0

    run(scenario())
