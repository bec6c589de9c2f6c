import inspect
import re
import textwrap

import pytest

from logstore.client.admin import Admin
from tests.support.server_process import ROOT


@pytest.mark.long
def test_the_examples_of_the_page_run(store: str, capsys):
    page = (ROOT / "docs" / "python-client.md").read_text()
    # The first records may take longer than the page's 5 seconds on a busy machine.
    page = page.replace("timeout_s=5", "timeout_s=15").replace("timeout_ms=5_000", "timeout_ms=15_000")
    examples = [textwrap.dedent(text) for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    assert len(examples) == 6
    for example in examples:
        assert "127.0.0.1:8082" in example
        exec(compile(example.replace("127.0.0.1:8082", store), "docs/python-client.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "RecordMetadata(topic='orders', partition=" in printed
    assert "b'ann' b'{\"total\": 12}' (('source', b'web'),)" in printed
    assert re.search(r"new \[TopicPartition\(topic='orders', partition=0\), .*\n(\d \d+\n)+given up \[TopicP", printed)


def test_the_pages_optional_parameters_of_the_admin_are_right():
    page = (ROOT / "docs" / "python-client.md").read_text()
    documented = re.findall(r"^\| `(\w+)\((.*=.*)\)` \|", page, re.MULTILINE)
    checked = [(name, text) for name, text in documented if hasattr(Admin, name)]
    assert len(checked) >= 3
    for name, text in checked:
        after_the_star = text.partition("*, ")[2]
        parameters = inspect.signature(getattr(Admin, name)).parameters
        for optional in re.findall(r"(\w+)=", text):
            is_keyword = parameters[optional].kind is inspect.Parameter.KEYWORD_ONLY
            assert is_keyword == (f"{optional}=" in after_the_star), f"{name}({text})"
