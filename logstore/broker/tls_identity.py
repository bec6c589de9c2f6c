"""The identity that a TLS connection gives its requests: the facts of its handshake, and its client's principal."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from logstore.broker.context import ANONYMOUS, PLAINTEXT, ConnectionIdentity, Principal, TlsFacts
from logstore.errors import AuthorizationError
from logstore.observability import FewLines

if TYPE_CHECKING:  # Without TLS the parser of certificates is not imported.
    from logstore.tls.contexts import Tls

log = structlog.stdlib.get_logger(__name__)

_NO_RULE = "ssl.principal.mapping.rules has no rule for the subject of the certificate"
#: Returns the identity of a new connection. Raises AuthorizationError, after a line in the log, for one that is to end.
Identify = Callable[[asyncio.BaseTransport], ConnectionIdentity]


def identify_by(tls: "Tls | None") -> Identify:
    """Return the function for the connections of a listener; without TLS none of them has shown anything."""
    if tls is None:
        return no_tls
    # A function of the module imports the parser of certificates only with TLS.
    from logstore.tls.pem_files import subject_of

    refused = FewLines(log.warning, "tls.client_refused")

    def identify(transport: asyncio.BaseTransport) -> ConnectionIdentity:
        connection = transport.get_extra_info("ssl_object")
        cipher = connection.cipher()
        certificate = connection.getpeercert(binary_form=True)
        subject = None if certificate is None else subject_of(certificate)
        facts = TlsFacts(connection.version() or "", cipher[0] if cipher else "", subject)
        if subject is None:
            return ConnectionIdentity(facts, ANONYMOUS)
        name = tls.mapping.name_of(subject)
        if name is None:
            peer = transport.get_extra_info("peername")
            refused.add(peer=peer[0] if peer else "", reason=_NO_RULE, subject=subject)
            raise AuthorizationError(f"{_NO_RULE}: {subject}")
        return ConnectionIdentity(facts, Principal("User", name, mechanism="SSL"))

    return identify


def no_tls(_: asyncio.BaseTransport) -> ConnectionIdentity:
    return PLAINTEXT
