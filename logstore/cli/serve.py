"""``logstore serve`` runs a store."""

import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from logstore.command_line.options import existing_path, given_path
from logstore.errors import InvalidConfigError

EXAMPLES = """\b
Examples:
  logstore serve
  logstore serve --data /srv/log --port 8083 --kafka-port 9093
  logstore serve --config conf/logstore.toml --host 0.0.0.0
  logstore serve --log-level debug
  logstore serve --jobs
  logstore serve --brokers 4        four processes behind one port
"""


def serve(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=given_path,
            help="Directory of topics and journals. [default: data]",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="HTTP port; 0 takes a free one. [default: 8082]", show_default=False)
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="Port for Kafka's clients, on the same address; 0 takes a free one. [default: 9092, on 127.0.0.1]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]", show_default=False)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=existing_path,
            help="Settings file (TOML). [default: conf/logstore.toml, if it is there]",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        bool,
        typer.Option("--jobs", help="Run retention, key compaction and vacuum beside the store, on a schedule."),
    ] = False,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Run N brokers of a cluster behind one port, one for each core. They agree through zookeeper.connect, "
            "or a ZooKeeper that is started with them.",
            show_default=False,
        ),
    ] = None,
    new_journal: Annotated[
        bool,
        typer.Option(
            "--new-journal",
            help="Start without the journal that was here before, with the present one. Acknowledged records that "
            "are in no table are given up. Only for one start, after a start without this option was refused.",
        ),
    ] = False,
    shared_port: Annotated[int | None, typer.Option(min=1, max=65_535, hidden=True)] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option("--log-level", help="Log events of this level and above. [default: info]", show_default=False),
    ] = None,
) -> None:
    """Run a store in this terminal until Ctrl-C.

    Options win over LOGSTORE_* variables, these over the settings file. 'listening on URL' is printed when the store
    is ready. SIGTERM and Ctrl-C stop it cleanly: requests end, records are put into Delta as far as there is time.

    A port that is taken ends the start. --host alone leaves the port for Kafka's clients on 127.0.0.1; --kafka-port
    beside it opens that one on the same address.

    With --brokers each broker also has its own port: those after --port, for clients that go to leaders directly.
    For Kafka's clients the first broker has --kafka-port, and the others the ports after it.
    """
    if brokers is not None:
        if new_journal:
            raise typer.BadParameter("--new-journal is for a store of one node, without --brokers")
        given = {"data": data, "port": port, "host": host, "log_level": log_level, "jobs_enable": jobs or None}
        _serve_brokers(brokers, config, kafka_port, given)
    from logstore.process_memory import hide_pandas, tune_allocators

    tune_allocators()  # before pyarrow is imported
    hide_pandas()
    # Nearly all imported objects stay for good. The garbage collector would scan them repeatedly, which takes a tenth
    # of the whole start.
    gc.disable()
    from logstore.node import serve as run_node
    from logstore.settings import load_settings, with_kafka_port

    gc.enable()

    if config is not None:
        os.environ["LOGSTORE_CONFIG"] = str(config)
    settings = load_settings(data=data, port=port, host=host, log_level=log_level, jobs_enable=jobs or None)
    settings = with_kafka_port(settings, kafka_port, settings.host)
    raise typer.Exit(run_node(settings, shared_port, new_journal=new_journal))


def _serve_brokers(count: int, config: Path | None, kafka_port: int | None, given: Mapping[str, object]) -> NoReturn:
    from logstore.cluster_processes.kafka_addresses import kafka_addresses, wanted_kafka_addresses
    from logstore.cluster_processes.record import Directory
    from logstore.cluster_processes.running_cluster import ClusterEntry, ClusterOptions, run
    from logstore.listening_sockets import url_on
    from logstore.settings import load_settings, with_kafka_port

    if config is not None:
        os.environ["LOGSTORE_CONFIG"] = str(config)
    settings = load_settings(**given)
    settings = with_kafka_port(settings, kafka_port, settings.host)
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        raise InvalidConfigError("--brokers makes its sockets itself: remove the ListenStream of the service manager")
    ids = range(settings.broker_id, settings.broker_id + count)
    peer_port = settings.inter_broker_port
    wanted = ClusterOptions(
        Directory(settings.data),
        ids,
        zookeeper=settings.zookeeper_connect,
        log_dirs=settings.log_dirs,
        host=settings.host,
        ports={broker_id: settings.port + 1 + at for at, broker_id in enumerate(ids)} if settings.port else {},
        kafka=wanted_kafka_addresses(settings, ids),
        shared_port=settings.port,
        environment={"LOGSTORE_LOG_LEVEL": settings.log_level},
        environments={
            broker_id: {
                "LOGSTORE_INTER_BROKER_PORT": str(peer_port + at if peer_port else 0),
                # One process of jobs serves all topics.
                "LOGSTORE_JOBS_ENABLE": str(settings.jobs_enable and at == 0).lower(),
            }
            for at, broker_id in enumerate(ids)
        },
        is_service=True,
    )

    def announce(found: ClusterEntry, shared_port: int | None) -> None:
        assert shared_port is not None
        for broker in found.brokers:
            typer.echo(f"broker {broker.id} has {broker.url} and pid {broker.pid}", err=True)
        print(f"listening on {url_on(settings.host, shared_port, is_tls=settings.http_tls)}", flush=True)
        if kafka_found := kafka_addresses(settings.data, ids):
            print(f"Kafka's clients connect to {','.join(kafka_found)}", flush=True)

    raise typer.Exit(run(wanted, announce))
