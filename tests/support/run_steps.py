"""Run the steps of a page in one process and its shells: ``python run_steps.py steps.json``.

Python steps share one namespace. Shell steps share their variables and functions. SQL steps run in the session
``spark`` of a Python step, or in a new one.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_SHELL = """set -a
if [ -f .shell-state ]; then . ./.shell-state; fi
{code}
{{ export -p; declare -f; }} > .shell-state
"""


def main(steps: list[tuple[str, str, str]], names: dict[str, Any]) -> None:
    for name, language, code in steps:
        print(f"---- {name}", flush=True)
        if language == "sh":
            subprocess.run(["bash", "-euo", "pipefail", "-c", _SHELL.format(code=code)], check=True)
        elif language == "sql":
            for statement in filter(str.strip, code.split(";")):
                _session(names).sql(statement).show()
        else:
            exec(compile(code, name, "exec"), names)


def _session(names: dict[str, Any]) -> Any:
    if "spark" not in names:
        from logstore.spark import session

        names["spark"] = session("page")
    return names["spark"]


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), {"__name__": "__main__"})
