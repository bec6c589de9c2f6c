"""A cluster of three brokers, one of which is killed while flights are sent to it: is anything missing or doubled?

``python -m docs.demo.cluster``.
"""

import argparse
import contextlib
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from docs.demo.cluster_processes import BROKERS, cluster_on
from docs.demo.cluster_story import FLIGHTS, ClusterDemo, come_back, read_back, read_table_with_spark, send_flights
from docs.demo.main import command
from docs.demo.progress import Steps
from docs.demo.story import start_spark
from logstore.errors import LogStoreError
from logstore.local_path import local_path

LOGS = Path(".cache/demo-cluster")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code: 0 if every count agrees, 1 if one differs or a step failed, 130 after
    Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog="python -m docs.demo.cluster", description=__doc__)
    parser.add_argument("--data", default="data-cluster", help="data directory (default: data-cluster)")
    given: str = parser.parse_args(arguments).data
    console = Console()
    LOGS.mkdir(parents=True, exist_ok=True)
    steps = Steps(console)
    try:
        data = local_path(given)
        with contextlib.ExitStack() as running:
            with steps.step(f"Starting a ZooKeeper and {BROKERS} brokers on {data}"):
                cluster = running.enter_context(cluster_on(data, LOGS / "cluster.log"))
            demo = ClusterDemo(steps, cluster)
            sent = send_flights(demo)
            read_back(demo, sent)
            spark = start_spark(steps, LOGS)
            read_table_with_spark(demo, sent, spark)
            spark.stop()
            come_back(demo, sent)
            url = cluster.urls[0]
            with steps.step("Stopping all of them"):
                running.close()
    except LogStoreError as error:
        console.print(f"[bold red]demo failed:[/] {error.message}", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted")
        return 130
    console.print(demo.checks.table())
    verdict = "[green]All counts agree[/]" if demo.checks.agree else "[bold red]The counts do not agree[/]"
    took = f"{verdict}, in {steps.seconds:.0f} s. Logs: {LOGS}, {data}/cluster"
    console.print(took, highlight=False, soft_wrap=True)
    _say_what_next(console, data, url)
    return 0 if demo.checks.agree else 1


def _say_what_next(console: Console, data: Path, url: str) -> None:
    logstore = command("logstore")
    lines = [
        f"{logstore} cluster start --data {shlex.quote(str(data))}",
        f"{logstore} topic describe {FLIGHTS} --url {url}",
        f"{logstore} cluster describe --url {url}",
    ]
    console.print(f"The data is in {data}. Try next (the others while the first one runs):")
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    # If Ctrl-C comes while Spark works, py4j logs a traceback before the exception reaches this program.
    logging.getLogger().addHandler(logging.NullHandler())
    sys.exit(main())
