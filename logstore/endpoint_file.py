"""``brokers/<id>/endpoint.json``: where a broker listens, for tools on its machine.

The file is there while the broker is ready. A broker that was killed leaves it behind.
"""

from pathlib import Path
from typing import Final

import msgspec

ENDPOINT_FILE: Final = "endpoint.json"


class Endpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """``kafka``: host:port for Kafka's clients; None if the broker listens for none of them."""

    url: str
    pid: int
    kafka: str | None = None


def read_endpoint(home: Path) -> Endpoint | None:
    """What the broker with the directory ``home`` has told; None if there is no such file, or a damaged one."""
    try:
        return msgspec.json.decode((home / ENDPOINT_FILE).read_bytes(), type=Endpoint)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
