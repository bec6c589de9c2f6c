"""The code blocks of the pages, and what else a run of a page needs.

Fenced blocks of ``sh``, ``console``, ``python`` and ``sql`` run in the order of their page, in one script. ``PLANS``
has the reason for each block that cannot run. Indented blocks and ``text`` are synopses and layouts.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

from tests.support.server_process import ROOT, ServerProcess

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
RUN = frozenset({"sh", "console", "python", "sql"})
READ = frozenset({"json", "toml", "yaml", "javascript", "jinja", "properties", "text", ""})

_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: its language (empty for an indented one), its text, and the line of the page where it begins."""

    page: str
    line: int
    language: str
    code: str

    @property
    def first(self) -> str:
        return self.code.splitlines()[0]


def blocks(page: Path) -> Iterator[Block]:
    for token in _MARKDOWN.parse(page.read_text("utf-8")):
        if token.type in ("fence", "code_block"):
            assert token.map
            yield Block(page.name, token.map[0] + 1, token.info.strip(), token.content)


def commands(console: str) -> str:
    """Return the commands of a ``console`` block, each with its continuation lines, without their output."""
    found: list[str] = []
    complete = True
    for line in console.splitlines():
        if not complete:
            found[-1] += "\n" + line
        elif line.startswith("$ "):
            found.append(line[2:])
        else:
            continue
        complete = _is_complete(found[-1])
    return "\n".join(found) + "\n"


def _is_complete(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return not command.endswith("\\")


@dataclass(frozen=True, slots=True)
class Plan:
    """The requirements of a page that runs.

    ``before`` is a shell script that makes the topics of the page. ``left_out`` gives the beginning of a block that
    does not run and the reason. ``instead`` replaces text that a test cannot use, such as an endless wait. ``printed``
    are patterns that the page's output matches. ``spark`` pages start a JVM, ``cluster`` pages run on brokers.
    """

    before: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)
    printed: tuple[str, ...] = ()
    spark: bool = False
    cluster: bool = False

    @property
    def is_elsewhere(self) -> bool:
        return self.spark or self.cluster

    def runs(self, page: Path) -> bool:
        """Return whether the page has a block that runs."""
        return any(block.language in RUN and self.reason(block) is None for block in blocks(page))

    def reason(self, block: Block) -> str | None:
        return next((why for start, why in self.left_out.items() if block.code.startswith(start)), None)

    def steps(self, page: Path) -> list[tuple[str, str, str]]:
        """Return the steps in order: name, ``sh``, ``python`` or ``sql``, and the code."""
        found = [("before the page", "sh", self.before)] if self.before else []
        for block in blocks(page):
            if block.language not in RUN or self.reason(block) is not None:
                continue
            code = commands(block.code) if block.language == "console" else block.code
            for text, other in self.instead.items():
                code = code.replace(text, other)
            language = "sh" if block.language == "console" else block.language
            found.append((f"{block.page}:{block.line}", language, code))
        return found


def run(page: Path, plan: Plan, directory: Path, places: dict[str, str], **environment: str) -> str:
    """Run the page's blocks in ``directory`` and return their output. Raises AssertionError, which names the failed
    block.

    ``places`` replace addresses and paths of the page, such as ``127.0.0.1:8082`` and ``/lake/``.
    """
    steps = plan.steps(page)
    for text, other in places.items():
        steps = [(name, language, code.replace(text, other)) for name, language, code in steps]
    assert steps, f"nothing of {page.name} runs"
    (directory / "steps.json").write_text(json.dumps(steps))
    path = f"{_commands(directory)}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [sys.executable, "-u", str(ROOT / "tests/support/run_steps.py"), "steps.json"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=880,
        check=False,
    )
    assert ran.returncode == 0, f"exit code {ran.returncode}\n{ran.stdout[-6000:]}"
    missing = [pattern for pattern in plan.printed if not re.search(pattern, ran.stdout)]
    assert not missing, f"{missing} not in\n{ran.stdout}"
    return ran.stdout


def run_beside_a_store(page: Path, directory: Path, **environment: str) -> str:
    """Run the page beside a store whose data directory is ``data`` below ``directory``, as on the pages."""
    own = {"LOGSTORE_KAFKA_LISTENERS": "127.0.0.1:0", "LOGSTORE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
    with ServerProcess(directory / "data", environment=own) as server:
        kafka = json.loads((server.data / "brokers/0/endpoint.json").read_bytes())["kafka"]
        address = server.url.removeprefix("http://")
        places = {"127.0.0.1:8082": address, "localhost:8082": address, "127.0.0.1:9092": kafka}
        places |= {"/srv/logstore/data": str(directory / "data")}
        places |= {"`/data/topics": f"`{directory}/data/topics", '"/lake/': f'"{directory}/lake/'}
        return run(page, PLANS[page.name], directory, places, LOGSTORE_URL=server.url, **environment)


def _commands(directory: Path) -> Path:
    """Make a ``.venv`` as ``make setup`` leaves it in a checkout, with the commands that pages use."""
    found = directory / ".venv" / "bin"
    found.mkdir(parents=True)
    (found / "activate").write_text("")
    (found / "logstore").write_text(f'#!/bin/sh\nexec {sys.executable} -m logstore.cli "$@"\n')
    # An example whose request is refused fails.
    curl = shutil.which("curl")
    (found / "curl").write_text(f'#!/bin/sh\nexec {curl} --fail-with-body "$@"\n')
    for name in ("python", "python3"):
        (found / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for command in found.iterdir():
        command.chmod(0o755)
    return found


_MAKE = "tests/spark/programs/test_demo.py and test_cluster_demo.py run the demos; the others are tests themselves"
_KAFKA_TOOLS = "needs Kafka's distribution and kcat; tests/kafka_clients runs both"
_ROOT = "needs root and systemd; tests/install checks the unit and runs its command"
_DOCKER = "needs Docker; tests/install checks the file and runs its commands"
_SERVES = "starts a store that runs until Ctrl-C; the page's other blocks use one that the test has started"

_FLIGHTS = """
logstore topic create flights --partitions 4
for partition in 0 1 2 3; do
    seq 0 60009 | sed 's/.*/{"flight": &, "carrier": "UA", "dep_delay": 5}/' > flights.json
    logstore produce flights flights.json --format ndjson --partition $partition --quiet
done
logstore topic roll flights
"""

PLANS: dict[str, Plan] = {
    "SECURITY.md": Plan(
        # The page's own store, on ports that the system gives out.
        instead={
            "SSL://127.0.0.1:9092": "SSL://127.0.0.1:0",
            "logstore serve\n": (
                "logstore serve --data own --port 0 > out & echo $! > pid\n"
                "until grep -q ^listening out; do sleep 0.1; done\n"
            ),
            "https://localhost:8082/": '"$(sed -n "s/listening on //p" out)"/',
            "https://localhost:8082 status": '"$(sed -n "s/listening on //p" out)" status && kill $(cat pid)',
        },
        printed=('"status":"ready"', "release"),
    ),
    "README.md": Plan(
        spark=True,
        before=f"""{_FLIGHTS}
logstore topic create last-flight --config cleanup.policy=compact
curl -s -H 'Content-Type: application/json' $LOGSTORE_URL/groups/flights-report/offsets \
    -d '{{"offsets": [{{"topic": "flights", "partition": 0, "offset": 60010}}]}}'
""",
        left_out={
            "make demo": _MAKE,
            "make run": _SERVES,
            "pip install": "installs this checkout; tests/install/test_wheel.py does it",
            "kafka-console": _KAFKA_TOOLS,
            "logstore cluster start": "tests/cluster/test_pages.py runs the chapter of the cluster",
            "logstore topic create shipments --partitions 4 --repl": "needs it; tests/cluster/test_pages.py has it",
        },
        instead={'"earliest"}\nwith': '"earliest", "consumer_timeout_ms": 10_000}\nwith'},
    ),
    "CONTRIBUTING.md": Plan(left_out={"make demo": _MAKE}),
    "airflow.md": Plan(
        left_out={
            "airflow dags": "needs an Airflow; tests/airflow triggers these DAGs",
            "#!/bin/sh": "needs a Spark cluster of your own; tests/airflow runs a logstore_command",
        }
    ),
    "benchmarks.md": Plan(
        left_out={
            "$ make bench": "takes an hour and a Kafka; tests/unit/benchmarks runs cases",
            "Case(": "is a part of benchmarks/cases; tests/unit/benchmarks builds all cases",
        }
    ),
    "cli.md": Plan(),
    "delete-a-persons-data.md": Plan(
        before="""
logstore topic create events
printf '%s\\n' 1 2 | logstore produce events --key ada
echo 3 | logstore produce events --key bob
logstore topic roll events
""",
        instead={
            # The page searches for text that the erasure has removed.
            "grep -rlF 'ada@example.org' data ": "test -z \"$(grep -rlF 'ada@example.org' data)\" ",
            "| grep ada": "| awk '/ada/ {found = 1} END {exit found}'",
        },
        printed=("would be erased", "2 records left the table"),
    ),
    "delivery.md": Plan(),
    "events.md": Plan(
        before="""
logstore topic create clicks --partitions 4
echo '{"page": "/"}' | logstore produce clicks --partition 2 --key alice
""",
        instead={
            "curl -N 'localhost:8082/topics/clicks/events": "timeout 5 curl -sN 'localhost:8082/topics/clicks/events"
        }
        | {"partition=2,3'": "partition=2,3' || [ $? = 124 ]"},
        printed=('"key":"alice"',),
    ),
    "simulated-world.md": Plan(
        left_out={
            "make simulate": "plays worlds for minutes; tests/simulation runs the same program",
            "async def slow_disk": "is a part of tests/simulation/nemesis.py",
            "for seed in": "needs a bug of your own; tests/simulation plants those of the catalogue",
        }
    ),
    "fault-tests.md": Plan(
        left_out={"python -m": "runs faults for minutes; tests/faults runs the same programs"},
    ),
    "groups.md": Plan(
        spark=True,
        before="""
logstore topic create named
for path in "dc-1%2Fpending/offsets" "-/offsets?group=.."; do
    curl -s -H 'Content-Type: application/json' "$LOGSTORE_URL/groups/$path" \
        -d '{"offsets": [{"topic": "named", "partition": 0, "offset": 0}]}'
done
""",
        printed=("54 records behind", "packed 0 0\n", "records done", '"instance_id":"c1"', "billing.*payments"),
    ),
    "how-do-i.md": Plan(
        spark=True,
        before="""
logstore topic create orders --partitions 2
printf '%s\\n' '{"user": "ada", "total": 12}' '{"user": "bob", "total": 5}' '{"user": "ada", "total": 1}' > orders.json
logstore produce orders orders.json --key-field user
logstore topic roll orders
""",
        instead={"kcat -C -b kafka:9092 -t copied -e -q -K '\\t' |": "true ||"},
        left_out={"kubectl": "needs a Kubernetes; tests/install/test_kubernetes_files.py checks the manifests"},
        printed=("ada", "billing"),
    ),
    "http-api.md": Plan(
        instead={
            "logstore serve --data data --port 8082 &\n": "",
            "curl -si 'localhost:8082/topics/clicks/partitions/0/records?offset=2": (
                "$(type -aP curl | tail -1) -si 'localhost:8082/topics/clicks/partitions/0/records?offset=2"
            ),
        },
        printed=("idempotent-replayed: true", "HTTP/1.1 404", "42206", '"key_format":"string"'),
    ),
    "install.md": Plan(
        left_out={
            "$ logstore serve": "needs an environment without the server; tests/cli/test_extras.py shows the message",
            "sudo": _ROOT,
            "docker": _DOCKER,
            "pip wheel": "builds this checkout; tests/install/test_wheel.py does it",
        }
    ),
    "jobs.md": Plan(
        before="""
logstore topic create users --config cleanup.policy=compact
logstore topic create flights --config retention.ms=604800000
echo '{"user": "ada"}' | logstore produce users --key ada
echo '{"flight": 17}' | logstore produce flights
""",
        left_out={
            "logstore serve": _SERVES,
            "spark-submit": "needs a Spark cluster; tests/spark/programs/test_spark_submit.py runs it on one machine",
        },
        printed=("retention done",),
    ),
    "kafka.md": Plan(
        left_out={
            "$ logstore serve": _SERVES,
            "kafka-console": _KAFKA_TOOLS,
            "spark.readStream": "needs Spark's Kafka jars; tests/kafka_clients/test_spark.py runs it",
            "docker": _DOCKER,
        },
        printed=("b'UA' b'EWR-IAH'",),
    ),
    "operating-a-cluster.md": Plan(
        cluster=True,
        before="""
logstore topic create events --partitions 4 --replication-factor 3
seq 1000 | logstore produce events --quiet
""",
        left_out={
            "make cluster": "starts the cluster; the page's other blocks use one that the test has started",
            "logstore cluster start-broker": "needs a broker that has ended; tests/cluster has such",
            "logstore serve --brokers": _SERVES,
            "logstore topic elect-leaders --election-type unclean": "asks first, and loses records; see tests/cluster",
            "logstore serve --config": "needs a ZooKeeper of your own; tests/cluster makes a cluster of a store",
            "logstore topic reassign generate --broker-list 0,1,2": "needs an adopted store; tests/cluster",
            "logstore cluster adopt": "needs a table that ZooKeeper does not know; tests/cluster runs it",
        },
        instead={"verify plan.json         ": "verify plan.json || true "},
    ),
    "operations.md": Plan(
        before="""
logstore topic create events
echo 1 | logstore produce events
logstore topic roll events
""",
        instead={"#!/bin/sh\n# backup.sh": "set -- data backup\n# backup.sh"},
        left_out={
            "logstore topic list  ": "needs a journal that is lost; tests/faults/test_lost_journals.py has it",
            "logstore topic rebuild": "needs a table that is lost; tests/cli/test_topic_rebuild.py runs it",
            "logstore serve --data data --new-journal": _SERVES,
        },
    ),
    "pyspark.md": Plan(
        spark=True,
        before=_FLIGHTS,
        # Endless streams would take the processors from the blocks after them.
        instead={"VERSION AS OF 12": "VERSION AS OF 1", ".start()\n": ".trigger(availableNow=True).start()\n"},
        left_out={
            "pyspark --packages": "opens a shell and downloads; tests/spark/programs reads with sessions like it"
        },
    ),
    "python-client.md": Plan(
        printed=(
            r"RecordMetadata\(topic='orders', partition=",
            r"""b'ann' b'{"total": 12}' \(\('source', b'web'\),\)""",
            r"new \[TopicPartition\(topic='orders', partition=0\), .*\n(\d \d+\n)+given up \[TopicP",
        )
    ),
    "quickstart-notebook.md": Plan(spark=True, before=_FLIGHTS),
    "quickstart-operator.md": Plan(
        before="""
logstore topic create events
echo 1 | logstore produce events
logstore consume events --group report --from-beginning
""",
        instead={
            "make setup": "true",
            "logstore serve --data data --port 8082": "true",
            "cp -a data /backup/": "until flock -n data/lock true; do sleep 0.1; done; cp -a data backup-",
        },
    ),
    "quickstart-producer.md": Plan(),
    "where.md": Plan(
        before="""
logstore topic create orders
echo '{"user": "ada", "amount": 120, "paid": false, "items": [{"id": 17}]}' | logstore produce orders --key ada
""",
        printed=('"id": 17',),
    ),
    "your-topic-as-a-table.md": Plan(
        before="""
logstore topic create events
echo 1 | logstore produce events
logstore topic roll events
echo 2 | logstore produce events
logstore topic roll events
""",
        instead={"take-feature-back TOPIC": "take-feature-back events"},
    ),
}
