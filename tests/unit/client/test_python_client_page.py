import re
import textwrap

from tests.support.server_process import ROOT


def test_the_examples_of_the_page_run(store: str, capsys):
    page = (ROOT / "docs" / "python-client.md").read_text()
    examples = [textwrap.dedent(text) for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    assert len(examples) == 5
    for example in examples:
        assert "127.0.0.1:8082" in example
        exec(compile(example.replace("127.0.0.1:8082", store), "docs/python-client.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "RecordMetadata(topic='orders', partition=" in printed
    assert "b'ann' b'{\"total\": 12}' (('source', b'web'),)" in printed
