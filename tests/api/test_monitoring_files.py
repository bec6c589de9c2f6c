"""``conf/prometheus-alerts.yml`` and ``conf/grafana-dashboard.json`` name only metrics that a store really exposes.

A test fails if an expression names a metric, or a label of it, that a scrape does not have: it would be an alert that
never fires, or an empty panel.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from logstore.broker.topics.problems import ProblemState, TopicProblem
from logstore.log.in_sync_replicas import Follower
from logstore.log.partition_log import PartitionLog
from logstore.observability import (
    COLUMN_MISFITS,
    DELETED_FILE_BYTES,
    JOB_LAST_RUN,
    JOB_SECONDS,
    JOB_TOPICS,
    KAFKA_REQUEST_SECONDS,
    KAFKA_REQUESTS,
    MERGED_BYTES,
    MERGED_SEGMENTS,
    MERGES,
    REPLAYED_RECORDS,
    ROLLS,
    THROTTLED,
)
from tests.support.server_process import ROOT

pytestmark = pytest.mark.anyio

#: Labels and metrics that Prometheus itself adds or makes.
ADDED = {"instance", "job"}
OWN_METRICS = {"up": set()}
FUNCTIONS = {"count", "delta", "histogram_quantile", "increase", "max", "rate", "sum", "vector"}
WORDS = FUNCTIONS | {"and", "by", "or", "on", "ignoring"}

Exposed = dict[str, set[str]]


@pytest.fixture
async def exposed(api, monkeypatch) -> Exposed:
    """Return the labels of each sample name, of a store that does a little of everything."""
    await api.create_topic("t")
    await api.produce("t", [1])
    await api.fetch("t", offset=0)
    await api.post("/topics/t/roll")
    await api.post("/groups/g/offsets", json={"offsets": [{"topic": "t", "partition": 0, "offset": 0}]})
    THROTTLED.labels("journal")
    COLUMN_MISFITS.labels("t")
    KAFKA_REQUESTS.labels("Produce", "")
    KAFKA_REQUEST_SECONDS.labels("Produce")
    JOB_TOPICS.labels("retention", "failed")
    JOB_SECONDS.labels("retention")
    JOB_LAST_RUN.labels("retention")
    REPLAYED_RECORDS.labels("t")
    ROLLS.labels("t", "failed")
    MERGES.labels("t", "failed")
    for joined in (MERGED_SEGMENTS, MERGED_BYTES, DELETED_FILE_BYTES):
        joined.labels("t")
    problem = TopicProblem("t", 0, ProblemState.QUARANTINED, "why", "what to do")
    monkeypatch.setattr(api.broker.topics.problems, "all", lambda _: [problem])
    # The leader of a partition with another replica has such a follower.
    monkeypatch.setattr(PartitionLog, "followers", property(lambda _: {2: Follower(2, 0.0)}))
    found: Exposed = {}
    for family in text_string_to_metric_families((await api.get("/metrics")).text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def unknown(expression: str, exposed: Exposed) -> set[str]:
    """Return the metrics and labels in a PromQL expression that do not exist."""
    text = re.sub(r"\[[^\]]*\]", "", expression)
    wrong: set[str] = set()
    known = exposed | OWN_METRICS

    def check_matchers(match: re.Match[str]) -> str:
        name, matchers = match.groups()
        wrong.update(
            f"{name}{{{label}}}"
            for label in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"', matchers)
            if label not in known.get(name, set()) | ADDED
        )
        return f" {name} "

    text = re.sub(r"(\w+)\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\}", check_matchers, text)
    groupings = re.findall(r"\bby\s*\(([^)]*)\)", text)
    text = re.sub(r"\bby\s*\([^)]*\)", " ", text)
    metrics = set(re.findall(r"\b[a-zA-Z_]\w*", text)) - WORDS
    wrong |= metrics - known.keys()
    labels = set.union(ADDED, *(known.get(metric, set()) for metric in metrics))
    wrong.update(
        f"by ({label})" for grouping in groupings for label in re.findall(r"\w+", grouping) if label not in labels
    )
    return wrong


def read_rules(text: str) -> list[dict[str, Any]]:
    """Read the alert rules of a file. It uses a small part of YAML; anything else is an error."""
    rules: list[dict[str, Any]] = []
    within = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line in ("groups:", "  - name: logstore", "    rules:"):
            continue
        match = re.fullmatch(r'( {6}- | {8}| {10})([a-z_]+):(?: ("(?:[^"\\]|\\.)*"|[A-Za-z0-9_]+))?', line)
        assert match, f"line {number}: {line!r}"
        indent, key, value = match.groups()
        if indent.endswith("- "):
            rules.append({})
        if len(indent) == 10:
            rules[-1][within][key] = json.loads(value) if value.startswith('"') else value
        elif value is None:
            rules[-1][key] = {}
            within = key
        else:
            rules[-1][key] = json.loads(value) if value.startswith('"') else value
    return rules


async def test_every_alert_is_about_what_is_exposed(exposed):
    rules = read_rules((ROOT / "conf/prometheus-alerts.yml").read_text(encoding="utf-8"))
    assert len({rule["alert"] for rule in rules}) == len(rules) > 8
    for rule in rules:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert not unknown(rule["expr"], exposed), rule["alert"]
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        grouped = re.search(r"\bby \(([^)]*)\)", rule["expr"])
        named = [exposed.get(name, set()) for name in re.findall(r"\b\w+", rule["expr"])]
        kept = set(grouped[1].split(", ")) if grouped else set.union(ADDED, *named)
        assert told <= kept, f"{rule['alert']} tells of a label that its expression has not"


async def test_every_panel_is_about_what_is_exposed(exposed):
    board = json.loads((ROOT / "conf/grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels) > 20
    for panel in panels:
        for target in panel["targets"]:
            assert not unknown(target["expr"], exposed), panel["title"]
            told = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.search(r"\bby \(([^)]*)\)", target["expr"])
            named = [exposed.get(name, set()) for name in re.findall(r"\b\w+", target["expr"])]
            assert told <= (set(grouped[1].split(", ")) if grouped else set.union(ADDED, *named)), panel["title"]
    places = [(x, y) for panel in panels for x, y in cells(panel["gridPos"])]
    assert len(set(places)) == len(places), "panels overlap"
    for variable in board["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
        assert label in exposed[metric] | ADDED


def cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        assert x < 24
        yield from ((x, y) for y in range(place["y"], place["y"] + place["h"]))


async def test_the_journal_is_measured_by_the_bytes_that_its_bound_is_on(api):
    """Check that the metric leaves out files that nothing needs: they stay for a while, and refuse no request."""
    await api.create_topic("t")
    await api.produce("t", [1])
    families = {family.name: family for family in text_string_to_metric_families((await api.get("/metrics")).text)}
    (needed,) = families["logstore_journal_needed_bytes"].samples
    assert needed.value == api.broker.journal.needed_bytes > 0
    rules = read_rules((ROOT / "conf/prometheus-alerts.yml").read_text(encoding="utf-8"))
    board = json.loads((ROOT / "conf/grafana-dashboard.json").read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    bounded = [text for text in [rule["expr"] for rule in rules] + shown if "logstore_journal_max_bytes" in text]
    assert len(bounded) == 2
    assert all(text.startswith("logstore_journal_needed_bytes") for text in bounded)


async def test_every_metric_of_ours_is_explained(exposed):
    """Check that docs/operations.md has exactly our metrics, without the suffixes that Prometheus' format adds."""
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `(logstore_\w+)`", page, re.MULTILINE))
    ours = set()
    for name in exposed:
        if name.startswith("logstore_"):
            histogram = re.sub(r"_(bucket|sum|count)$", "", name)
            ours.add(histogram if f"{histogram}_sum" in exposed else name)
    assert explained == ours


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ('sum by (topic, le) (rate(logstore_rolls_total{outcome!="x", instance=~"$i"}[5m])) > 2', {"by (le)"}),
        ("logstore_rols_total or vector(0)", {"logstore_rols_total"}),
        ('rate(logstore_rolls_total{outcom="failed",topic=~".*}"}[5m])', {"logstore_rolls_total{outcom}"}),
        ("histogram_quantile(0.9, rate(logstore_roll_seconds_buckets[1m]))", {"logstore_roll_seconds_buckets"}),
        ("sum by (state) (logstore_topic_problems) / logstore_gone", {"logstore_gone"}),
    ],
)
async def test_a_metric_that_is_not_exposed_is_found(exposed, expression, wrong):
    assert unknown(expression, exposed) == wrong
