"""The store that runs on a data directory of this machine, found by the files that it writes there."""

import json
from pathlib import Path

from logstore.client.admin import Admin
from logstore.endpoint_file import Endpoint, read_endpoint
from logstore.errors import LogStoreError

_TIMEOUT_MS = 5_000


def running_store(data: Path) -> Endpoint | None:
    """Return where the store on ``data`` listens, or None if none responds.

    The file that a killed store left behind does not count, even if another process has its port now.
    """
    for home in sorted(data.glob("brokers/*")):
        endpoint = read_endpoint(home)
        if endpoint is None:
            continue
        try:
            cluster_id = json.loads((data / "cluster.json").read_bytes())["cluster_id"]
            with Admin(endpoint.url, request_timeout_ms=_TIMEOUT_MS, default_api_timeout_ms=0) as admin:
                if admin.cluster_id == cluster_id:
                    return endpoint
        except (OSError, ValueError, KeyError, TypeError, LogStoreError):
            continue
    return None
