"""The whole story: flights over HTTP into Delta, back through Spark, kept small by its jobs; do the counts agree?"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from docs.demo.flights import read_airlines
from docs.demo.progress import Steps
from docs.demo.spark_reading import CarrierDelay
from docs.demo.store import store_of
from docs.demo.story import (
    FLIGHTS,
    LAST_FLIGHT,
    Demo,
    cut_in_half,
    keep_last_flights,
    load_flights,
    read_as_group,
    read_back,
    start_spark,
)
from logstore.endpoint_file import Endpoint
from logstore.errors import LogStoreError
from logstore.local_path import local_path

LOGS = Path(".cache/demo")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code: 0 if every count agrees, 1 if one differs or a step failed, 130 after
    Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog="python -m docs.demo", description=__doc__)
    parser.add_argument("--data", default="data", help="data directory of the store (default: data)")
    given: str = parser.parse_args(arguments).data
    console = Console()
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        data = local_path(given)
        with store_of(data, LOGS / "server.log") as (url, running):
            console.print(f"{'The store that runs on' if running else 'A store on'} {data} listens on {url}")
            agree = _run(console, data, url)
            _say_what_next(console, data, running)
    except LogStoreError as error:
        console.print(f"[bold red]demo failed:[/] {error.message}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted")
        return 130
    return 0 if agree else 1


def _run(console: Console, data: Path, url: str) -> bool:
    demo = Demo(Steps(console), url, data, LOGS)
    flights, acknowledged = load_flights(demo)
    spark = start_spark(demo.steps, demo.logs)
    delays = read_back(demo, spark, flights, acknowledged)
    read_as_group(demo, spark, acknowledged)
    keep_last_flights(demo, flights)
    cut_in_half(demo, acknowledged)
    spark.stop()
    console.print(_delay_table(delays), demo.checks.table())
    verdict = "[green]All counts agree[/]" if demo.checks.agree else "[bold red]The counts do not agree[/]"
    took = f"{verdict}, in {demo.steps.seconds:.0f} s. Logs of the store, of Spark and of its jobs: {LOGS}"
    console.print(took, highlight=False, soft_wrap=True)
    return demo.checks.agree


def _delay_table(delays: Sequence[CarrierDelay]) -> Table:
    names = read_airlines()
    table = Table(title="Mean arrival delay, asked of Spark", title_justify="left")
    table.add_column("carrier")
    table.add_column("flights", justify="right")
    table.add_column("minutes", justify="right")
    for row in delays:
        table.add_row(names.get(row.carrier, row.carrier), f"{row.flights:,}", f"{row.mean_delay_minutes:.1f}")
    return table


def _say_what_next(console: Console, data: Path, running: Endpoint | None) -> None:
    logstore, python = command("logstore"), command("python")
    url = f" --url {running.url}" if running else ""
    # The demo's own store has ended, so the first command starts one with the defaults.
    kafka = running.kafka if running else "127.0.0.1:9092"
    first = f"topic describe {FLIGHTS}{url}" if running else f"serve --data {shlex.quote(str(data))}"
    commands = [f"{logstore} {first}", f"{logstore} consume {LAST_FLIGHT} --max 3{url}"]
    if kafka is not None:
        commands.append(f"kcat -b {kafka} -t {LAST_FLIGHT} -C -c 3")
    table = f"{data}/topics/{LAST_FLIGHT}"
    commands.append(f"""{python} -c 'import deltalake; print(deltalake.DeltaTable("{table}").to_pandas().head())'""")
    while_it_runs = "" if running else " (leave the first one running for the second and third)"
    console.print(f"The data is in {data}. Try next{while_it_runs}:")
    for line in commands:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def command(name: str) -> str:
    """Return the path of a program beside this Python, as a user types it here."""
    binaries = Path(sys.executable).parent
    if binaries.is_relative_to(Path.cwd()):
        binaries = binaries.relative_to(Path.cwd())
    return shlex.quote(str(binaries / name))
