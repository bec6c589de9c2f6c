"""The history has the right lines for an answer that took some records and not others."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.bench.history import Produce, Recorder, read_history
from tests.faults.bench.records import Record
from tests.faults.bench.workload import Client, TopicSpec

TOPIC = TopicSpec("t", 4)
#: Answers for a partition in quarantine, and for one whose append took too long.
REFUSED, OPEN = {"error_code": 50303, "error": "no"}, {"error_code": 50401, "error": "perhaps"}
DONE = {"error_code": None, "error": None}


def produced(directory: Path, form: str, answer: Any, records: Sequence[Record], *, partition: int | None) -> Produce:
    """Return the history's last line after that answer."""
    directory.mkdir(exist_ok=True)
    path = directory / "history.jsonl"
    with Recorder(path) as recorder:
        client = Client("http://store", "producer", recorder)
        client._http = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=answer)))
        client.produce(TOPIC, partition, records, acks="all", form=form)
        client.close()
    (*_, told) = read_history(path)
    assert isinstance(told, Produce)
    return told


def keyed(count: int) -> list[Record]:
    return [Record(f"id-{n}", f"k{n}", f"v{n}", None) for n in range(count)]


def test_json_responses_report_each_record(tmp_path: Path) -> None:
    nowhere = {"partition": None, "offset": None}
    offsets = [{"partition": 1, "offset": 5, **DONE}, nowhere | REFUSED, nowhere | OPEN]
    told = produced(tmp_path, "json", {"offsets": offsets}, keyed(3), partition=None)
    assert (told.phase, told.places, told.unknown) == ("ok", [(1, 5), None, None], [2])


@pytest.mark.parametrize(("error", "unknown"), [(REFUSED, False), (OPEN, True)])
def test_arrow_responses_have_ranges(tmp_path: Path, error: dict[str, Any], unknown: bool) -> None:
    records = keyed(12)
    whole = [{"partition": p, "base_offset": 0, "count": 12} for p in range(4)]
    places = produced(tmp_path / "whole", "arrow", {"ranges": whole}, records, partition=None).places
    assert places is not None
    chosen = [place[0] for place in places if place]
    assert len(chosen) == 12
    ranges = [{**r, "base_offset": None, **error} if r["partition"] == chosen[0] else {**r, **DONE} for r in whole]
    told = produced(tmp_path / "mixed", "arrow", json.loads(json.dumps({"ranges": ranges})), records, partition=None)
    gone = [at for at, partition in enumerate(chosen) if partition == chosen[0]]
    assert 0 < len(gone) < 12
    assert told.places == [None if at in gone else place for at, place in enumerate(places)]
    assert told.unknown == (gone if unknown else [])
