"""The store that runs on a data directory of this machine, found by what it writes there."""

import json
from pathlib import Path

from logstore.client.admin import Admin
from logstore.errors import LogStoreError

_TIMEOUT_MS = 5_000


def running_store(data: Path) -> str | None:
    """Where the store on ``data`` listens; None if none answers. A file that a killed one left behind does not count,
    whoever has its port now.
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
