import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import report
from benchmarks.measure import Sample, Target
from benchmarks.plot import ratios_svg
from benchmarks.run import Case, CaseResult, Stage

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True, slots=True)
class Named:
    name: str
    needs: tuple[str, ...] = ()

    def start(self, stage: Stage) -> Callable[[float], Sample]:
        raise AssertionError


CASE = Case(
    "produce",
    "what is <sent>",
    (Named("ours"), Named("kafka"), Named("lz4 & co")),
    (
        Target("records_s", "kafka", at_least=2.0),
        Target("p99_ms", "kafka", at_most=1.0),
        Target("records_s", at_least=300),
        Target("records_s", "lz4 & co"),
    ),
)
RESULT = CaseResult(
    CASE,
    {
        "ours": [Sample(records_s=100.0, p99_ms=4.0), Sample(records_s=200.0, p99_ms=4.0)],
        "kafka": [Sample(records_s=50.0, p99_ms=2.0), Sample(records_s=80.0, p99_ms=2.0)],
    },
    {"lz4 & co": "confluent"},
)


def test_a_row_for_each_contender_and_only_columns_that_have_something():
    head, body = report.rows([RESULT])
    assert head == ["case", "", "records/s", "p99 ms", "ours / it (lowest-highest), target"]
    assert body == [
        ["produce", "ours", "150", "4.00", "records/s 150 (100-200) >= 300 short"],
        ["", "kafka", "65", "2.00", "records/s 2.25 (2.00-2.50) >= 2 reached\np99 ms 2.00 (2.00-2.00) <= 1 short"],
    ]


def test_the_table_is_printed_whole(capsys: pytest.CaptureFixture[str]):
    report.print_table([RESULT])
    printed = capsys.readouterr().out
    assert "records/s 2.25 (2.00-2.50) >= 2 reached" in printed
    assert "p99 ms 2.00 (2.00-2.00) <= 1 short" in printed


def test_json_markdown_and_plot_are_written(tmp_path: Path):
    paths = report.write(tmp_path / "results", "run", [RESULT], {"processor": "2 x cores"}, {"rounds": 2})
    assert [path.name for path in paths] == ["run.json", "run.md", "run.svg"]
    written = json.loads(paths[0].read_text())
    assert written["environment"] == {"processor": "2 x cores"}
    (case,) = written["cases"]
    assert case["contenders"]["kafka"][1] == {"records_s": 80.0, "p99_ms": 2.0}
    assert [(found["median"], found["verdict"]) for found in case["findings"]] == [
        (2.25, "reached"),
        (2.0, "short"),
        (150.0, "short"),
    ]
    page = paths[1].read_text()
    assert "| produce | ours | 150 | 4.00 | records/s 150 (100-200) >= 300 short |" in page
    assert ">= 2 reached<br>p99 ms" in page
    assert "- left out: lz4 & co, without confluent" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1


def test_the_plot_has_a_dot_for_each_ratio_on_a_logarithmic_scale():
    findings = [(CASE.name, found) for found in RESULT.findings]
    svg = ET.fromstring(ratios_svg(findings))
    dots = [float(dot.attrib["cx"]) for dot in svg.iter(f"{SVG}circle")]
    texts = [text.text or "" for text in svg.iter(f"{SVG}text")]
    ticks = {text.text: float(text.attrib["x"]) for text in svg.iter(f"{SVG}text")}
    # Our own figure is not a ratio, so there are two dots: at 2.25 and 2.
    assert len(dots) == 2
    assert dots[1] == pytest.approx(ticks["2"], abs=0.2)
    assert ticks["2"] - ticks["1"] == pytest.approx(ticks["1"] - ticks["0.5"], abs=0.2)
    assert "produce: records/s to kafka" in texts
    assert {dot.attrib["fill"] for dot in svg.iter(f"{SVG}circle")} == {"#2a7d3f", "#b3261e"}


def test_a_plot_of_nothing_is_still_a_picture():
    assert ET.fromstring(ratios_svg([])).tag == f"{SVG}svg"
