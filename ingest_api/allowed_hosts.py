"""Allowed hosts: the names by which the store may be called. Foreign web pages cannot change anything in it.

A browser sends requests for any page that it shows, also to this machine. A page may give its own name the address of
this store (DNS rebinding) and is then free to read and write: ``Host`` then has the page's name, and is refused. Or a
page sends a request without reading the response: ``Origin`` then has the page's name, and is refused for methods that
may change something. An address needs no such check, because nobody can redirect it.
"""

import functools
import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final

from ingest_api.errors import ForeignOriginError, MisdirectedRequestError
from logstore.settings import Settings

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
# A name has at most 253 characters.
_HOST_LENGTH_MAX: Final = 300
_HOSTS_CACHED: Final = 256
_READING = frozenset(("GET", "HEAD", "OPTIONS"))


class AllowedHosts:
    """``names`` without a port are allowed with any port, others only with their own."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names) | {"localhost"}
        self._takes = functools.lru_cache(_HOSTS_CACHED)(self._look_up)

    @classmethod
    def of(cls, settings: Settings) -> "AllowedHosts":
        """Return the names of ``allowed.hosts``, ``host`` itself, and this machine's names if others can reach the
        store.
        """
        names = {*settings.allowed_hosts, settings.host}
        if not is_loopback(settings.host):
            machine = socket.gethostname()
            names |= {machine, machine.partition(".")[0]}
        return cls(names)

    def check(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise MisdirectedRequestError or ForeignOriginError if it is refused. Without ``Host`` (HTTP/1.0) it is no
        browser's.
        """
        host: bytes | None = None
        origins: list[bytes] = []
        for name, value in headers:
            if name == b"host":
                host = value
                if len(value) > _HOST_LENGTH_MAX or not self._takes(value):
                    shown = value[:_HOST_LENGTH_MAX].decode("latin-1")
                    raise MisdirectedRequestError(
                        f"Host {shown!r} is no name of this store: use its address, or add the name to allowed.hosts."
                    )
            elif name == b"origin":
                origins.append(value)
        if not origins or method in _READING:
            return
        own = None if host is None else host.lower()
        for origin in origins:
            if origin.partition(b"://")[2].lower() != own:
                shown = origin[:_HOST_LENGTH_MAX].decode("latin-1")
                raise ForeignOriginError(f"A page of {shown!r} may not change anything here. Nothing was done.")

    def _look_up(self, host: bytes) -> bool:
        found = _HOST.fullmatch(host.decode("latin-1").lower())
        if found is None:
            return False
        if found["v6"] is not None:
            return _is_address(found["v6"])
        name = found["name"].removesuffix(".")
        return name in self._names or f"{name}:{found['port']}" in self._names or _is_address(name)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``; False for names other than localhost, which may be
    anything.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
