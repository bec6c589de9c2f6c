"""Requests are made from the store's own description, right and wrong, and sent to a real store: it answers no 5xx, and
nothing that the description does not have.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, CheckContext, Response
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.watched_server import WatchedServer

pytestmark = pytest.mark.system

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
#: This one does not end: test_bad_http_inputs.py has its wrong requests, test_events.py the right ones.
ENDLESS = "streamEvents"
#: These refuse each record of a stream by itself, in an answer of 200; requests over the limits are right here.
NOT_REFUSED = ("produceRecords", "fetch", "fetchMany", "createTopic", "updateTopic")
#: Without this, schemathesis searches all modules of this process for constants.
NO_FEEDBACK = FeedbackSources()
#: No request waits longer than this, and no topic has more partitions.
BOUNDS = {"max_wait_ms": 10, "partitions_count": 4}
#: Logs leave out ids that are too long, and an empty list of codings means none (RFC 9110, 5.6.1).
LENIENT = ("X-Request-Id", "Logstore-Client-Id", "Content-Encoding")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServer]:
    data = tmp_path_factory.mktemp("schemathesis") / "data"
    # A joining member does not wait for others.
    with WatchedServer(data, group_initial_rebalance_delay_ms=0) as running:
        running.create_topic("clicks")
        running.create_topic("deleted")
        yield running


def operations(server: WatchedServer) -> list[APIOperation]:
    document = httpx.get(f"{server.url}/openapi.json", timeout=30).json()
    for name, schema in document["components"]["schemas"].items():
        for field in BOUNDS.keys() & schema.get("properties", {}).keys() if name.endswith("Request") else ():
            schema["properties"][field] = {"type": "integer", "minimum": 1, "maximum": BOUNDS[field]}
    for operation in (operation for methods in document["paths"].values() for operation in methods.values()):
        operation["parameters"] = [given for given in operation["parameters"] if given["name"] not in LENIENT]
        for given_ in operation["parameters"]:
            if given_["name"] in BOUNDS:
                given_["schema"]["maximum"] = BOUNDS[given_["name"]]
    found = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    assert len(found) > 50
    return [operation for operation in found if name_of(operation) != ENDLESS]


def name_of(operation: APIOperation) -> str:
    return operation.definition.raw["operationId"]


def run(server: WatchedServer, examples: int, *, anywhere: bool) -> None:
    """Send ``examples`` right and wrong requests of each operation to existing paths, and to others if ``anywhere``."""
    cluster = httpx.get(f"{server.url}/v3/clusters", timeout=30).json()["data"][0]["cluster_id"]
    there = {"cluster_id": cluster, "partition": "0", "group": "billing", "broker_id": "0", "name": "retention.ms"}
    with requests.Session() as session:
        for operation in operations(server):
            topic = "deleted" if operation.method == "delete" else "clicks"
            path = {name: value for name, value in {**there, "topic": topic}.items() if f"{{{name}}}" in operation.path}
            for mode in GenerationMode:
                ask(server, session, operation, mode, path or None, examples)
                if anywhere and path:
                    ask(server, session, operation, mode, None, examples)
    server.check()


def ask(
    server: WatchedServer,
    session: requests.Session,
    operation: APIOperation,
    mode: GenerationMode,
    path: dict[str, Any] | None,
    examples: int,
) -> None:
    checks = list(CHECKS)
    if mode is GenerationMode.NEGATIVE and name_of(operation) not in NOT_REFUSED:
        checks.append(refused)

    # There is no database and no shrinking: the failure shows the request as a command of curl.
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode, path_parameters=path, feedback=NO_FEEDBACK))
    def one(case: Case) -> None:
        case.validate_response(case.call(base_url=server.url, session=session, timeout=30), checks=checks)

    try:
        one()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "only an operation without parameters and body has no wrong request"


def refused(context: CheckContext, response: Response, case: Case) -> bool | None:
    """Check as ``negative_data_rejection`` does, but allow 413: a body with too many items may also be too large."""
    return None if response.status_code == 413 else negative_data_rejection(context, response, case)


@pytest.mark.long
def test_no_request_of_the_description_fails_the_store(server):
    run(server, 2, anywhere=False)


@pytest.mark.long
def test_many_requests_of_the_description_do_not_fail_the_store(server):
    run(server, 10, anywhere=True)
