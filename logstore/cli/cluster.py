"""``logstore cluster ...``: run a cluster on this machine, and look at one anywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.output import counted, print_json, print_json_line, print_table
from logstore.command_line.command_group import CommandGroup
from logstore.command_line.options import JsonOption, UrlOption, admin_of, given_path

if TYPE_CHECKING:
    from logstore.cluster_processes.record import Directory
    from logstore.cluster_processes.running_cluster import ClusterEntry


class _ClusterGroup(CommandGroup):
    extra = "cluster"
    extra_in_words = "the packages of a broker of a cluster"


app = typer.Typer(
    cls=_ClusterGroup,
    no_args_is_help=True,
    help="Run brokers together on this machine, and look at a cluster.",
    rich_markup_mode=None,
)

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        parser=given_path,
        help="The brokers' data directory. [default: the setting data]",
        show_default=False,
    ),
]
_DEFAULT_BROKERS = 3


@app.command(
    epilog="""\b
Examples:
  logstore cluster start --data ./data-cluster
  logstore cluster start --brokers 5 --data ./data-cluster --kafka-port 0
  logstore cluster start --data ./data-cluster --zookeeper zk1:2181,zk2:2181/logstore
  logstore cluster start --data ./data-cluster --json | head -1 | jq -r '.brokers[].url'
"""
)
def start(
    brokers: Annotated[
        int,
        typer.Option(
            "--brokers",
            "-n",
            min=1,
            max=100,
            help="The number of brokers. Their ids are 1, 2, ..., or begin at the id of a store of one node.",
        ),
    ] = _DEFAULT_BROKERS,
    data: DataOption = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOSTS",
            help="Use this ZooKeeper (zookeeper.connect) and start none. [default: that of the last start, else "
            "one from the jars of PySpark, which needs Java]",
            show_default=False,
        ),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="Port for Kafka's clients of the first broker; the other brokers take the next ones. 0 takes "
            "free ones. [default: 9092]",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a ZooKeeper and brokers in this terminal until Ctrl-C.

    They listen on 127.0.0.1 only, with ports that stay the same; the start fails if one is in use. Logs are in
    DIR/cluster. Ctrl-C and SIGTERM stop them cleanly, ZooKeeper last. A process that dies is left dead: start-broker
    and start-zookeeper start it again.

    The directory of a store of one node, which must be stopped, becomes a cluster: its broker leads everything with
    one replica, and the others join. This cannot be undone.
    """
    from logstore.cluster_processes.kafka_addresses import wanted_kafka_addresses
    from logstore.cluster_processes.record import broker_ids
    from logstore.cluster_processes.running_cluster import ClusterEntry, ClusterOptions, run
    from logstore.settings import load_settings, with_kafka_port

    directory = _directory(data)
    ids = broker_ids(directory, brokers)
    settings = with_kafka_port(load_settings(), kafka_port, "127.0.0.1")
    wanted = ClusterOptions(
        directory,
        ids,
        zookeeper=zookeeper,
        kafka=wanted_kafka_addresses(settings, ids),
        environment={"LOGSTORE_INTER_BROKER_PORT": "0"},
    )

    def announce(found: ClusterEntry, _: int | None) -> None:
        if json:
            print_json_line(found)
        else:
            _print_running(found, wanted.directory.home)

    raise typer.Exit(run(wanted, announce))


def _print_running(found: "ClusterEntry", home: Path) -> None:
    from logstore.cluster_processes.kafka_addresses import kafka_addresses

    rows = [("ZooKeeper", found.zookeeper, "-")]
    rows += [(f"broker {broker.id}", broker.url, str(broker.pid)) for broker in found.brokers]
    print_table(["", "address", "pid"], rows)
    print(f"\nLogs are in {home}. Ctrl-C stops all of them. In another terminal:")
    print(f"  export LOGSTORE_URL={','.join(broker.url for broker in found.brokers)}", flush=True)
    if kafka := kafka_addresses(home.parent, [broker.id for broker in found.brokers]):
        print(f"Kafka's clients connect to {','.join(kafka)}", flush=True)


@app.command(
    epilog="""\b
Examples:
  logstore cluster start-broker 2 --data ./data-cluster
"""
)
def start_broker(
    broker_id: Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker.")],
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Restart a broker that has ended.

    It has the same id, directory and ports. The cluster start that runs on DIR keeps it.
    """
    from logstore.cluster_processes.control import ask_to_start
    from logstore.cluster_processes.kafka_addresses import kafka_addresses

    directory = _directory(data)
    broker = ask_to_start(directory, broker_id)
    if json:
        print_json_line(broker)
    else:
        print(f"Broker {broker.id} is at {broker.url}, with pid {broker.pid}")
        for address in kafka_addresses(directory.data, [broker_id]):
            print(f"Kafka's clients connect to {address}")


@app.command(
    epilog="""\b
Examples:
  logstore cluster start-zookeeper --data ./data-cluster
"""
)
def start_zookeeper(data: DataOption = None, json: JsonOption = False) -> None:
    """Restart the ZooKeeper that cluster start has started, if it has ended.

    It has the same port and data, so that brokers find it by themselves. The cluster start that runs on DIR keeps it.
    """
    from logstore.cluster_processes.control import ask_to_start_zookeeper

    found = ask_to_start_zookeeper(_directory(data))
    if json:
        print_json_line(found)
    else:
        print(f"ZooKeeper is at {found.zookeeper}, with pid {found.pid}")


@app.command(
    epilog="""\b
Examples:
  logstore cluster describe
  logstore cluster describe --json | jq .under_replicated_partitions
"""
)
def describe(ctx: typer.Context, json: JsonOption = False, url: UrlOption = None) -> None:
    """Show the live brokers, the controller, and partitions that lack replicas or a leader."""
    with admin_of(ctx, url) as admin:
        found = admin.describe_cluster()
    if json:
        print_json(found)
        return
    controller = "none" if found.controller_id is None else f"broker {found.controller_id}"
    print(f"Cluster {found.cluster_id}: {counted(len(found.brokers), 'broker')}, controller: {controller}\n")
    print_table(
        ["broker", "address", "rack", "replicas", "leaders"],
        [(one.broker_id, one.url, one.rack or "-", one.replicas, one.leaders) for one in found.brokers],
    )
    print(f"\n{counted(found.partitions, 'partition')}:")
    for name, count in (
        ("under-replicated", found.under_replicated_partitions),
        ("unavailable", found.unavailable_partitions),
        ("under-min-isr", found.under_min_isr_partitions),
    ):
        shown = f"{count:,}; logstore topic list --{name}-partitions shows them" if count else "none"
        print(f"{name:18}{shown}")


def _directory(data: Path | None) -> "Directory":
    from logstore.cluster_processes.record import Directory
    from logstore.settings import load_settings

    return Directory(data or load_settings().data)
