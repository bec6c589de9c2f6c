"""The TLS contexts of a process: made of its files, and made again when the files change.

A context in use is never changed: a key and a certificate that do not belong together would break later handshakes.
Changed files make new contexts, and only if every check passes do they replace the present ones, for connections that
begin from then on.
"""

import asyncio
import functools
import ssl
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from logstore.clock import Clock
from logstore.errors import InvalidConfigError
from logstore.observability import TLS_CERTIFICATE_EXPIRY
from logstore.tls.options import PROTOCOLS, TlsOptions
from logstore.tls.pem_files import KEYSTORE, TRUSTSTORE, Certificate, read_keystore, read_truststore
from logstore.tls.principal_mapping import PrincipalMapping

log = structlog.stdlib.get_logger(__name__)

#: The files are looked at this often.
LOOK_SECONDS: Final = 10.0
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class Contexts(NamedTuple):
    """``server`` is for connections that are accepted; ``client``, for those made to other brokers, is None without a
    trust store.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext | None
    certificate: Certificate


class Tls:
    """The newest contexts of the files that ``options`` names."""

    def __init__(self, options: TlsOptions, clock: Clock) -> None:
        """Raises InvalidConfigError with the first fault of the files."""
        self._options = options
        self._clock = clock
        self.mapping = PrincipalMapping.parse(options.principal_mapping_rules)
        self._seen = self._signature()
        self._use(make_contexts(options, clock.now_ms()))

    def _use(self, contexts: Contexts) -> None:
        self._contexts = contexts
        TLS_CERTIFICATE_EXPIRY.set(contexts.certificate.not_after_ms / 1000)

    @property
    def server(self) -> ssl.SSLContext:
        return self._contexts.server

    @property
    def client(self) -> ssl.SSLContext:
        assert self._contexts.client is not None  # the settings require a trust store where this is used
        return self._contexts.client

    async def watch(self) -> None:
        """Look at the files now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.renew(only_changed=True)

    async def renew(self, *, only_changed: bool = False) -> None:
        """Read the files again, and use them from now on if they are good. The log says whether they are used."""
        seen = await asyncio.to_thread(self._signature)
        if only_changed and seen == self._seen:
            return
        # Taken before the files are read: one that changes meanwhile is read again at the next look.
        self._seen = seen
        try:
            self._use(await asyncio.to_thread(make_contexts, self._options, self._clock.now_ms()))
        except InvalidConfigError as error:
            log.error("tls.not_renewed", reason=error.message, certificate=self._contexts.certificate.subject)
            return
        certificate = self._contexts.certificate
        log.info("tls.renewed", certificate=certificate.subject, valid_until=certificate.not_after)

    def _signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(
            None if path is None else _signature_of(path)
            for path in (self._options.keystore_location, self._options.truststore_location)
        )


def make_contexts(options: TlsOptions, now_ms: int) -> Contexts:
    """Read the files and return contexts of them. Raises InvalidConfigError with their first fault."""
    certificate = read_keystore(options.keystore_location, options.key_password, now_ms)
    trusted = None if options.truststore_location is None else read_truststore(options.truststore_location, now_ms)
    load = functools.partial(_load, options, trusted)
    server = load(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = _CLIENT_AUTH[options.client_auth]
    return Contexts(server, None if trusted is None else load(ssl.PROTOCOL_TLS_CLIENT), certificate)


def _load(options: TlsOptions, trusted: str | None, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    versions = [version for name, version in PROTOCOLS.items() if name in options.enabled_protocols]
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(options.keystore_location, password=options.key_password or "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidConfigError(f"{KEYSTORE}: {options.keystore_location} is refused: {error}") from None
    if trusted is not None:
        try:
            context.load_verify_locations(cadata=trusted)
        except (OSError, ValueError) as error:
            raise InvalidConfigError(f"{TRUSTSTORE}: {options.truststore_location} is refused: {error}") from None
    return context


def _signature_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
