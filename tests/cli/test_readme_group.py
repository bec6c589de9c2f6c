"""README's example of a group, as a process that ends with Ctrl-C."""

import json
import re
import signal
import subprocess
import sys

import pytest

from tests.support.server_process import ROOT

pytestmark = pytest.mark.system


def test_ctrl_c_commits_what_was_printed(run, run_json, server, topic):
    readme = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```python\n(import contextlib, logstore\n.*?)```", readme, re.DOTALL)
    address = server.url.removeprefix("http://")
    program = block.replace("127.0.0.1:8082", address).replace('["events"]', json.dumps([topic]))
    group = f"audit-{topic}"
    program = program.replace('"audit"', json.dumps(group))
    assert address in program
    assert topic in program
    assert group in program
    run("produce", topic, "-K", ":", input="".join(f"{n}:{n}\n" for n in range(300)))
    printing = subprocess.Popen(
        [sys.executable, "-u", "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    printed = [printing.stdout.readline().decode().split() for _ in range(300)]
    printing.send_signal(signal.SIGINT)
    rest, errors = printing.communicate(timeout=60)
    assert (printing.returncode, rest, errors) == (0, b"", b"")
    ends = {partition: max(int(line[1]) for line in printed if line[0] == partition) + 1 for partition in "01"}
    described = run_json("group", "describe", group)["partitions"]
    committed = {str(one["partition"]): one["committed_offset"] for one in described}
    # The signal may come before the program asks for the next record: the last printed one is then not done.
    last = printed[-1][0]
    assert committed in (ends, {**ends, last: ends[last] - 1})
    assert sum(ends.values()) == 300
