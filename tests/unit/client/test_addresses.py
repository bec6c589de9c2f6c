import traceback

import pytest

from logstore.client.addresses import DEFAULT_URL, default_url, is_loopback, parse_bootstrap
from logstore.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("localhost:8082", ("http://localhost:8082",)),
        ("http://h:1", ("http://h:1",)),
        ("https://h/", ("https://h",)),
        ("https://h:8443/log/", ("https://h:8443/log",)),
        ("a:1, http://b:2 ,", ("http://a:1", "http://b:2")),
        (["a:1", "http://b:2"], ("http://a:1", "http://b:2")),
        (("a:1, b:2",), ("http://a:1", "http://b:2")),
        ("[::1]:8082", ("http://[::1]:8082",)),
    ],
)
def test_reads_what_users_write(text, urls):
    assert parse_bootstrap(text) == urls


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "No address"),
        (" , ", "No address"),
        ([], "No address"),
        (8082, "bootstrap is 8082: give text"),
        ([8082], "give text or a list of texts"),
        (b"h:1", "give text"),
        ("localhost", "has no port"),
        ("localhost:", "has no port"),
        ("localhost:0", "has no port"),
        ("localhost:http", "is not a number"),
        ("localhost:70000", "is not a number"),
        ("ftp://h:1", "unknown scheme"),
        ("http://:80", "has no host"),
        ("http://a b:80", "has no host"),
        ("http://[::1:80", "has no host"),
        ("http://user@h:80", "more than"),
        ("http://h:80?x=1", "more than"),
    ],
)
def test_says_what_is_wrong_with_an_address(text, says):
    with pytest.raises(InvalidRequestError, match=says):
        parse_bootstrap(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://user:hunter2@h:8082",
        "user:hunter2@h:8082",
        "ftp://user:hunter2@h:8082",
        "http://user:hunter2@h:port",
        "http://user:hunter2@",
        "http://user:hunter2@[::1:80",
        "http://user:/hunter2@h:8082",
        "http://user:hunter2@more@h:8082",
        "http://user:hunter2,more@h:8082",
        "http://user:more,hunter2@h:8082",
        "a:1,http://user:hunter2@h:8082",
        ["http://user:hunter2@h:8082", 7],
    ],
)
def test_a_message_has_no_password_in_it(text):
    with pytest.raises(InvalidRequestError, match=r"\*\*\*") as raised:
        parse_bootstrap(text)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("store:8082", "http://store:8082"),
        ("https://store/log/", "https://store/log"),
        ("a:1,b:2", "http://a:1"),
        ("", DEFAULT_URL),
        (None, DEFAULT_URL),
    ],
)
def test_the_variable_is_read_as_addresses_are_everywhere(text, url, monkeypatch):
    monkeypatch.delenv("LOGSTORE_URL", raising=False)
    if text is not None:
        monkeypatch.setenv("LOGSTORE_URL", text)
    assert default_url() == url


def test_any_address_is_this_machine():
    assert [is_loopback(url) for url in ("http://0.0.0.0:1", "http://[::]:1", "http://10.0.0.1:1")] == [
        True,
        True,
        False,
    ]
