import contextlib
import re

import pytest

from logstore.client.admin import Admin
from logstore.errors import TopicExistsError
from tests.support.server_process import ROOT

pytestmark = pytest.mark.long


def test_the_python_of_the_producers_quick_start_runs(admin: Admin, store: str, capsys):
    page = (ROOT / "docs" / "quickstart-producer.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    with contextlib.suppress(TopicExistsError):
        admin.create_topic("orders", partitions=4)
    before = sum(partition.high_watermark for partition in admin.describe_topic("orders").partitions)
    for example in examples:
        exec(compile(example.replace("127.0.0.1:8082", store), "docs/quickstart-producer.md", "exec"), {})
    assert "RecordMetadata(topic='orders', partition=" in capsys.readouterr().out
    assert sum(partition.high_watermark for partition in admin.describe_topic("orders").partitions) == before + 5
