"""Writes the table of the APIs that the Kafka listener serves into its page: ``python -m conf.kafka_api_table``."""

import re
from pathlib import Path
from typing import Final

from logstore.kafka_protocol.apis import APIS

PAGE: Final = Path(__file__).parents[1] / "docs/kafka.md"
_BEGIN: Final = "<!-- made from logstore/kafka_protocol/apis.py by `make docs` -->"
_END: Final = "<!-- until here -->"


def table() -> str:
    lines = ["| API | key | versions |", "|---|---|---|"]
    for api in APIS.values():
        versions = "-".join(map(str, sorted({api.version_min, api.version_max})))
        lines.append(f"| {api.name} | {api.key} | {versions} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    made = f"{_BEGIN}\n{table()}\n{_END}"
    written, count = re.subn(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: made, page, flags=re.DOTALL)
    assert count == 1, f"{PAGE} has no place for the table"
    return written


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
