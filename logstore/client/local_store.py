"""The store that runs on a data directory of this machine, found by the files that it writes there."""

import json
from pathlib import Path

from logstore.client.admin import Admin
from logstore.errors import LogStoreError

_TIMEOUT_MS = 5_000


def kafka_address(data: Path, url: str) -> str | None:
    """Where Kafka's clients find the store on ``data`` that listens on ``url``; None if it has no listener for them."""
    for endpoint in sorted(data.glob("brokers/*/endpoint.json")):
        try:
            told = json.loads(endpoint.read_bytes())
            if told["url"] == url:
                return None if told.get("kafka") is None else str(told["kafka"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def running_store(data: Path) -> str | None:
    """The URL of the store on ``data``; None if none answers. The file that a killed store left behind does not count,
    even if another process has its port now.
    """
    for endpoint in sorted(data.glob("brokers/*/endpoint.json")):
        try:
            url = str(json.loads(endpoint.read_bytes())["url"])
            cluster_id = json.loads((data / "cluster.json").read_bytes())["cluster_id"]
            with Admin(url, request_timeout_ms=_TIMEOUT_MS, default_api_timeout_ms=0) as admin:
                if admin.cluster_id == cluster_id:
                    return url
        except (OSError, ValueError, KeyError, TypeError, LogStoreError):
            continue
    return None
