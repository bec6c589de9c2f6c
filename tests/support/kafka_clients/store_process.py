"""A real store in a separate process, with a Kafka listener on a free port."""

from pathlib import Path

from benchmarks.free_port import free_port
from tests.support.kafka_clients.served import Served
from tests.support.server_process import ServerProcess


class KafkaStoreProcess(ServerProcess):
    """A store that has the same addresses when it is started again."""

    def __init__(self, data: Path, *, environment: dict[str, str] | None = None) -> None:
        self.bootstrap = f"127.0.0.1:{free_port()}"
        listeners = {"LOGSTORE_KAFKA_LISTENERS": self.bootstrap}
        super().__init__(data, port=free_port(), environment={**listeners, **(environment or {})})

    @property
    def served(self) -> Served:
        return Served(self.bootstrap, self.url, self.data)
