"""docs/delivery.md keeps its promises when a consumer is killed while it works."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from logstore.client.admin import Admin
from tests.support.delivery_recipes import run
from tests.support.posting import post
from tests.support.server_process import ServerProcess
from tests.support.stored_records import stored_records

pytestmark = pytest.mark.long

RECORDS = 700
EVERY = {f"{partition}-{offset}" for partition in range(2) for offset in range(RECORDS)}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory):
    """Yield a store with 700 orders in each of two partitions, and an empty topic ``invoices``."""
    # The page waits 5 seconds for records. The first rebalance would take 3 of them.
    environment = {"LOGSTORE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
    data = tmp_path_factory.mktemp("shop") / "data"
    with ServerProcess(data, environment=environment) as server, Admin(server.url) as admin:
        admin.create_topic("orders", partitions=2)
        admin.create_topic("invoices", partitions=2)
        for partition in range(2):
            for start in range(0, RECORDS, 50):
                post(server.url, "orders", partition, [b"%d" % i for i in range(start, start + 50)])
        yield server.url


def killed_and_run_again(name: str, url: str, done: Path, *arguments: object) -> Counter:
    """Kill the program in its second poll and run it again; return how often the work of each record was done."""
    run(name, url, done, *arguments, kill_after=600)
    assert len(done.read_text().splitlines()) == 600
    run(name, url, done, *arguments)
    return Counter(done.read_text().split())


def test_at_most_once_does_nothing_twice(shop: str, tmp_path: Path):
    found = killed_and_run_again("at_most_once", shop, tmp_path / "done")
    assert set(found.values()) == {1}
    missing = EVERY - found.keys()
    assert 0 < len(missing) < 500


@pytest.mark.parametrize("name", ["at_least_once", "at_least_once_by_hand"])
def test_at_least_once_leaves_nothing_out(shop: str, tmp_path: Path, name: str):
    found = killed_and_run_again(name, shop, tmp_path / "done")
    assert found.keys() == EVERY
    assert 0 < sum(count > 1 for count in found.values()) <= (600 if name == "at_least_once" else 500)
    # Every offset is committed, so no work is left.
    run(name, shop, tmp_path / "again")
    assert (tmp_path / "again").read_text() == ""


def test_exactly_once_into_a_database(shop: str, tmp_path: Path):
    killed_and_run_again("exactly_once_into_sqlite", shop, tmp_path / "done", tmp_path / "db")
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        rows = [text for (text,) in db.execute("SELECT text FROM invoices")]
    assert Counter(rows) == dict.fromkeys(EVERY, 1)


def test_exactly_once_from_topic_to_topic(shop: str, tmp_path: Path):
    killed_and_run_again("exactly_once_into_a_topic", shop, tmp_path / "done")
    for partition, records in stored_records(shop, "invoices").items():
        assert [record.value for record in records] == [b"%d-%d" % (partition, i) for i in range(RECORDS)]
    with Admin(shop) as admin:
        # Retention may remove all but the last result.
        admin.delete_records("invoices", 0, RECORDS - 1)
        run("exactly_once_into_a_topic", shop, tmp_path / "again")
        admin.delete_records("invoices", 1, -1)
        with pytest.raises(AssertionError, match="ended with 1"):
            run("exactly_once_into_a_topic", shop, tmp_path / "again")
        assert (tmp_path / "again").read_text() == ""
        assert admin.offsets("invoices", 1).end_offset == RECORDS
