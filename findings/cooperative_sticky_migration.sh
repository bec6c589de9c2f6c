#!/usr/bin/env bash
# Apache Kafka 4.1.1 converts a live classic group with `range` to KIP-848, but not one with librdkafka's `cooperative-sticky`.
#
# Guessed: the online migration (KIP-848, group.consumer.migration.policy=bidirectional, the default) takes a group with any built-in assignor.
# Happens: a member with librdkafka's `cooperative-sticky` that has partitions when it joins again lists them in its user data, and the leader
#          also puts that data into the assignment. The broker takes it for the state of a custom assignor and does not convert the group. The
#          member that joins with group.protocol=consumer gets GROUP_ID_NOT_FOUND, which is fatal to it.
# Beside:  in its first generation the group has no such data, and is converted: a trial with a new group works.
#
# The script restarts two members, which read a topic of two partitions, one after the other until the first comes back with KIP-848; once with
# `range` and once with `cooperative-sticky`. The third case has no earlier rebalance: one member with `cooperative-sticky`, and one with KIP-848.
#
#   findings/cooperative_sticky_migration.sh
#
# Exit: 0 as stated, 1 the behaviour changed, 2 not tried (a tool is missing, an installation or the broker failed, no time left).
# Needs bash, coreutils, Python >= 3.9 with venv, Java >= 17, Maven. Installs into a temporary directory that it removes.
# MAVEN_REPOSITORY_URL replaces the repository of Maven's own settings. pip's settings apply as usual.
# TIME_LIMIT is for a busy machine: the seconds for the whole run, 165 by default. It takes 16 s of CPU if Maven already has the jars.
set -euo pipefail

readonly KAFKA=4.1.1 SCALA=2.13 LOG4J=2.24.3 DEPENDENCY_PLUGIN=2.8 CONFLUENT_KAFKA=2.16.1
readonly SECONDS_IN_ALL=${TIME_LIMIT:-165}
# These options suit processes that live for seconds.
readonly QUICK_START=(-XX:TieredStopAtLevel=1 -XX:+UseSerialGC)

not_tried() {
    echo "not tried: $*" >&2
    exit 2
}

broker='' running=''
work=$(mktemp -d)
cleanup() {
    if [ -n "$running" ]; then
        kill "$running" 2>/dev/null || true
        wait "$running" 2>/dev/null || true
    fi
    if [ -n "$broker" ]; then
        kill -KILL "$broker" 2>/dev/null || true # its data is thrown away
        wait "$broker" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 2' INT TERM HUP

# Runs a command within the remaining time; its output goes to a log, whose end is shown if it fails.
bounded() {
    local name=$1 left=$((SECONDS_IN_ALL - SECONDS))
    shift
    [ "$left" -gt 0 ] || not_tried "no time left for $name"
    timeout --kill-after=5 "$left" "$@" >"$work/$name.log" 2>&1 &
    running=$!
    wait "$running" || {
        tail -n 20 "$work/$name.log" >&2
        not_tried "$name failed, or took more than $left s"
    }
    running=
}

for tool in python3 java mvn timeout; do
    command -v "$tool" >/dev/null || not_tried "$tool is missing"
done

# The broker

repositories=
if [ -n "${MAVEN_REPOSITORY_URL:-}" ]; then
    repositories="<repositories><repository><id>central</id><url>$MAVEN_REPOSITORY_URL</url></repository></repositories>
  <pluginRepositories><pluginRepository><id>central</id><url>$MAVEN_REPOSITORY_URL</url></pluginRepository></pluginRepositories>"
fi
cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  $repositories
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_$SCALA</artifactId><version>$KAFKA</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>$LOG4J</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>$LOG4J</version></dependency>
  </dependencies>
</project>
POM
bounded mvn env "MAVEN_OPTS=${MAVEN_OPTS:-} ${QUICK_START[*]}" mvn -B -q -f "$work/pom.xml" \
    "org.apache.maven.plugins:maven-dependency-plugin:$DEPENDENCY_PLUGIN:copy-dependencies" "-DoutputDirectory=$work/jars"

read -r port controller_port < <(python3 - <<'PYTHON'
import socket

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(each.getsockname()[1] for each in sockets))
PYTHON
)
cat >"$work/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$work/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
PROPERTIES
cat >"$work/log4j2.properties" <<PROPERTIES
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
PROPERTIES
java=(java -Xms256m -Xmx512m "${QUICK_START[@]}" "-Dlog4j2.configurationFile=$work/log4j2.properties" -cp "$work/jars/*")
cluster_id=$(python3 -c 'import base64, uuid; print(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))')
bounded format "${java[@]}" kafka.tools.StorageTool format "--cluster-id=$cluster_id" -c "$work/server.properties"
"${java[@]}" kafka.Kafka "$work/server.properties" >"$work/broker.log" 2>&1 &
broker=$!

# The client, while the broker starts

bounded venv python3 -m venv "$work/venv"
bounded pip "$work/venv/bin/python" -m pip install --disable-pip-version-check --no-input --only-binary :all: --no-deps \
    "confluent-kafka==$CONFLUENT_KAFKA"

until grep -q 'Kafka Server started' "$work/broker.log"; do
    if ! kill -0 "$broker" 2>/dev/null || [ "$SECONDS" -ge "$SECONDS_IN_ALL" ]; then
        tail -n 20 "$work/broker.log" >&2
        not_tried "the broker did not start"
    fi
    sleep 0.2
done

# The cases

cat >"$work/migrate.py" <<'PYTHON'
"""Prints the outcome of the member that came with KIP-848: one word, then its own message."""

import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 2
bootstrap, name, assignor = sys.argv[1:]


def consumer(settings):
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": name, "log_level": 0, **settings})
    member.subscribe([name])
    return member


def classic_member():
    return consumer({"group.protocol": "classic", "heartbeat.interval.ms": 500, "partition.assignment.strategy": assignor})


def poll(member):
    """Return the error that ended the member, if any."""
    try:
        message = member.poll(0.05)
    except KafkaException as exception:
        return exception.args[0]
    error = None if message is None else message.error()
    return error if error is not None and (error.fatal() or error.code() == KafkaError._FATAL) else None


def poll_until(condition, members, within):
    """Poll until the condition holds; return what went wrong, if anything."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return f"no end within {within:.0f} s"
        for member in members:
            if (error := poll(member)) is not None:
                return f"a classic member ended: {error.str()}"
    return None


def prepare(members, *counts):
    """Wait until each member has its number of partitions."""
    if wrong := poll_until(lambda: [len(member.assignment()) for member in members] == list(counts), members, 25):
        sys.exit(f"the classic group did not get ready: {wrong}")


admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)])[name].result(25)

stays = classic_member()
prepare([stays], 2)
if name.startswith("restart"):
    restarts = classic_member()
    prepare([stays, restarts], 1, 1)
    restarts.close()
    prepare([stays], 2)

comes = consumer({"group.protocol": "consumer"})
outcome = []


def is_decided():
    if (error := poll(comes)) is not None:
        # The text of a fatal error names the broker's error; its code says only that it is fatal.
        answers = {KafkaError(code).str(): KafkaError(code).name() for code in range(1, 120)}
        named = [name for text, name in answers.items() if f"{text}:" in error.str()]
        outcome[:] = ["ended:", *named, f"({error.str()})"]
    elif count := len(comes.assignment()):
        outcome[:] = ["converted:", f"{count} of {PARTITIONS} partitions assigned"]
    return bool(outcome)


if wrong := poll_until(is_decided, [stays], 25):
    outcome[:] = ["undecided:", wrong]
print(*outcome, flush=True)
comes.close()
stays.close()
PYTHON

echo "Apache Kafka $KAFKA, $("$work/venv/bin/python" -c 'import confluent_kafka as c; print("confluent-kafka", c.__version__ + ", librdkafka", c.libversion()[0])')"
policy=$(grep -m 1 -o 'group.consumer.migration.policy = .*' "$work/broker.log")
echo "$policy (default)"

changed=0
run_case() {
    local name=$1 assignor=$2 expected=$3 result before logged
    before=$(wc -l <"$work/broker.log")
    bounded "$name" "$work/venv/bin/python" "$work/migrate.py" "127.0.0.1:$port" "$name" "$assignor"
    result=$(tail -n 1 "$work/$name.log")
    logged=$(tail -n "+$((before + 1))" "$work/broker.log" | grep -o -m 1 -E '(Cannot upgrade|Converted the) classic group.*' || true)
    echo
    echo "$name, partition.assignment.strategy=$assignor"
    echo "  new member: $result"
    echo "  broker: ${logged:-nothing about the group}"
    # shellcheck disable=SC2053 # a pattern
    if [[ "$result $logged" != $expected ]]; then
        echo "  CHANGED: expected '$expected'"
        changed=1
    fi
}

run_case restart-range range 'converted: * partitions assigned Converted *'
run_case restart-cooperative cooperative-sticky 'ended: GROUP_ID_NOT_FOUND (Fatal error: * Cannot upgrade *userData from a custom assignor would be lost*'
run_case first-generation cooperative-sticky 'converted: * partitions assigned Converted *'

echo
if [ "$changed" = 0 ]; then
    echo "as stated: after a rebalance the group of range is converted, and the one of cooperative-sticky is not"
else
    echo "CHANGED: not as stated, see above"
fi
exit "$changed"
