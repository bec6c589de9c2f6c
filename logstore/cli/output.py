"""Output of commands on stdout: tables for people, JSON for programs."""

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from logstore.protocol.messages.status import TopicProblem

_NUMBER = re.compile(r"-?[0-9][0-9,.]*( ([KMGT]i)?B)?")


def print_json(content: Any) -> None:
    """Print one JSON document; dataclasses become objects."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n")


def print_json_line(content: Any) -> None:
    """Print one line of NDJSON, for output that comes in parts."""
    sys.stdout.write(msgspec.json.encode(content).decode() + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. Numbers are right-aligned, with thousands separators; without a terminal lines are not folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[_text(cell) for cell in row] for row in rows]
    numeric = [_are_numbers([row[index] for row in cells]) for index in range(len(columns))]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    # Piped text must not be folded at an assumed width.
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 10_000)
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_problems(problems: Sequence["TopicProblem"]) -> None:
    """Print an empty line, then a line for each problem with its remedy; nothing without problems."""
    for line in ["", *map(problem_text, problems)] if problems else ():
        print(line)


def problem_text(problem: "TopicProblem") -> str:
    where = problem.topic if problem.partition is None else f"{problem.topic}-{problem.partition}"
    reason = problem_reason(problem)
    return f"{reason if reason.startswith(where) else f'{where}: {reason}'}. {problem.remedy}"


def problem_reason(problem: "TopicProblem") -> str:
    """Return the reason, preceded by the state unless the reason names it."""
    state = problem.state.replace("_", " ")
    reason = problem.reason.rstrip(".")
    return reason if state in reason else f"{state}: {reason}"


def counted(count: int, noun: str) -> str:
    """Return a text such as ``1 record`` or ``2,000 records``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def bytes_text(size: float) -> str:
    """Return a text such as ``812 B`` or ``3.4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def duration_text(milliseconds: float) -> str:
    """Return a text such as ``12 s``, ``5 min``, ``3 h``, ``8 d``, in the largest unit that fits at least twice."""
    seconds = milliseconds / 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def time_text(timestamp_ms: int) -> str:
    """Return ISO 8601 in UTC. ``fromtimestamp`` would refuse years that a table may contain."""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age_text(timestamp_ms: int | None, now_ms: int) -> str:
    """Return a text such as ``12 s ago``; ``in 5 min`` for a time in the future; ``-`` for None."""
    if timestamp_ms is None:
        return "-"
    age = now_ms - timestamp_ms
    return f"in {duration_text(-age)}" if age < -1000 else f"{duration_text(age)} ago"


def _text(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _are_numbers(texts: list[str]) -> bool:
    """Return True if there are numbers, and all other texts are ``-``."""
    found = [text for text in texts if text != "-"]
    return bool(found) and all(map(_NUMBER.fullmatch, found))
