"""One table of a run, for the terminal, as Markdown and as JSON; ``plot`` makes the plot."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import METRICS, Finding, Sample, median_sample
from benchmarks.plot import ratios_svg
from benchmarks.run import CaseResult

#: A table that is folded to fit cannot be read.
_WIDTH_MIN = 200


def rows(results: Sequence[CaseResult]) -> tuple[list[str], list[list[str]]]:
    """Return head and body: a row for each contender of each case, with the medians of its measures over the rounds.

    The last column has the findings: the ratio of ours to it, or our own figure, and the target.
    """
    medians = {
        (number, name): median_sample(samples)
        for number, result in enumerate(results)
        for name, samples in result.samples.items()
    }
    shown = [name for name in METRICS if any(getattr(median, name) for median in medians.values())]
    body: list[list[str]] = []
    for number, result in enumerate(results):
        for place, name in enumerate(result.samples):
            figures = [METRICS[metric].format(getattr(medians[number, name], metric)) for metric in shown]
            body.append(
                ["" if place else result.case.name, name, *figures, "\n".join(_words_of(result.findings, name))]
            )
    return ["case", "", *(METRICS[name].title for name in shown), "ours / it (lowest-highest), target"], body


def _words_of(findings: Iterable[Finding], name: str) -> list[str]:
    told = []
    for finding in findings:
        target = finding.target
        if name != (target.against or target.of):
            continue
        of = "" if target.of == "ours" else f"{target.of}: "
        told.append(
            " ".join(filter(None, (f"{of}{METRICS[target.metric].title}", finding.text, target.bound, finding.verdict)))
        )
    return told


def print_table(results: Sequence[CaseResult]) -> None:
    head, body = rows(results)
    table = Table(show_edge=False, padding=(0, 1))
    for place, title in enumerate(head):
        is_figure = 2 <= place < len(head) - 1
        table.add_column(title, justify="right" if is_figure else "left", no_wrap=not is_figure)
    for row in body:
        if row[0]:
            table.add_section()
        colour = "red" if "short" in row[-1] else "green" if "reached" in row[-1] else ""
        table.add_row(*row[:-1], f"[{colour}]{row[-1]}[/]" if colour else row[-1])
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH_MIN)
    console.print(table)


def markdown(results: Sequence[CaseResult], environment: Mapping[str, str], settings: Mapping[str, float]) -> str:
    head, body = rows(results)
    lines = ["# Benchmark", "", *(f"- {name}: {text}" for name, text in environment.items())]
    lines += [f"- {name}: {value:g}" for name, value in settings.items()]
    lines += ["", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace(chr(10), '<br>') for cell in row)} |" for row in body]
    lines += ["", *(f"- `{result.case.name}`: {result.case.title}" for result in results)]
    absent = {(name, lacks) for result in results for name, lacks in result.absent.items()}
    lines += [f"- left out: {name}, without {lacks}" for name, lacks in sorted(absent)]
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[CaseResult], environment: Mapping[str, str], settings: Mapping[str, float]) -> str:
    cases = [
        {
            "name": result.case.name,
            "title": result.case.title,
            "contenders": {name: [_measured(sample) for sample in samples] for name, samples in result.samples.items()},
            "findings": [
                {**asdict(found.target), "values": found.values, "median": found.median, "verdict": found.verdict}
                for found in result.findings
            ],
            "absent": dict(result.absent),
        }
        for result in results
    ]
    return json.dumps({"environment": dict(environment), "settings": dict(settings), "cases": cases}, indent=1) + "\n"


def _measured(sample: Sample) -> dict[str, float]:
    return {name: value for name, value in asdict(sample).items() if value is not None}


def write(
    directory: Path,
    name: str,
    results: Sequence[CaseResult],
    environment: Mapping[str, str],
    settings: Mapping[str, float],
) -> list[Path]:
    """Write ``<name>.json``, ``.md`` and ``.svg`` in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        "json": as_json(results, environment, settings),
        "md": markdown(results, environment, settings),
        "svg": ratios_svg([(result.case.name, found) for result in results for found in result.findings]),
    }
    paths = [directory / f"{name}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths
