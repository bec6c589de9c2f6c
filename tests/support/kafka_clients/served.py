"""The addresses of a served store: for Kafka's clients, and for HTTP."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Served:
    """A store or a real Kafka, which the same tests can run against; a real Kafka has no ``url`` and no ``data``."""

    bootstrap: str
    url: str | None = None
    data: Path | None = None

    @property
    def is_kafka(self) -> bool:
        return self.url is None
