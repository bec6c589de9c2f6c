"""Checks of options that the source and the sink share: unknown and refused names, and the address of a store."""

from collections.abc import Mapping

from logstore.client.addresses import parse_bootstrap
from logstore.errors import InvalidRequestError
from logstore.spark.option_values import OptionValues

BOOTSTRAP = ("bootstrap.servers", "kafka.bootstrap.servers")
#: A hint for users who give the port of a Kafka broker out of habit.
HTTP_PORT = (
    "The option bootstrap.servers names the HTTP port of a store (8082 unless it is configured otherwise), not a "
    "listener of Kafka"
)

# Ignoring these silently would send records over a link that the user believes to be protected.
_SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
_SECURITY_REASON = (
    "the store is asked over HTTP and has no authentication; for TLS give bootstrap.servers as https://host:port"
)
_PLAINTEXT = ("kafka.security.protocol", "PLAINTEXT")
#: Names that are checked, and may be misspelt.
_LOOKED_AT = (_PLAINTEXT[0], "kafka.sasl.mechanism", "kafka.sasl.jaas.config")
_PATH_HINTS = {"source": "name the topic with the option subscribe, and leave the argument of load() out"}


def check_names(values: OptionValues, owner: str, names: tuple[str, ...], refused: Mapping[str, str]) -> list[str]:
    """Return the given options of Kafka's clients that have no effect, as text for the log.

    ``owner`` is "source" or "sink", and has ``names``; ``refused`` has options and reasons. Raises InvalidRequestError
    for these, and for an unknown option.
    """
    ignored = []
    for name in values.unknown():
        kafka_name = name.removeprefix("kafka.")
        if name in refused:
            raise InvalidRequestError(f"Kafka option '{kafka_name}' is not supported: {refused[name]}")
        if name.startswith(_SECURITY) and (name, values.text(name).upper()) != _PLAINTEXT:
            raise InvalidRequestError(f"Kafka option '{kafka_name}' is not supported: {_SECURITY_REASON}")
        if kafka_name == name:
            near = values.near(name)
            hint = f"did you mean {near}?" if near else f"the {owner} has {', '.join(names)}"
            if name == "path":
                hint = _PATH_HINTS.get(owner, hint)
            raise InvalidRequestError(f"The {owner} has no option '{name}': {hint}")
        ignored.append(values.shown(name, (*refused, *_LOOKED_AT)))
    return ignored


def check_bootstrap(values: OptionValues) -> tuple[str, ...]:
    """Return the addresses of a store, none without the option. Raises InvalidRequestError."""
    name = values.given(BOOTSTRAP)
    text = values.text(name)
    try:
        return parse_bootstrap(text) if text else ()
    except InvalidRequestError as error:
        raise InvalidRequestError(f"option {name}: {error.message}. {HTTP_PORT}") from None
