"""Chance with a seed gives the same ids again, wherever they are drawn."""

import random
from concurrent.futures import ThreadPoolExecutor

from ingest_api.allowed_hosts import AllowedHosts
from ingest_api.guard import Guard
from logstore import entropy
from logstore.backoff import backoffs
from logstore.broker.authorizer import Authorizer
from logstore.broker.quotas import Quotas
from logstore.settings import Settings


def drawn() -> list[object]:
    waits = backoffs()
    guard = Guard(Authorizer(), Quotas(), AllowedHosts.of(Settings()))
    return [
        entropy.new_uuid(),
        entropy.random_bytes(16),
        entropy.random_bits(31),
        entropy.random_int(1, 1000),
        entropy.random_float(0.5, 1.0),
        [next(waits) for _ in range(4)],
        [guard.new_request_id(), guard.request_id_of(())],
    ]


def test_a_seed_gives_the_same_again() -> None:
    with entropy.seeded(random.Random(7)):
        first = drawn()
    with entropy.seeded(random.Random(7)):
        assert drawn() == first
    with entropy.seeded(random.Random(8)):
        assert not any(a == b for a, b in zip(drawn(), first, strict=True))


def test_the_source_of_a_simulation_is_that_of_all_threads() -> None:
    with entropy.seeded(random.Random(7)):
        first = entropy.new_uuid()
    with entropy.seeded(random.Random(7)), ThreadPoolExecutor(1) as pool:
        assert pool.submit(entropy.new_uuid).result() == first


def test_after_a_simulation_chance_is_the_operating_systems() -> None:
    with entropy.seeded(random.Random(7)):
        pass
    random.seed(7)
    first = drawn()
    random.seed(7)
    assert not any(a == b for a, b in zip(drawn(), first, strict=True))


def test_ids_are_of_version_4() -> None:
    with entropy.seeded(random.Random(7)):
        ids = [entropy.new_uuid() for _ in range(100)]
    assert {(one.version, one.variant) for one in ids} == {(4, "specified in RFC 4122")}
    assert len(set(ids)) == 100
