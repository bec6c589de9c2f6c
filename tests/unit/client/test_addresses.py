import pytest

from logstore.client.addresses import parse_bootstrap
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
        ("http://user@h:80", "more than"),
        ("http://h:80?x=1", "more than"),
    ],
)
def test_says_what_is_wrong_with_an_address(text, says):
    with pytest.raises(InvalidRequestError, match=says):
        parse_bootstrap(text)
