"""TLS of a client: whom it trusts, and the certificate that it shows, by the names of Kafka's Python clients."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from logstore.errors import InvalidConfigError

#: The options, and the variables that count where an option is not given.
VARIABLES: Final[Mapping[str, str]] = {
    "ssl_cafile": "LOGSTORE_SSL_CAFILE",
    "ssl_certfile": "LOGSTORE_SSL_CERTFILE",
    "ssl_keyfile": "LOGSTORE_SSL_KEYFILE",
    "ssl_password": "LOGSTORE_SSL_PASSWORD",
}
CHECK_HOSTNAME_VARIABLE: Final = "LOGSTORE_SSL_CHECK_HOSTNAME"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Options for stores at https://; paths are of PEM files.

    ``ssl_cafile`` has the certificates that are trusted (None: the system's CAs), ``ssl_certfile`` the client's chain,
    ``ssl_keyfile`` its key (None: it is in ``ssl_certfile``), and ``ssl_password`` opens an encrypted key.
    """

    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)

    def or_environment(self) -> Self:
        """Return the options with those of the environment for the ones that are not given."""
        if self.ssl_certfile is not None:  # the environment's key belongs to the environment's certificate
            return replace(self, ssl_cafile=self.ssl_cafile or os.environ.get(VARIABLES["ssl_cafile"]))
        given = {name: getattr(self, name) or os.environ.get(variable) for name, variable in VARIABLES.items()}
        return replace(self, **given)

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises InvalidConfigError naming the option and the file."""
        options = self.or_environment()
        for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            path = getattr(options, name)
            if path is not None and not os.access(path, os.R_OK):
                what = "cannot be read" if Path(path).exists() else "does not exist"
                raise InvalidConfigError(f"{name} (or {VARIABLES[name]}): {path} {what}")
        if options.ssl_certfile is None and options.ssl_keyfile is not None:
            raise InvalidConfigError("ssl_keyfile is given without ssl_certfile: give both")
        try:
            context = ssl.create_default_context(cafile=options.ssl_cafile)
        except ssl.SSLError as error:
            raise InvalidConfigError(f"ssl_cafile: {options.ssl_cafile} has no PEM certificates ({error})") from None
        # A certificate in ssl_cafile is trusted itself, also one that no CA has signed.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = os.environ.get(CHECK_HOSTNAME_VARIABLE, "true").lower() != "false"
        if options.ssl_certfile is not None:
            try:
                # Without a password OpenSSL would ask the terminal for one.
                context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, options.ssl_password or "")
            except (ssl.SSLError, ValueError) as error:
                raise InvalidConfigError(
                    f"ssl_certfile: {options.ssl_certfile} and {options.ssl_keyfile or 'the key in it'} are no pair "
                    f"of certificate and key, or ssl_password does not open the key ({error})"
                ) from None
        return context


def reason_of(error: ssl.SSLError, url: str) -> str:
    """Return why TLS with the store at ``url`` failed, and what to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; give its CA with ssl_cafile"
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"it does not speak TLS: try http://{url.partition('://')[2]}"
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"it wants a client's certificate, with ssl_certfile ({reason})"
    if "ALERT" in reason:
        return f"it refuses the certificate of ssl_certfile, or this version of TLS ({reason})"
    return str(error)
