"""The whole story: flights over HTTP into Delta, back through Spark, and whether the counts agree everywhere."""

import argparse
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from logstore.client.admin import Admin
from logstore.demo.flights import FLIGHTS_COUNT, batches, mean_arrival_delays, read_airlines, read_flights
from logstore.demo.posting import PARTITIONS, TOPIC, make_topic, post
from logstore.demo.progress import Steps
from logstore.demo.reading import (
    CarrierDelay,
    Contents,
    count_range,
    fetch_jars,
    has_jars,
    mean_delay_per_carrier,
    read_delta,
    read_with_spark,
    spark_session,
)
from logstore.demo.store import store_of
from logstore.errors import LogStoreError

BATCH_RECORDS = 2_000
LOGS = Path(".cache/demo")


@dataclass(slots=True)
class Checks:
    """Counts that have to agree, and statements that have to hold, in the order in which they were found."""

    rows: list[tuple[str, str, bool]] = field(default_factory=list)

    def count(self, what: str, found: int, expected: int) -> None:
        self.rows.append((what, f"{found:,}", found == expected))

    def contents(self, what: str, found: Contents, expected: Mapping[int, int]) -> None:
        """Per partition, not only in sum."""
        self.rows.append((what, f"{found.total:,}", found.records == expected and found.dense))

    def holds(self, what: str, *, held: bool) -> None:
        self.rows.append((what, "", held))

    @property
    def agree(self) -> bool:
        return all(held for _, _, held in self.rows)

    def table(self) -> Table:
        table = Table(title=f"Topic {TOPIC}: does it agree everywhere?", title_justify="left")
        table.add_column("what")
        table.add_column("records", justify="right")
        table.add_column("agrees")
        for what, found, held in self.rows:
            table.add_row(what, found, "[green]yes[/]" if held else "[bold red]NO[/]")
        return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if every count agrees, 1 if one does not or a step failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m logstore.demo", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="data directory of the store (default: data)")
    data: Path = parser.parse_args(arguments).data
    console = Console()
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        with store_of(data, LOGS / "server.log") as (url, ran_before):
            agree = _run(Steps(console), data, url, ran_before=ran_before)
            _say_what_next(console, data, url if ran_before else None)
    except LogStoreError as error:
        console.print(f"[bold red]demo failed:[/] {error.message}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if agree else 1


def _run(steps: Steps, data: Path, url: str, *, ran_before: bool) -> bool:
    steps.console.print(f"{'The store that runs on' if ran_before else 'A store on'} {data} listens on {url}")
    checks = Checks()
    with steps.step("Reading the flights and sorting them by scheduled departure"):
        flights = read_flights()
        streams = batches(flights, PARTITIONS, BATCH_RECORDS)
    checks.count("flights in the data files", flights.num_rows, FLIGHTS_COUNT)
    make_topic(url)
    with steps.step("Posting JSON batches over HTTP", flights.num_rows) as advance:
        acknowledged = dict(sorted(post(url, streams, advance).items()))
    checks.count("acknowledged over HTTP", sum(acknowledged.values()), flights.num_rows)

    with steps.step("Rolling the journal into Parquet and Delta"), Admin(url) as admin:
        version = admin.roll(TOPIC).version
        location = admin.describe_topic(TOPIC).location
    with steps.step("Reading the Delta table with delta-rs"):
        in_delta, in_order = read_delta(location)
    checks.contents(f"in the Delta table (version {version}, read by delta-rs)", in_delta, acknowledged)
    checks.holds("in order of scheduled departure, per partition", held=in_order)

    if not has_jars():
        with steps.step("Fetching Spark's Delta jars (once)"):
            fetch_jars(LOGS)
    with steps.step("Starting Spark"):
        spark = spark_session(LOGS)
    with steps.step("Reading all of it with Spark"):
        checks.contents("read by Spark through the store", read_with_spark(spark, bootstrap=url), acknowledged)
        checks.contents("read by Spark from storage alone", read_with_spark(spark, storage=str(data)), acknowledged)
    with steps.step("Reading the middle half of every partition by offset"):
        starts = {partition: records // 4 for partition, records in acknowledged.items()}
        ends = {partition: records * 3 // 4 for partition, records in acknowledged.items()}
        in_range = count_range(spark, starts, ends, bootstrap=url)
    checks.count("read by Spark by offset range (the middle half)", in_range, sum(ends.values()) - sum(starts.values()))
    with steps.step("Asking for the mean arrival delay per carrier"):
        delays = mean_delay_per_carrier(spark, bootstrap=url)
        spark.stop()
    checks.count("in the answer of the query", sum(row.flights for row in delays), flights.num_rows)
    expected = mean_arrival_delays(flights)
    means_agree = {row.carrier for row in delays} == set(expected) and all(
        math.isclose(row.mean_delay_minutes, expected[row.carrier]) for row in delays
    )
    checks.holds("mean delays as computed from the data files", held=means_agree)

    steps.console.print(_delay_table(delays), checks.table())
    verdict = "[green]All counts agree[/]" if checks.agree else "[bold red]The counts do not agree[/]"
    steps.console.print(f"{verdict}, in {steps.seconds:.0f} s. Logs of the store and of Spark: {LOGS}", highlight=False)
    return checks.agree


def _delay_table(delays: Sequence[CarrierDelay]) -> Table:
    names = read_airlines()
    table = Table(title="Mean arrival delay, asked of Spark", title_justify="left")
    table.add_column("carrier")
    table.add_column("flights", justify="right")
    table.add_column("minutes", justify="right")
    for row in delays:
        table.add_row(names.get(row.carrier, row.carrier), f"{row.flights:,}", f"{row.mean_delay_minutes:.1f}")
    return table


def _say_what_next(console: Console, data: Path, running_url: str | None) -> None:
    binaries = Path(sys.executable).parent
    if binaries.is_relative_to(Path.cwd()):
        binaries = binaries.relative_to(Path.cwd())
    logstore = shlex.quote(str(binaries / "logstore"))
    python = shlex.quote(str(binaries / "python"))
    url = f" --url {running_url}" if running_url else ""
    commands = [
        f"{logstore} topic describe {TOPIC}{url}",
        f"{logstore} consume {TOPIC} --partition 0 --offset 1000 --max 3{url}",
        f"""{python} -c 'import polars; print(polars.scan_delta("{data}/topics/{TOPIC}").head().collect())'""",
    ]
    if not running_url:
        commands = [f"{logstore} serve --data {shlex.quote(str(data))}", *commands[1:]]
    console.print(f"The data is in {data}. Try next{'' if running_url else ' (the second while the first one runs)'}:")
    for command in commands:
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
