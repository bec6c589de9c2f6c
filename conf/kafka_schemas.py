"""Writes ``logstore/kafka_protocol/schemas`` from Kafka's own clients jar, which contains the definitions of all its
messages.

``python -m conf.kafka_schemas`` fetches the jar with Maven; ``python -m conf.kafka_schemas JAR`` uses an existing one.
For another release of Kafka change ``VERSION`` and ``JAR_SHA256`` here; the tests of ``kafka_protocol`` show which
versions of which APIs have changed.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

VERSION = "4.1.1"
JAR_SHA256 = "00247122a572c3d3ae4eb60a50192a5811bc0181f51923d13018600f892e821d"
ARTIFACT = f"org.apache.kafka:kafka-clients:{VERSION}"
SCHEMAS = Path(__file__).parent.parent / "logstore/kafka_protocol/schemas"

_DEFINITIONS = "common/message/"
# The keys that determine the bytes. Descriptions, types of entities and hints to Kafka's own generator are left out.
_OF_MESSAGES = (
    "name",
    "type",
    "apiKey",
    "validVersions",
    "flexibleVersions",
    "latestVersionUnstable",
    "fields",
    "commonStructs",
)
_OF_FIELDS = (
    "name",
    "type",
    "versions",
    "nullableVersions",
    "taggedVersions",
    "tag",
    "flexibleVersions",
    "default",
    "fields",
)
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*')


def stripped_schemas(jar: zipfile.ZipFile) -> dict[str, Any]:
    """Return all messages that have a version, by name, as they are stored."""
    messages = [
        _stripped(_definition(jar.read(name).decode()), _OF_MESSAGES)
        for name in sorted(jar.namelist())
        if name.startswith(_DEFINITIONS) and name.endswith(".json")
    ]
    return {
        "source": ARTIFACT,
        "jar_sha256": JAR_SHA256,
        "changed": "conf/kafka_schemas.py left out descriptions and hints for code generators",
        "messages": [message for message in messages if message["validVersions"] != "none"],
    }


def _definition(text: str) -> dict[str, Any]:
    """Parse JSON with comments."""
    definition: dict[str, Any] = json.loads(_COMMENT.sub(lambda found: found[1] or "", text))
    return definition


def _stripped(definition: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    kept = {key: definition[key] for key in keys if key in definition}
    for nested in ("fields", "commonStructs"):
        if nested in kept:
            kept[nested] = [_stripped(each, _OF_FIELDS) for each in kept[nested]]
    if "default" in kept:
        # Kafka's definitions write a default as text or as a JSON value.
        kept["default"] = str(kept["default"]).lower() if isinstance(kept["default"], bool) else str(kept["default"])
    return kept


def _fetched(directory: Path) -> Path:
    maven = shutil.which("mvn")
    if not maven:
        sys.exit("Maven is missing, which fetches Kafka's jar (sudo apt-get install maven); or name the jar")
    goal = ["dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={directory}"]
    subprocess.run([maven, "-q", "-B", *goal], check=True, timeout=600)  # noqa: S603 # no input from outside
    return directory / f"kafka-clients-{VERSION}.jar"


def write(path: Path) -> None:
    """Write the definitions in the jar at ``path``, with its licence."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != JAR_SHA256:
        sys.exit(f"{path} is not {ARTIFACT}: its SHA-256 is {digest}, not {JAR_SHA256}")
    with zipfile.ZipFile(path) as jar:
        schemas = stripped_schemas(jar)
        lines = ",\n".join(json.dumps(message, separators=(",", ":")) for message in schemas.pop("messages"))
        head = json.dumps(schemas, separators=(",", ":"))[:-1]
        SCHEMAS.mkdir(exist_ok=True)
        # Each message has one line, so that a difference can be read.
        (SCHEMAS / "schemas.json").write_text(f'{head},"messages":[\n{lines}\n]}}\n')
        for name in ("LICENSE", "NOTICE"):
            (SCHEMAS / name).write_bytes(jar.read(name))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            write(_fetched(Path(temporary)))
