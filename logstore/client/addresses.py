"""Addresses of a store: the text of ``bootstrap`` and ``--url``, read strictly."""

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

from logstore.errors import InvalidConfigError, InvalidRequestError

#: ``http(s)://host:port`` or ``host:port``; several as one text separated by commas, or as a list.
Bootstrap: TypeAlias = str | Sequence[str]

DEFAULT_URL = "http://127.0.0.1:8082"
URL_VARIABLE = "LOGSTORE_URL"

# To connect to "any address" means to connect to this machine.
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")  # noqa: S104 (nothing is bound)


def environment_url() -> str | None:
    """Return the text of ``LOGSTORE_URL``, or None if it is not set."""
    return os.environ.get(URL_VARIABLE) or None


def default_url() -> str:
    """Return the base URL of the store that ``LOGSTORE_URL`` names (the first of several), else ``DEFAULT_URL``.

    Raises InvalidRequestError, as ``parse_bootstrap`` does.
    """
    return parse_bootstrap(environment_url() or DEFAULT_URL)[0]


def parse_bootstrap(bootstrap: Bootstrap) -> tuple[str, ...]:
    """Return the base URLs, without a slash at the end.

    A path is kept, for a store behind a reverse proxy. Raises InvalidRequestError naming the part that cannot be read,
    and InvalidConfigError if a mapping of options is given in place of an address.
    """
    if isinstance(bootstrap, Mapping):
        raise InvalidConfigError("Options are keyword arguments, not a mapping: bootstrap='host:port', client_id='app'")
    parts = [bootstrap] if isinstance(bootstrap, str) else bootstrap
    if not (isinstance(parts, (list, tuple)) and all(isinstance(part, str) for part in parts)):
        given = _without_user(repr(bootstrap))
        raise InvalidRequestError(f"bootstrap is {given}: give text or a list of texts, each host:port")
    text = ",".join(parts)
    urls = tuple(_parse_one(part.strip(), has_user="@" in text) for part in text.split(",") if part.strip())
    if not urls:
        raise InvalidRequestError(f"No address of a store in {bootstrap!r}: give host:port or http(s)://host:port")
    return urls


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


def _without_user(text: str) -> str:
    """Return ``text`` for a message without its user part: all before the last "@" may be a password."""
    _, at, host = text.rpartition("@")
    return f"***@{host}" if at else text


def _parse_one(text: str, *, has_user: bool) -> str:
    """Return the base URL in ``text``.

    With ``has_user``, a part without an "@" may be the first half of a password with a comma in it.
    """
    expected = "give host:port or http(s)://host:port, several separated by commas"
    shown = repr(_without_user(text) if "@" in text or not has_user else "***")
    # "from None" is needed because an error of urllib contains the text.
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
    except ValueError:
        raise InvalidRequestError(f"Address {shown} has no host: {expected}") from None
    try:
        port = parts.port
    except ValueError:
        raise InvalidRequestError(f"The port of address {shown} is not a number from 1 to 65535: {expected}") from None
    if parts.scheme not in ("http", "https"):
        raise InvalidRequestError(f"Address {shown} has an unknown scheme: {expected}")
    if not parts.hostname or any(character.isspace() for character in text):
        raise InvalidRequestError(f"Address {shown} has no host: {expected}")
    if port == 0 or (port is None and "://" not in text):
        raise InvalidRequestError(f"Address {shown} has no port: {expected}")
    if parts.query or parts.fragment or "@" in text:
        raise InvalidRequestError(f"Address {shown} is more than a host, a port and a path: {expected}")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
