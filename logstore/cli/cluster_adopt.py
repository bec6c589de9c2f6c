"""``logstore cluster adopt``: a table with records that ZooKeeper does not know becomes a topic of the cluster.

The journals show which broker has records that are not in the table: that broker has the only replica in sync, and
leads. So no record that is in any of the journals is lost.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from logstore.cli.cluster import DataOption
from logstore.cli.data_directory import (
    given_data,
    log_directories,
    observed_journal,
    require_no_journal,
    require_topics,
)
from logstore.cli.output import counted, print_json, print_table
from logstore.command_line.command_group import fail
from logstore.command_line.options import JsonOption, existing_path
from logstore.filesystem import local_filesystem

if TYPE_CHECKING:
    from logstore.cluster import znodes
    from logstore.cluster.zookeeper import ZooKeeper
    from logstore.delta.snapshot import TopicSnapshot
    from logstore.inspection.table_check import Tails


EXAMPLES = """\b
Examples:
  logstore cluster adopt clicks --data /srv/logstore
  logstore cluster adopt clicks --data /srv/logstore --zookeeper zk1:2181/logstore
  logstore cluster adopt clicks --log-directory /mnt/broker-1 --log-directory /mnt/broker-2
  logstore cluster adopt clicks --broker 2
"""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A partition: the broker that has its replica, its epoch, and the records only in that broker's journal."""

    partition: int
    broker: int
    leader_epoch: int
    unsealed_records: int


def adopt(
    topic: Annotated[str, typer.Argument(help="The topic: its table is in the data directory.")],
    data: DataOption = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOSTS",
            help="The cluster's ZooKeeper. [default: the setting zookeeper.connect, else that of cluster start]",
            show_default=False,
        ),
    ] = None,
    broker: Annotated[
        int | None,
        typer.Option(min=0, help="Give all partitions to this broker: only its journal counts."),
    ] = None,
    log_directory: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            parser=existing_path,
            help="A broker's log.dirs, if it is not where the broker has recorded it. May be repeated.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Take over a topic whose table has records and that ZooKeeper does not know.

    For a table that was brought here, or whose registration was lost. Each partition goes to the broker whose journal
    has its newest records, with one replica; brokers may run meanwhile.
    """
    from logstore.observability import configure_logging
    from logstore.settings import load_settings

    configure_logging("warning")
    directory = given_data(data)
    require_topics(directory, [topic])
    connect = zookeeper or load_settings().zookeeper_connect or _of_processes(directory)
    if connect is None:
        fail("There is no zookeeper.connect: name the cluster's ZooKeeper with --zookeeper.")
    homes = log_directories(directory, log_directory or ())
    found = asyncio.run(_adopt(directory, topic, connect, broker, homes))
    if json:
        print_json({"topic": topic, "partitions": found})
        return
    print(f"Topic {topic} is the cluster's now, with {counted(len(found), 'partition')}:\n")
    print_table(
        ["partition", "broker", "records in its journal"],
        [(one.partition, one.broker, one.unsealed_records) for one in found],
    )


def _of_processes(directory: Path) -> str | None:
    """Return the ZooKeeper of ``logstore cluster start``."""
    from logstore.cluster_processes.record import Directory, Record

    record = Record.read(Directory(directory))
    if record is None or record.zookeeper is not None:
        return None if record is None else record.zookeeper
    return None if record.zookeeper_port is None else f"127.0.0.1:{record.zookeeper_port}"


async def _adopt(directory: Path, topic: str, connect: str, broker: int | None, homes: Sequence[Path]) -> list[Adopted]:
    from logstore.cluster import znodes
    from logstore.cluster.zookeeper import NodeExistsError, Servers, ZooKeeper
    from logstore.delta.log_check import observed_snapshot
    from logstore.table_root import open_root

    zookeeper = ZooKeeper(Servers.parse(connect))
    await zookeeper.start()
    try:
        cluster_id = await _cluster_id(zookeeper, directory)
        path = znodes.topic_path(topic)
        if await zookeeper.get(path) is not None:
            fail(f"ZooKeeper knows topic {topic} already.")
        snapshot = observed_snapshot(open_root(directory).open(topic))
        await _require_new_id(zookeeper, topic, snapshot.topic_id)
        tails = {} if not homes else await asyncio.to_thread(_tails, homes, cluster_id)
        known = {int(name) for name in await zookeeper.children(znodes.REGISTRY)}
        if broker is not None and broker not in known:
            fail(f"Broker {broker} is not in the cluster, which has {', '.join(map(str, sorted(known)))}.")
        if broker is None and (unseen := sorted(known.difference(tails))):
            fail(
                f"The journals of brokers {', '.join(map(str, unseen))} are not here: name their log.dirs with "
                "--log-directory, or with --broker the broker whose journal counts."
            )
        partitions = await _placed(zookeeper, snapshot, tails, broker)
        rows = tuple(
            znodes.PartitionRegistration(znodes.NO_LEADER, one.leader_epoch, (one.broker,), (one.broker,))
            for one in partitions
        )
        document = znodes.TopicRegistration(snapshot.topic_id, 0, False, rows)
        try:
            await zookeeper.create(path, znodes.encode(path, document))
        except NodeExistsError:
            fail(f"ZooKeeper knows topic {topic} already.")
        return partitions
    finally:
        await zookeeper.stop()


async def _cluster_id(zookeeper: "ZooKeeper", directory: Path) -> str:
    from logstore.cluster import checked_file, znodes

    here = checked_file.read(local_filesystem(), directory / "cluster.json", "restore it").get("cluster_id")
    node = await zookeeper.get(znodes.CLUSTER_ID)
    there = None if node is None else znodes.decode(znodes.CLUSTER_ID, node.data, znodes.ClusterIdentity).cluster_id
    if there is None or here != there:
        fail(f"{directory} belongs to the cluster {here}, and ZooKeeper at {zookeeper.servers} to {there}.")
    return there


async def _require_new_id(zookeeper: "ZooKeeper", topic: str, topic_id: UUID) -> None:
    """Refuse a topic id that is in use: two topics with one id would share their frames in the journals."""
    for name, document in (await _documents(zookeeper)).items():
        if document.topic_id == topic_id:
            fail(f"The table of {topic} has the id of topic {name}: it is a copy, or {name} was renamed.")


async def _documents(zookeeper: "ZooKeeper") -> "Mapping[str, znodes.TopicRegistration]":
    from logstore.cluster import znodes

    found = {}
    for name in await zookeeper.children(znodes.TOPICS):
        path = znodes.topic_path(name)
        if (node := await zookeeper.get(path)) is not None:
            found[name] = znodes.decode(path, node.data, znodes.TopicRegistration)
    return found


def _tails(homes: Sequence[Path], cluster_id: str) -> "dict[int, Tails]":
    """Return the journal's content by broker. This changes nothing, and works beside running brokers."""
    from logstore.cluster.log_directory import LogDirectory
    from logstore.log.journal_tail import collect_tails

    found: dict[int, Tails] = {}
    for home in homes:
        identity = LogDirectory.read(home, local_filesystem())
        if identity is None:
            continue
        if identity.cluster_id != cluster_id:
            fail(f"{home} is a log directory of the cluster {identity.cluster_id}, not of {cluster_id}.")
        journal = home / "journal" / "0"
        if not journal.is_dir():
            require_no_journal(home)
        found[identity.broker_id] = collect_tails(observed_journal(journal).frames()) if journal.is_dir() else {}
    return found


async def _placed(
    zookeeper: "ZooKeeper", snapshot: "TopicSnapshot", tails: "Mapping[int, Tails]", broker: int | None
) -> list[Adopted]:
    from logstore.cluster import znodes
    from logstore.cluster.assignment import Load, assign

    racks: dict[int, str | None] = {}
    for name in await zookeeper.children(znodes.BROKER_IDS):
        racks[int(name)] = None
    documents = (await _documents(zookeeper)).values()
    load = Load.of(row.target for document in documents for row in document.partitions)
    found = []
    for partition in range(snapshot.num_partitions):
        snapshot.check(partition)
        state = snapshot.partitions[partition]
        mine = {one: tail for one, all_ in tails.items() if (tail := all_.get((snapshot.topic_id, partition)))}
        ends = {one: tail.index.offsets_from(state.sealed) for one, tail in mine.items()}
        epochs = [state.leader_epoch, *(tail.last_epoch_and_end[0] for tail in mine.values()), 0]
        chosen = broker
        if chosen is None and any(ends.values()):
            chosen = max(sorted(ends), key=lambda one: mine[one].last_epoch_and_end)
        if chosen is None and not racks:
            fail("No broker is there: start one, or name one with --broker.")
        if chosen is None:
            ((chosen,),) = assign(1, 1, racks, load)
        found.append(Adopted(partition, chosen, max(epochs), ends.get(chosen, 0)))
    return found
