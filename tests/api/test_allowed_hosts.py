"""A web page from elsewhere can neither read nor change anything, and no other client is refused."""

import json
import socket

import httpx
import pytest

from ingest_api.allowed_hosts import AllowedHosts, is_loopback
from ingest_api.errors import ForeignOriginError, MisdirectedRequestError
from logstore.broker.context import INTERNAL
from logstore.errors import InvalidConfigError, LogStoreError
from logstore.listening_sockets import listening_socket
from logstore.node import run
from logstore.settings import Settings, load_settings
from tests.api.api_client import assert_error, running_api
from tests.api.listening import connected, listening
from tests.api.test_short_requests import read_answer, request

pytestmark = pytest.mark.anyio

MACHINE = socket.gethostname()
ALWAYS = [
    *("localhost", "LocalHost:8082", "localhost.", "localhost:1"),
    *("127.0.0.1", "127.0.0.1:8082", "127.8.9.10", "[::1]", "[::1]:8082", "10.0.0.1:80", "[fe80::1:2]:8082"),
]
NEVER = [
    *("evil.example", "evil.example:8082", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost"),
    *(
        "",
        ":8082",
        "localhost:",
        "localhost:x",
        "localhost:123456",
        "localhost:8082:8082",
        "user@localhost",
        "local host",
    ),
    *(
        "[::1",
        "::1",
        "[localhost]",
        "[evil.example]",
        'evil"><script>',
        "localhost, evil.example",
        "löcalhost",
        "0x7f.1",
    ),
    *("localhost..", "x" * 400, "127.0.0.1/", "*"),
]


def taken(hosts: AllowedHosts, host: str) -> bool:
    try:
        hosts.check("GET", [(b"host", host.encode())])
    except MisdirectedRequestError:
        return False
    return True


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "localhost", "10.0.0.7"])
def test_addresses_and_localhost_are_always_taken_and_strange_names_never(bound):
    hosts = AllowedHosts.of(Settings(host=bound))
    assert [host for host in ALWAYS if not taken(hosts, host)] == []
    assert [host for host in NEVER if taken(hosts, host)] == []
    assert taken(hosts, f"[{bound}]:8082" if ":" in bound else f"{bound}:8082")


@pytest.mark.parametrize(("bound", "expected"), [("127.0.0.1", False), ("0.0.0.0", True), ("::", True)])
def test_the_machines_own_names_are_taken_if_others_reach_the_store(monkeypatch, bound, expected):
    monkeypatch.setattr("socket.gethostname", lambda: "Box.lan.example")
    hosts = AllowedHosts.of(Settings(host=bound))
    for name in ("box.lan.example", "BOX:8082"):
        assert taken(hosts, name) == expected
    assert not taken(hosts, "lan.example")


def test_more_names_are_given_with_a_port_or_for_all():
    hosts = AllowedHosts.of(Settings(host="store.example", allowed_hosts=("Logs.example", "proxy.example:443")))
    for host in ("logs.example", "LOGS.example:1", "store.example:8082", "proxy.example:443"):
        assert taken(hosts, host), host
    for host in ("proxy.example", "proxy.example:8082", "x.logs.example"):
        assert not taken(hosts, host), host


def test_the_setting_is_a_list_or_separated_by_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGSTORE_ALLOWED_HOSTS", "a.example, b:8082 ,")
    assert load_settings().allowed_hosts == ("a.example", "b:8082")
    monkeypatch.delenv("LOGSTORE_ALLOWED_HOSTS")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/logstore.toml").write_text('allowed.hosts = ["a.example"]')
    assert load_settings().allowed_hosts == ("a.example",)
    with pytest.raises(InvalidConfigError, match=r"allowed\.hosts .* takes names such as"):
        load_settings(allowed_hosts="http://a.example")


def test_reads_may_come_from_any_page_changes_only_from_a_page_of_the_store():
    hosts = AllowedHosts()
    host = (b"host", b"LocalHost:8082")
    foreign = [b"http://evil.example", b"null", b"", b"http://localhost", b"http://localhost:3000", b"localhost:8082"]
    foreign += [b"http://localhost:8082.evil.example", b"http://evil.example/localhost:8082"]
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for headers in (
            [host],
            [host, (b"origin", b"http://localhost:8082")],
            [(b"origin", b"https://LOCALHOST:8082"), host],
        ):
            hosts.check(method, headers)
        for origin in foreign:
            for headers in ([host, (b"origin", origin)], [(b"origin", origin), host], [(b"origin", origin)]):
                with pytest.raises(ForeignOriginError):
                    hosts.check(method, headers)
                hosts.check("GET", headers)
        with pytest.raises(ForeignOriginError):
            hosts.check(method, [host, (b"origin", b"http://localhost:8082"), (b"origin", foreign[0])])
    hosts.check("POST", [])


async def test_dns_rebinding_reads_and_deletes_nothing(api):
    await api.create_topic("t")
    attempts = [("GET", "/topics"), ("GET", "/topics/t/partitions/0/records"), ("DELETE", f"{api.topics_url}/t")]
    attempts += [
        ("POST", "/topics/t/roll"),
        ("POST", "/topics/t/refresh"),
        ("POST", "/topics/t"),
        ("GET", "/openapi.json"),
    ]
    for method, path in attempts:
        for origin in ({}, {"Origin": "http://evil.example:8082"}):
            answer = await api.request(method, path, headers={"Host": "evil.example:8082", **origin})
            assert "allowed.hosts" in assert_error(answer, 421, 42101)
    assert (await api.get("/topics")).json() == ["t"]


async def test_a_page_of_elsewhere_changes_nothing(api):
    await api.create_topic("t")
    version = api.broker.topics.served.topic(INTERNAL, "t").version
    for method, path in (
        ("POST", "/topics/t/roll"),
        ("POST", "/topics/t/refresh"),
        ("POST", "/topics/t"),
        ("POST", "/topics/t/partitions/0/delete-records"),
        ("DELETE", f"{api.topics_url}/t"),
    ):
        answer = await api.request(method, path, content=b"{}", headers={"Origin": "http://evil.example"})
        assert "evil.example" in assert_error(answer, 403, 40302)
    assert api.broker.topics.served.topic(INTERNAL, "t").version == version
    assert (await api.post("/topics/t/roll", headers={"Origin": "http://localhost"})).status_code == 200


async def test_a_page_of_elsewhere_changes_nothing_by_the_short_way(api):
    await api.create_topic("t")
    async with listening(api.app) as (port, _), connected(port) as (reader, writer):
        for headers, expected in (
            ({}, 200),
            ({"Origin": "http://evil.example"}, 403),
            ({"Host": "evil.example"}, 421),
            ({"Host": f"127.0.0.1:{port}", "Origin": f"http://127.0.0.1:{port}"}, 200),
        ):
            writer.write(request(**headers))
            status, _, body = await read_answer(reader)
            assert status.split(" ")[1] == str(expected), body
    assert api.end_offsets("t") == [2]


async def test_a_name_that_is_allowed_stands_in_links(tmp_path):
    async with running_api(tmp_path / "data", allowed_hosts=("logs.example",)) as api:
        answer = await api.get("/v3/clusters", headers={"Host": "logs.example:8443"})
        assert answer.json()["metadata"]["self"] == "http://logs.example:8443/v3/clusters"


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
async def test_a_store_that_others_reach_says_in_one_line_that_it_asks_nobody_who_he_is(
    tmp_path, monkeypatch, capsys, host, warned
):
    from logstore.observability import configure_logging

    configure_logging("info", "json")
    (tmp_path / "data").write_text("no directory: the store cannot start")
    with listening_socket("127.0.0.1", 0) as listener, pytest.raises(FileExistsError):
        await run(Settings(data=tmp_path / "data", host=host), listener)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines if line["level"] == "warning"] == ["node.open_to_others"] * warned


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"host": "0.0.0.0", "zookeeper_connect": "127.0.0.1:1"}, True),
        ({"host": "0.0.0.0", "zookeeper_connect": "127.0.0.1:1", "kafka_advertised_listeners": "a.example:9"}, False),
        ({"host": "127.0.0.1", "zookeeper_connect": "127.0.0.1:1"}, False),
        ({"host": "0.0.0.0"}, False),
    ],
)
async def test_a_broker_whose_kafka_clients_can_only_be_on_its_machine_says_so(
    tmp_path, monkeypatch, capsys, given, warned
):
    from logstore.observability import configure_logging

    configure_logging("info", "json")
    (tmp_path / "data").write_text("no directory: the store cannot start")
    with (
        listening_socket("127.0.0.1", 0) as listener,
        listening_socket("127.0.0.1", 0) as kafka,
        pytest.raises((OSError, LogStoreError)),
    ):
        await run(Settings(data=tmp_path / "data", kafka_listeners="127.0.0.1:9092", **given), listener, kafka=kafka)
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events.count("node.kafka_on_loopback") == warned


def test_loopback():
    assert [host for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost") if not is_loopback(host)] == []
    assert [host for host in ("0.0.0.0", "::", "10.0.0.1", MACHINE, "store.example") if is_loopback(host)] == []


@pytest.mark.system
def test_a_client_of_any_kind_sends_a_host_that_is_taken(server):
    """Call the server by this machine's names; real servers test the command line and the Python client."""
    for name in ("127.0.0.1", "localhost"):
        assert httpx.get(f"http://{name}:{server.port}/topics").status_code == 200
