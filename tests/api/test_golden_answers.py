"""Answers of the routes for administration and groups equal those in ``golden/answers.json``, byte for byte.

``python -m tests.api.test_golden_answers`` writes that file again. Read its diff before you commit it: every changed
line is a change that clients see. In place of values that differ from run to run it has ``<uuid>``, ``<time>`` and the
like.
"""

import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.api.api_client import ApiClient, running_api
from tests.api.golden_requests import ask

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).with_name("golden") / "answers.json"
HEADERS = ("Content-Type", "Allow", "Location", "Retry-After", "Logstore-Topic-Id", "Logstore-High-Watermark")

#: Values in JSON texts that change from run to run, by the names of their fields.
_CHANGING = re.compile(
    r'"(topic_id|location|size_bytes|unsealed_bytes|unsealed_records|timestamp|newest_timestamp|now|uptime_ms|needed_bytes|'
    r'retained_bytes|open_files_max|connections_taken_max|producer_id|version)":("[^"]*"|[0-9]+)'
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def answers(api: ApiClient) -> dict[str, list[Any]]:
    """Return the status, headers and body of each answer, with the values replaced that change from run to run."""
    told: dict[str, list[Any]] = {}
    async for name, _, _, answer in ask(api):
        assert name not in told, name
        fields = {field: answer.headers[field] for field in HEADERS if field in answer.headers}
        texts = json.dumps([fields, answer.text], ensure_ascii=False).replace(api.broker.cluster_id, "<cluster>")
        fields, body = json.loads(_UUID.sub("<uuid>", texts))
        told[name] = [answer.status_code, fields, _CHANGING.sub(r'"\1":<\1>', body)]
    return told


async def test_the_answers_are_the_golden_ones(api):
    told, golden = await answers(api), json.loads(GOLDEN.read_text())
    differing = {
        name: (golden.get(name), told.get(name)) for name in golden | told if golden.get(name) != told.get(name)
    }
    assert not differing, json.dumps(differing, indent=1, ensure_ascii=False)


async def _write() -> None:
    with tempfile.TemporaryDirectory() as data:
        async with running_api(Path(data) / "data") as api:
            told = await answers(api)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(answer, ensure_ascii=False)}" for name, answer in told.items())
    GOLDEN.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    asyncio.run(_write())
