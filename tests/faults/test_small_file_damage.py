"""Small files of a data directory with flipped bits or cut short: refused with the remedy, or harmless."""

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.broker.context import INTERNAL
from logstore.broker.produce.secret import load_secret
from logstore.cli.data_directory import running_url, stopped_store
from logstore.cluster import checked_file
from logstore.cluster.cluster_state import KnownTopic
from logstore.cluster.embedded_cluster_state import EmbeddedClusterState
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem
from logstore.journal.identity import FoundJournal
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}


def damaged(good: bytes) -> Iterator[bytes]:
    """Yield the content with each bit flipped, cut to each length, and zeroed from each byte on."""
    for at in range(len(good)):
        for bit in range(8):
            content = bytearray(good)
            content[at] ^= 1 << bit
            yield bytes(content)
        yield good[:at]
        yield good[:at] + bytes(len(good) - at)


def elect(data: Path) -> tuple[str, int]:
    """Return the cluster's id and the leader epoch of one start."""

    async def start_and_stop() -> tuple[str, int]:
        cluster_state = EmbeddedClusterState(data, 0, FileSystem())
        await cluster_state.start(lambda _: FoundJournal(data, 0, None, is_empty=True))
        try:
            topic_id = uuid.uuid4()
            await cluster_state.find_leaders([KnownTopic("t", topic_id, (1,))])
            return cluster_state.cluster_id, cluster_state.partition_state(topic_id, 0).leader_epoch
        finally:
            await cluster_state.stop()

    return run(start_and_stop())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "brokers" / "0").mkdir(parents=True)
    elect(tmp_path)
    return tmp_path


def same_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


@pytest.mark.parametrize("name", ["cluster.json", "brokers/0/broker.json"])
def test_a_damaged_file_of_the_coordinator_refuses_the_start(data: Path, name: str) -> None:
    """Check all damage but a flip that leaves the same JSON."""
    path = data / name
    good = path.read_bytes()
    cluster_id, epoch = elect(data)
    for content in damaged(good):
        path.write_bytes(content)
        if same_json(content, good):
            assert elect(data)[0] == cluster_id
            continue
        with pytest.raises(DataDirectoryError) as raised:
            elect(data)
        assert f"{path} is damaged" in str(raised.value), content
        assert "Restore it from a backup, or remove it" in str(raised.value)
        assert path.read_bytes() == content, "it stays as it was found"
    path.write_bytes(good)
    assert elect(data)[0] == cluster_id
    assert elect(data)[1] > epoch


def test_a_damaged_secret_refuses_the_start(data: Path) -> None:
    """Check all damage but a flip between small and capital hexadecimal digits."""
    home = data / "brokers" / "0"
    secret, path = load_secret(home, FileSystem()), home / "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    good = path.read_bytes()
    for content in damaged(good):
        path.write_bytes(content)
        if content.lower().strip() == good.strip():
            assert load_secret(home, FileSystem()) == secret
            continue
        with pytest.raises(DataDirectoryError, match="Restore it from a backup, or remove it") as raised:
            load_secret(home, FileSystem())
        assert f"{path} is damaged" in str(raised.value), content
        assert path.read_bytes() == content, "it stays as it was found"
    path.write_bytes(good)
    assert load_secret(home, FileSystem()) == secret
    path.unlink()
    assert load_secret(home, FileSystem()) not in {secret, bytes(32)}


def test_a_newer_format_is_not_taken_for_damage(data: Path) -> None:
    (data / "cluster.json").write_bytes(checked_file.encode({"cluster_id": "c", "format_version": 3, "more": {}}))
    with pytest.raises(DataDirectoryError, match="has format version 3; this release reads 2"):
        elect(data)


def test_the_remedy_in_the_message_helps(tmp_path: Path) -> None:
    """Remove the files as the message says: records stay, epochs above the tables', all but the cluster's id."""

    async def write() -> str:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await produce(broker, topic, [b"a"])
            await broker.topics.tables.roll(INTERNAL, topic)
            await produce(broker, topic, [b"b"])
            return broker.cluster_id

    async def read(cluster_id: str | None) -> None:
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert await read_all(broker, topic) == [(0, b"a"), (1, b"b")]
            assert topic.partition(0).leader_epoch > topic.snapshot.partitions[0].leader_epoch
            assert (broker.cluster_id == cluster_id) is (cluster_id is not None)

    cluster_id = run(write())
    for name, kept in (("brokers/0/broker.json", cluster_id), ("cluster.json", None)):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DataDirectoryError, match="or remove it"):
            run(read(kept))
        path.unlink()
        run(read(kept))


def test_the_content_of_a_lock_file_is_harmless_because_only_its_lock_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "lock").write_bytes(b"\xff" * 100)
        async with running_broker(tmp_path):
            (tmp_path / "lock").write_bytes(b"")
            with pytest.raises(DataDirectoryError, match="Another process is serving"):
                async with running_broker(tmp_path):
                    pass

    run(scenario())


def test_a_damaged_endpoint_is_harmless_because_it_only_makes_a_message_longer(tmp_path: Path) -> None:
    """Check that only the message changes: ``endpoint.json`` gives the store's address, the lock shows that it runs."""

    async def scenario() -> None:
        async with running_broker(tmp_path):
            home = tmp_path / "brokers" / "0"
            good = json.dumps({"url": "http://127.0.0.1:8082", "pid": 4711}).encode()
            (home / "endpoint.json").write_bytes(good)
            assert running_url(home) == "http://127.0.0.1:8082"
            for content in damaged(good):
                (home / "endpoint.json").write_bytes(content)
                url = running_url(home)
                assert url is None or isinstance(url, str)
            with pytest.raises(DataDirectoryError, match="A store is running on"), stopped_store(tmp_path, []):
                pass

    run(scenario())


def test_a_marker_of_a_deleted_topic_with_another_name_leaves_its_records_missed(tmp_path: Path) -> None:
    """Rename a marker, which consists of its name: the journal then has records of a topic not known to be deleted."""

    async def delete() -> uuid.UUID:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic
            await produce(broker, topic, [b"a"])
            await broker.topics.changes.delete(INTERNAL, "t")
            return topic.topic_id

    async def start() -> list[str]:
        async with running_broker(tmp_path) as broker:
            assert broker.topics.served.all(INTERNAL) == []
            return [problem.remedy for problem in broker.topics.problems.all(INTERNAL)]

    topic_id = run(delete())
    marker = tmp_path / "deleted" / str(topic_id)
    assert marker.is_dir()
    for name in (str(uuid.UUID(int=topic_id.int ^ 1 << 77)), f"x{str(topic_id)[1:]}", str(topic_id)[:-1]):
        other = marker.rename(marker.with_name(name))
        (remedy,) = run(start())
        assert f"make an empty directory deleted/{topic_id}" in remedy
        marker.mkdir()  # restored as the remedy says
        shutil.rmtree(other, ignore_errors=True)
    assert run(start()) == []


def test_other_things_beside_the_markers_are_harmless_because_they_are_no_topic_ids(tmp_path: Path) -> None:
    async def start() -> None:
        async with running_broker(tmp_path) as broker:
            assert broker.topics.served.all(INTERNAL) == []

    (tmp_path / "deleted" / "notes").mkdir(parents=True)
    (tmp_path / "deleted" / str(uuid.UUID(int=1))).write_bytes(b"a file")
    run(start())
