"""``make bench``: run cases, print one table, keep it under benchmarks/results/."""

import argparse
import importlib.util
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import report
from benchmarks.before import beside
from benchmarks.cases import choose
from benchmarks.kafka import Kafka, find_java, find_kafka
from benchmarks.machine import describe
from benchmarks.run import Case, CaseResult, Peers, run_case
from benchmarks.server import ROOT, BenchmarkError


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--cases", default="", help="names or patterns such as fetch-*, separated by commas or spaces")
    parser.add_argument("--pairs", type=_rounds, default=3, help="rounds that count, after one to warm up (default: 3)")
    parser.add_argument("--seconds", type=_seconds, default=4.0, help="time of a turn (default: 4)")
    parser.add_argument("--full", action="store_true", help="the whole matrix too")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--alone", action="store_true", help="ours without Kafka")
    parser.add_argument("--before", type=Path, help="ours beside that of another checkout, without Kafka")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / ".cache/bench", help="data go below here: on the disk to be measured"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="where results are kept")
    return parser.parse_args(arguments)


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    given.directory = given.directory.absolute()
    console = Console(highlight=False, soft_wrap=True)
    try:
        cases = choose(given.cases.replace(",", " ").split(), full=given.full)
        if given.before is not None:
            cases = [
                beside(case, given.before.resolve()) for case in cases if not set(case.contenders[0].needs) - {"wrk"}
            ]
    except BenchmarkError as error:
        console.print(f"benchmarks: {error}")
        return 2
    if given.list:
        for case in cases:
            console.print(f"{case.name:24} {case.title}")
        return 0
    peers = find_peers(console, alone=given.alone or given.before is not None)
    given.directory.mkdir(parents=True, exist_ok=True)
    environment = describe(given.directory, peers)
    began = time.monotonic()
    results, failed = run_cases(cases, given, peers, console)
    settings = {
        "rounds": given.pairs,
        "seconds of a turn": given.seconds,
        "minutes in all": (time.monotonic() - began) / 60,
    }
    if results:
        report.print_table(results)
        name = datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
        for path in report.write(given.results, name, results, environment, settings):
            console.print(str(path))
    for name, reason in failed.items():
        console.print(f"[red]failed[/] {name}: {reason}")
    return 1 if failed else 0


def run_cases(
    cases: Sequence[Case], given: argparse.Namespace, peers: Peers, console: Console
) -> tuple[list[CaseResult], dict[str, str]]:
    """Run the cases; return the results, and the reasons of cases without a result."""
    results: list[CaseResult] = []
    failed: dict[str, str] = {}
    for case in cases:
        with tempfile.TemporaryDirectory(prefix=f"{case.name}-", dir=given.directory) as directory:
            try:
                result = run_case(
                    case, Path(directory), peers, rounds=given.pairs, seconds=given.seconds, tell=console.print
                )
            except BenchmarkError as error:
                console.print(f"[red]failed[/] {case.name}: {error}")
                failed[case.name] = str(error).splitlines()[0]
                continue
        if result.samples:
            results.append(result)
        else:
            console.print(f"{case.name}: left out, without {', '.join(result.absent.values())}")
    return results, failed


def find_peers(console: Console, *, alone: bool) -> Peers:
    """Find the tools to compare with, and print which are missing."""
    kafka = "as was asked for" if alone else find_kafka()
    if not isinstance(kafka, Kafka):
        console.print(f"benchmarks: ours alone, without Kafka: {kafka}")
    confluent = ROOT / ".venv-bench/bin/python"
    if not confluent.exists() and not alone:
        console.print("benchmarks: without confluent-kafka: .venv-bench is missing (conf/bootstrap.sh bench)")
    wrk = shutil.which("wrk")
    if wrk is None:
        console.print("benchmarks: without what wrk measures: it is missing (sudo apt-get install wrk)")
    zookeeper = find_java()
    lacking = [package for package in ("kazoo", "pyspark") if importlib.util.find_spec(package) is None]
    if zookeeper is None or lacking:
        console.print(f"benchmarks: without clusters: {' and '.join(lacking) or 'Java'} is missing (conf/bootstrap.sh)")
        zookeeper = None
    return Peers(
        kafka=kafka if isinstance(kafka, Kafka) else None,
        confluent=str(confluent) if confluent.exists() and not alone else None,
        wrk=wrk,
        zookeeper=zookeeper,
    )


if __name__ == "__main__":
    # Servers are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
