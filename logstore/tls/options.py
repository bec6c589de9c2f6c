"""The settings of TLS, under Kafka's names, as the other modules of this package take them."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

ClientAuth = Literal["none", "requested", "required"]

#: The protocols that may be enabled, in Kafka's spelling, from the oldest to the newest.
PROTOCOLS: Final[Mapping[str, ssl.TLSVersion]] = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """``docs/configuration.md`` describes these settings under their names, which begin with ``ssl.``."""

    keystore_location: Path
    key_password: str | None = field(default=None, repr=False)
    truststore_location: Path | None = None
    client_auth: ClientAuth = "none"
    enabled_protocols: tuple[str, ...] = tuple(PROTOCOLS)
    principal_mapping_rules: str = "DEFAULT"
